"""Not in the paper: accuracy against the epsilon that may be published."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from benchmarks.paper.bench import Bench
from benchmarks.paper.ensembles import EnsembleName
from benchmarks.paper.labels import Asking, costs, draw
from benchmarks.paper.rows import (
    Experiment,
    Row,
    median_and_range,
    not_run,
    number,
    percent,
    spread,
)
from benchmarks.paper.trade_off import scale_of, trade_off
from benchmarks.paper.training import held_out, train, unqueried
from pate_tf.accounting.mechanisms import (
    ExponentialMechanism,
    GaussianNoisyMax,
    LaplaceNoisyMax,
    Mechanism,
    PermuteAndFlip,
)

GOALS = ((0.985, 1.0), (0.989, 0.6))  # accuracy, epsilon
STRATEGY = "diverse"
TICKS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
ERRORS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)  # in per cent


@dataclasses.dataclass(frozen=True)
class Point:
    """Some students on the frontier.

    Attributes:
      num_teachers: who votes.
      num_queries: how many labels a student learns from.
      mechanism: what draws them; picked by hand with a look at `trade_off`, which trains none.
      students: which learn from them.
    """

    num_teachers: int
    num_queries: int
    mechanism: Mechanism
    students: tuple[str, ...] = ("consistency",)


BOTH = ("consistency", "gan")
POINTS = {
    "full": (
        Point(500, 10, ExponentialMechanism(1 / 30)),
        Point(500, 25, PermuteAndFlip(1 / 56)),
        Point(500, 50, GaussianNoisyMax(86.0)),
        Point(500, 100, GaussianNoisyMax(84.0), BOTH),
        Point(500, 250, ExponentialMechanism(1 / 64)),
        Point(500, 500, ExponentialMechanism(1 / 62)),
        Point(500, 1000, ExponentialMechanism(1 / 68)),
        # Labels and students of `students`.
        Point(250, 100, LaplaceNoisyMax(1 / 20), BOTH),
        Point(250, 1000, LaplaceNoisyMax(1 / 20), BOTH),
    ),
    "quick": (Point(20, 60, LaplaceNoisyMax(1 / 2)),),  # the labels that `students` drew
}


def _rows(bench: Bench) -> Iterator[Row]:
    dataset = bench.setting.images[0]
    if reason := bench.missing(dataset):
        yield not_run(dataset, reason)
        return
    reached: list[Row] = []
    for point in POINTS[bench.setting.name]:
        for student in point.students:
            row = _student_row(bench, dataset, point, student)
            reached.append(row)
            yield row
    for accuracy, epsilon in GOALS if bench.setting.name == "full" else ():
        yield _goal_row(accuracy, epsilon, reached)
    for num_teachers in bench.setting.frontier_teachers:
        ensemble = EnsembleName(dataset=dataset, num_teachers=num_teachers)
        for num_queries in bench.setting.frontier_queries:
            yield _trade_off_row(bench, ensemble, num_queries)


def _student_row(bench: Bench, dataset: str, point: Point, student: str) -> Row:
    askings = Asking(
        ensemble=EnsembleName(dataset=dataset, num_teachers=point.num_teachers),
        mechanism=point.mechanism,
        num_queries=point.num_queries,
        strategy=STRATEGY,
    ).repeated(bench.setting.repetitions)
    drawn = [draw(bench, asking) for asking in askings]
    found = [costs(bench, asking).result for asking in askings]
    trained = [train(bench, asking, student) for asking in askings]
    accuracies = [held_out(measured).value for measured in trained]
    sanitised = [cost["sanitised"] for cost in found]
    independent = found[0]["data_independent"]  # the same for all queries
    epsilons = [min(independent, one) for one in sanitised]
    passed = sum(cost["passed"] for cost in found)
    return Row(
        what=(
            f"{point.num_queries} queries of {point.num_teachers} teachers, "
            f"{point.mechanism.name.replace('_', ' ')} of scale {scale_of(point.mechanism):.3g}, "
            f"{student}"
        ),
        cells={
            "publishable epsilon": spread(epsilons),
            "which": "sanitised" if np.median(sanitised) < independent else "data-independent",
            "accuracy, held out": median_and_range(accuracies),
            "on all unqueried": median_and_range(
                [unqueried(measured).value for measured in trained]
            ),
            "labels right": median_and_range([labels.accuracy for labels in drawn]),
            "data-independent": number(independent),
            "sanitised": spread(sanitised),
            "with it, worst case": spread([cost["worst_case"] for cost in found]),
            "gated": spread([cost["gated"] for cost in found]) + f", passed {passed}/{len(found)}",
        },
        numbers={
            "epsilon": float(np.median(epsilons)),
            "epsilons": epsilons,
            "accuracy": float(np.median(accuracies)),
            "accuracies": accuracies,
            "queries": point.num_queries,
            "student": student,
        },
        seconds=sum(measured.seconds for measured in trained),
    )


def _goal_row(accuracy: float, epsilon: float, reached: Sequence[Row]) -> Row:
    affordable = [row for row in reached if row.numbers["epsilon"] <= epsilon]
    best = max(affordable, key=lambda row: row.numbers["accuracy"])
    return Row(
        what=f"the goal of at least {percent(accuracy)} at a publishable epsilon of {epsilon:g}",
        cells={
            **best.cells,
            "which": "reached" if best.numbers["accuracy"] >= accuracy else "not reached",
        },
        why=(
            "So small an epsilon pays for few labels, and no student here learns enough from them."
        )
        * (best.numbers["accuracy"] < accuracy),
    )


def _trade_off_row(bench: Bench, ensemble: EnsembleName, num_queries: int) -> Row:
    measured = trade_off(bench, ensemble, num_queries)
    offers = measured.result["offers"]
    best = max(
        (one for one in offers if one["epsilon"] <= 1.0), key=lambda one: one["labels_right"]
    )
    return Row(
        what=(
            f"labels alone: {num_queries} queries of {ensemble.num_teachers} teachers, the best "
            f"for epsilon 1"
        ),
        cells={
            "publishable epsilon": number(best["epsilon"]),
            "which": f"{best['mechanism'].replace('_', ' ')}, scale {best['scale']:.3g}",
            "labels right": f"{percent(best['labels_right'])} expected",
            "data-independent": number(best["data_independent"]),
            "sanitised": f"{number(best['sanitised'])} in the median",
        },
        numbers={
            "teachers": ensemble.num_teachers,
            "queries": num_queries,
            "offers": offers,
        },
        seconds=measured.seconds,
    )


def _reach(
    medians: npt.NDArray[np.float64], values: npt.NDArray[np.float64]
) -> npt.NDArray[np.float64]:
    """How far values `[points, repetitions]` reach below and above medians `[points]`."""
    return np.array([medians - values.min(axis=1), values.max(axis=1) - medians])


def _draw(figure: Figure, rows: Sequence[Mapping[str, Any]]) -> None:
    students, labels = figure.subplots(1, 2)
    numbers = [row["numbers"] for row in rows if row["numbers"]]
    points = [one for one in numbers if "student" in one]
    # Numbers below the points of one student, above those of the other.
    for student, marker, above in zip(
        dict.fromkeys(one["student"] for one in points), ("o", "s"), (-10, 4), strict=False
    ):
        own = [one for one in points if one["student"] == student]
        errors = 1.0 - np.array([one["accuracy"] for one in own])
        epsilons = np.array([one["epsilon"] for one in own])
        students.errorbar(
            epsilons,
            100 * errors,
            xerr=_reach(epsilons, np.array([one["epsilons"] for one in own])),
            yerr=100 * _reach(errors, 1.0 - np.array([one["accuracies"] for one in own])),
            fmt=marker,
            label=student,
            capsize=2,
        )
        for one in own:
            students.annotate(
                str(one["queries"]),
                (one["epsilon"], 100 * (1.0 - one["accuracy"])),
                textcoords="offset points",
                xytext=(4, above),
                fontsize=7,
            )
    students.set(
        xlabel="publishable epsilon, delta 1e-5",
        ylabel="student's error, %",
        xscale="log",
        yscale="log",
    )
    students.set_yticks(ERRORS, [f"{error:g}" for error in ERRORS])
    students.legend(title="queries beside the points")
    offered = [one for one in numbers if "offers" in one]
    largest = max((one["teachers"] for one in offered), default=0)
    for one in offered:
        if one["teachers"] < largest:
            continue
        best, right = [], 0.0
        for offer in sorted(one["offers"], key=lambda offer: offer["epsilon"]):
            if offer["labels_right"] > right:
                right = offer["labels_right"]
                best.append((offer["epsilon"], 100 * right))
        labels.step(*zip(*best, strict=True), where="post", label=str(one["queries"]))
    labels.set(
        xlabel="publishable epsilon, delta 1e-5",
        ylabel="labels right, %",
        xscale="log",
        title=f"{largest} teachers",
    )
    labels.legend(title="queries")
    for axes in (students, labels):
        axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
        axes.minorticks_off()


EXPERIMENT = Experiment(
    title="The frontier: accuracy against publishable epsilon",
    about=(
        "What a user chooses from: the smaller of the data-independent and the sanitised epsilon, "
        "at delta 1e-5, as if it alone were published; a sanitised one covers these data and "
        "their neighbours with confidence 0.99, and the worst case of labels and itself stands "
        "beside it. Students ask by `--query_strategy=diverse`. Median and range over "
        "repetitions, each with queries, noise and training of its own; a goal is compared with "
        "the best median that it pays for. The mechanisms were picked by hand with a look "
        "at the rows of labels alone, which draw nothing: expected accuracy of the labels of the "
        "first samples against epsilon, over mechanisms and scales. No epsilon covers such a look "
        "at the votes: with private data, look at those of a public data set. Architecture and "
        "steps were chosen on MNIST, with a look at the held-out samples."
    ),
    rows=_rows,
    draw=_draw,
)
