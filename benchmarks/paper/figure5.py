"""Figure 5: distillation against labels by plurality. Nothing here is private."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.paper.bench import Bench, Measured
from benchmarks.paper.ensembles import EnsembleName
from benchmarks.paper.rows import Experiment, Row, not_run, with_interval
from benchmarks.paper.training import config_of, held_out
from pate_tf.aggregation.noise import NoiseSource
from pate_tf.records import PoolLabels
from pate_tf.students.distillation import train_distilled
from pate_tf.students.outputs import outputs
from pate_tf.students.supervised import train_supervised

PLURALITY = "plurality"
TEMPERATURES = {"T = 1": 1.0, "T = 5": 5.0}
GAIN = "gain of the better T, points"


def _train(bench: Bench, ensemble: EnsembleName, num_queries: int, targets: str) -> Measured:
    """Trains a student on the first samples of the pool, without noise."""
    public = bench.workshop.public(ensemble.dataset)
    config = config_of(bench, "supervised", public)

    def measure(noise: NoiseSource) -> dict[str, Any]:
        del noise
        student_side, rest = public.split(public.dataset.pool_size)
        pool, queries = student_side.pool(), np.arange(num_queries)
        if targets == PLURALITY:
            counts = bench.votes(ensemble).counts().values[:num_queries]
            labels = PoolLabels(
                query_indices=queries,
                labels=counts.argmax(axis=1),
                num_classes=public.dataset.num_classes,
            )
            model = train_supervised(config, labels, pool)
        else:
            temperature = TEMPERATURES[targets]
            probabilities = bench.workshop.probabilities(ensemble, temperature)
            model = train_distilled(
                config,
                pool,
                query_indices=queries,
                probabilities=probabilities[:num_queries],
                temperature=temperature,
            )
        right = outputs(model, rest.inputs).argmax(axis=1) == rest.labels
        return {"held_out": int(right.sum()), "num_held_out": len(right)}

    bench.ensemble(ensemble)
    return bench.unit(
        "distillation",
        {
            "ensemble": dataclasses.asdict(ensemble),
            "num_queries": num_queries,
            "targets": targets,
            "student": dataclasses.asdict(config),
        },
        measure,
    )


def _rows(bench: Bench) -> Iterator[Row]:
    for dataset in bench.setting.images:
        if reason := bench.missing(dataset):
            yield not_run(dataset, reason)
            continue
        ensemble = EnsembleName(dataset=dataset, num_teachers=bench.setting.distilled_teachers)
        for num_queries in bench.setting.figure5_queries:
            students = {
                targets: _train(bench, ensemble, num_queries, targets)
                for targets in (PLURALITY, *TEMPERATURES)
            }
            accuracies = {targets: held_out(student) for targets, student in students.items()}
            best = max(accuracies[targets].value for targets in TEMPERATURES)
            gain = 100 * (best - accuracies[PLURALITY].value)
            yield Row(
                what=f"{dataset}, {num_queries} samples",
                cells={
                    **{targets: with_interval(found) for targets, found in accuracies.items()},
                    GAIN: f"{gain:+.2f}",
                },
                why=(
                    "The paper's curves lie a little above plurality; on these held-out samples "
                    "so small a gain cannot be told from none."
                )
                * (gain <= 0),
                numbers={
                    "dataset": dataset,
                    "queries": num_queries,
                    "accuracies": {name: found.value for name, found in accuracies.items()},
                },
                seconds=sum(student.seconds for student in students.values()),
            )


def _draw(figure: Figure, rows: Sequence[Mapping[str, Any]]) -> None:
    axes = figure.subplots()
    numbers = [row["numbers"] for row in rows if row["numbers"]]
    for targets in (PLURALITY, *TEMPERATURES):
        axes.plot(
            [one["queries"] for one in numbers],
            [100 * one["accuracies"][targets] for one in numbers],
            "o-",
            label=targets,
        )
    axes.set(xscale="log", xlabel="labelled samples", ylabel="student's accuracy, %")
    axes.legend()


EXPERIMENT = Experiment(
    title="Figure 5: distillation",
    about=(
        "NOT PRIVATE: supervised students that learn from the averaged probabilities of 50 "
        "teachers, at temperature T, against their plurality, no noise; accuracy on the held-out "
        "samples. The paper's figure is for SVHN, without numbers: the increase is \"too limited "
        'to justify the increased privacy cost".'
    ),
    rows=_rows,
    draw=_draw,
)
