"""A scoreboard of methods: `python -m benchmarks.board`, then `python -m benchmarks.board page`.

All methods use the same records, pool and test records, and the same epsilons at delta 1e-6 under
replace-one. Each finished repetition is a line of `--results`, so a stopped run resumes. `page`
writes the tables of README.md, docs/explanation/alternatives.md and docs/notes/instead.md.
`--smoke` shows in a minute that everything runs.
"""

import argparse
import dataclasses
import gc
import json
import os
import pathlib
import sys
import tempfile
import time
from collections.abc import Iterator

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # threads that wait would count as processor time

from benchmarks.board import page
from benchmarks.board.methods import METHODS, measures
from benchmarks.board.problems import DATA_SETS, NOT_COUNTED, NotHereError, Problem
from benchmarks.harness import provenance
from pate_tf.representations.catalogue import CACHE_VARIABLE

EPSILONS = (1.0, 0.1, 3.0)
RESULTS = pathlib.Path("docs/notes/board.jsonl")
POOLS = {"without": False, "with": True}
SMOKE = {"datasets": ["breast_cancer"], "epsilons": [3.0], "repetitions": 2}


def cells(flags: argparse.Namespace, stored: list[page.Line]) -> Iterator[page.Line]:
    """Yields each measurement that is not stored yet, data set by data set."""
    known = {page.key_of(line) for line in stored}
    for name in flags.datasets:
        for has_pool in (POOLS[pool] for pool in flags.pools):
            problem = Problem(name=name, has_pool=has_pool, is_quick=flags.smoke)
            for method in flags.methods:
                line: page.Line = {"dataset": name, "pool": has_pool, "method": method}
                skip = {**line, "epsilon": None, "seed": None}
                has_noise = METHODS[method].has_epsilon
                missing = [
                    {**line, "epsilon": epsilon, "seed": seed}
                    for epsilon in (flags.epsilons if has_noise else (None,))
                    for seed in range(flags.repetitions if has_noise else 1)
                ]
                missing = [each for each in missing if page.key_of(each) not in known]
                if not missing or page.key_of(skip) in known:
                    continue
                if reason := reason_to_skip(problem, method):
                    yield {**skip, "skipped": reason}
                    continue
                for each in missing:
                    epsilon, seed = each["epsilon"] or 0.0, each["seed"]
                    yield {**each, **measured(problem, method, epsilon, seed)}


def reason_to_skip(problem: Problem, method: str) -> str:
    """Returns why a method is not run, or ""."""
    try:
        problem.data  # noqa: B018 - raises if it is not on this machine
        return METHODS[method].skipped(problem)
    except NotHereError as error:
        return str(error)


def measured(problem: Problem, method: str, epsilon: float, seed: int) -> page.Line:
    """Returns the measures of a repetition. Its time does not include choices of settings."""
    problem.seconds[NOT_COUNTED] = 0.0
    began = time.process_time()
    result = METHODS[method].run(problem, epsilon, seed)
    seconds = time.process_time() - began - problem.seconds[NOT_COUNTED]
    setting = {}
    if result.setting is not None:
        setting = dataclasses.asdict(result.setting)
        seconds += problem.seconds.get(result.setting.features, 0.0)
    found = measures(result.scores, problem.data.held_out.labels)
    date = provenance()["date"]
    return {**found, "processor_seconds": seconds, "setting": setting, "date": date}


def append(path: pathlib.Path, line: page.Line) -> None:
    """Appends one line in one write, so that a stopped run leaves no part of a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(
        {
            name: float(f"{value:.5g}") if isinstance(value, float) else value
            for name, value in line.items()
        }
    )
    with open(path, "ab", buffering=0) as file:
        file.write(f"{text}\n".encode())
        os.fsync(file.fileno())


def main() -> int:
    """Measures what is missing, or writes the pages."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[1])
    parser.add_argument("command", nargs="?", choices=("run", "page"), default="run")
    parser.add_argument("--datasets", nargs="+", choices=DATA_SETS, default=list(DATA_SETS))
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--epsilons", nargs="+", type=float, default=EPSILONS)
    parser.add_argument("--pools", nargs="+", choices=POOLS, default=list(POOLS))
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS)
    parser.add_argument("--docs_dir", type=pathlib.Path, default=pathlib.Path("docs"))
    parser.add_argument("--smoke", action="store_true", help="one small table, few steps")
    flags = parser.parse_args()
    stored = page.read(flags.results)
    if flags.command == "page":
        page.publish(stored, flags.docs_dir)
        return 0
    if flags.smoke:
        vars(flags).update(SMOKE)
    with tempfile.TemporaryDirectory(prefix="board-") as folder:
        os.environ.setdefault(CACHE_VARIABLE, folder)  # representations of this run
        for line in cells(flags, stored):
            append(flags.results, line)
            print(json.dumps(line), flush=True)
            gc.collect()
    return 0


if __name__ == "__main__":
    sys.exit(main())
