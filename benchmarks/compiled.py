"""What a compiled Keras model costs in time, against the same model in the traced loop.

    python -m benchmarks.compiled

Teachers of the embedded digits, all of one network, each the same number of steps: not compiled,
trained in one traced loop; compiled, trained by Keras' own `fit`. Both include the start.
"""

import argparse
import pathlib
import tempfile
import time

import keras

import pate_tf


def net(dataset: pate_tf.Dataset) -> keras.Model:
    """One hidden layer, not compiled."""
    return keras.Sequential(
        [
            keras.Input(dataset.input_shape),
            keras.layers.Rescaling(1 / 16),
            keras.layers.Flatten(),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(dataset.num_classes),
        ]
    )


def compiled(dataset: pate_tf.Dataset) -> keras.Model:
    """The same, compiled."""
    model = net(dataset)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def main() -> None:
    """Measures both, and prints seconds and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nb_teachers", type=int, default=50)
    parser.add_argument("--max_steps", type=int, default=150)
    arguments = parser.parse_args()
    data = pate_tf.datasets.load("digits")
    seconds = {}
    for model in (net, compiled):
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            pate_tf.Teachers(
                model,
                num_teachers=arguments.nb_teachers,
                steps=arguments.max_steps,
                directory=pathlib.Path(folder),
            ).fit(data.private)
            seconds[model.__name__] = time.monotonic() - began
        each = seconds[model.__name__] / arguments.nb_teachers
        print(f"{model.__name__}: {seconds[model.__name__]:.1f} s, {each:.2f} s a teacher")
    print(f"compiled takes {seconds['compiled'] / seconds['net']:.1f} times as long")


if __name__ == "__main__":
    main()
