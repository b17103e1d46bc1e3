"""Plots of an analysis, as PNG files and for TensorBoard, publishable and sensitive apart.

Matplotlib is imported when the first plot is drawn, TensorFlow never.
"""

from __future__ import annotations

import io
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pate_tf.accounting import composition, moments
from pate_tf.accounting.charge import Charge
from pate_tf.accounting.conversions import FloatArray
from pate_tf.accounting.moments import data_dependent
from pate_tf.accounting.planning import profile_counts
from pate_tf.analysis.accounting import (
    AnalysisConfig,
    bound_alphas,
    chosen_bounds,
)
from pate_tf.analysis.votes import AnsweredVotes, VoteSource
from pate_tf.core import artifacts
from pate_tf.core.sensitive import Votes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

# How the plots of an analysis look, and how they are stored.


EVENTS = "events.out.tfevents.0.analysis"
# Okabe and Ito's colours, told apart by colour-blind readers; dashes tell them apart in print.
STYLES: tuple[Mapping[str, Any], ...] = (
    {"color": "#0072B2", "linestyle": "-"},
    {"color": "#E69F00", "linestyle": (0, (5, 1, 1, 1, 1, 1))},
    {"color": "#D55E00", "linestyle": "--"},
    {"color": "#009E73", "linestyle": "-."},
    {"color": "#CC79A7", "linestyle": ":"},
)
BOUND_STYLES = dict(zip(moments.BOUNDS, STYLES, strict=True))
LIMIT_STYLE: Mapping[str, Any] = {"color": "#555555", "linestyle": (0, (1, 3))}
SENSITIVE_COLOR, PUBLISHABLE_COLOR = "#B00020", "#333333"


def new_figure(title: str, x_label: str, y_label: str, *, sensitive: bool) -> tuple[Figure, Axes]:
    """Returns an empty figure that says whether it may be published, and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 5.0), dpi=120, layout="constrained")
    axes = figure.add_subplot()
    mark = "SENSITIVE, do not publish" if sensitive else "publishable"
    color = SENSITIVE_COLOR if sensitive else PUBLISHABLE_COLOR
    axes.set_title(title, loc="left", fontsize=11)
    figure.supxlabel(mark, x=0.995, ha="right", fontsize=9, color=color)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(visible=True, which="major", color="#DDDDDD", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def bound_style(bound: str) -> dict[str, Any]:
    """Returns how the line of a bound looks, and its name in the legend."""
    direction = "both directions" if moments.is_two_sided(bound) else "forward"
    return {"label": f"{bound} ({direction})", "linewidth": 1.8, **BOUND_STYLES[bound]}


def plain_numbers(axis: Axis) -> None:
    """Puts plain numbers, such as 0.1 and 1,000, on an axis."""
    from matplotlib.ticker import FuncFormatter

    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def legend(axes: Axes) -> None:
    """Draws the legend."""
    axes.legend(frameon=False, fontsize=9)


def save(
    folder: pathlib.Path, figures: Mapping[str, Figure], *, private: bool
) -> Sequence[pathlib.Path]:
    """Writes figures as PNG files by their names, and all of them for TensorBoard.

    Raises:
        OSError: if a file can't be written; it is not there then.
    """
    pictures = {}
    for name, figure in figures.items():
        buffer = io.BytesIO()
        figure.savefig(buffer, format="png")
        pictures[name] = buffer.getvalue()
    paths = []
    for name, picture in pictures.items():
        paths.append(folder / f"{name}.png")
        with artifacts.atomic_file(paths[-1], private=private) as file:
            file.write(picture)
    if pictures:
        _write_events(folder / EVENTS, pictures, private=private)
    return paths


def _write_events(path: pathlib.Path, pictures: Mapping[str, bytes], *, private: bool) -> None:
    # TensorBoard's own writer of event files would import TensorFlow.
    from tensorboard.compat.proto import event_pb2, summary_pb2
    from tensorboard.summary.writer.record_writer import (
        RecordWriter,
    )

    with artifacts.atomic_file(path, private=private) as file:
        writer = RecordWriter(file)
        writer.write(event_pb2.Event(file_version="brain.Event:2").SerializeToString())
        for name, picture in pictures.items():
            image = summary_pb2.Summary.Image(encoded_image_string=picture)
            value = summary_pb2.Summary.Value(tag=name, image=image)
            event = event_pb2.Event(step=0, summary=summary_pb2.Summary(value=[value]))
            writer.write(event.SerializeToString())


NUM_POINTS = 24
GAP_MOMENT = 20.0


def draw(
    folder: artifacts.RunDirectory, source: VoteSource, config: AnalysisConfig
) -> list[pathlib.Path]:
    """Draws what a source allows, below `sensitive/` and `released/` of a folder.

    Always: data-independent epsilon against queries (publishable). With votes: epsilon against
    queries for every bound (sensitive), and the cost of one label against the gap for each
    mechanism, at hypothetical counts (publishable). With single labels: the gap against the number
    of teachers, Figure 3 of Papernot et al. 2017 (sensitive).

    Args:
        folder: where the two halves go.
        source: the votes.
        config: how costs become an epsilon.

    Returns:
        The PNG files. With them lies an event file with the same pictures for TensorBoard.

    Raises:
        OSError: if a file can't be written; it is not there then.
    """
    published = {"epsilon_data_independent": data_independent_figure(source.num_charged, config)}
    private = {}
    if source.groups:
        private["epsilon_by_queries"] = bounds_figure(source, config)
        for number, group in enumerate(source.groups, start=1):
            if group.counts.num_queries:
                published[f"cost_by_gap_{number}"] = gap_figure(group)
    if source.labels is not None:
        private["gap_by_teachers"] = teachers_figure(source.labels)
    return [
        *save(folder.released, published, private=False),
        *save(folder.sensitive, private, private=True),
    ]


def data_independent_figure(num_charged: Mapping[Charge, int], config: AnalysisConfig) -> Figure:
    """Epsilon against the number of queries, whatever the votes."""
    figure, axes = new_figure(
        f"Data-independent epsilon at delta {config.delta:g}\n{_names(num_charged)}",
        "queries",
        "epsilon, natural logarithm",
        sensitive=False,
    )
    prefixes = list(_prefixes(num_charged))
    epsilons = [composition.smallest_epsilon(charges, config.delta)[0] for _, charges in prefixes]
    axes.plot([number for number, _ in prefixes], epsilons, linewidth=1.8, **STYLES[0])
    axes.set_xscale("log")
    axes.set_yscale("log")
    plain_numbers(axes.xaxis)
    plain_numbers(axes.yaxis)
    return figure


def _prefixes(num_charged: Mapping[Charge, int]) -> Iterator[tuple[int, dict[Charge, int]]]:
    """Yields numbers of queries and what they consist of, mechanisms one after the other."""
    total = sum(num_charged.values())
    for queries in _sizes(total):
        left, charged = queries, {}
        for mechanism, number in num_charged.items():
            charged[mechanism] = min(left, number)
            left -= charged[mechanism]
        yield queries, charged


def _sizes(total: int) -> list[int]:
    """Returns about NUM_POINTS whole numbers from 1 to total, log-spaced."""
    return sorted({round(size) for size in np.geomspace(1, max(total, 1), NUM_POINTS)})


def bounds_figure(source: VoteSource, config: AnalysisConfig) -> Figure:
    """Epsilon of the first queries, for every bound."""
    groups = source.groups or ()
    figure, axes = new_figure(
        f"Data-dependent epsilon at delta {config.delta:g}, {config.conversion} conversion\n"
        f"{_names(source.num_charged)}",
        "queries, in the order they were asked",
        "epsilon, natural logarithm",
        sensitive=True,
    )
    blocks = [block for group in groups for block in _blocks(group)]
    queries = np.cumsum([block.counts.num_queries + block.num_unanswered for block in blocks])
    for bound in chosen_bounds(groups, config):
        total = np.zeros_like(config.moments)
        epsilons = []
        for block in blocks:
            total = total + bound_alphas([block], bound, config.moments)
            epsilons.append(config.guarantee(total).epsilon)
        axes.plot(queries, epsilons, **bound_style(bound))
    axes.set_ylim(bottom=0.0)
    axes.set_xlim(left=0.0)
    legend(axes)
    return figure


def _blocks(group: AnsweredVotes) -> Iterator[AnsweredVotes]:
    """Yields the group in pieces; unanswered queries are spread evenly over them."""
    answered = group.counts.num_queries
    edges = np.unique(np.linspace(0, answered, NUM_POINTS + 1).astype(np.int64))
    if len(edges) < 2:
        yield group
        return
    unanswered = edges * group.num_unanswered // answered
    for piece in range(len(edges) - 1):
        chosen = np.arange(edges[piece], edges[piece + 1])
        yield AnsweredVotes(
            group.mechanism,
            group.counts.take(chosen),
            num_unanswered=int(unanswered[piece + 1] - unanswered[piece]),
        )


def gap_figure(group: AnsweredVotes) -> Figure:
    """The cost of one label against the gap, at hypothetical counts: reads no vote.

    The number of teachers and of classes are all that is taken from the group.
    """
    mechanism = group.mechanism
    num_teachers = int(group.counts.values[0].sum())
    num_classes = group.counts.num_classes
    figure, axes = new_figure(
        f"Cost of one label, {mechanism.summary()}\n"
        f"{num_teachers:,} teachers, {num_classes} classes; hypothetical votes: one class leads, "
        f"the rest is spread evenly",
        "gap between first and second class, votes",
        f"alpha at moment {GAP_MOMENT:g}, natural logarithm",
        sensitive=False,
    )
    gaps, rows = _hypothetical(num_teachers, num_classes)
    grid = np.array([GAP_MOMENT])
    for bound in mechanism.bounds:
        costs = [
            moments.data_dependent_alphas(row[None, :], mechanism, grid, bound=bound)[0]
            for row in rows
        ]
        axes.plot(gaps, costs, **bound_style(bound))
    axes.axhline(float(mechanism.alphas(grid)[0]), label="data-independent", **LIMIT_STYLE)
    cap = float(data_dependent(mechanism).cost_cap(grid)[0])
    axes.set_yscale("log")
    axes.set_ylim(bottom=cap * 1e-9, top=cap * 3.0)
    legend(axes)
    return figure


def _hypothetical(num_teachers: int, num_classes: int) -> tuple[FloatArray, Any]:
    shares = np.linspace(1.0 / num_teachers, 1.0, min(60, num_teachers))
    rows = np.concatenate(
        [profile_counts(num_teachers, num_classes, float(share)) for share in shares]
    )
    second = rows[:, 1] if num_classes > 1 else 0
    return rows[:, 0] - second, rows


def teachers_figure(votes: Votes) -> Figure:
    """Normalised gap between first and second class against the number of teachers.

    Figure 3 of Papernot et al. 2017, but for nested parts of one ensemble: its teachers do not get
    more records when there are fewer of them.
    """
    figure, axes = new_figure(
        "Agreement of the first teachers of the ensemble\n"
        f"{votes.num_queries:,} queries; mean, and the middle 80 % of queries",
        "teachers, the first of the ensemble",
        "gap of first to second class / teachers",
        sensitive=True,
    )
    sizes = _sizes(votes.num_teachers)
    gaps = np.stack([_normalised_gaps(votes, size) for size in sizes])
    low, high = np.quantile(gaps, [0.1, 0.9], axis=1)
    color = STYLES[0]["color"]
    axes.fill_between(sizes, low, high, color=color, alpha=0.2, linewidth=0.0, label="middle 80 %")
    axes.plot(sizes, gaps.mean(axis=1), color=color, marker="o", markersize=4, label="mean")
    axes.set_xscale("log")
    plain_numbers(axes.xaxis)
    axes.set_ylim(0.0, 1.05)
    legend(axes)
    return figure


def _normalised_gaps(votes: Votes, num_teachers: int) -> FloatArray:
    """Returns (first - second) / num_teachers of each query, among the first teachers."""
    counts = Votes(votes.labels[:num_teachers], votes.num_classes).counts().values
    if counts.shape[1] < 2:
        return np.ones(len(counts))
    ordered = np.sort(counts, axis=1)
    return np.asarray((ordered[:, -1] - ordered[:, -2]) / num_teachers)


def _names(num_charged: Mapping[Charge, int]) -> str:
    return "; ".join(mechanism.summary() for mechanism in num_charged)
