"""Feature sums of a synthetic table by Apache Beam: seconds and memory by the number of rows.

    python -m benchmarks.beam --rows=100000,300000,1000000,10000000

Each size runs in processes of its own, by one worker in this process and by two worker processes;
up to a million rows one process without Beam, too, whose digest must be the same. The first three
sizes give a line; the fourth is held against it. Seconds are those of all cores together, MiB the
most memory of one process.
"""

import argparse
import json
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np

COLUMNS, GROUP = 16, 100_000
MOST_ALONE = 1_000_000
MODES = {
    "alone": None,
    "beam": (),
    "beam, 2 processes": ("--direct_running_mode=multi_processing", "--direct_num_workers=2"),
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
        return pyarrow.table({**dict(zip(names, inputs.T, strict=True)), "y": labels})

    parquet.write_table(table(2_000, 0), folder / "public.parquet")
    first = table(1, 1)
    with parquet.ParquetWriter(folder / "private.parquet", first.schema) as writer:
        for start in range(0, number, GROUP):
            writer.write_table(table(min(GROUP, number - start), 1 + start))


def measure(folder: pathlib.Path, mode: str) -> None:
    """Computes sums once, and prints what it took as JSON."""
    from pate_tf.api.data import FileSource
    from pate_tf.api.feature_sums import FeatureSums
    from pate_tf.api.run_folder import DataSource
    from pate_tf.beam import pipelines

    files = FileSource(
        public=folder / "public.parquet",
        private=folder / "private.parquet",
        schema=folder / "schema.toml",
    )
    options, began = MODES[mode], time.monotonic()
    with tempfile.TemporaryDirectory() as run:
        if options is None:
            public = files.load_public()
            size = public.dataset.pool_size
            sums = FeatureSums(directory=run)
            stored = sums.fit(files.load_private(public), public.split(size).pool).stored
        else:
            engine = pipelines.Engine(options=options)
            stored = pipelines.sums(DataSource(files=files), directory=run, engine=engine)
    own, of_workers = (
        resource.getrusage(whose) for whose in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    found = {
        "seconds": sum(one.ru_utime + one.ru_stime for one in (own, of_workers)),
        "clock": time.monotonic() - began,
        "MiB": max(own.ru_maxrss, of_workers.ru_maxrss) / 1024,
        "digest": stored.digest,
    }
    print(json.dumps(found))


def main() -> None:
    """Runs all sizes and modes, and prints a table and lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="100000,300000,1000000,10000000")
    parser.add_argument("--only", choices=list(MODES))
    parser.add_argument("--folder", type=pathlib.Path, help="(of one run)")
    asked = parser.parse_args()
    if asked.folder is not None:
        measure(asked.folder, asked.only)
        return
    sizes = [int(one) for one in asked.rows.split(",")]
    found: dict[str, list[dict[str, float]]] = {mode: [] for mode in MODES}
    for number in sizes:
        with tempfile.TemporaryDirectory() as folder:
            write(pathlib.Path(folder), number)
            digests = set()
            for mode in [asked.only] if asked.only else MODES:
                if mode == "alone" and number > MOST_ALONE:
                    continue
                ended = subprocess.run(
                    [
                        *(sys.executable, "-m", "benchmarks.beam"),
                        *(f"--folder={folder}", f"--only={mode}"),
                    ],
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                one = json.loads(ended.stdout.splitlines()[-1])
                digests.add(one.pop("digest"))
                found[mode].append({"rows": number, **one})
                print(f"{mode}: {found[mode][-1]}", flush=True)
            print(f"{number:,} rows: {len(digests)} digest", flush=True)
    for mode, rows in found.items():
        for what in ("seconds", "MiB"):
            if len(rows) > 3:
                slope, constant = np.polyfit(
                    [one["rows"] for one in rows[:3]], [one[what] for one in rows[:3]], 1
                )
                predicted = constant + slope * rows[3]["rows"]
                print(
                    f"{mode}: {what} = {constant:.1f} + {slope * 1e6:.2f} a million rows; "
                    f"predicted {predicted:.1f}, found {rows[3][what]:.1f} "
                    f"({rows[3][what] / predicted - 1:+.0%})"
                )


if __name__ == "__main__":
    main()
