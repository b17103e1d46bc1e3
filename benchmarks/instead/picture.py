"""The table and the picture of a comparison, from its results."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.instead.literature import POINTS
from benchmarks.paper.rows import percent
from pate_tf.core import artifacts

Rows = Sequence[Mapping[str, Any]]
MARKERS = "osv^D<>phXP*d"
COLOURS = tuple(color for name in ("tab10", "Dark2") for color in matplotlib.colormaps[name].colors)


def table(rows: Rows) -> str:
    """Returns accuracy and seconds as a table in Markdown: a line for each method."""
    epsilons = sorted({row["epsilon"] for row in rows if row["epsilon"] is not None})
    lines = [
        ["accuracy on test samples", *(f"epsilon {one:g}" for one in epsilons), "seconds"],
        ["---"] * (len(epsilons) + 2),
    ]
    for name in dict.fromkeys(row["method"] for row in rows):
        own = {row["epsilon"]: row for row in rows if row["method"] == name}
        some = next(iter(own.values()))
        cells = [_accuracy(own.get(epsilon, own.get(None))) for epsilon in epsilons]
        lines.append([some["title"], *cells, _seconds(list(own.values()))])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"


def _accuracy(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return ""
    if row["accuracy"] is None:
        return "none"
    found = [cell["accuracy"] for cell in row["repetitions"] if cell["accuracy"] is not None]
    shown = percent(row["accuracy"])
    if len(found) > 1:
        shown += f" ({percent(min(found))} to {percent(max(found))})"
    return shown


def _seconds(rows: Rows) -> str:
    # Some kept rows know the range of all cells of their run alone.
    ranges = [row.get("seconds_range") or [row["seconds"]] for row in rows]
    own = sorted(seconds for one in ranges for seconds in one)
    shown = f"{own[0]:.0f}" if own[-1] < own[0] + 1 else f"{own[0]:.0f} to {own[-1]:.0f}"
    shared = max(row["seconds_shared"] for row in rows)
    return f"{shown}, after {shared:.0f} for all epsilons" if shared else shown


def draw(dataset: str, rows: Rows) -> Figure:
    """Returns the picture: test error against epsilon, both logarithmic."""
    figure = Figure(figsize=(11, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    names = list(dict.fromkeys(row["method"] for row in rows if row["epsilon"] is not None))
    for place, name in enumerate(names):
        own = [row for row in rows if row["method"] == name and row["accuracy"] is not None]
        own.sort(key=lambda row: row["epsilon"])
        if own:
            axes.plot(
                [row["epsilon"] for row in own],
                [100.0 * (1.0 - row["accuracy"]) for row in own],
                marker=MARKERS[place % len(MARKERS)],
                color=COLOURS[place % len(COLOURS)],
                linewidth=2.5 if name == "library" else 1.0,
                label=own[0]["title"],
            )
    for row in rows:
        if row["epsilon"] is None and row["accuracy"] is not None:
            error = 100.0 * (1.0 - row["accuracy"])
            axes.axhline(error, color="grey", linestyle=":", label=row["title"])
    for number, point in enumerate(POINTS.get(dataset, ()), start=1):
        where = point.epsilon, 100.0 * (1.0 - point.accuracy)
        axes.plot(
            *where,
            "*",
            markersize=11,
            markerfacecolor="none",
            color="black",
            label=f"{number}, published: {point.what}",
        )
        axes.annotate(
            str(number), where, textcoords="offset points", xytext=(6, 3), fontsize=9, weight="bold"
        )
    axes.set(
        xscale="log",
        yscale="log",
        xlabel="epsilon at delta 1e-5, against replacement of a record",
        ylabel="error on held-out test samples, %",
        title=dataset,
    )
    ticks = sorted({row["epsilon"] for row in rows if row["epsilon"] is not None})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    low, high = axes.get_ylim()
    errors = [tick for tick in (0.5, 1, 2, 5, 10, 20, 50, 90) if low <= tick <= high]
    axes.set_yticks(errors, [f"{tick:g}" for tick in errors])
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        figure.legend(loc="outside right upper", fontsize=7)
    return figure


def save(path: pathlib.Path, dataset: str, rows: Rows) -> None:
    """Writes the picture to a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with artifacts.atomic_file(path) as file:
        draw(dataset, rows).savefig(file, dpi=80)


def sources(dataset: str) -> str:
    """Returns what the published points are, a line each with its number, in Markdown."""
    return "".join(
        f"{number}. {point.what}: {percent(point.accuracy)} at epsilon {point.epsilon:g} "
        f"({point.source})\n"
        for number, point in enumerate(POINTS.get(dataset, ()), start=1)
    )
