"""Appendix B.2: active learning of the student."""

from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.paper.bench import Bench, Measured
from benchmarks.paper.ensembles import EnsembleName
from benchmarks.paper.labels import Asking, Drawn, draw
from benchmarks.paper.rows import (
    OURS,
    PAPER,
    Experiment,
    Row,
    median_and_range,
    not_run,
    number,
    percent,
)
from benchmarks.paper.training import held_out, train, unqueried
from pate_tf.accounting.mechanisms import LaplaceNoisyMax

ARBITRARY = "random"
GAINS = {"uncertain": (4.0, "4 to 10 points"), "binary_experts": (1.5, "1.5 to 2.5 points")}
STRATEGIES = (ARBITRARY, *GAINS, "siamese")


def _rows(bench: Bench) -> Iterator[Row]:
    setting = bench.setting
    for dataset in setting.images:
        if reason := bench.missing(dataset):
            yield not_run(dataset, reason)
            continue
        for num_queries in setting.active_queries:
            base: list[float] = []
            for strategy in STRATEGIES:
                askings = Asking(
                    ensemble=EnsembleName(dataset=dataset, num_teachers=setting.num_teachers),
                    mechanism=LaplaceNoisyMax(gamma=1.0 / setting.scale),
                    num_queries=num_queries,
                    strategy=strategy,
                ).repeated(setting.repetitions)
                drawn = [draw(bench, asking) for asking in askings]
                students = [train(bench, asking, "supervised") for asking in askings]
                found = [held_out(student).value for student in students]
                base = base or found
                yield _row(f"{dataset}, {num_queries} queries", strategy, base, drawn, students)


def _row(
    name: str,
    strategy: str,
    base: Sequence[float],
    drawn: Sequence[Drawn],
    students: Sequence[Measured],
) -> Row:
    found = [held_out(student).value for student in students]
    gain = 100 * float(np.mean(found) - np.mean(base))
    least, paper = GAINS.get(strategy, (0.0, "no gain"))
    is_base = strategy == ARBITRARY
    return Row(
        what=f"{name}, {strategy}",
        cells={
            PAPER: "" if is_base else paper,
            OURS: median_and_range(found),
            "mean gain in points": "" if is_base else f"{gain:+.2f}",
            "on all unqueried": median_and_range(
                [unqueried(student).value for student in students]
            ),
            "labels right": percent(float(np.mean([labels.accuracy for labels in drawn]))),
            "labels inferred": f"{np.mean([labels.num_inferred for labels in drawn]):.0f}",
            "epsilon": number(drawn[0].epsilon),
        },
        why="" if is_base or gain >= least else _why(strategy, drawn, base, found),
        seconds=sum(part.seconds for part in (*drawn, *students)),
    )


def _why(
    strategy: str, drawn: Sequence[Drawn], base: Sequence[float], found: Sequence[float]
) -> str:
    gains = 100 * np.subtract(found, base)
    if strategy not in GAINS:
        inferred = sum(labels.num_inferred for labels in drawn)
        wrong = inferred - sum(labels.num_inferred_right for labels in drawn)
        return (
            f"Gains differ by {np.ptp(gains):.2f} points between repetitions; of the labels that "
            f"it infers {percent(wrong / max(1, inferred))} are wrong."
        )
    wrong_share = 1 - float(np.mean([labels.accuracy for labels in drawn]))
    left = 1 - float(np.mean(base))
    return (
        f"The paper's gains are those on SVHN; here random queries leave {percent(left)} wrong, "
        f"of what is asked instead {percent(wrong_share)} of the noisy labels are wrong, and gains "
        f"differ by {np.ptp(gains):.2f} points between repetitions."
    )


EXPERIMENT = Experiment(
    title="Appendix B.2: choosing queries",
    about=(
        "Supervised students at equal numbers of queries, asked in rounds; median and range over "
        "repetitions of the accuracy on the held-out samples. That on all unqueried samples "
        "flatters who asks for the hard ones: they are then not among those it is measured on. "
        "The paper's gains are those over arbitrary queries, here random ones, on SVHN. Epsilon is "
        "data-independent: queries that depend on answers have no other."
    ),
    rows=_rows,
)
