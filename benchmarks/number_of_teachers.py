"""How many weak teachers are best for which epsilon? `python -m benchmarks.number_of_teachers`.

Ridge teachers are asked about twenty inputs a class, Gaussian noise is drawn on their counts, and
what these say of the whole pool is held against its true labels; noisy class sums of the same
features at the same epsilons beside them. No student is trained, and no held-out sample is looked
at. It reads votes without noise: SENSITIVE, for data sets that are public anyway.
"""

import argparse
import pathlib
import sys
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.instead.on_features import means_head
from benchmarks.instead.problem import DELTA, Problem, data_dir_of
from benchmarks.semi_supervised import ridge_votes
from pate_tf.accounting.mechanisms import GaussianHistogram
from pate_tf.accounting.mechanisms.base import Target
from pate_tf.accounting.planning import DEFAULT_MARGIN, profile_counts
from pate_tf.aggregation.noise import SystemNoise
from pate_tf.api.labelling import QUERIES_A_CLASS
from pate_tf.api.run_folder import DataSource
from pate_tf.core.partition import random_partition
from pate_tf.core.sensitive import Votes
from pate_tf.queries.strategies import clusters
from pate_tf.representations.catalogue import default_of_teachers, pool_features_by_name
from pate_tf.representations.regression import labels_of, neighbourhood_averages, regress_counts

NUMBERS = (1_000, 2_000, 4_000, 6_000, 10_000)
EPSILONS = (0.1, 0.25, 1.0)


def sigma_of(epsilon: float, *, num_teachers: int, num_classes: int, num_queries: int) -> float:
    """The least noise on each count, in votes, against replacement of one record."""
    target = Target(epsilon=epsilon, delta=DELTA, num_queries=num_queries, unit="record")
    assumed = profile_counts(num_teachers, num_classes, DEFAULT_MARGIN)
    return GaussianHistogram.for_target(target, assumed).noise_scales["sigma"]


def rows(
    problem: Problem, *, numbers: Sequence[int], epsilons: Sequence[float], num_draws: int
) -> Iterator[str]:
    """Yields a line of a table for each number of teachers, and one for class sums.

    A cell has the share of the pool's labels that are right, the mean of all draws, and in brackets
    how sure they are.

    Args:
        problem: data whose two sides are public.
        numbers: of teachers.
        epsilons: of all counts together, worst case, at `DELTA`.
        num_draws: of the noise.

    Raises:
        ValueError: if the pool's labels are not known, or there are no draws.
    """
    if num_draws < 1:
        raise ValueError(f"draws: expected at least 1, got {num_draws}")
    truth, pool, num_classes = (
        problem.public.pool_labels,
        problem.pool,
        problem.dataset.num_classes,
    )
    if truth is None:
        raise ValueError("dataset: expected one with labels of its public side")
    number_asked = min(QUERIES_A_CLASS * num_classes, len(pool))
    name = default_of_teachers(problem.dataset)  # what queries of such teachers are chosen by
    asked = clusters.choose(pool, number_asked, problem.seed, representation=name)
    inputs = list(neighbourhood_averages(pool_features_by_name(pool, name, problem.seed)))
    heads = [f"epsilon {epsilon:g}" for epsilon in epsilons]
    yield f"| teachers | one is right | {' | '.join(heads)} |"
    yield f"|---|---|{'---|' * len(heads)}"
    for number in numbers:
        shares = random_partition(
            num_records=len(problem.private), num_teachers=number, seed=problem.seed
        ).all_records()
        votes = ridge_votes(problem, shares, asked[:, None])
        counts = Votes(votes, num_classes).counts().values
        random = np.random.default_rng(problem.seed)
        cells = []
        for epsilon in epsilons:
            sigma = sigma_of(
                epsilon, num_teachers=number, num_classes=num_classes, num_queries=len(asked)
            )
            right, sure = [], []
            for _ in range(num_draws):
                noisy = counts + random.normal(0.0, sigma, counts.shape)
                labels = labels_of(regress_counts(inputs, asked, noisy, sigma))
                right.append((labels.labels == truth).mean())
                sure.append(labels.weights.max(axis=1).mean())
            cells.append(f"{np.mean(right):.1%} ({np.mean(sure):.0%})")
        yield f"| {number:,} | {(votes == truth[asked]).mean():.1%} | {' | '.join(cells)} |"
    yield f"| class sums | | {' | '.join(_of_class_sums(problem, truth, epsilons, num_draws))} |"


def _of_class_sums(
    problem: Problem, truth: np.ndarray, epsilons: Sequence[float], num_draws: int
) -> Iterator[str]:
    for epsilon in epsilons:
        right = []
        for _ in range(num_draws):
            head = means_head(
                problem.private_features,
                problem.private.labels,
                num_classes=problem.dataset.num_classes,
                public=problem.pool_features,
                epsilon=epsilon,
                noise=SystemNoise(),
            )
            right.append(((problem.pool_features @ head).argmax(axis=1) == truth).mean())
        yield f"{np.mean(right):.1%}"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--data_dir", type=pathlib.Path)
    parser.add_argument("--numbers", type=int, nargs="+", default=NUMBERS)
    parser.add_argument("--epsilons", type=float, nargs="+", default=EPSILONS)
    parser.add_argument("--draws", type=int, default=6, help="of the noise")
    flags = parser.parse_args(arguments)
    source = DataSource(dataset=flags.dataset, data_dir=data_dir_of(flags.dataset, flags.data_dir))
    print(f"SENSITIVE: {flags.dataset}; right labels of the pool (how sure)", flush=True)
    for line in rows(
        Problem(source=source),
        numbers=flags.numbers,
        epsilons=flags.epsilons,
        num_draws=flags.draws,
    ):
        print(line, flush=True)


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
