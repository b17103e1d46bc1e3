"""Helpers for the tests of the analysis: votes, ledgers, and the script run in this process."""

import dataclasses
import functools
import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
import script_processes

from pate_tf.accounting.mechanisms import LaplaceNoisyMax
from pate_tf.analysis.vote_sources import read_ledgers
from pate_tf.cli import analysis_command, command_line
from pate_tf.core.sensitive import VoteCounts
from pate_tf.ledger import Ledger
from pate_tf.release.noise import SystemNoise
from pate_tf.release.votes import release_votes

REPOSITORY = pathlib.Path(__file__).absolute().parents[1]
GOLDEN = json.loads((REPOSITORY / "tests" / "accounting" / "golden.json").read_text())
SCRIPT = REPOSITORY / "analysis.py"
DELTA = 1e-5
MECHANISM = LaplaceNoisyMax(gamma=0.05)


def golden_counts(name, num_queries=100):
    return np.tile(np.array(GOLDEN[name], np.int64), (num_queries, 1))


def golden(key):
    return float(GOLDEN["values"][key])


def random_labels(num_teachers, num_queries, *, num_classes=10, seed=0):
    """Returns labels [num_teachers, num_queries] of teachers that mostly agree."""
    rng = np.random.default_rng(seed)
    agree = rng.random((num_teachers, num_queries)) < rng.beta(9.0, 1.0, num_queries)
    truth = rng.integers(num_classes, size=num_queries)
    return np.where(agree, truth, rng.integers(num_classes, size=(num_teachers, num_queries)))


def release_labels(
    folder, counts, *, mechanism=MECHANISM, ensemble="ab" * 32, budget=None, delta=DELTA
):
    """Labels queries with the given counts through a real labeller; returns the labels."""
    table = np.asarray(counts)
    with Ledger.open(
        folder, ensemble_digest=ensemble, delta=delta, epsilon_budget=budget
    ) as ledger:
        start = ledger.spent().num_queries
        labeller = functools.partial(
            release_votes,
            voter=lambda inputs: VoteCounts(table[inputs[:, 0].astype(int) - start]),
            ledger=ledger,
            noise=SystemNoise(),
            num_classes=table.shape[1],
        )
        queries = np.arange(start, start + len(table), dtype=np.float64)[:, np.newaxis]
        return labeller(queries, mechanism=mechanism)


def read_run(folder):
    """Returns the votes of a run folder."""
    return read_ledger(pathlib.Path(folder) / "sensitive", votes_needed=True)


def read_ledger(folder, *, votes_needed=False):
    """Returns the votes of one ledger."""
    with Ledger.read(pathlib.Path(folder)) as ledger:
        return read_ledgers([ledger], votes_needed=votes_needed)


@dataclasses.dataclass(frozen=True)
class GivenNoise:
    """Replaces a noise source: draws the given values."""

    discrete_gaussian: Callable[[float], int]
    is_secure: bool = True


@dataclasses.dataclass(frozen=True)
class Ended(script_processes.Ended):
    """Also contains the report that the process wrote."""

    report: dict[str, Any] | None


class Script:
    """Runs analysis.py, whose flags are parsed anew on every call."""

    def __init__(self) -> None:
        self.module = analysis_command
        if "counts_file" not in analysis_command.FLAGS:
            analysis_command.define()

    def run(self, folder, capsys, *arguments):
        """Runs it with a report and an output folder below `folder`, unless overridden."""
        flag_values = self.module.FLAGS
        report = folder / "report.json"
        report.unlink(missing_ok=True)
        arguments = [f"--report_file={report}", *arguments]
        if not any(argument.startswith("--output_dir") for argument in arguments):
            arguments.append(f"--output_dir={folder / 'out'}")
        for name in flag_values:
            flag_values[name].unparse()
        capsys.readouterr()
        code = 0
        try:
            command_line.parse_flags(["analysis.py", *arguments])
            command_line.guarded(self.module.main, flag_values, self.module.FLAG_OF_ARGUMENT)([])
        except SystemExit as end:
            code = end.code
        captured = capsys.readouterr()
        values = json.loads(report.read_text()) if report.exists() else None
        return Ended(code, captured.out, captured.err, values)
