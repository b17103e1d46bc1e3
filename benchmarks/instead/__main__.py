"""What else could I use: `python -m benchmarks.instead --dataset=mnist`.

The same private records, public pool and test samples for all methods, each held to the same
epsilons at delta 1e-5 against replacement of one record. A table and a picture in `--output_dir`;
what is finished is kept, and a run that was stopped goes on. `--publish` puts its cells into
docs/notes/instead.md, in the place of earlier ones of the same kind. `--quick` shows in seconds
that everything runs, on the embedded digits.
"""

import argparse
import os
import pathlib
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from benchmarks.instead import page, picture, reference, runner
from benchmarks.instead.methods import LABEL_PRIVATE, METHODS
from benchmarks.instead.problem import Problem, data_dir_of
from benchmarks.paper.bench import Bench
from benchmarks.paper.ensembles import Workshop
from benchmarks.paper.runner import versions
from benchmarks.paper.setting import FULL, QUICK
from pate_tf.api.run_folder import DataSource
from pate_tf.core import artifacts
from pate_tf.representations.catalogue import CACHE_VARIABLE

EPSILONS = (0.05, 0.1, 0.25, 0.5, 1.0, 3.0, 8.0)
RESULTS, TABLE, PICTURE = "results.json", "table.md", "picture.png"
NO_REFERENCE = "The first release is left out: no --reference=DIR was given."


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n\n")[1], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dataset", default="digits", help="a name, or module:function")
    parser.add_argument("--data_dir", type=pathlib.Path)
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--methods", nargs="+", metavar="NAME", help=", ".join(METHODS))
    parser.add_argument("--strong", action="store_true", help="networks as teachers, too: long")
    parser.add_argument("--again", nargs="+", default=[], metavar="NAME", help="measure anew")
    parser.add_argument("--kept", action="store_true", help="show what is kept, measure nothing")
    parser.add_argument("--repetitions", type=int, default=1)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--seed", type=int, default=0, help="of training; not of the noise")
    parser.add_argument("--insecure_seed", type=int, help="of the noise; for tests")
    parser.add_argument("--output_dir", type=pathlib.Path, help="default: runs/instead/DATASET")
    parser.add_argument("--reference", type=pathlib.Path, help="research/pate_2017 of a checkout")
    parser.add_argument("--reference_python", default=sys.executable)
    parser.add_argument("--publish", action="store_true", help="into the docs")
    parser.add_argument("--docs_dir", type=pathlib.Path, default="docs/notes")
    return parser.parse_args()


def chosen_methods(flags: argparse.Namespace) -> list[str]:
    """Names of methods, in the order in which they are run.

    Raises:
        ValueError: if there is no such method.
    """
    asked = [*(flags.methods or []), *flags.again]
    for name in asked:
        if name not in METHODS:
            raise ValueError(f"methods: expected some of {', '.join(METHODS)}, got {name!r}")
    default = [name for name, one in METHODS.items() if one.by_default]
    names = {*(flags.methods or default), *flags.again}
    if flags.strong:
        names.add("library_networks")
    return [name for name in METHODS if name in names]


def compare(flags: argparse.Namespace) -> dict[str, object]:
    """Runs what is missing, writes results after each cell, and returns them."""
    methods = chosen_methods(flags)
    folder = flags.output_dir or pathlib.Path("runs/instead") / flags.dataset.replace(":", "-")
    os.environ[CACHE_VARIABLE] = str((folder / "cache").absolute())  # learnt in this run
    problem = Problem(
        source=DataSource(
            dataset=flags.dataset, data_dir=data_dir_of(flags.dataset, flags.data_dir)
        ),
        seed=flags.seed,
        quick=flags.quick,
    )
    _ = problem.private, problem.test  # what is missing ends the run here
    comparison = runner.Comparison(
        problem=problem,
        bench=Bench(
            setting=QUICK if flags.quick else FULL,
            workshop=Workshop(folder=folder / artifacts.SENSITIVE, data_dirs={}, seed=flags.seed),
            folder=folder / "units",
            insecure_seed=flags.insecure_seed,
            report=lambda line: flags.kept or print(f"  ... {line}", file=sys.stderr, flush=True),
        ),
        epsilons=flags.epsilons,
        methods=methods,
        repetitions=flags.repetitions,
        only_kept=flags.kept,
    )
    comparison.forget(flags.again)
    results: dict[str, object] = {
        "command": command(flags),
        "dataset": flags.dataset,
        "kind": problem.dataset.kind,
        "insecure_seed": flags.insecure_seed,
        "quick": flags.quick,
        "versions": versions(),
        "date": time.strftime("%Y-%m-%d"),
        "rows": [],
    }
    for row in comparison.rows():
        results["rows"].append(row)
        show(row)
        write(folder, results)
    if flags.reference is None:
        print(NO_REFERENCE)
    else:
        results["reference"] = reference.compare(
            flags.reference.absolute(),
            flags.reference_python,
            dataset=flags.dataset,
            data_dir=problem.source.data_dir,
            quick=flags.quick,
            report=comparison.bench.report,
        )
        for one in results["reference"]:
            print(reference_line(one))
    write(folder, results)
    return results


def command(flags: argparse.Namespace) -> str:
    """What was typed, as far as it decides the results."""
    typed = f"python -m benchmarks.instead --dataset={flags.dataset}"
    if tuple(flags.epsilons) != EPSILONS:
        typed += f" --epsilons {' '.join(f'{one:g}' for one in flags.epsilons)}"
    typed += f" --repetitions={flags.repetitions}" if flags.repetitions > 1 else ""
    typed += f" --seed={flags.seed}" if flags.seed else ""
    return typed + (" --quick" if flags.quick else "")


def show(row: runner.Row) -> None:
    epsilon = "" if row["epsilon"] is None else f", epsilon {row['epsilon']:g}"
    accuracy = "none" if row["accuracy"] is None else f"{row['accuracy']:.4f}"
    why = next((cell["why"] for cell in row["repetitions"] if "why" in cell), "")
    print(f"{row['title']}{epsilon}: {accuracy} [{row['seconds']:.1f} s] {why}", flush=True)


def reference_line(row: dict[str, object]) -> str:
    if "why" in row:
        return f"The first release, {row['what']}: not timed, {row['why']}"
    return (
        f"The first release, {row['what']}: {row['seconds']:.1f} s; ours {row['ours']:.1f} s; "
        f"ratio {row['ratio']:.1f}"
    )


def write(folder: pathlib.Path, results: dict[str, object]) -> None:
    """Writes results, table and picture."""
    folder.mkdir(parents=True, exist_ok=True)
    artifacts.write_json(folder / RESULTS, results)
    artifacts.write_text(folder / TABLE, picture.table(results["rows"]))
    picture.save(folder / PICTURE, results["dataset"], results["rows"])


def main() -> int:
    flags = parse()
    try:
        results = compare(flags)
        if flags.publish:
            page.publish(results, flags.docs_dir)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"\n{picture.table(results['rows'])}")
    print(LABEL_PRIVATE)
    return 0


if __name__ == "__main__":
    sys.exit(main())
