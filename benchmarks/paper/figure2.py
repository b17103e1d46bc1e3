"""Figure 2: how much noise can be injected to a query?"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.paper.bench import Bench, Measured
from benchmarks.paper.ensembles import EnsembleName
from benchmarks.paper.rows import Experiment, Row, not_run, percent
from pate_tf.accounting.mechanisms import LaplaceNoisyMax
from pate_tf.aggregation.graph import VoteAggregation
from pate_tf.aggregation.noise import NoiseSource


def noisy_aggregation(bench: Bench, ensemble: EnsembleName, gamma: float) -> Measured:
    """Labels all public samples several times with noise of inverse scale gamma.

    Its result: `accuracies`, one for each drawing of the noise.
    """

    def measure(noise: NoiseSource) -> dict[str, Any]:
        counts = bench.votes(ensemble).counts()
        truth = bench.workshop.public(ensemble.dataset).labels
        aggregation = VoteAggregation(counts.num_classes)
        accuracies = []
        for _ in range(bench.setting.draws):
            drawn = LaplaceNoisyMax(gamma=gamma).additive_noise(
                noise,
                num_queries=counts.num_queries,
                num_classes=counts.num_classes,
            )
            winners = aggregation.label(counts.values, drawn)
            accuracies.append(float((winners == truth).mean()))
        return {"accuracies": accuracies}

    config = {
        "dataset": ensemble.dataset,
        "num_teachers": ensemble.num_teachers,
        "gamma": gamma,
        "draws": bench.setting.draws,
    }
    bench.ensemble(ensemble)
    return bench.unit("aggregation", config, measure)


def median_and_range(accuracies: Sequence[float]) -> str:
    """Several accuracies as text."""
    low, high = 100 * min(accuracies), 100 * max(accuracies)
    return f"{percent(float(np.median(accuracies)))} ({low:.2f} to {high:.2f})"


def _rows(bench: Bench) -> Iterator[Row]:
    for dataset in bench.setting.images:
        if reason := bench.missing(dataset):
            yield not_run(dataset, reason)
            continue
        for gamma in bench.setting.gammas:
            measured = {
                num_teachers: noisy_aggregation(
                    bench, EnsembleName(dataset=dataset, num_teachers=num_teachers), gamma
                )
                for num_teachers in bench.setting.ensembles
            }
            accuracies = {n: one.result["accuracies"] for n, one in measured.items()}
            yield Row(
                what=f"{dataset}, gamma {gamma:g}",
                cells={
                    f"{n} teachers": median_and_range(values) for n, values in accuracies.items()
                },
                numbers={
                    "dataset": dataset,
                    "gamma": gamma,
                    "accuracies": {str(n): values for n, values in accuracies.items()},
                },
                seconds=sum(one.seconds for one in measured.values()),
            )


def _draw(figure: Figure, rows: Sequence[Mapping[str, Any]]) -> None:
    axes = figure.subplots()
    numbers = [row["numbers"] for row in rows if row["numbers"]]
    for dataset in dict.fromkeys(one["dataset"] for one in numbers):
        of_dataset = [one for one in numbers if one["dataset"] == dataset]
        gammas = [one["gamma"] for one in of_dataset]
        for teachers in of_dataset[0]["accuracies"]:
            values = np.array([one["accuracies"][teachers] for one in of_dataset])
            axes.plot(gammas, np.median(values, axis=1), "o-", label=f"{dataset}, {teachers}")
            axes.fill_between(gammas, values.min(axis=1), values.max(axis=1), alpha=0.3)
    axes.set(xscale="log", xlabel="gamma for each query", ylabel="accuracy of noisy labels")
    axes.legend(title="teachers")


EXPERIMENT = Experiment(
    title="Figure 2: accuracy of noisy aggregation against gamma",
    about=(
        "Laplace noise of scale 1/gamma on the votes for all public samples; median and range over "
        "several draws. The paper gives the curves as a picture alone; the value it names, at "
        "gamma 0.05, stands under `teachers`."
    ),
    rows=_rows,
    draw=_draw,
)
