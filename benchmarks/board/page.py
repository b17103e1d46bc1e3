"""Tables of the scoreboard: README.md, two pages of the guide, and docs/notes/board.csv.

Each line of the results is a repetition. A cell is a data set with or without a pool, a method and
an epsilon: the mean of its repetitions, with the standard error of the mean.
"""

import csv
import dataclasses
import io
import itertools
import json
import pathlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.board.methods import METHODS, NOT_RANKED, OURS
from benchmarks.board.problems import DATA_SETS
from benchmarks.harness import markdown_table
from pate_tf.core import artifacts

Line = dict[str, Any]
KEY = ("dataset", "pool", "method", "epsilon", "seed")
MEASURES = {
    "accuracy": "accuracy, %",
    "balanced_accuracy": "balanced accuracy, %",
    "area_under_curve": "area under the curve, %",
    "recall_of_rarest": "recall of the rarest class, %",
    "processor_seconds": "processor seconds",
}
AHEAD, TIE, BEHIND = "ahead", "tie", "behind"
OPEN = "open"  # not behind, but a method that runs on all data has not been measured
REQUIRED = {"head", "network"}  # other methods that run on all data
GROUPS = {  # other methods, by the tables they run on
    "tables": ("head", "network", "public"),
    "tables with two classes": ("ebm",),
}
MIN_PROBLEMS = 5  # data sets of a mean
OBVIOUS = ("needs a pool", "needs images", "needs a table")  # reasons that no list repeats
PAGES = {  # pages below docs, and the tables between their marks
    "../README.md": ("counts",),
    "explanation/alternatives.md": ("differences",),
    "notes/instead.md": ("skipped",),
}


def key_of(line: Line) -> tuple[Any, ...]:
    """Returns what identifies a repetition."""
    return tuple(line[name] for name in KEY)


def read(path: pathlib.Path) -> list[Line]:
    """Returns the stored lines; none if there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@dataclasses.dataclass(frozen=True)
class Value:
    """A mean with its standard error."""

    mean: float
    error: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Value":
        """Returns the mean of repetitions; the error of a single one is 0."""
        error = np.std(values, ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
        return cls(float(np.mean(values)), float(error))

    def against(self, other: "Value") -> str:
        """Returns AHEAD, TIE or BEHIND. A tie is within one standard error of the difference."""
        difference = self.mean - other.mean
        if abs(difference) <= np.hypot(self.error, other.error):
            return TIE
        return AHEAD if difference > 0 else BEHIND

    def text(self, scale: float = 100.0) -> str:
        """Returns mean and error, in percent by default."""
        return f"{scale * self.mean:.1f}±{scale * self.error:.1f}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Board:
    """All cells.

    Attributes:
        values: by data set, pool, method and epsilon, a value for each of `MEASURES`.
        repetitions: number of repetitions, by the same keys.
        skipped: reasons, by data set, pool and method.
    """

    values: Mapping[tuple[Any, ...], Mapping[str, Value]]
    repetitions: Mapping[tuple[Any, ...], int]
    skipped: Mapping[tuple[Any, ...], str]

    @classmethod
    def of(cls, lines: Sequence[Line]) -> "Board":
        """Returns the cells of repetitions."""
        groups = defaultdict(list)
        skipped = {}
        for line in lines:
            if "skipped" in line:
                skipped[key_of(line)[:3]] = line["skipped"]
            else:
                groups[key_of(line)[:4]].append(line)
        values = {
            key: {name: Value.of([line[name] for line in group]) for name in MEASURES}
            for key, group in groups.items()
        }
        repetitions = {key: len(group) for key, group in groups.items()}
        return cls(values=values, repetitions=repetitions, skipped=skipped)

    @property
    def epsilons(self) -> list[float]:
        """The measured epsilons."""
        return sorted({key[3] for key in self.values if key[3] is not None})

    def problems(self, kind: str | None = None) -> list[tuple[str, bool]]:
        """Returns data sets with and without a pool, in the order of the catalogue."""
        known = {key[:2] for key in self.values}
        return [
            (name, pool)
            for name, dataset in DATA_SETS.items()
            for pool in (False, True)
            if (name, pool) in known and kind in (None, dataset.kind)
        ]

    def value(
        self, problem: tuple[str, bool], method: str, epsilon: float, measure: str = "accuracy"
    ) -> Value | None:
        """Returns a value of a cell; None if it was not measured."""
        has_epsilon = METHODS[method].has_epsilon
        cell = self.values.get((*problem, method, epsilon if has_epsilon else None))
        return None if cell is None else cell[measure]

    def means(
        self, problem: tuple[str, bool], methods: Sequence[str], epsilon: float
    ) -> list[float | None]:
        """Returns the mean accuracy of each method; None if it was not measured."""
        values = [self.value(problem, method, epsilon) for method in methods]
        return [None if value is None else value.mean for value in values]

    def best_other(self, problem: tuple[str, bool], epsilon: float) -> tuple[str, Value] | None:
        """Returns the most accurate other method with the same guarantee.

        A result at a smaller epsilon has this guarantee, too. The function returns None if a method
        that runs on all data has not been measured, because it could be better, unless another
        method is already better than ours.
        """
        names = [method for method in METHODS if method not in (OURS, *NOT_RANKED)]
        measured = {method for method in names if self.value(problem, method, epsilon)}
        results = [
            (method, value)
            for method in names
            for each in self.epsilons
            if each <= epsilon and (value := self.value(problem, method, each))
        ]
        best = max(results, key=lambda item: item[1].mean, default=None)
        ours = self.value(problem, OURS, epsilon)
        is_behind = best is not None and ours is not None and ours.against(best[1]) == BEHIND
        return best if is_behind or measured >= REQUIRED else None

    def outcome(self, problem: tuple[str, bool], epsilon: float) -> str | None:
        """Returns how our accuracy compares with the best other one; None if one is missing."""
        ours, other = self.value(problem, OURS, epsilon), self.best_other(problem, epsilon)
        return None if ours is None or other is None else ours.against(other[1])


def _pool(has_pool: bool) -> str:
    return "with a pool" if has_pool else "no pool"


def _name(problem: tuple[str, bool]) -> str:
    name, has_pool = problem
    return f"{name}+pool" if has_pool else name


def counts(board: Board) -> str:
    """Returns numbers of data sets on which our accuracy is ahead, tied and behind."""
    rows = []
    for kind in ("table", "text", "image"):
        for pool in (False, True):
            problems = [problem for problem in board.problems(kind) if problem[1] == pool]
            row = {"": f"{kind}s, {_pool(pool)}"}
            for epsilon in board.epsilons:
                measured = [each for each in problems if board.value(each, OURS, epsilon)]
                found = Counter(board.outcome(each, epsilon) or OPEN for each in measured)
                if found:
                    row[f"epsilon {epsilon:g}"] = ", ".join(
                        f"{found[outcome]} {outcome}"
                        for outcome in (AHEAD, TIE, BEHIND, OPEN)
                        if outcome != OPEN or found[OPEN]
                    )
            if len(row) > 1:
                rows.append(row)
    return markdown_table(rows)


def differences(board: Board) -> str:
    """Returns differences of accuracy between pate_tf and other methods.

    A difference needs at least `MIN_PROBLEMS` data sets on which both were measured.
    """
    rows = []
    for title, pool in itertools.product(GROUPS, (False, True)):
        problems = [problem for problem in board.problems("table") if problem[1] == pool]
        for method in GROUPS[title]:
            row = {"situation": f"{title}, {_pool(pool)}", "against": METHODS[method].title}
            for epsilon in board.epsilons:
                found = [
                    board.means(problem, (OURS, method), epsilon)
                    for problem in problems
                    if None not in board.means(problem, (OURS, method), epsilon)
                ]
                if len(found) >= MIN_PROBLEMS:
                    points = 100.0 * np.subtract(*np.transpose(found))
                    row[f"epsilon {epsilon:g}"] = (
                        f"{points.mean():+.1f}, {np.median(points):+.1f} ({len(found)})"
                    )
            if len(row) > 2:
                rows.append(row)
    return markdown_table(rows)


def cells(board: Board) -> str:
    """Returns our accuracy and the best other one in each cell, as comma-separated values."""
    columns = ["data set", *(f"epsilon {epsilon:g}" for epsilon in board.epsilons), "no privacy"]
    text = io.StringIO()
    table = csv.DictWriter(text, columns, restval="", lineterminator="\n")
    table.writeheader()
    for problem in board.problems():
        row = {"data set": _name(problem)}
        for epsilon in board.epsilons:
            ours, other = board.value(problem, OURS, epsilon), board.best_other(problem, epsilon)
            outcome = board.outcome(problem, epsilon)
            if ours is not None and other is not None and outcome is not None:
                first, second = ours.text(), other[1].text()
                first = first if outcome == BEHIND else f"**{first}**"
                second = second if outcome == AHEAD else f"**{second}**"
                row[f"epsilon {epsilon:g}"] = f"{first}, {METHODS[other[0]].short} {second}"
        without = board.value(problem, "no_privacy", 0.0)
        if len(row) > 1:
            value = "" if without is None else f"{100 * without.mean:.1f}"
            table.writerow({**row, "no privacy": value})
    return text.getvalue()


def skipped(board: Board) -> str:
    """Returns what was not run, with its reason."""
    problems = board.problems()
    names = defaultdict(list)
    for (name, pool, method), reason in board.skipped.items():
        if (name, pool) not in problems:
            names[f"{name}: {reason}"].append("")
        elif reason not in OBVIOUS and method not in NOT_RANKED:
            names[f"{METHODS[method].title}: {reason}"].append(_name((name, pool)))
    runs = [
        run
        for run in itertools.product(problems, METHODS)
        if (*run[0], run[1]) not in board.skipped and run[1] not in NOT_RANKED
    ]
    for epsilon in board.epsilons:
        all_runs = Counter(method for _, method in runs)
        missing = Counter(method for run, method in runs if not board.value(run, method, epsilon))
        names[f"No time at epsilon {epsilon:g}"] = [
            f"{METHODS[method].short} {number} of {all_runs[method]}"
            for method, number in missing.items()
        ]
    reached = {name for name, *_ in [*problems, *board.skipped]}
    names["No time for any epsilon"] = [name for name in DATA_SETS if name not in reached]
    names["Fewer than five repetitions"] = sorted(
        f"{METHODS[method].short}, {_name((name, pool))}, epsilon {epsilon:g} ({number})"
        for (name, pool, method, epsilon), number in board.repetitions.items()
        if number < 5 and METHODS[method].has_epsilon
    )
    lines = []
    for title, each in names.items():
        places = "; ".join(place for place in dict.fromkeys(each) if place)
        if each:
            lines.append(f"- {title}{f': {places}' if places else ''}.\n")
    return "".join(lines)


def full_table(board: Board) -> str:
    """Returns all cells and measures as comma-separated values."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["data set", "epsilon", "method", "runs", *MEASURES.values(), "compared"])
    for problem in board.problems():
        for epsilon in board.epsilons:
            other = board.best_other(problem, epsilon)
            for method, entry in METHODS.items():
                key = (*problem, method, epsilon if entry.has_epsilon else None)
                if key not in board.values:
                    continue
                values = board.values[key]
                mark = ""
                if method == OURS:
                    mark = board.outcome(problem, epsilon) or ""
                elif other is not None and method == other[0]:
                    mark = "best other"
                table.writerow(
                    [
                        _name(problem),
                        f"{epsilon:g}",
                        entry.title,
                        board.repetitions[key],
                        *(
                            values[name].text(1.0 if name == "processor_seconds" else 100.0)
                            for name in MEASURES
                        ),
                        mark,
                    ]
                )
    return text.getvalue()


TABLES = {"counts": counts, "differences": differences, "skipped": skipped}


def publish(lines: Sequence[Line], docs_dir: pathlib.Path) -> None:
    """Writes the tables between their marks, and two files of comma-separated values.

    Raises:
        ValueError: if a page has no marks.
    """
    board = Board.of(lines)
    for name, table in {"board": full_table, "board_cells": cells}.items():
        artifacts.write_text(docs_dir / "notes" / f"{name}.csv", table(board))
    for page, names in PAGES.items():
        path = docs_dir / page
        text = path.read_text()
        for name in names:
            begin, end = f"<!-- board: {name} -->\n", f"<!-- end: {name} -->"
            if begin not in text or end not in text:
                raise ValueError(f"{path} must contain {begin.strip()} and {end}")
            before, after = text.split(begin)[0], text.split(end)[1]
            text = f"{before}{begin}\n{TABLES[name](board)}\n{end}{after}"
        artifacts.write_text(path, text)
