"""Students side by side, at equal queries: several seeds of noise, queries and training."""

from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.paper.bench import Bench, Measured
from benchmarks.paper.ensembles import EnsembleName
from benchmarks.paper.labels import Asking, draw
from benchmarks.paper.rows import OURS, Experiment, Row, median_and_range, not_run, percent
from benchmarks.paper.training import held_out, train, unqueried
from pate_tf.accounting.mechanisms import LaplaceNoisyMax

# By student and queries: what to reach on the held-out samples of MNIST.
GOALS = {("gan", 100): 0.980, ("consistency", 100): 0.987, ("consistency", 1000): 0.989}


def _rows(bench: Bench) -> Iterator[Row]:
    setting = bench.setting
    for dataset in setting.images:
        if reason := bench.missing(dataset):
            yield not_run(dataset, reason)
            continue
        for student in setting.compared_students:
            for num_queries in setting.compared_queries:
                yield _row(bench, dataset, student, num_queries)


def _long_rows(bench: Bench) -> Iterator[Row]:
    setting = bench.setting
    for dataset in setting.images:
        if reason := bench.missing(dataset):
            yield not_run(dataset, reason)
            continue
        for steps in setting.gan_steps:
            yield _row(bench, dataset, "gan", 100, strategy="first", steps=steps)


def _row(
    bench: Bench,
    dataset: str,
    student: str,
    num_queries: int,
    *,
    strategy: str = "diverse",
    steps: int | None = None,
) -> Row:
    setting = bench.setting
    askings = Asking(
        ensemble=EnsembleName(dataset=dataset, num_teachers=setting.num_teachers),
        mechanism=LaplaceNoisyMax(gamma=1.0 / setting.scale),
        num_queries=num_queries,
        strategy=strategy,
    ).repeated(setting.repetitions)
    drawn = [draw(bench, asking) for asking in askings]
    trained = [train(bench, asking, student, steps=steps) for asking in askings]
    accuracies = [held_out(measured).value for measured in trained]
    median, goal = float(np.median(accuracies)), GOALS.get((student, num_queries), 0.0)
    missed = dataset == "mnist" and median < goal
    return Row(
        what=f"{dataset}, {student}, {num_queries} queries"
        + ("" if steps is None else f", {steps:,} steps"),
        cells={
            OURS: median_and_range(accuracies),
            "all unqueried": median_and_range([unqueried(measured).value for measured in trained]),
            "labels right": median_and_range([labels.accuracy for labels in drawn]),
            "with those inferred": median_and_range([labels.learnt_accuracy for labels in drawn]),
        },
        resources={
            "seconds of one training": _seconds([measured.seconds for measured in trained]),
            "MiB gained after the first tenth": str(max(map(_gained, trained))),
        },
        why=f"The goal of {percent(goal)} is missed by {100 * (goal - median):.2f} points."
        if missed
        else "",
        seconds=sum(part.seconds for part in (*drawn, *trained)),
    )


def _gained(measured: Measured) -> int:
    """By how much resident memory at the end exceeds that after a tenth of the epochs."""
    mebibytes = measured.result["mebibytes"]
    return int(mebibytes[-1] - mebibytes[max(1, len(mebibytes) // 10) - 1])


def _seconds(values: Sequence[float]) -> str:
    return f"{np.median(values):.0f} ({np.min(values):.0f} to {np.max(values):.0f})"


EXPERIMENT = Experiment(
    title="Students at equal queries",
    about=(
        "Median and range over repetitions, each with queries, noise and training of its own. "
        "Queries are chosen by `--query_strategy=diverse`, which spreads the released labels over "
        "the pool besides. Accuracy is that on the held-out samples, the last 1,000 of MNIST's "
        "test set as in the paper, and on all public samples that were not asked for. Memory is "
        "that of the process, the most over the repetitions. Architecture, steps and how labels "
        "are spread were chosen on MNIST, with a look at the held-out samples: these numbers "
        "flatter a little."
    ),
    rows=_rows,
)
LONG = Experiment(
    title="PATE-G for longer",
    about=(
        "The improved GAN on the labels of the first 100 samples of the pool, as in the paper, "
        "whose student is right on 98.0 %; Laplace noise of scale 20 on the votes of 250 teachers: "
        "`--query_strategy=first --student=gan --max_steps=30000`. Median and range over "
        "repetitions, each with noise and training of its own, on the held-out samples, the last "
        "1,000 of MNIST's test set. The number of steps was chosen on the labels of the pool."
    ),
    rows=_long_rows,
)
