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
from benchmarks.paper.setting import delta_of
from benchmarks.paper.trade_off import scale_of, trade_off
from benchmarks.paper.training import held_out, train, unqueried
from pate_tf.accounting.mechanisms import LaplaceNoisyMax, Mechanism, StabilityGate
from pate_tf.accounting.mechanisms.stability_gate import stability_distances
from pate_tf.accounting.planning import recommend
from pate_tf.aggregation.noise import NoiseSource
from pate_tf.queries.strategies import clusters

# Accuracy, epsilon: of the smaller of both kinds, and of the worst case over all data.
GOALS = ((0.985, 1.0), (0.989, 0.6))
WORST_CASE_GOALS = ((0.987, 0.25),)
# Batches whose least stable query is looked at, which chooses nothing.
GATE_QUERIES = {"full": (50, 100, 150, 250), "quick": (20,)}
TICKS = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
ERRORS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)  # in per cent


@dataclasses.dataclass(frozen=True)
class Point:
    """Some students on the frontier.

    Attributes:
        num_teachers: who votes.
        num_queries: how many labels a student learns from.
        target: worst-case epsilon that the plan of `analysis.py --calibrate` chooses a mechanism
            for, at the data set's delta; it reads no votes.
        mechanism: what draws the labels where nothing is planned.
        kind: the only mechanism that is planned; None for the best.
        strategy: how queries are chosen; None for `medoids` of a gate and `diverse` of all else.
    """

    num_teachers: int
    num_queries: int
    target: float | None = None
    mechanism: Mechanism | None = None
    kind: type[Mechanism] | None = None
    strategy: str | None = None

    def planned(self, num_classes: int, delta: float) -> Mechanism:
        """Returns what draws the labels.

        Raises:
            ValueError: if there is neither a mechanism nor a target.
        """
        if self.mechanism is not None:
            return self.mechanism
        if self.target is None:
            raise ValueError("point: expected a mechanism or a target, got none")
        return recommend(
            target_epsilon=self.target,
            num_teachers=self.num_teachers,
            num_classes=num_classes,
            delta=delta,
            num_queries=self.num_queries,
            mechanism=self.kind,
        ).mechanism


STUDENT = "consistency"  # `students` compares it with others
LAPLACE = LaplaceNoisyMax(gamma=1 / 20)  # labels and students of `students`
POINTS = {
    "full": (
        Point(250, 50, 0.25, kind=StabilityGate),
        Point(250, 50, 0.25, kind=StabilityGate, strategy="diverse"),
        Point(250, 100, 0.25, kind=StabilityGate),
        Point(500, 50, 0.1, kind=StabilityGate),
        Point(500, 100, 0.1, kind=StabilityGate),
        Point(500, 100, 0.6),
        Point(500, 250, 1.0),
        Point(500, 1000, 2.0),
        Point(250, 100, mechanism=LAPLACE),
    ),
    "quick": (
        Point(20, 60, mechanism=LaplaceNoisyMax(gamma=1 / 2)),  # the labels that `students` drew
        Point(20, 20, mechanism=StabilityGate(epsilon=3.0, delta=1e-5 / 3)),
    ),
}


def _rows(bench: Bench) -> Iterator[Row]:
    dataset = bench.setting.images[0]
    if reason := bench.missing(dataset):
        yield not_run(dataset, reason)
        return
    reached: list[Row] = []
    for point in POINTS[bench.setting.name]:
        row = _student_row(bench, dataset, point)
        reached.append(row)
        yield row
    if bench.setting.name == "full":
        for accuracy, epsilon in GOALS:
            yield _goal_row(accuracy, epsilon, reached)
        for accuracy, epsilon in WORST_CASE_GOALS:
            yield _goal_row(accuracy, epsilon, reached, kind="worst_case")
    for num_queries in GATE_QUERIES[bench.setting.name]:
        yield _distance_row(bench, dataset, num_queries)
    for num_teachers in bench.setting.frontier_teachers:
        ensemble = EnsembleName(dataset=dataset, num_teachers=num_teachers)
        for num_queries in bench.setting.frontier_queries:
            yield _trade_off_row(bench, ensemble, num_queries)


def _student_row(bench: Bench, dataset: str, point: Point) -> Row:
    num_classes = bench.workshop.split(dataset).dataset.num_classes
    mechanism = point.planned(num_classes, delta_of(dataset))
    strategy = mechanism.query_strategy if mechanism.charged_per_batch else "diverse"
    askings = Asking(
        ensemble=EnsembleName(dataset=dataset, num_teachers=point.num_teachers),
        mechanism=mechanism,
        num_queries=point.num_queries,
        strategy=point.strategy or strategy,
    ).repeated(bench.setting.repetitions)
    chosen = f" {point.strategy}" if point.strategy else ""
    what = (
        f"{point.num_queries}{chosen} queries of {point.num_teachers} teachers, "
        f"{_in_words(mechanism)}, {STUDENT}"
    )
    drawn = [draw(bench, asking) for asking in askings]
    found = [costs(bench, asking).result for asking in askings]
    worst_case = found[0]["data_independent"]  # the same for all queries
    answered = [
        asking for asking, labels in zip(askings, drawn, strict=True) if labels.num_answered
    ]
    if not answered:
        return Row(
            what=what,
            cells={"epsilon, worst case": number(worst_case), "labels right": "none left"},
        )
    trained = [train(bench, asking, STUDENT) for asking in answered]
    accuracies = counted([held_out(measured).value for measured in trained], of=len(drawn))
    given = [labels for labels in drawn if labels.num_answered]
    epsilons = [
        worst_case if cost["sanitised"] is None else min(worst_case, cost["sanitised"])
        for cost in found
    ]
    return Row(
        what=what,
        cells={
            "epsilon, worst case": number(worst_case),
            "accuracy, held out": median_and_range(accuracies[: len(trained)]),
            "on all unqueried": median_and_range(
                [unqueried(measured).value for measured in trained]
            ),
            "labels right": median_and_range([labels.accuracy for labels in given])
            + f", left {len(given)}/{len(drawn)}" * mechanism.charged_per_batch,
            "smaller of both kinds": spread(epsilons),
            **_sanitised_cells(found),
        },
        numbers={
            "worst_case": worst_case,
            "epsilon": float(np.median(epsilons)),
            "epsilons": epsilons,
            "accuracy": float(np.median(accuracies)),
            "accuracies": accuracies,
            "queries": point.num_queries,
            "student": STUDENT,
        },
        seconds=sum(measured.seconds for measured in trained),
    )


def counted(accuracies: Sequence[float], *, of: int) -> list[float]:
    """Returns what goals are compared with: without a released label, nothing is right.

    Args:
        accuracies: of the students that there are.
        of: how many repetitions there were.
    """
    return [*accuracies, *[0.0] * (of - len(accuracies))]


def _sanitised_cells(found: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Costs that depend on votes, of mechanisms that have such."""
    if found[0]["sanitised"] is None:
        return {}
    passed = sum(cost["passed"] for cost in found)
    return {
        "sanitised": spread([cost["sanitised"] for cost in found]),
        "with it, worst case": spread([cost["worst_case"] for cost in found]),
        "gated": spread([cost["gated"] for cost in found]) + f", passed {passed}/{len(found)}",
    }


def _in_words(mechanism: Mechanism) -> str:
    if "calibration" in mechanism.lacks:
        return mechanism.summary().replace("_", " ")
    return f"{mechanism.name.replace('_', ' ')} of scale {scale_of(mechanism):.3g}"


def _goal_row(
    accuracy: float, epsilon: float, reached: Sequence[Row], *, kind: str = "epsilon"
) -> Row:
    points = [row for row in reached if row.numbers]
    affordable = [row for row in points if row.numbers[kind] <= epsilon]
    in_words = "worst-case" if kind == "worst_case" else "publishable"
    what = f"the goal of at least {percent(accuracy)} at a {in_words} epsilon of {epsilon:g}"
    if not affordable:
        return Row(what=what, cells={}, why="No labels left for so small an epsilon.")
    best = max(affordable, key=lambda row: row.numbers["accuracy"])
    is_reached = best.numbers["accuracy"] >= accuracy
    return Row(
        what=f"{what}: {'reached' if is_reached else 'not reached'}",
        cells=best.cells,
        why=("So small an epsilon gives few labels, and no student here learns enough from them.")
        * (not is_reached),
    )


def _distance_row(bench: Bench, dataset: str, num_queries: int) -> Row:
    """How many teachers would have to change for another label, which decides a gate."""
    ensemble = EnsembleName(dataset=dataset, num_teachers=bench.setting.num_teachers)

    def measure(noise: NoiseSource) -> dict[str, Any]:
        del noise
        pool = bench.workshop.split(dataset).pool
        distances = stability_distances(bench.votes(ensemble).counts().values)
        seeds = range(bench.seed, bench.seed + bench.setting.repetitions)
        chosen = [clusters.choose_of_dense_clusters(pool, num_queries, seed) for seed in seeds]
        return {"least": [int(distances[queries].min()) for queries in chosen]}

    bench.ensemble(ensemble)
    config = {"ensemble": dataclasses.asdict(ensemble), "num_queries": num_queries}
    measured = bench.unit("distances", config, measure)
    least = measured.result["least"]
    return Row(
        what=(
            f"{num_queries} typical queries of {ensemble.num_teachers} teachers: the fewest to "
            f"change for another label"
        ),
        cells={"teachers": ", ".join(map(str, least))},
        seconds=measured.seconds,
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
            f"for epsilon 1, {best['mechanism'].replace('_', ' ')}, scale {best['scale']:.3g}"
        ),
        cells={
            "epsilon, worst case": number(best["data_independent"]),
            "smaller of both kinds": number(best["epsilon"]),
            "labels right": f"{percent(best['labels_right'])} expected",
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
    epsilons = np.array([one["epsilon"] for one in points])
    errors = 1.0 - np.array([one["accuracy"] for one in points])
    students.errorbar(
        epsilons,
        100 * errors,
        xerr=_reach(epsilons, np.array([one["epsilons"] for one in points])),
        yerr=100 * _reach(errors, 1.0 - np.array([one["accuracies"] for one in points])),
        fmt="o",
        label=STUDENT,
        capsize=2,
    )
    for one in points:
        students.annotate(
            str(one["queries"]),
            (one["epsilon"], 100 * (1.0 - one["accuracy"])),
            textcoords="offset points",
            xytext=(4, -10),
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
        "What a user chooses from. The worst case holds for all data, at delta 1e-5, whichever "
        "mechanism drew the labels. The smaller of both kinds is that or the sanitised epsilon, as "
        "if it alone were published; a sanitised one covers the data as they are, against each of "
        "their neighbours, with confidence 0.99, and the worst case of labels and itself stands "
        "beside it. Median and range over repetitions, each with queries, noise and training of "
        "its own; a goal is compared with the best median that it allows, in which a gate that "
        "stayed shut counts as no right answer. Mechanisms and scales "
        "come of the plan (`analysis.py --calibrate --target_epsilon --queries --nb_teachers`), "
        "which reads no votes, but for the paper's Laplace noise of scale 20. A stability gate "
        "asks `medoids` queries where nothing else is said, all else `diverse` ones. The rows of "
        "teachers to change and of labels alone look at these votes, and choose nothing. "
        "Architecture and steps of the "
        "student were chosen on MNIST, with a look at the held-out samples."
    ),
    rows=_rows,
    draw=_draw,
)
