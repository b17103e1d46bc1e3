"""What an experiment yields: rows of a table, with the numbers behind them."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.paper.bench import Bench
from pate_tf.students.evaluation import Accuracy

PAPER, OURS = "the paper", "ours"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """One line of an experiment's table.

    Attributes:
        what: what was measured.
        cells: the other columns, by heading; what the paper reports stands under `PAPER`.
        why: one sentence that says why ours falls short of the paper; empty where it does not.
        numbers: what the picture is drawn from.
        resources: columns of time and memory, which differ from run to run.
        seconds: wall time that it took to measure, whenever that was, without the ensembles.
    """

    what: str
    cells: Mapping[str, str]
    why: str = ""
    numbers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    resources: Mapping[str, str] = dataclasses.field(default_factory=dict)
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """One table or figure of the paper.

    Attributes:
        title: a heading.
        about: what is measured and how, in a sentence or two.
        rows: measures.
        draw: draws the picture from the rows as the JSON file holds them; None for no picture.
    """

    title: str
    about: str
    rows: Callable[[Bench], Iterator[Row]]
    draw: Callable[[Figure, Sequence[Mapping[str, Any]]], None] | None = None


def percent(share: float) -> str:
    """A share in per cent, two digits after the point."""
    return f"{share:.2%}".replace("%", " %")


def median_and_range(shares: Sequence[float]) -> str:
    """The median of some shares, with the smallest and the largest."""
    low, middle, high = np.min(shares), np.median(shares), np.max(shares)
    return f"{percent(middle)} ({percent(low)} to {percent(high)})"


def with_interval(found: Accuracy) -> str:
    """An accuracy with its 95 % interval."""
    low, high = found.interval
    return f"{percent(found.value)} ({100 * low:.2f} to {100 * high:.2f})"


def number(value: float | None) -> str:
    """An epsilon, or a dash where there is none."""
    return "-" if value is None else f"{value:.2f}"


def spread(epsilons: Sequence[float]) -> str:
    """The median of some epsilons, with the smallest and the largest where they differ."""
    low, middle, high = (number(value) for value in np.quantile(epsilons, (0.0, 0.5, 1.0)))
    return middle if low == high else f"{middle} ({low} to {high})"


def not_run(what: str, reason: str, paper: str = "") -> Row:
    """The row of what can't be measured here."""
    return Row(what=f"{what}: not run, {reason}", cells={PAPER: paper} if paper else {})
