"""Private-kNN (Zhu, Yu, Chandraker and Wang, CVPR 2020): nearest neighbors vote, not teachers.

For each query, every private record is drawn with probability q. Of the drawn records, the k
nearest to the query in a public feature space vote. Gaussian noise is added to the counts, and the
class with the largest count is released. The number of neighbors and the rate come from the
authors' code for MNIST (github.com/jeremy43/Private_kNN, digit_pytorch). Their noisy screening of
queries is omitted. The student is this library's own, as for all methods that release labels.

Its cost (`alphas`) for one query: fix the draw of the other records. Without the record the counts
are n. With it they are n + u. The vector u is zero if the record is not among the nearest.
Otherwise u = e_a - e_z: the record's own vote replaces the vote of the k-th neighbor. If another
record replaces it, the counts are n + v with the same z: v = e_b - e_z or zero. The release is N(n,
sigma^2) with probability 1 - q, else N(n + u, sigma^2), against N(n + v, sigma^2). Either u and v
are equal, or one is zero and the other has length sqrt(2), or both have this length with an angle
of 60 degrees. (If fewer than k are drawn, no vote is replaced: u = e_a and v = e_b, which is the
former case after dropping a coordinate.) Since E[(P/Q)^l] is jointly convex in P and Q, its mean
over the others' draws is at most the largest of these cases. This is the cost of replacing a
record. Published epsilons are for removal, the case with a zero. Ours are for replacement, as
everywhere in this comparison.
"""

import dataclasses
import functools
import pathlib

import numpy as np
import numpy.typing as npt
from scipy.special import logsumexp

from benchmarks.harness import DELTA
from benchmarks.instead.problem import Problem
from pate_tf.accounting.conversions import epsilon_from_alphas
from pate_tf.core.public import PoolLabels

NEIGHBOURS, RATE = 300, 0.05
NUMBERS = (50, 100, 200, 500, 1_000)  # number of queries
MOMENTS = np.geomspace(0.5, 200.0, 40)
WIDTH, FARTHEST, STEP = 9.0, 20.0, 0.4  # of the quadrature, in sigmas


@functools.lru_cache(maxsize=512)
def alphas(rate: float, sigma: float) -> npt.NDArray[np.float64]:
    """Returns the cost of one query, ln E[(P/Q)^l] at each of `MOMENTS`, for replacement.

    It uses the trapezoid rule in the plane of the two changes. For functions this smooth its error
    is below rounding. The cost is infinite if the plane is too small for a moment.

    Args:
        rate: probability of drawing a record, in (0, 1].
        sigma: standard deviation of the noise on each count.
    """
    length = np.sqrt(2.0)
    first = np.array([length, 0.0])
    second = np.array([length / 2.0, length * np.sqrt(0.75)])
    zero = np.zeros(2)
    reach = (WIDTH + FARTHEST) * sigma
    axis = np.arange(-reach, reach + STEP * sigma, STEP * sigma)
    grid = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1).reshape(-1, 2)
    log_still = -(grid**2).sum(1) / (2.0 * sigma**2) + np.log(STEP**2 / (2.0 * np.pi))

    def log_ratio(change: npt.NDArray) -> npt.NDArray:
        exponent = (grid @ change - change @ change / 2.0) / sigma**2
        with np.errstate(divide="ignore"):
            return np.logaddexp(np.log1p(-rate), np.log(rate) + exponent)

    largest = np.zeros(len(MOMENTS))
    # The integrand has its farthest mass around (l + 1) u - l v.
    possible = (2.0 * MOMENTS + 1.0) * length <= FARTHEST * sigma
    largest[~possible] = np.inf
    for changes in ((first, second), (first, zero), (zero, first)):
        over, under = map(log_ratio, changes)
        for place in np.flatnonzero(possible):
            moment = MOMENTS[place]
            cost = logsumexp(log_still + (moment + 1.0) * over - moment * under)
            largest[place] = max(largest[place], cost)
    return largest * (1.0 + 1e-9) + 1e-12


def epsilon_of(*, rate: float, sigma: float, queries: int) -> float:
    """Returns the epsilon of this many queries at `DELTA`."""
    return epsilon_from_alphas(queries * alphas(rate, sigma), MOMENTS, DELTA)[0]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Number of queries, and their noise.

    Attributes:
        queries: number of queries.
        sigma: standard deviation of the noise on each count.
    """

    queries: int
    sigma: float


def planned(
    epsilon: float, *, neighbours: int = NEIGHBOURS, rate: float = RATE, at_most: int = NUMBERS[-1]
) -> Plan:
    """Returns the most queries whose noise is at most a tenth of the neighbors; else the fewest.

    It uses public values only and no votes.
    """
    plans = [
        Plan(queries=queries, sigma=least_sigma(epsilon, rate=rate, queries=queries))
        for queries in sorted(min(number, at_most) for number in NUMBERS)
    ]
    return [plans[0], *(plan for plan in plans if plan.sigma <= neighbours / 10.0)][-1]


def least_sigma(epsilon: float, *, rate: float, queries: int) -> float:
    """Returns noise that keeps to an epsilon, at most one percent above the minimum.

    Raises:
        ValueError: if no noise below 2^20 votes is enough.
    """
    high = 2.0
    while epsilon_of(rate=rate, sigma=high, queries=queries) > epsilon:
        high *= 2.0
        if high > 2.0**20:
            raise ValueError(f"epsilon: expected one that noise can reach, got {epsilon}")
    low = high / 2.0
    while high > 1.01 * low:
        middle = (low + high) / 2.0
        if epsilon_of(rate=rate, sigma=middle, queries=queries) <= epsilon:
            high = middle
        else:
            low = middle
    return high


def counts(
    query: npt.NDArray,
    features: npt.NDArray,
    labels: npt.NDArray,
    *,
    drawn: npt.NDArray,
    neighbours: int,
    num_classes: int,
) -> npt.NDArray[np.int64]:
    """SENSITIVE: returns the votes `[num_classes]` of a query's nearest drawn records."""
    candidates = features[drawn]
    distances = (candidates**2).sum(axis=1) - 2.0 * candidates @ query
    number = min(neighbours, len(drawn))
    nearest = drawn[np.argpartition(distances, number - 1)[:number]] if number else drawn
    return np.bincount(labels[nearest], minlength=num_classes)


def run(
    problem: Problem, epsilon: float, repetition: int, folder: pathlib.Path
) -> dict[str, object]:
    """Labels the first inputs of the pool, and trains a student."""
    del folder
    features, private = problem.learned, problem.data.private
    most = 50 if problem.is_quick else NUMBERS[-1]
    plan = planned(epsilon, at_most=min(len(features.pool), most))
    num_classes, random = problem.data.dataset.num_classes, np.random.default_rng()
    labels = np.zeros(plan.queries, np.int64)
    for place, query in enumerate(features.pool[: plan.queries]):
        votes = counts(
            query,
            features.private,
            private.labels,
            drawn=np.flatnonzero(random.random(len(private)) < RATE),
            neighbours=NEIGHBOURS,
            num_classes=num_classes,
        )
        labels[place] = (votes + random.normal(0.0, plan.sigma, num_classes)).argmax()
    indices = np.arange(plan.queries)
    released = PoolLabels(query_indices=indices, labels=labels, num_classes=num_classes)
    return {**problem.student(released, repetition), "sigma": plan.sigma}
