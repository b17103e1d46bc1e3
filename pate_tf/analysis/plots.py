"""Plots of an analysis: epsilon against queries, publishable and sensitive apart.

Matplotlib is imported when the first plot is drawn, TensorFlow never.
"""

from __future__ import annotations

import io
import pathlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from pate_tf.accounting import composition, conversions
from pate_tf.accounting.charge import Charge
from pate_tf.accounting.moments import is_two_sided
from pate_tf.analysis.accounting import Analysis, bound_alphas, moment_grid
from pate_tf.analysis.votes import AnsweredVotes, VoteSource
from pate_tf.core import artifacts

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NUM_POINTS = 24
# Okabe and Ito's colours, told apart by colour-blind readers; dashes tell them apart in print.
COLORS = ("#0072B2", "#E69F00", "#D55E00", "#009E73", "#CC79A7")
DASHES = ("-", "-.", "--", ":", (0, (5, 1, 1, 1, 1, 1)))


def draw(
    folder: artifacts.RunDirectory,
    source: VoteSource,
    analysis: Analysis,
    *,
    num_moments: int | None = None,
) -> list[pathlib.Path]:
    """Draws epsilon against queries: data-independent below `released/`, by bounds `sensitive/`.

    Args:
        folder: where the two halves go.
        source: the votes.
        analysis: of these votes: delta, conversion and bounds.
        num_moments: as of `analyse`.

    Returns:
        The PNG files; the second one only if there are votes.

    Raises:
        OSError: if a file can't be written; it is not there then.
    """
    charged = analysis.num_charged
    title = f"at delta {analysis.delta:g}\n{'; '.join(charge.summary() for charge in charged)}"
    prefixes = list(_prefixes(charged))
    lines = {
        "data-independent": (
            [number for number, _ in prefixes],
            [composition.smallest_epsilon(charges, analysis.delta)[0] for _, charges in prefixes],
        )
    }
    path = folder.released / "epsilon_data_independent.png"
    paths = [_save(path, f"Epsilon {title}", lines, is_sensitive=False)]
    if source.groups:
        grid = moment_grid(num_moments)
        blocks = [block for group in source.groups for block in _blocks(group)]
        sizes = [block.counts.num_queries + block.num_unanswered for block in blocks]
        lines = {}
        for bound in analysis.bounds:
            alphas = np.cumsum([bound_alphas([block], bound, grid) for block in blocks], axis=0)
            epsilons = [
                conversions.epsilon_from_alphas(
                    total, grid, analysis.delta, conversion=analysis.conversion
                )[0]
                for total in alphas
            ]
            direction = "both directions" if is_two_sided(bound) else "forward"
            lines[f"{bound} ({direction})"] = (list(np.cumsum(sizes)), epsilons)
        path = folder.sensitive / "epsilon_by_queries.png"
        paths.append(_save(path, f"Data-dependent epsilon {title}", lines, is_sensitive=True))
    return paths


def _save(
    path: pathlib.Path,
    title: str,
    lines: Mapping[str, tuple[list[int], list[float]]],
    *,
    is_sensitive: bool,
) -> pathlib.Path:
    """Writes a figure that says whether it may be published."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 5.0), dpi=120, layout="constrained")
    axes: Axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=11)
    mark = "SENSITIVE, do not publish" if is_sensitive else "publishable"
    figure.supxlabel(mark, x=0.995, ha="right", fontsize=9)
    axes.set_xlabel("queries")
    axes.set_ylabel("epsilon, natural logarithm")
    axes.grid(visible=True, color="#DDDDDD", linewidth=0.6)
    for (label, (queries, epsilons)), color, dashes in zip(
        lines.items(), COLORS, DASHES, strict=False
    ):
        axes.plot(queries, epsilons, label=label, color=color, linestyle=dashes)
    axes.legend(frameon=False, fontsize=9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    with artifacts.atomic_file(path, private=is_sensitive) as file:
        file.write(buffer.getvalue())
    return path


def _prefixes(num_charged: Mapping[Charge, int]) -> Iterator[tuple[int, dict[Charge, int]]]:
    """Yields numbers of queries and what they consist of, mechanisms one after the other."""
    total = sum(num_charged.values())
    for queries in sorted({round(size) for size in np.geomspace(1, max(total, 1), NUM_POINTS)}):
        left, charged = queries, {}
        for mechanism, number in num_charged.items():
            charged[mechanism] = min(left, number)
            left -= charged[mechanism]
        yield queries, charged


def _blocks(group: AnsweredVotes) -> Iterator[AnsweredVotes]:
    """Yields the group in pieces; unanswered queries are spread evenly over them."""
    answered = group.counts.num_queries
    edges = np.unique(np.linspace(0, answered, NUM_POINTS + 1).astype(np.int64))
    unanswered = edges * group.num_unanswered // max(answered, 1)
    for piece in range(len(edges) - 1):
        yield AnsweredVotes(
            group.mechanism,
            group.counts.take(np.arange(edges[piece], edges[piece + 1])),
            num_unanswered=int(unanswered[piece + 1] - unanswered[piece]),
        )
