"""Answers of teachers and ensembles: section 4.1, figures 2 and 3, and the cost of labels."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from benchmarks.harness import DELTA, median_and_range, percent
from benchmarks.paper.laboratory import (
    OURS,
    PAPER,
    REPRODUCED,
    Ensemble,
    Experiment,
    Laboratory,
    Row,
)
from pate_tf.accounting import conversions, moments
from pate_tf.accounting.mechanisms import (
    LATTICE,
    ConfidentGaussianNoisyMax,
    GaussianHistogram,
    GaussianNoisyMax,
    LaplaceNoisyMax,
    Mechanism,
)
from pate_tf.release.noise import SystemNoise

# Mean teacher, noisy aggregation, and a model without privacy.
THEIRS = {"mnist": (0.8386, 0.9318, 0.9918), "svhn": (0.8318, 0.8779, 0.928)}
GAMMA = 0.05
GAMMAS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
NUM_QUERIES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000)
MECHANISMS: Sequence[Mechanism] = (
    LaplaceNoisyMax(scale=20.0),
    GaussianHistogram(sigma=40.0),
    ConfidentGaussianNoisyMax(threshold=200.0, sigma_threshold=150.0, sigma=40.0),
    GaussianNoisyMax(sigma=40.0),
)


def numbers_of_teachers(laboratory: Laboratory) -> tuple[int, ...]:
    """Returns the sizes of the compared ensembles; the last one is the main ensemble."""
    return (5, 20) if laboratory.is_quick else (10, 100, 250)


def noisy_accuracies(laboratory: Laboratory, ensemble: Ensemble, gamma: float) -> list[float]:
    """Returns the accuracy of noisy labels of all public samples, for several draws of the noise.

    Args:
        laboratory: place of the measurement.
        ensemble: the teachers.
        gamma: inverse scale of the Laplace noise.
    """

    def measure() -> dict[str, list[float]]:
        counts, truth = laboratory.counts(ensemble), laboratory.truth(ensemble.dataset)
        num_queries, num_classes = counts.shape
        mechanism = LaplaceNoisyMax(gamma=gamma)
        accuracies = []
        for _ in range(2 if laboratory.is_quick else 5):
            noise = mechanism.additive_noise(
                SystemNoise(), num_queries=num_queries, num_classes=num_classes
            )
            labels = (counts * LATTICE + noise).argmax(axis=1)
            accuracies.append(float((labels == truth).mean()))
        return {"accuracies": accuracies}

    config = {"dataset": ensemble.dataset, "teachers": ensemble.num_teachers, "gamma": gamma}
    accuracies: list[float] = laboratory.measurements.of("aggregation", config, measure).result[
        "accuracies"
    ]
    return accuracies


def _teacher_rows(laboratory: Laboratory) -> Iterator[Row]:
    number, gamma = numbers_of_teachers(laboratory)[-1], 0.5 if laboratory.is_quick else GAMMA
    for dataset in laboratory.available_images():
        theirs = [percent(share) for share in THEIRS.get(dataset, ())] or [""] * 3
        ensemble = Ensemble(dataset=dataset, num_teachers=number)
        result = laboratory.ensemble(ensemble).result
        noisy = noisy_accuracies(laboratory, ensemble, gamma)
        alone = laboratory.ensemble(Ensemble(dataset=dataset, num_teachers=1)).result
        for what, paper, ours in (
            (
                f"{number} teachers: mean, worst, best",
                theirs[0],
                ", ".join(percent(result[name]) for name in ("mean", "worst", "best")),
            ),
            ("plurality without noise", "", percent(result["plurality"])),
            (f"noisy labels, Laplace scale {1 / gamma:g}", theirs[1], median_and_range(noisy)),
            ("one model of all records, without privacy", theirs[2], percent(alone["mean"])),
        ):
            yield Row(cells={"": f"{dataset}, {what}", PAPER: paper, OURS: ours})


def _figure2_rows(laboratory: Laboratory) -> Iterator[Row]:
    for dataset in laboratory.available_images():
        for gamma in (0.1, 1.0) if laboratory.is_quick else GAMMAS:
            accuracies = {
                str(number): noisy_accuracies(
                    laboratory, Ensemble(dataset=dataset, num_teachers=number), gamma
                )
                for number in numbers_of_teachers(laboratory)
            }
            cells = {
                f"{number} teachers": median_and_range(shares)
                for number, shares in accuracies.items()
            }
            yield Row(
                cells={"": f"{dataset}, gamma {gamma:g}", **cells},
                numbers={"dataset": dataset, "gamma": gamma, "accuracies": accuracies},
            )


def _draw_figure2(figure: Figure, numbers: Sequence[Mapping[str, Any]]) -> None:
    axes = figure.subplots()
    for dataset in dict.fromkeys(point["dataset"] for point in numbers):
        points = [point for point in numbers if point["dataset"] == dataset]
        gammas = [point["gamma"] for point in points]
        for teachers in points[0]["accuracies"]:
            shares = np.array([point["accuracies"][teachers] for point in points])
            axes.plot(gammas, np.median(shares, axis=1), "o-", label=f"{dataset}, {teachers}")
            axes.fill_between(gammas, shares.min(axis=1), shares.max(axis=1), alpha=0.3)
    axes.set(xscale="log", xlabel="gamma of each query", ylabel="accuracy of noisy labels")
    axes.legend(title="teachers")


def _figure3_rows(laboratory: Laboratory) -> Iterator[Row]:
    for dataset in laboratory.available_images():
        for number in numbers_of_teachers(laboratory):

            def measure(dataset: str = dataset, number: int = number) -> dict[str, float]:
                counts = laboratory.counts(Ensemble(dataset=dataset, num_teachers=number))
                ordered = np.sort(counts, axis=1)
                margins = (ordered[:, -1] - ordered[:, -2]) / number
                return {"mean": float(margins.mean()), "tenth": float(np.quantile(margins, 0.1))}

            config = {"dataset": dataset, "teachers": number}
            margin = laboratory.measurements.of("margin", config, measure).result
            yield Row(
                cells={
                    "": f"{dataset}, {number} teachers",
                    PAPER: "above 60%",
                    OURS: percent(margin["mean"]),
                    "lowest tenth of the samples": percent(margin["tenth"]),
                }
            )


def _data_independent_rows(laboratory: Laboratory) -> Iterator[Row]:
    del laboratory  # a formula has one size
    for what, num_queries, delta, theirs in (
        ("SVHN: 1,000 queries, delta 1e-6", 1_000, 1e-6, "about 26"),
        ("MNIST: 100 queries, delta 1e-5", 100, 1e-5, "about 5.80"),
    ):
        grid = moments.DEFAULT_MOMENTS
        alphas = num_queries * 2.0 * GAMMA * grid * np.minimum(GAMMA * (grid + 1.0), 1.0)
        theorem_2, _ = conversions.epsilon_from_alphas(alphas, moments.DEFAULT_MOMENTS, delta)
        # Papernot et al. 2017, section 3.2.
        strong = 4.0 * num_queries * GAMMA**2
        strong += 2.0 * GAMMA * math.sqrt(2.0 * num_queries * math.log(1.0 / delta))
        cells = {
            "": what,
            PAPER: theirs,
            "strong composition": f"{strong:.2f}",
            "Theorem 2, all moments": f"{theorem_2:.2f}",
        }
        epsilon, _ = LaplaceNoisyMax(gamma=GAMMA).data_independent_epsilon(
            num_queries=num_queries, delta=delta
        )
        cells["laplace noisy max"] = f"{epsilon:.2f}"
        yield Row(cells=cells)


def _cost_rows(laboratory: Laboratory) -> Iterator[Row]:
    del laboratory
    for mechanism in MECHANISMS:
        epsilons = [
            mechanism.data_independent_epsilon(num_queries=number, delta=DELTA)[0]
            for number in NUM_QUERIES
        ]
        shown = dict(zip(NUM_QUERIES, epsilons, strict=True))
        cells = {f"{number:,} queries": f"{shown[number]:.3g}" for number in (1, 10, 100, 1_000)}
        yield Row(
            cells={"": mechanism.summary(), **cells},
            numbers={"mechanism": mechanism.summary(), "epsilons": epsilons},
        )


def _draw_costs(figure: Figure, numbers: Sequence[Mapping[str, Any]]) -> None:
    figure.set_size_inches(8.0, 6.4)
    axes = figure.subplots()
    for curve in numbers:
        axes.loglog(NUM_QUERIES, curve["epsilons"], marker="o", label=curve["mechanism"])
    axes.set(xlabel="queries", ylabel=f"worst-case epsilon at delta {DELTA:g}")
    axes.grid(visible=True, which="both", alpha=0.3)
    figure.legend(loc="outside lower center")


TEACHERS = Experiment(
    title="Section 4.1: teachers",
    about="Accuracy on all public samples. Teachers use the default network with augmentation, "
    "which differs from the paper's network.",
    rows=_teacher_rows,
    page=REPRODUCED,
)
FIGURE2 = Experiment(
    title="Figure 2: accuracy of noisy aggregation against gamma",
    about="Laplace noise of scale 1 / gamma on the votes for all public samples; median and range "
    "of five draws.",
    rows=_figure2_rows,
    page=REPRODUCED,
    draw=_draw_figure2,
)
FIGURE3 = Experiment(
    title="Figure 3: vote margin",
    about="Votes for the first class minus votes for the second, divided by the number of "
    "teachers; mean over all public samples.",
    rows=_figure3_rows,
    page=REPRODUCED,
)
DATA_INDEPENDENT = Experiment(
    title="Section 3.2: data-independent epsilon",
    about="Gamma 0.05. Strong composition is the paper's formula; the last two columns are "
    "computed with the library.",
    rows=_data_independent_rows,
    page=REPRODUCED,
)
COSTS = Experiment(
    title="Cost against queries",
    about="Worst-case epsilon at delta 1e-5, with the scales that `--help` suggests.",
    rows=_cost_rows,
    draw=_draw_costs,
)
