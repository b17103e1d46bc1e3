"""Keras architectures by the name that `--model` takes.

Every model takes raw inputs `[batch, *input_shape]` as the data set holds them and returns logits
`[batch, num_classes]`: scaling is a part of the model, so that it is served with it.
"""

import contextlib
import functools
import pathlib
import random
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pate_tf.core.dataset import Dataset
from pate_tf.data.named_function import Named, call_function, is_named_function, name_of

layers = keras.layers
SMALLEST_IMAGE = 6  # for three convolutions and a pooling
NO_SEED = 87654321  # what TensorFlow calls its global seed where none was set

Builder = Callable[[Dataset], keras.Model]


def _scaled_input(dataset: Dataset) -> list[Any]:
    low, high = (np.asarray(values) for values in dataset.value_range)
    scale = 1.0 / (high - low)
    rescaling = layers.Rescaling(scale.tolist(), offset=(-low * scale).tolist())
    return [keras.Input(dataset.input_shape), rescaling]


def _check_image(dataset: Dataset, smallest: int = 0) -> None:
    if dataset.kind != "image":
        raise ValueError(f"model: expected images, got {dataset.kind} {dataset.name}")
    height, width = dataset.input_shape[:2]
    if min(height, width) < smallest:
        raise ValueError(
            f"model: expected images of at least {smallest} x {smallest}, got {height} x {width}; "
            f"mlp takes inputs of any shape"
        )


def _three_convolutions(dataset: Dataset, channels: tuple[int, int, int]) -> keras.Model:
    """Three small convolutions: learns from a few hundred images in about half a second."""
    _check_image(dataset, SMALLEST_IMAGE)
    size, stride = (4, 2) if min(dataset.input_shape[:2]) >= 16 else (3, 1)
    first, second, third = channels
    return keras.Sequential(
        [
            *_scaled_input(dataset),
            layers.Conv2D(first, size, strides=stride, padding="same", activation="relu"),
            layers.Conv2D(second, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(third, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(dataset.num_classes),
        ]
    )


def mlp(dataset: Dataset) -> keras.Model:
    """One hidden layer of 128 units, for inputs of any shape."""
    return keras.Sequential(
        [
            *_scaled_input(dataset),
            layers.Flatten(),
            layers.Dense(128, activation="relu"),
            layers.Dense(dataset.num_classes),
        ]
    )


def _paper(dataset: Dataset, hidden: tuple[int, ...]) -> keras.Model:
    """The paper's: two 5x5 convolutions with max-pooling, and dense layers."""
    _check_image(dataset)
    return keras.Sequential(
        [
            *_scaled_input(dataset),
            layers.Conv2D(64, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(3, strides=2, padding="same"),
            layers.Conv2D(128, 5, padding="same", activation="relu"),
            layers.MaxPooling2D(3, strides=2, padding="same"),
            layers.Flatten(),
            *(layers.Dense(units, activation="relu") for units in hidden),
            layers.Dense(dataset.num_classes),
        ]
    )


def deeper(dataset: Dataset) -> keras.Model:
    """Three pairs of 3x3 convolutions and two dense layers with dropout, for larger shares."""
    _check_image(dataset)
    blocks: list[Any] = []
    for filters in (48, 96, 128):
        blocks += [
            layers.Conv2D(filters, 3, padding="same", activation="relu"),
            layers.Conv2D(filters, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(2, padding="same"),
            layers.Dropout(0.2),
        ]
    return keras.Sequential(
        [
            *_scaled_input(dataset),
            *blocks,
            layers.Flatten(),
            layers.Dense(256, activation="relu"),
            layers.Dropout(0.5),
            layers.Dense(dataset.num_classes),
        ]
    )


BUILDERS: dict[str, Builder] = {
    "cnn": functools.partial(_three_convolutions, channels=(16, 32, 48)),
    # For students, which learn from the whole pool.
    "wide_cnn": functools.partial(_three_convolutions, channels=(32, 64, 96)),
    "mlp": mlp,
    "deeper": deeper,
    "paper_mnist": functools.partial(_paper, hidden=(384,)),
    "paper_svhn": functools.partial(_paper, hidden=(384, 384, 192)),
}


def default_model(dataset: Dataset) -> str:
    """The name of the model used where the user names none."""
    return "cnn" if dataset.kind == "image" else "mlp"


@contextlib.contextmanager
def _seeded_initializers(seed: int) -> Iterator[None]:
    # Keras draws the seeds of initializers and dropout from Python's generator when a layer is
    # made; the caller's generator gets its state back.
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Fixes everything that draws from a global generator: Python's, NumPy's, TensorFlow's, Keras'.

    For code of other people's that knows no other, such as Keras' `fit`. The callers' generators
    get their states back; TensorFlow's, which gives none away, begins again at the seed that it
    had.
    """
    before = tf.compat.v1.get_seed(0)[0]
    states = random.getstate(), np.random.get_state()
    keras.utils.set_random_seed(seed)
    try:
        yield
    finally:
        keras.utils.set_random_seed(seed)  # how far Keras' own went may depend on private records
        random.setstate(states[0])
        np.random.set_state(states[1])
        tf.random.set_seed(None if before == NO_SEED else before)


def build(name: Named, dataset: Dataset, *, seed: int = 0) -> keras.Model:
    """Builds a Keras model from raw inputs to logits, and checks that it fits the data set.

    Args:
        name: one of `BUILDERS`, or a function of the user's own, itself or as `module:function`.
        dataset: whose inputs and classes it has.
        seed: fixes initial weights and dropout.

    A model that is not compiled and ends in a softmax gets the logarithms of its probabilities for
    logits, with a warning. There is one for layers that hold statistics of data, too.

    Raises:
        ValueError: if the model is unknown or does not map inputs of the data set to logits.
    """
    is_shipped = isinstance(name, str) and name in BUILDERS
    if not (is_shipped or is_named_function(name)):
        raise ValueError(
            f"model: expected one of {', '.join(BUILDERS)} or module:function, got {name!r}"
        )
    with _seeded_initializers(seed):
        if is_shipped:
            model = BUILDERS[str(name)](dataset)
        else:
            model = call_function(name, dataset, flag="model")
    check_model(model, dataset, name_of(name))
    adapted = {type(layer).__name__ for layer in model._flatten_layers() if holds_statistics(layer)}
    if adapted:
        warnings.warn(
            f"model {name_of(name)}: {', '.join(sorted(adapted))} holds statistics of data, which "
            f"nothing charges: they must come from public data alone",
            stacklevel=2,
        )
    if not model.compiled and ends_in_softmax(model):
        warnings.warn(
            f"model {name_of(name)}: expected logits, got probabilities of a softmax; their "
            f"logarithms are taken instead",
            stacklevel=2,
        )
        return with_logits(model)
    return model


def ends_in_softmax(model: keras.Model) -> bool:
    """Whether the last layer of a model, or of the model that is its last layer, is a softmax."""
    # Of functional models `keras.ops` are operations, too.
    operations = getattr(model, "operations", model.layers)
    last = operations[-1] if operations else None
    if isinstance(last, keras.Model):
        return ends_in_softmax(last)
    is_activation = getattr(last, "activation", None) is keras.activations.softmax
    return is_activation or type(last).__name__ == "Softmax"


def with_logits(model: keras.Model) -> keras.Model:
    """Returns a model of probabilities as one of their logarithms, which are logits of them."""
    probabilities = keras.ops.cast(model.outputs[0], "float32")
    smallest = float(np.finfo(np.float32).tiny)
    return keras.Model(model.inputs[0], keras.ops.log(keras.ops.maximum(probabilities, smallest)))


def holds_statistics(layer: keras.Layer) -> bool:
    """Whether a preprocessing layer of Keras was adapted to data, or was given their statistics."""
    if isinstance(layer, layers.Normalization) and layer.input_mean is None:
        mean, variance = (np.asarray(each) for each in (layer.adapt_mean, layer.adapt_variance))
        return bool(mean.any() or (variance != 1.0).any())
    if isinstance(layer, layers.Discretization):
        return layer.bin_boundaries is not None
    if isinstance(layer, (layers.StringLookup, layers.IntegerLookup, layers.TextVectorization)):
        return bool(layer.get_vocabulary(include_special_tokens=False))
    return isinstance(layer, layers.Normalization)


def check_model(model: Any, dataset: Dataset, name: str) -> None:
    """Raises ValueError unless a Keras model maps a data set's raw inputs to a number a class."""
    if not isinstance(model, keras.Model):
        raise ValueError(f"model {name}: expected a Keras model, got {type(model).__name__}")
    if not (model.built and hasattr(model, "input_shape")):
        raise ValueError(
            f"model {name}: expected a Sequential or functional Keras model, got one that does not "
            f"know its input; begin with keras.Input(dataset.input_shape)"
        )
    if wrong := {weight.dtype for weight in model.trainable_weights} - {"float32"}:
        raise ValueError(
            f"model {name}: expected weights of float32, got {', '.join(sorted(wrong))}; "
            f"mixed_float16 and mixed_bfloat16 keep them"
        )
    expected_in, expected_out = (None, *dataset.input_shape), (None, dataset.num_classes)
    if tuple(model.input_shape) != expected_in or tuple(model.output_shape) != expected_out:
        raise ValueError(
            f"model {name}: expected {list(expected_in)} to {list(expected_out)} for "
            f"{dataset.name}, got {list(model.input_shape)} to {list(model.output_shape)}"
        )


def load_keras_file(path: pathlib.Path) -> Any:
    """Returns the model of a `.keras` file; one that would run code of its own is refused.

    Raises:
        ValueError: if there is no such model.
    """
    try:
        return keras.saving.load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # Keras and zipfile each raise their own kinds
        raise ValueError(
            f"{path}: expected a Keras model that needs no code of its own, got "
            f"{type(error).__name__}"
        ) from error


# Where a model draws at random from: its own generators, or those that a whole process shares.


# Draws whose state is no variable of anybody's.
SHARED_STATE = {
    *("RandomUniform", "RandomUniformInt", "RandomStandardNormal", "TruncatedNormal"),
    *("ParameterizedTruncatedNormal", "RandomShuffle", "Multinomial", "RandomGamma"),
    *("RandomPoisson", "RandomPoissonV2"),
}


def check_draws(model: keras.Model, *, training: bool) -> None:
    """Checks that what a model computes depends on its inputs and its own variables alone.

    A shared generator, or a variable that Keras does not know, would be the same for all teachers
    of a process, and can't be exported.

    Args:
        model: built.
        training: whether it is called as in training; else as in answering.

    Raises:
        ValueError: if it reads something else.
    """
    signature = tf.TensorSpec([1, *model.input_shape[1:]], tf.float32)
    called = tf.function(lambda inputs: model(inputs, training=training), autograph=False)
    graph = called.get_concrete_function(signature).graph
    # In the scope of a strategy a variable has a part on each device, which the graph reads.
    held = [variable.value for variable in model.variables]
    parts = [part for variable in held for part in getattr(variable, "values", ())]
    owned = {variable.ref() for variable in (*held, *parts)}
    others = [variable for variable in graph.variables if variable.ref() not in owned]
    definition = graph.as_graph_def()
    functions = [node for function in definition.library.function for node in function.node_def]
    if others or any(node.op in SHARED_STATE for node in (*definition.node, *functions)):
        raise ValueError(
            "model: expected one that reads variables of its own and draws from generators of its "
            "own alone, got one that shares some with all models of a process; give the layer a "
            "keras.random.SeedGenerator of its own, and draw with `seed=` it"
        )
