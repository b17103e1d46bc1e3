"""Scaling of time and memory: a cost model fitted on small sizes and compared with larger ones.

`python -m benchmarks.scale [--only PART ...]`

- `teachers`: ridge teachers of ten records each on 64 numbers, trained, stored, and queried with
  1,000 inputs through the labeller and its ledger.
- `pool`: ten steps of a contrastive representation of images of 28 x 28, and their features.
- `neighbors`: the graph of label propagation, which compares all pairs of inputs.
- `ledger`: answers stored and verified.
- `beam`, `without_beam`: feature sums of a synthetic table of 16 numbers in Parquet, in row groups
  of 100,000, each record protected; by Apache Beam in one process, and without it.

Each size runs in a separate process. Seconds are the sum over all cores, MiB the largest resident
memory. The model is a constant and a power of the size (2 for neighbors, else 1), fitted to the
first three sizes by least squares of relative errors. It predicts larger sizes; the relative error
is in brackets.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import numpy as np
import numpy.typing as npt

from benchmarks.harness import Measurements, markdown_table
from benchmarks.speed import label_through_ledger
from pate_tf.ledger.rollback_guard import STATE_VARIABLE

RECORDS, NUM_FEATURES, NUM_CLASSES, QUERIES = 10, 64, 10, 1_000
STEPS = 10  # of contrastive training
# Standard deviation of records around the mean of their class, so large that teachers make errors.
SPREAD = 3.2
COLUMNS, GROUP = 16, 100_000  # of the table


def synthetic(number: int, seed: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Returns records float32 `[number, NUM_FEATURES]` and labels."""
    centers = np.random.default_rng(0).normal(size=(NUM_CLASSES, NUM_FEATURES))
    random = np.random.default_rng(seed)
    labels = random.integers(0, NUM_CLASSES, number)
    noise = random.standard_normal((number, NUM_FEATURES), np.float32)
    return centers.astype(np.float32)[labels] + np.float32(SPREAD) * noise, labels


def teachers(number: int, folder: pathlib.Path) -> dict[str, float]:
    """Trains teachers, and releases labels of `QUERIES` queries."""
    import pate_tf

    inputs, truth = synthetic(QUERIES, seed=1)
    data = pate_tf.Data.from_arrays(
        *synthetic(number * RECORDS, seed=2),
        inputs,
        num_classes=NUM_CLASSES,
        value_range=(-20.0, 20.0),
        held_out=0.0,
    )
    began = time.process_time()
    trained = pate_tf.Teachers("ridge", num_teachers=number, directory=folder / "run")
    trained.fit(data.private, data.pool)
    training = time.process_time()
    mechanism = pate_tf.mechanisms.GaussianHistogram(sigma=number / 50)
    with pate_tf.Labeller(trained, mechanism, delta=1e-7) as labeller:
        labels = labeller.label(data.pool, len(data.pool))
    return {
        "train, store, load": training - began,
        "votes, counts, labels": time.process_time() - training,
        "labels correct": float((labels.labels == truth[labels.query_indices]).mean()),
    }


def pool(number: int, folder: pathlib.Path) -> dict[str, float]:
    """Trains briefly on images, and computes their features."""
    from pate_tf.core.public import Pool
    from pate_tf.data.datasets import MNIST
    from pate_tf.models.encoder import Encoder
    from pate_tf.representations import contrastive

    del folder
    contrastive.STEPS = STEPS
    images = np.random.default_rng(0).integers(0, 256, (number, 28, 28, 1), np.uint8)
    public = Pool(MNIST, images)
    began = time.process_time()
    part = contrastive.ContrastivePart(MNIST, 0)
    part.train(public)
    trained = time.process_time()
    encoder = Encoder(MNIST, [part], {})
    views = encoder.views(encoder.features(public.inputs))
    return {
        f"{STEPS} steps": trained - began,
        "features": time.process_time() - trained,
        "bytes an input": sum(view.nbytes for view in views) / number,
    }


def neighbors(number: int, folder: pathlib.Path) -> dict[str, float]:
    """Builds the graph of nearest neighbors, in views as wide as for MNIST."""
    from pate_tf.postprocessing.label_propagation import neighbour_graph

    del folder
    random = np.random.default_rng(0)
    views = [random.standard_normal((number, width), np.float32) for width in (256, 64, 256, 64)]
    began = time.process_time()
    graph = neighbour_graph(views)
    return {"graph": time.process_time() - began, "bytes an input": 8 * graph.nnz / number}


def ledger(number: int, folder: pathlib.Path) -> dict[str, float]:
    """Charges, labels and verifies."""
    result = label_through_ledger(number, folder / "run" / "sensitive")
    size = result.pop("MB")
    return {**result, "bytes an answer": 1e6 * size / number}


def write_table(folder: pathlib.Path, number: int) -> None:
    """Writes a public file, a schema and private rows, a row group at a time."""
    import pyarrow
    from pyarrow import parquet

    names = [f"x{place}" for place in range(COLUMNS)]
    columns = "".join(f"[columns.{name}]\nlow = -4\nhigh = 4\n" for name in names)
    (folder / "schema.toml").write_text(f'label = "y"\nclasses = ["0", "1"]\n{columns}')

    def rows(size: int, seed: int) -> Any:
        inputs = np.random.default_rng(seed).normal(size=(size, COLUMNS)).clip(-4, 4)
        inputs = inputs.astype(np.float32)
        labels = (inputs[:, 0] > 0.5).astype(np.int64)
        return pyarrow.table({**dict(zip(names, inputs.T, strict=True)), "y": labels})

    parquet.write_table(rows(2_000, 0), folder / "public.parquet")
    options = {"compression": "none", "use_dictionary": False}
    path = folder / "private.parquet"
    with parquet.ParquetWriter(path, rows(1, 1).schema, **options) as writer:
        for start in range(0, number, GROUP):
            writer.write_table(rows(min(GROUP, number - start), 1 + start))


def beam(number: int, folder: pathlib.Path) -> dict[str, float]:
    """Computes feature sums of files by Apache Beam."""
    from pate_tf import beam as beams

    write_table(folder, number)
    files = beams.FileSource(public=folder / "public.parquet", schema=folder / "schema.toml")
    began, private = time.monotonic(), str(folder / "private.parquet")
    data = beams.DataSource(files=files)
    beams.sums(data, directory=folder, representation="raw", private=private)
    return {"on the clock": time.monotonic() - began}


def without_beam(number: int, folder: pathlib.Path) -> dict[str, float]:
    """Computes the same sums in one process, which reads the table as a whole."""
    import pate_tf

    write_table(folder, number)
    began = time.monotonic()
    data = pate_tf.Data.from_csv(
        folder / "private.parquet", folder / "public.parquet", schema=folder / "schema.toml"
    )
    sums = pate_tf.FeatureSums(directory=folder / "run", representation="raw")
    sums.fit(data.private, data.pool)
    return {"on the clock": time.monotonic() - began}


# The measured parts and their sizes: the model is fitted on the first three and predicts the rest.
PARTS: Mapping[str, tuple[Callable[[int, pathlib.Path], dict[str, float]], tuple[int, ...]]] = {
    "teachers": (teachers, (1_000, 4_000, 10_000, 30_000, 100_000)),
    "pool": (pool, (2_000, 6_000, 12_000, 30_000, 60_000)),
    "neighbors": (neighbors, (2_000, 4_000, 8_000, 16_000)),
    "ledger": (ledger, (20_000, 50_000, 100_000, 300_000, 1_000_000)),
    "beam": (beam, (100_000, 300_000, 1_000_000, 10_000_000)),
    "without_beam": (without_beam, (100_000, 300_000, 1_000_000)),
}


def apart(part: str, number: int) -> dict[str, float]:
    """Measures one size in a separate process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.scale", "--child", part, str(number), folder]
        environment = {**os.environ, STATE_VARIABLE: f"{folder}/state"}
        child = subprocess.Popen(command, env=environment)
        _, status, usage = os.wait4(child.pid, 0)
        if status:
            raise SystemExit(f"{part} of {number} ended with {os.waitstatus_to_exitcode(status)}")
        result: dict[str, float] = json.loads((pathlib.Path(folder) / "result.json").read_text())
    return {"seconds": usage.ru_utime + usage.ru_stime, "MiB": usage.ru_maxrss / 2**10, **result}


def fitted(sizes: npt.ArrayLike, values: npt.ArrayLike, power: float) -> tuple[float, float]:
    """Returns a constant and the factor of `size ** power`, by least squares of relative errors."""
    x, y = np.asarray(sizes, np.float64) ** power, np.asarray(values, np.float64)
    design = np.stack([1.0 / y, x / y], axis=1)
    constant, slope = np.linalg.lstsq(design, np.ones(len(y)), rcond=None)[0]
    return float(constant), float(slope)


def report(part: str, results: Mapping[int, Mapping[str, float]]) -> str:
    """Returns the table of a part, by size, and its model."""
    first = list(results)[:3]
    powers = {"seconds": 2.0 if part == "neighbors" else 1.0, "MiB": 1.0}
    models = {
        name: fitted(first, [results[size][name] for size in first], power)
        for name, power in powers.items()
        if len(first) == 3
    }
    rows = []
    for size, values in results.items():
        row = {part: f"{size:,}"}
        for name, value in values.items():
            row[name] = f"{value:,.4g}"
            if name in models:
                constant, slope = models[name]
                predicted = constant + slope * size ** powers[name]
                off = "" if size in first else f" ({predicted / value - 1.0:+.0%})"
                row[f"{name}, predicted"] = f"{predicted:,.4g}{off}"
        rows.append(row)
    model = "; ".join(
        f"{name} = {constant:.4g} + {slope * 1e6 ** powers[name]:.4g} (size / 1,000,000)"
        + ("" if powers[name] == 1.0 else " ** 2")
        for name, (constant, slope) in models.items()
    )
    return f"{markdown_table(rows)}\n{model}\n"


def main() -> None:
    """Measures parts that are not stored, and prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--sizes", type=int, nargs="+", help="default: the sizes on the page")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("runs/scale"))
    parser.add_argument("--child", nargs=3, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.child:
        part, number, folder = flags.child[0], int(flags.child[1]), pathlib.Path(flags.child[2])
        result = PARTS[part][0](number, folder)
        (folder / "result.json").write_text(json.dumps(result))
        return
    measurements = Measurements(folder=flags.folder)
    for part in flags.only:
        results = {}
        for size in flags.sizes or PARTS[part][1]:

            def measure(part: str = part, size: int = size) -> dict[str, float]:
                return apart(part, size)

            results[size] = measurements.of(f"scale_{part}", {"size": size}, measure).result
        print(f"\n{report(part, results)}", flush=True)


if __name__ == "__main__":
    main()
