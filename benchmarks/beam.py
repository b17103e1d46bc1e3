"""Feature sums, and labels of a pool, by Apache Beam: seconds and memory by the number of rows.

    python -m benchmarks.beam
    python -m benchmarks.beam --rows=60000 --only="alone;beam, 2 processes" --data_dir=DIR

Rows are of a synthetic table of 16 numbers, a million of them in ten row groups. Each size runs in
processes of its own. The sums of all modes must have one digest. The first three sizes give a line,
which is held against the others. Seconds are those of all cores together, MiB the most memory of
one process. With `--data_dir` they are the sums of MNIST's 60,000 images, as numbers.
"""

import argparse
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
from typing import Any

import numpy as np

from benchmarks.scale.model import fitted

COLUMNS, GROUP = 16, 100_000
MOST_ALONE = 1_000_000
TWO = ("--direct_running_mode=multi_processing", "--direct_num_workers=2")
# Options of Beam's; None: without Beam.
MODES = {
    "alone": None,
    "beam": (),
    "beam, 2 processes": TWO,
    "owners, 2 processes": TWO,
    "labels, 2 processes": TWO,
    "features, 2 processes": TWO,
}


def write(folder: pathlib.Path, number: int) -> None:
    """Writes a public file, a schema and private rows, a group at a time."""
    import pyarrow
    from pyarrow import parquet

    names = [f"x{place}" for place in range(COLUMNS)]
    columns = "".join(f"[columns.{name}]\nlow = -4\nhigh = 4\n" for name in names)
    (folder / "schema.toml").write_text(f'label = "y"\nclasses = ["0", "1"]\n{columns}')

    def table(size: int, seed: int) -> "pyarrow.Table":
        random = np.random.default_rng(seed)
        inputs = random.normal(size=(size, COLUMNS)).astype(np.float32)
        labels = (inputs[:, 0] > 0.5).astype(np.int64)
        owners = random.integers(max(1, number // 10), size=size)
        columns = {**dict(zip(names, inputs.T, strict=True)), "y": labels, "owner": owners}
        return pyarrow.table(columns)

    parquet.write_table(table(2_000, 0).drop(["owner"]), folder / "public.parquet")
    first = table(1, 1)
    with parquet.ParquetWriter(
        folder / "private.parquet", first.schema, compression="none", use_dictionary=False
    ) as writer:
        for start in range(0, number, GROUP):
            writer.write_table(table(min(GROUP, number - start), 1 + start))


def data_of(folder: pathlib.Path, mode: str, data_dir: pathlib.Path | None) -> Any:
    """Returns where the rows lie."""
    from pate_tf.api.data import FileSource
    from pate_tf.api.run_folder import DataSource

    if data_dir is not None:
        return DataSource(dataset="mnist", data_dir=data_dir)
    files = FileSource(
        public=folder / "public.parquet",
        private=folder / "private.parquet",
        schema=folder / "schema.toml",
        owner="owner" if mode.startswith("owners") else None,
    )
    return DataSource(files=files)


def write_student(folder: pathlib.Path, data: Any) -> None:
    """Trains a small student on sums of the first rows, and stores it where `predict` reads it."""
    import pate_tf
    from pate_tf.api.reporting import QUIET

    private, public = data.load_private(QUIET), data.load_public(QUIET)
    pool = public.split(public.dataset.pool_size).pool
    sums = pate_tf.FeatureSums(directory=folder / "run").fit(private, pool)
    with pate_tf.Labeller(sums, epsilon=8.0, delta=1e-6) as labeller:
        labels = labeller.label(pool)
    student = pate_tf.Student("supervised", steps=50).fit(pool, labels)
    pate_tf.publish(student, folder / "run" / "released")


def measure(folder: pathlib.Path, mode: str, data_dir: pathlib.Path | None) -> None:
    """Does one job once, and prints what it took as JSON."""
    from pate_tf.api.feature_sums import FeatureSums, SumsSettings
    from pate_tf.api.reporting import QUIET
    from pate_tf.beam import pipelines
    from pate_tf.core import artifacts

    data, options, found = data_of(folder, mode, data_dir), MODES[mode], {}
    began, engine = time.monotonic(), pipelines.Engine(options=options or ())
    with tempfile.TemporaryDirectory() as run:
        if mode == "alone":
            public = data.load_public(QUIET)
            sums = FeatureSums(directory=run, representation="raw")
            pool = public.split(public.dataset.pool_size).pool
            stored = sums.fit(data.load_private(QUIET), pool).stored
            found["digest"] = artifacts.digest_array(stored.table)
        elif mode.startswith(("labels", "features")):
            student = folder.parent / "student" / "run"
            named: dict[str, Any] = {"student": student / "released/student/1"}
            if mode.startswith("features"):
                named = {"features_of": student}
            inputs = str(folder / "private.parquet")
            pipelines.predict(data, output=run, inputs=inputs, engine=engine, **named)
        else:
            settings = SumsSettings(representation="raw")
            stored = pipelines.sums(data, directory=run, settings=settings, engine=engine)
            found["digest"] = artifacts.digest_array(stored.table)
    own, of_workers = (
        resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    found |= {
        "seconds": sum(one.ru_utime + one.ru_stime for one in (own, of_workers)),
        "on the clock": time.monotonic() - began,
        "MiB": max(own.ru_maxrss, of_workers.ru_maxrss) / 1024,
    }
    print(json.dumps(found))


def run_fresh(folder: pathlib.Path, mode: str, data_dir: pathlib.Path | None) -> dict[str, Any]:
    """Returns what `measure` prints in a process of its own."""
    flags = [f"--folder={folder}", f"--only={mode}"]
    flags += [] if data_dir is None else [f"--data_dir={data_dir}"]
    ended = subprocess.run(
        [sys.executable, "-m", "benchmarks.beam", *flags],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def report(mode: str, rows: list[dict[str, Any]]) -> None:
    """Prints the table of a mode, and its lines."""
    names = ("seconds", "on the clock", "MiB")
    first = rows[:3]
    print(f"\n{mode}\n\n| rows | {' | '.join(f'{name} | predicted' for name in names)} |")
    print("|---" * 7 + "|")
    lines = {}
    if len(first) == 3:
        sizes = [one["rows"] for one in first]
        lines = {name: fitted(sizes, [one[name] for one in first], 1.0) for name in names}
    for one in rows:
        cells = [f"{one['rows']:,}"]
        for name in names:
            cells.append(f"{one[name]:,.1f}")
            constant, slope = lines.get(name, (float("nan"),) * 2)
            value = constant + slope * one["rows"]
            off = "" if one in first else f" ({value / one[name] - 1.0:+.0%})"
            cells.append(f"{value:,.1f}{off}" if lines else "")
        print(f"| {' | '.join(cells)} |")
    for name, (constant, slope) in lines.items():
        print(f"\n{name} = {constant:.4g} + {slope * 1e6:.4g} (rows / 1,000,000)")


def main() -> None:
    """Runs all sizes and modes, and prints tables and lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="100000,300000,1000000,10000000")
    parser.add_argument("--only", default="alone;beam")
    parser.add_argument("--data_dir", type=pathlib.Path, help="of TensorFlow Datasets, for MNIST")
    parser.add_argument("--folder", type=pathlib.Path, help="(of one run)")
    asked = parser.parse_args()
    if asked.folder is not None:
        measure(asked.folder, asked.only, asked.data_dir)
        return
    modes = asked.only.split(";")
    found: dict[str, list[dict[str, Any]]] = {mode: [] for mode in modes}
    with tempfile.TemporaryDirectory() as place:
        if any(mode.startswith(("labels", "features")) for mode in modes):
            folder = pathlib.Path(place) / "student"
            folder.mkdir()
            write(folder, 10_000)
            write_student(folder, data_of(folder, "labels", None))
        for number in map(int, asked.rows.split(",")):
            folder = pathlib.Path(place) / "rows"
            folder.mkdir(exist_ok=True)
            if asked.data_dir is None:
                write(folder, number)
            digests = {}
            for mode in modes:
                if mode == "alone" and number > MOST_ALONE:
                    continue
                one = run_fresh(folder, mode, asked.data_dir)
                digests[mode] = one.pop("digest", None)
                found[mode].append({"rows": number, **one})
                print(f"{number:,} rows, {mode}: {one}", flush=True)
            sums = {digest for mode, digest in digests.items() if mode in list(MODES)[:3]}
            if len(sums) > 1:
                raise ValueError(f"{number:,} rows: expected one digest, got {digests}")
    for mode, rows in found.items():
        report(mode, rows)


if __name__ == "__main__":
    main()
