"""Draws cost against number of queries.

`python -m benchmarks.costs docs/notes/pictures/costs.png` makes the picture of the guide:
worst-case epsilon at the scales that `--help` names, or near them. No votes are read. Prints the
numbers of the picture too.
"""

import argparse
import pathlib
from collections.abc import Sequence

from pate_tf.accounting.mechanisms import (
    ConfidentGaussianNoisyMax,
    ExponentialMechanism,
    GaussianHistogram,
    GaussianNoisyMax,
    InteractiveGaussianNoisyMax,
    LaplaceNoisyMax,
    Mechanism,
    PermuteAndFlip,
    StabilityGate,
)

DELTA = 1e-5
NUM_QUERIES = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)
MECHANISMS: Sequence[Mechanism] = (
    PermuteAndFlip(scale=20.0),
    LaplaceNoisyMax(scale=20.0),
    ExponentialMechanism(scale=20.0),
    GaussianHistogram(sigma=40.0),
    ConfidentGaussianNoisyMax(threshold=200.0, sigma_threshold=150.0, sigma=40.0),
    GaussianNoisyMax(sigma=40.0),
    InteractiveGaussianNoisyMax(threshold=50.0, sigma_threshold=150.0, sigma=40.0, label_share=0.1),
    StabilityGate(epsilon=0.25, delta=DELTA / 3),
)


def epsilons(mechanism: Mechanism) -> list[float]:
    """Returns epsilon at DELTA of each of NUM_QUERIES."""
    return [
        mechanism.data_independent_epsilon(num_queries=number, delta=DELTA)[0]
        for number in NUM_QUERIES
    ]


def draw(path: pathlib.Path) -> None:
    """Writes the picture."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 6.4), layout="constrained")
    axes = figure.subplots()
    for mechanism in MECHANISMS:
        axes.loglog(NUM_QUERIES, epsilons(mechanism), marker="o", label=mechanism.summary())
    axes.set_xlabel("queries")
    axes.set_ylabel(f"epsilon at delta {DELTA:g}, whatever the data")
    axes.grid(visible=True, which="both", alpha=0.3)
    figure.legend(loc="outside lower center", fontsize="x-small")
    figure.savefig(path, dpi=120, metadata={"Software": None})


def main() -> None:
    """Prints the numbers, and draws them if asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("picture", type=pathlib.Path, nargs="?")
    arguments = parser.parse_args()
    print("queries", *(f"{number:>7}" for number in NUM_QUERIES))
    for mechanism in MECHANISMS:
        print(*(f"{epsilon:7.3f}" for epsilon in epsilons(mechanism)), mechanism.summary())
    if arguments.picture:
        draw(arguments.picture)


if __name__ == "__main__":
    main()
