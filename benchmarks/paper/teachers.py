"""Section 4.1: how accurate teachers are, alone and together."""

from collections.abc import Iterator

import numpy as np

from benchmarks.paper.bench import Bench
from benchmarks.paper.ensembles import EnsembleName
from benchmarks.paper.figure2 import median_and_range, noisy_aggregation
from benchmarks.paper.rows import OURS, PAPER, Experiment, Row, not_run, percent

MEAN_TEACHER = {"mnist": 0.8386, "svhn": 0.8318}
NOISY_AGGREGATION = {"mnist": 0.9318, "svhn": 0.8779}
WITHOUT_PRIVACY = {"mnist": 0.9918, "svhn": 0.928}


def _row(what: str, theirs: float | None, ours: float, text: str, why: str, seconds: float) -> Row:
    return Row(
        what=what,
        cells={PAPER: "" if theirs is None else percent(theirs), OURS: text},
        why=why if theirs is not None and ours < theirs else "",
        seconds=seconds,
    )


def _rows(bench: Bench) -> Iterator[Row]:
    setting = bench.setting
    for dataset in setting.images:
        name = f"{dataset}, {setting.num_teachers} teachers"
        if reason := bench.missing(dataset):
            yield not_run(name, reason, paper=percent(MEAN_TEACHER[dataset]))
            continue
        many = EnsembleName(dataset=dataset, num_teachers=setting.num_teachers)
        measured = bench.ensemble(many)
        found = measured.result
        yield _row(
            f"{name}: mean, worst and best teacher",
            MEAN_TEACHER.get(dataset),
            found["mean"],
            f"{percent(found['mean'])}, {percent(found['worst'])}, {percent(found['best'])}",
            "Teachers are trained for 25 passes, as the default is; more would be dearer.",
            measured.seconds,
        )
        yield _row(
            f"{name}: plurality without noise",
            None,
            found["plurality"],
            percent(found["plurality"]),
            "",
            0.0,
        )
        gamma = 1.0 / setting.scale
        aggregation = noisy_aggregation(bench, many, gamma)
        accuracies = aggregation.result["accuracies"]
        yield _row(
            f"{name}: noisy aggregation, Laplace scale {setting.scale:g}",
            NOISY_AGGREGATION.get(dataset),
            float(np.median(accuracies)),
            median_and_range(accuracies),
            "Fewer of our teachers agree on this data set than of the paper's.",
            aggregation.seconds,
        )
        alone = bench.ensemble(EnsembleName(dataset=dataset, num_teachers=1))
        yield _row(
            f"{dataset}: one model of all private records, without privacy",
            WITHOUT_PRIVACY.get(dataset),
            alone.result["mean"],
            percent(alone.result["mean"]),
            "The model is trained as a teacher is, with no setting chosen for so many records.",
            alone.seconds,
        )


EXPERIMENT = Experiment(
    title="Section 4.1: teachers",
    about=(
        "Accuracy on all public samples. Our teachers are `train_teachers.py`'s defaults: another "
        "network than the paper's, with augmentation."
    ),
    rows=_rows,
)
