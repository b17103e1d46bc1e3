"""Two moved votes against the exact laws of the labels, by brute force."""

import itertools
import math

import numpy as np
import pytest
import reference
from scipy.special import ndtr

from pate_tf.accounting.composition import (
    group_epsilon,
    several_teachers_alpha,
    several_teachers_epsilon,
    smallest_epsilon,
)
from pate_tf.accounting.conversions import DEFAULT_MOMENTS
from pate_tf.accounting.mechanisms import (
    ConfidentGaussianNoisyMax,
    GaussianFeatureSums,
    GaussianNoisyMax,
    LaplaceNoisyMax,
    Mechanism,
)

MECHANISMS = [
    *(LaplaceNoisyMax(gamma=gamma) for gamma in (0.05, 0.4, 2.0)),
    *(GaussianNoisyMax(sigma=sigma) for sigma in (0.8, 3.0, 40.0)),
]
MOMENTS = DEFAULT_MOMENTS[::9]


def votes_away(histogram: tuple[int, ...], num_votes: int) -> set[tuple[int, ...]]:
    actual = {histogram}
    for _ in range(num_votes):
        actual = actual.union(*map(reference.neighbours, actual))
    return actual


def pairs(
    mechanism: Mechanism, votes: int, classes: int, moved: int = 2
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Returns the laws of the label for every pair of histograms that differ by this many moved
    votes.
    """
    histograms = list(reference.sorted_histograms(votes, classes))
    near = [(one, other) for one in histograms for other in sorted(votes_away(one, moved))]
    first, second = (
        mechanism.outcome_probabilities(np.array([pair[side] for pair in near])) for side in (0, 1)
    )
    return [*zip(first, second, strict=True), *zip(second, first, strict=True)]


def largest_alpha(laws: list[tuple[np.ndarray, np.ndarray]]) -> np.ndarray:
    one, other = (np.array([pair[side] for pair in laws]) for side in (0, 1))
    keep = np.minimum(one, other) > 1e-200  # omitted terms only lower a sum of this size
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(keep, np.log(one) - np.log(other), 0.0)
    actual = []
    for moment in MOMENTS:
        with np.errstate(divide="ignore"):
            terms = np.log(np.where(keep, one, 0.0)) + moment * ratio
        actual.append(np.logaddexp.reduce(terms, axis=1).max())
    return np.array(actual)


def hockey_stick(one: np.ndarray, other: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(one - math.exp(epsilon) * other, 0.0).sum())


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
@pytest.mark.parametrize(("votes", "classes"), [(4, 2), (7, 2), (5, 3), (6, 4)])
def test_no_pair_of_histograms_costs_more(mechanism, votes, classes):
    exact = largest_alpha(pairs(mechanism, votes, classes))
    assert (exact <= several_teachers_alpha(mechanism, MOMENTS, 2) * (1.0 + 1e-7) + 1e-9).all()


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
@pytest.mark.parametrize("num_queries", [1, 2])
@pytest.mark.parametrize("delta", [1e-1, 1e-3, 1e-6])
def test_no_event_of_one_or_two_labels_breaks_the_promise(mechanism, num_queries, delta):
    epsilon = several_teachers_epsilon({mechanism: num_queries}, delta=delta)
    for one, other in pairs(mechanism, 5, 3):
        for _ in range(num_queries - 1):
            one, other = np.outer(one, one), np.outer(other, other)
        assert hockey_stick(one, other, epsilon) <= delta * (1.0 + 1e-7)


@pytest.mark.parametrize(
    ("mechanism", "num_queries"),
    [(LaplaceNoisyMax(gamma=0.4), 2), (LaplaceNoisyMax(gamma=2.0), 1)],
    ids=repr,
)
def test_what_one_moved_teacher_costs_would_not_do(mechanism, num_queries):
    # The statement's promise about owners with records from earlier runs: replace-one, at the cost
    # of one teacher.
    delta = 1e-3
    epsilon, _ = mechanism.data_independent_epsilon(num_queries=num_queries, delta=delta)
    worst = 0.0
    for one, other in pairs(mechanism, 8, 2):
        for _ in range(num_queries - 1):
            one, other = np.outer(one, one), np.outer(other, other)
        worst = max(worst, hockey_stick(one, other, epsilon))
    assert worst > 2.0 * delta


@pytest.mark.parametrize("threshold", [2.0, 3.5, 6.0])
def test_the_threshold_test_is_charged_for_a_largest_count_two_votes_away(threshold):
    sigma = 1.5
    test_alone = ConfidentGaussianNoisyMax(threshold=threshold, sigma_threshold=sigma, sigma=1e9)
    laws = []
    for one in reference.sorted_histograms(6, 3):
        for other in votes_away(one, 2):
            passed = [float(ndtr((max(counts) - threshold) / sigma)) for counts in (one, other)]
            law, twin = (np.array([share, 1.0 - share]) for share in passed)
            laws += [(law, twin), (twin, law)]
    assert (largest_alpha(laws) <= several_teachers_alpha(test_alone, MOMENTS, 2) + 1e-9).all()
    jumps = [abs(max(a) - max(b)) for a in [(4, 1, 1)] for b in votes_away(a, 2)]
    assert max(jumps) == 2


def test_group_privacy_by_brute_force():
    # Three laws in a row. Each step is as private as its curve; both ends are as private as the
    # group bound.
    laws = np.random.default_rng(0).dirichlet(np.ones(5), size=(8, 3))

    def curve(one: np.ndarray, other: np.ndarray, delta: float) -> float:
        for epsilon in np.linspace(0.0, 30.0, 3001):
            if max(hockey_stick(one, other, epsilon), hockey_stick(other, one, epsilon)) <= delta:
                return float(epsilon)
        return math.inf

    for first, middle, last in laws:
        for delta in (0.3, 0.01):

            def step(smaller: float, laws=(first, middle, last)) -> float:
                start, between, end = laws
                return max(curve(start, between, smaller), curve(between, end, smaller))

            actual = group_epsilon(step, delta)
            ends = itertools.permutations((first, last))
            assert all(hockey_stick(one, other, actual) <= delta for one, other in ends)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
@pytest.mark.parametrize("num_teachers", [3, 5])
def test_no_pair_of_histograms_so_many_votes_away_costs_more(mechanism, num_teachers):
    laws = pairs(mechanism, 6, 3, num_teachers)
    bound = several_teachers_alpha(mechanism, MOMENTS, num_teachers)
    assert (largest_alpha(laws) <= bound * (1.0 + 1e-7) + 1e-9).all()
    for delta in (1e-1, 1e-3):
        epsilon = several_teachers_epsilon({mechanism: 1}, delta=delta, num_teachers=num_teachers)
        assert all(hockey_stick(*pair, epsilon) <= delta * (1.0 + 1e-7) for pair in laws)
    assert several_teachers_epsilon({mechanism: 0}, delta=1e-3) == 0.0


@pytest.mark.parametrize("num_teachers", [2, 5])
@pytest.mark.parametrize("sigma", [0.7, 7.5, 300.0])
def test_steps_one_after_another_say_no_more_of_gaussian_sums(sigma, num_teachers):
    """Gaussian sums therefore skip the search over steps."""
    charges = {GaussianFeatureSums(sigma=sigma): 1}
    steps = group_epsilon(
        lambda delta: smallest_epsilon(charges, delta)[0], 1e-5, num_steps=num_teachers
    )
    epsilon = several_teachers_epsilon(charges, delta=1e-5, num_teachers=num_teachers)
    assert num_teachers * smallest_epsilon(charges, 1e-5)[0] < epsilon <= steps * (1.0 + 1e-6)
