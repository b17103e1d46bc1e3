"""Prints the paper's results beside ours: `python -m benchmarks.paper [--only NAME ...]`.

Without flags: everything, at the paper's sizes, which takes hours on two cores and can be stopped
and started again. `--quick` shows in a minute or so that everything runs, on the embedded digits.
`--publish` also writes docs/notes/results.json, the page docs/notes/results.md that is generated
from it, and its pictures; the JSON files of the other benchmarks in `--benchmarks_dir` go onto the
page too, and those alone with `--only --publish`.
"""

import argparse
import os
import pathlib
import sys
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks.paper import page, runner
from benchmarks.paper.bench import Bench
from benchmarks.paper.ensembles import Workshop
from benchmarks.paper.rows import Row
from benchmarks.paper.setting import FULL, QUICK
from pate_tf.core import artifacts


def show(row: Row) -> None:
    shown = {**row.cells, **row.resources}
    cells = "; ".join(f"{heading}: {cell}" for heading, cell in shown.items() if cell)
    print(f"  {row.what}: {cells} [{row.seconds:.1f} s]", flush=True)
    if row.why:
        print(f"    {row.why}")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", metavar="NAME", help=", ".join(runner.EXPERIMENTS))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--data_dir", type=pathlib.Path, default="../shared/tfds", help="images")
    parser.add_argument("--tables_dir", type=pathlib.Path, default="../shared/data", help="tables")
    parser.add_argument("--output_dir", type=pathlib.Path, default="runs/paper")
    parser.add_argument("--seed", type=int, default=0, help="of training; not of the noise")
    parser.add_argument("--insecure_seed", type=int, help="of the noise; for tests")
    parser.add_argument("--publish", action="store_true", help="write the results page, too")
    parser.add_argument("--benchmarks_dir", type=pathlib.Path, default="runs/benchmarks")
    parser.add_argument("--docs_dir", type=pathlib.Path, default="docs/notes")
    return parser.parse_args()


def main() -> int:
    flags = parse()
    setting = QUICK if flags.quick else FULL
    names = list(runner.EXPERIMENTS) if flags.only is None else flags.only
    typed = " --quick" if flags.quick else ""
    typed += f" --seed={flags.seed}" if flags.seed else ""
    if flags.insecure_seed is not None:
        typed += f" --insecure_seed={flags.insecure_seed}"
    try:
        runner.check_names(names)
        data_dirs = dict.fromkeys(("mnist", "fashion_mnist", "svhn"), flags.data_dir)
        data_dirs |= dict.fromkeys(("adult", "diabetes"), flags.tables_dir)
        bench = Bench(
            setting=setting,
            workshop=Workshop(
                folder=flags.output_dir / artifacts.SENSITIVE,
                data_dirs=data_dirs | {"digits": None},
                seed=flags.seed,
            ),
            folder=flags.output_dir / "units",
            insecure_seed=flags.insecure_seed,
            report=lambda line: print(f"  ... {line}", file=sys.stderr, flush=True),
        )
        results: dict[str, Any] = {"experiments": {}}
        for name in names:
            print(f"\n{name}. {runner.EXPERIMENTS[name].title}", flush=True)
            results = runner.run(bench, name, output_dir=flags.output_dir, flags=typed, show=show)
        if flags.publish:
            page.publish(results, flags.benchmarks_dir, flags.docs_dir)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
