"""How fast a served student answers: `python benchmarks/serving.py --data_dir=../shared/tfds`.

Exports a model with fresh weights, loads it back by `tf.saved_model.load`, and prints p50 and p99
of the time that a request to `serving_default` takes, for batches of 1 and of 64, beside the same
of a call of the Keras model, request by request in turn; and the size on disk. Writes
`serving.json` into `--output_dir`.
"""

import argparse
import json
import os
import pathlib
import platform
import tempfile
import time
from collections.abc import Callable

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import tensorflow as tf

from pate_tf.data import catalogue as data
from pate_tf.models import catalogue as models
from pate_tf.serving.export import export_student
from pate_tf.serving.signatures import student_digest

BATCHES = (1, 64)
WARM_UP = 20  # requests that do not count


def milliseconds(answer: Callable[[tf.Tensor], tf.Tensor], inputs: tf.Tensor) -> float:
    begin = time.perf_counter()
    answer(inputs).numpy()
    return 1_000 * (time.perf_counter() - begin)


def latencies(
    served: Callable[[tf.Tensor], tf.Tensor],
    keras_model: Callable[[tf.Tensor], tf.Tensor],
    inputs: tf.Tensor,
    num_requests: int,
) -> dict[str, float]:
    """p50 and p99 in milliseconds of both, and their ratio at p50."""
    times = np.array(
        [
            [milliseconds(answer, inputs) for answer in (served, keras_model)]
            for _ in range(WARM_UP + num_requests)
        ][WARM_UP:]
    )
    (p50, keras_p50), (p99, keras_p99) = np.percentile(times, [50, 99], axis=0)
    return {
        "p50": p50,
        "p99": p99,
        "keras p50": keras_p50,
        "keras p99": keras_p99,
        "ratio": p50 / keras_p50,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--data_dir", type=pathlib.Path)
    parser.add_argument("--model", default="cnn", help="as train_student.py takes it")
    parser.add_argument("--requests", type=int, default=2_000, help="of each batch size")
    parser.add_argument("--output_dir", type=pathlib.Path, default="runs/benchmarks")
    flags = parser.parse_args()
    public = data.load_public(flags.dataset, data_dir=flags.data_dir)
    dataset = public.dataset
    model = models.build(flags.model, dataset, seed=1)
    statement = {"student_digest": student_digest(model)}
    print(f"{os.cpu_count()} cores, {platform.machine()}, TensorFlow {tf.__version__}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = export_student(
            model, dataset, pathlib.Path(temporary), statement, formats=("onnx", "litert")
        )
        sizes = {
            path.relative_to(folder).as_posix(): path.stat().st_size / 1024
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }
        serve = tf.saved_model.load(str(folder)).signatures["serving_default"]
        print(f"{flags.dataset}, {flags.model}, {flags.requests} requests of each batch size")
        print("\n| batch | p50 | p99 | Keras p50 | Keras p99 | ratio at p50 |")
        print("|---|---|---|---|---|---|")
        rows = {}
        for batch in BATCHES:
            row = rows[batch] = latencies(
                lambda inputs: serve(**{dataset.input_name: inputs})["probabilities"],
                lambda inputs: tf.nn.softmax(model(tf.cast(inputs, tf.float32), training=False)),
                tf.constant(public.inputs[:batch]),
                flags.requests,
            )
            cells = [f"{row[key]:.2f} ms" for key in ("p50", "p99", "keras p50", "keras p99")]
            print(f"| {batch} | {' | '.join(cells)} | {row['ratio']:.2f} |", flush=True)
    print("\n| file | KiB |")
    print("|---|---|")
    for name, size in sizes.items():
        print(f"| {name} | {size:.1f} |")
    flags.output_dir.mkdir(parents=True, exist_ok=True)
    results = {"latency in milliseconds": rows, "size in KiB": sizes}
    (flags.output_dir / "serving.json").write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
