"""Measures simulated silos: `python -m benchmarks.silos [--only survival skew]`.

250 silos share MNIST's private records, and every answer goes through a silo's account. Whatever
was measured is kept in `--folder`: the same command goes on where it was stopped. `--quick` shows
in a few seconds that everything runs, on the embedded digits. `--only sums` compares feature sums
of silos with those of one holder; `--networks 1 5` follows one holder and five silos to a student,
and `--json=FILE` writes the table for the page of results. `--picture=FILE` draws the students.
`--teachers ridge` takes least squares on features of the public pool instead of forests.
"""

import argparse
import dataclasses
import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks.silos import central, skew, survival, tables
from benchmarks.silos.kept import Bench
from benchmarks.silos.setting import FOREST, FULL, QUICK, TEACHERS
from pate_tf.core import artifacts

PARTS = ("survival", "secure", "skew", "students", "sums")


def main() -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--teachers", nargs="+", choices=TEACHERS, default=(FOREST,))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--data_dir", type=pathlib.Path, default="../shared/tfds")
    parser.add_argument("--folder", type=pathlib.Path, default="runs/silos_benchmark")
    parser.add_argument("--picture", type=pathlib.Path)
    parser.add_argument("--networks", type=int, nargs="*", default=())
    parser.add_argument("--json", type=pathlib.Path)
    flags = parser.parse_args()
    bench = Bench(
        setting=dataclasses.replace(QUICK if flags.quick else FULL, teachers=tuple(flags.teachers)),
        folder=flags.folder,
        data_dir=None if flags.quick else flags.data_dir,
        report=lambda line: print(f"  ... {line}", file=sys.stderr, flush=True),
    )
    for name, module in (("survival", survival), ("secure", central), ("skew", skew)):
        if name in flags.only:
            show = getattr(tables, name)
            print(f"\n{name}\n\n{show(list(module.rows(bench)))}", flush=True)
    if "skew" in flags.only:
        fewest, median, most = skew.sizes(bench)
        print(f"\nskewed silos hold {fewest:,} to {most:,} records, {median:,} in the median")
    if "students" in flags.only:
        from benchmarks.silos import students  # TensorFlow comes with it

        found = list(students.rows(bench))
        print(f"\nstudents\n\n{tables.students(found)}")
        if flags.picture is not None:
            tables.draw(found, flags.picture)
    if "sums" in flags.only:
        from benchmarks.silos import sums

        compared = tables.sums(list(sums.rows(bench, flags.networks)))
        head = ["silos", *next(iter(compared.values()))]
        shown = tables.table(head, ([name, *row.values()] for name, row in compared.items()))
        print(f"\nsums\n\n{shown}", flush=True)
        if flags.json is not None:
            flags.json.parent.mkdir(parents=True, exist_ok=True)
            artifacts.write_json(flags.json, compared)
    return 0


if __name__ == "__main__":
    sys.exit(main())
