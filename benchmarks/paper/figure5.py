"""Figure 5: distillation against labels by plurality. Nothing here is private."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.paper.bench import Bench, Measured
from benchmarks.paper.ensembles import EnsembleName
from benchmarks.paper.rows import Experiment, Row, median_and_range, not_run
from benchmarks.paper.training import config_of, held_out
from pate_tf.aggregation.noise import NoiseSource
from pate_tf.core.public import PoolLabels
from pate_tf.students.batches import outputs
from pate_tf.students.kinds import kind_of
from pate_tf.students.training import train_distilled

PLURALITY = "plurality"
TEMPERATURES = {"T = 1": 1.0, "T = 5": 5.0}


def _train(
    bench: Bench, ensemble: EnsembleName, num_queries: int, targets: str, *, repetition: int
) -> Measured:
    """Trains a student on the first samples of the pool, without noise, unless done before."""
    public = bench.workshop.split(ensemble.dataset)
    config = config_of(bench, "supervised", public.dataset, repetition=repetition)

    def measure(noise: NoiseSource) -> dict[str, Any]:
        del noise
        pool, rest, queries = public.pool, public.held_out, np.arange(num_queries)
        if targets == PLURALITY:
            counts = bench.votes(ensemble).counts().values[:num_queries]
            labels = PoolLabels(
                query_indices=queries,
                labels=counts.argmax(axis=1),
                num_classes=public.dataset.num_classes,
            )
            model = kind_of("supervised").train(config, labels, pool)
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
            "student": config.to_dict(),
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
                targets: [
                    _train(bench, ensemble, num_queries, targets, repetition=repetition)
                    for repetition in range(bench.setting.repetitions)
                ]
                for targets in (PLURALITY, *TEMPERATURES)
            }
            yield _row(f"{dataset}, {num_queries} samples", num_queries, students)


def _row(name: str, num_queries: int, students: Mapping[str, Sequence[Measured]]) -> Row:
    found = {
        targets: [held_out(student).value for student in trained]
        for targets, trained in students.items()
    }
    gains = {
        targets: 100 * float(np.mean(found[targets]) - np.mean(found[PLURALITY]))
        for targets in TEMPERATURES
    }
    return Row(
        what=name,
        cells={targets: median_and_range(values) for targets, values in found.items()}
        | {f"mean gain of {targets}, points": f"{gain:+.2f}" for targets, gain in gains.items()},
        why=(
            "The paper's curves lie a little above plurality; on these held-out samples so small "
            "a gain cannot be told from none."
        )
        * (max(gains.values()) <= 0),
        numbers={"queries": num_queries, "accuracies": found},
        seconds=sum(student.seconds for trained in students.values() for student in trained),
    )


def _draw(figure: Figure, rows: Sequence[Mapping[str, Any]]) -> None:
    axes = figure.subplots()
    numbers = [row["numbers"] for row in rows if row["numbers"]]
    queries = [one["queries"] for one in numbers]
    for targets in (PLURALITY, *TEMPERATURES):
        percents = 100 * np.array([one["accuracies"][targets] for one in numbers])
        (line,) = axes.plot(queries, np.median(percents, axis=1), "o-", label=targets)
        axes.fill_between(
            queries,
            percents.min(axis=1),
            percents.max(axis=1),
            color=line.get_color(),
            alpha=0.2,
            linewidth=0,
        )
    axes.set(xscale="log", xlabel="labelled samples", ylabel="student's accuracy, %")
    axes.legend()


EXPERIMENT = Experiment(
    title="Figure 5: distillation",
    about=(
        "NOT PRIVATE: supervised students that learn from the averaged probabilities of 50 "
        "teachers, at temperature T, against their plurality, no noise; median and range of the "
        "accuracy on the held-out samples over repetitions of the training. The paper's figure "
        'is for SVHN, without numbers: the increase is "too limited to justify the increased '
        'privacy cost".'
    ),
    rows=_rows,
    draw=_draw,
)
