"""Tables in Markdown, and the picture."""

import pathlib
import statistics
from collections.abc import Iterable, Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from benchmarks.silos.kept import Row
from benchmarks.silos.students import LOCAL
from pate_tf.core import artifacts

# The design's own measurement, whose teachers were others.
DESIGN = {
    10: {0.5: 0.212, 1.0: 0.401, 2.0: 0.864, 4.0: 0.996},
    50: {0.5: 0.402, 1.0: 0.820, 2.0: 0.990, 4.0: 0.999},
    250: {0.5: 0.828, 1.0: 0.992, 2.0: 0.999, 4.0: 0.999},
}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def survival(rows: Sequence[Row]) -> str:
    """What randomised response leaves of the plurality."""

    def cells(row: Row) -> list[str]:
        design = DESIGN.get(row["silos"], {}).get(row["epsilon"])
        distance = (row["survived"] - row["expected"]) / max(row["error"], 1e-9)
        return [
            *(row["teacher"], str(row["silos"]), f"{row['epsilon']:g}"),
            f"{row['survived']:.3f}",
            f"{row['expected']:.3f} ± {row['error']:.3f}",
            f"{distance:+.1f}",
            "" if design is None else f"{design:.3f}",
            percent(row["label_accuracy"]),
            percent(row["plurality_accuracy"]),
            f"{row['geometric_raw']:.3f}",
            f"{row['geometric_likeliest']:.3f}",
        ]

    head = (
        *("teachers", "silos", "epsilon of one answer", "plurality survives", "expected"),
        *("standard errors off", "design's teachers", "labels right", "right without noise"),
        *("truncated geometric", "its likeliest"),
    )
    return table(head, map(cells, rows))


def secure(rows: Sequence[Row]) -> str:
    """Secure aggregation beside a trusted centre."""

    def cells(row: Row) -> list[str]:
        return [
            *(row["teacher"], f"{row['queries']:,}", f"{row['sigma']:g}"),
            *(f"{row['epsilon']:.2f}", f"{row['centre_epsilon']:.2f}"),
            *(percent(row["label_accuracy"]), percent(row["centre_accuracy_louder"])),
            *(percent(row["centre_accuracy"]), percent(row["plurality_accuracy"])),
        ]

    head = (
        *("teachers", "queries", "sigma", "epsilon of each silo", "of a trusted centre"),
        *("labels right", "a centre's at 1.5 times the variance", "a centre's", "without noise"),
    )
    return table(head, map(cells, rows))


def skew(rows: Sequence[Row]) -> str:
    """Skewed silos beside even ones."""

    def cells(row: Row) -> list[str]:
        names = ("plurality", "local", "secure")
        return [
            *(row["kind"], row["teacher"]),
            f"{percent(row['teacher_accuracy'])} "
            f"({percent(row['worst_teacher'])} to {percent(row['best_teacher'])})",
            percent(row["top_share"]),
            *(f"{percent(row[one])} / {percent(row[one + '_by_similarity'])}" for one in names),
        ]

    head = (
        *("records", "teachers", "a teacher is right (worst to best)", "votes for the plurality"),
        *(
            "labels without noise / by similarity",
            "local / by similarity",
            "secure / by similarity",
        ),
    )
    return table(head, map(cells, rows))


def sums(rows: Sequence[Row]) -> dict[str, dict[str, str]]:
    """Labels and students from feature sums of silos and of one holder, by who holds what."""

    def share(values: Sequence[float]) -> str:
        error = 100 * statistics.stdev(values) / len(values) ** 0.5
        return f"{100 * statistics.mean(values):.2f} % ± {error:.2f}"

    def one(row: Row, name: str) -> str:
        return f"{100 * row[name]:.2f} %" if name in row else ""

    return {
        f"{row['silos']}, {row['number']:,}" if row["number"] > 1 else row["silos"]: {
            "epsilon": f"{row['epsilon']:g}",
            "noise on a number": f"{row['noise']:.1f}",
            "labels, first pass": share(row["right"]),
            "labels": one(row, "learnt"),
            "student": one(row, "student"),
        }
        for row in rows
    }


def students(rows: Sequence[Row]) -> str:
    """Students by what silos were charged."""

    def cells(row: Row) -> list[str]:
        what = "epsilon of one answer" if row["mode"] == LOCAL else "sigma"
        return [
            *(row["mode"], f"{row['queries']:,}", f"{what} {row['amount']:g}"),
            f"{row['epsilon']:.2f}",
            *(percent(row["label_accuracy"]), percent(row["student_accuracy"])),
        ]

    head = ("mode", "queries", "noise", "epsilon of each silo", "labels right", "student right")
    return table(head, map(cells, rows))


def draw(rows: Sequence[Row], path: pathlib.Path) -> None:
    """Draws the accuracy of students against the epsilon of each silo."""
    figure = Figure(figsize=(6, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    words = {LOCAL: "randomised response"}
    for mode in dict.fromkeys(row["mode"] for row in rows):
        for queries in dict.fromkeys(row["queries"] for row in rows):
            found = sorted(
                (row["epsilon"], row["student_accuracy"])
                for row in rows
                if (row["mode"], row["queries"]) == (mode, queries)
            )
            if found:
                label = f"{words.get(mode, 'secure aggregation')}, {queries:,} queries"
                axes.plot(*zip(*found, strict=True), "o-", label=label)
    axes.set_xscale("log")
    axes.set_xlabel("epsilon of each silo, at delta 1e-5")
    axes.set_ylabel("student right on held-out samples")
    axes.grid(alpha=0.3)
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    with artifacts.atomic_file(path) as file:
        figure.savefig(file, dpi=80)
