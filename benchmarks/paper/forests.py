"""Appendix C: random forests on UCI Adult and Diabetes."""

from collections.abc import Iterator

import numpy as np

from benchmarks.paper.bench import Bench
from benchmarks.paper.ensembles import EnsembleName
from benchmarks.paper.figure2 import median_and_range
from benchmarks.paper.labels import Asking, costs
from benchmarks.paper.rows import OURS, PAPER, Experiment, Row, not_run, number, percent
from benchmarks.paper.training import held_out, train
from pate_tf.accounting.mechanisms import LaplaceNoisyMax

# Accuracy of the student, epsilon, accuracy without privacy; and how many digits they have.
THEIRS = {"adult": (0.83, 2.66, 0.85), "diabetes": (0.9394, 1.44, 0.9381)}
DIGITS = {"adult": 2, "diabetes": 4}
WHY = {
    "adult": "The range over draws of the noise shows what the paper's single one leaves open.",
    "diabetes": (
        "On classes that are balanced, as the paper says, these records do not tell readmissions "
        "apart so well; 93.94 % fits unbalanced ones, where a constant answer gets nearly as many "
        "right (pate_tf/data/uci.py)."
    ),
}


def _rows(bench: Bench) -> Iterator[Row]:
    setting = bench.setting
    for dataset in setting.tables:
        theirs = THEIRS.get(dataset)
        paper = ["" if theirs is None else text for text in _texts(theirs)]
        if reason := bench.missing(dataset):
            yield not_run(dataset, reason, ", ".join(paper))
            continue
        why = WHY.get(dataset, "")
        many = EnsembleName(dataset=dataset, num_teachers=setting.table_teachers, forests=True)
        askings = [
            Asking(
                ensemble=many,
                mechanism=LaplaceNoisyMax(gamma=1.0 / setting.scale),
                num_queries=setting.table_queries,
                draw=number_of_draw,
            )
            for number_of_draw in range(setting.draws)
        ]
        students = [train(bench, asking, "random_forest") for asking in askings]
        accuracies = [held_out(student).value for student in students]
        yield Row(
            what=f"{dataset}: student of {setting.table_queries} queries, {setting.draws} draws",
            cells={PAPER: paper[0], OURS: median_and_range(accuracies)},
            why=why * _falls_short(dataset, 0, float(np.median(accuracies))),
            seconds=sum(student.seconds for student in students),
        )
        cost = costs(bench, askings[0])
        yield Row(
            what=f"{dataset}: epsilon by the paper's accounting",
            cells={
                PAPER: paper[1],
                OURS: number(cost.result["paper"]),
                "tightest": number(cost.result["tightest"]),
                "sanitised": number(cost.result["sanitised"]),
                "data-independent": number(cost.result["data_independent"]),
            },
            why=(
                "Our teachers agree less on these queries than the paper's, as they are less "
                "accurate."
            )
            * (theirs is not None and cost.result["paper"] > theirs[1]),
            seconds=cost.seconds,
        )
        alone = bench.ensemble(EnsembleName(dataset=dataset, num_teachers=1, forests=True))
        accuracy = alone.result["mean_held_out"]
        yield Row(
            what=f"{dataset}: one forest of all private records, without privacy",
            cells={PAPER: paper[2], OURS: percent(accuracy)},
            why=why * _falls_short(dataset, 2, accuracy),
            seconds=alone.seconds,
        )


def _falls_short(dataset: str, place: int, accuracy: float) -> bool:
    """Whether an accuracy, rounded as the paper's, is below the paper's."""
    return dataset in THEIRS and round(accuracy, DIGITS[dataset]) < THEIRS[dataset][place]


def _texts(theirs: tuple[float, float, float] | None) -> tuple[str, str, str]:
    if theirs is None:
        return "", "", ""
    return percent(theirs[0]), f"{theirs[1]:.2f}", percent(theirs[2])


EXPERIMENT = Experiment(
    title="Appendix C: random forests",
    about=(
        "250 forests of 100 trees, Laplace noise of scale 20 (gamma 0.05), 500 queries; accuracy "
        "on the held-out samples, epsilon at delta 1e-5."
    ),
    rows=_rows,
)
