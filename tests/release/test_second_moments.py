"""Second moments next to sums by class: how far one record or owner can move them, and
their use.
"""

import itertools
import math

import numpy as np
import pytest
import scipy.special

from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.mechanisms.charged_once import MOMENT_WEIGHT
from pate_tf.postprocessing.regression import weights_of_moments
from pate_tf.release.exact_sums import moments_by_class

NUM_CLASSES = 2
# Vectors of a small universe: of norm 1 or 0, at the corners and in between.
UNIVERSE = np.array(
    [[0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0.6, 0.8, 0], [0.6, 0, 0.8], [0.48, 0.6, 0.64]]
)
CASES = list(itertools.product(range(len(UNIVERSE)), range(NUM_CLASSES)))


def norm(steps) -> float:
    """Returns the exact squared norm, in Python integers."""
    return math.sqrt(sum(int(step) ** 2 for step in steps.ravel())) / LATTICE


def table_of(cases, owners=None, universe=UNIVERSE):
    places, labels = (np.array(part) for part in zip(*cases, strict=True))
    return moments_by_class(universe[places], np.eye(NUM_CLASSES)[labels], owners)


def slow(cases):
    """Returns the moments by a loop over records, from the formula of Proposition D11."""
    total = np.zeros((3, NUM_CLASSES + 3))
    for place, label in cases:
        vector, classes = UNIVERSE[place], np.eye(NUM_CLASSES)[label]
        right = np.concatenate([classes, MOMENT_WEIGHT * vector]) / math.hypot(1, MOMENT_WEIGHT)
        total += np.outer(vector, right)
    return total


def test_one_record_replaced_moves_them_by_root_two_at_most():
    """Tests all records and all replacements of a small universe."""
    others = CASES[3:9]
    tables = [table_of([case, *others]) for case in CASES]
    assert max(norm(table_of([case])) for case in CASES) <= 1.0
    moved = [norm(one - other) for one, other in itertools.combinations(tables, 2)]
    assert 1.41 < max(moved) <= math.sqrt(2.0)
    np.testing.assert_allclose(table_of(CASES) / LATTICE, slow(CASES), atol=0.002 * len(CASES))


def test_an_owner_adds_a_norm_of_one_and_one_replaced_moves_root_two():
    """Tests all owners with one or two records of the universe, and one owner with very many."""
    owners = [[case] for case in CASES] + [list(two) for two in itertools.product(CASES, CASES)]
    owners.append(CASES * 50)
    others, theirs = CASES[3:9], [1, 1, 2, 2, 3, 4]
    without = table_of(others, np.array(theirs))
    tables = [table_of(mine + others, np.array([0] * len(mine) + theirs)) for mine in owners]
    assert 0.99 < max(norm(table - without) for table in tables) <= 1.0
    moved = max(norm(one - other) for one, other in itertools.combinations(tables, 2))
    assert 1.3 < moved <= math.sqrt(2.0)
    # Neither the order of records nor the order of owners matters.
    cases, names = CASES * 3, np.arange(3 * len(CASES)) % 5
    order = np.random.default_rng(0).permutation(len(cases))
    expected = table_of(cases, names)
    assert (table_of([cases[row] for row in order], names[order]) == expected).all()
    assert (table_of(cases, (4 - names).astype(str)) == expected).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("owned", [False, True])
@pytest.mark.parametrize("bad", [7.0, -7.0, 1e300, np.nan, np.inf])
def test_a_vector_that_is_too_long_or_negative_adds_no_more_than_others(bad, owned):
    universe = np.vstack([UNIVERSE, np.full(3, bad), -UNIVERSE[-1]])
    for place in (len(UNIVERSE), len(UNIVERSE) + 1):
        owners = np.array([0, 1, 2]) if owned else None
        table = table_of([(place, 0), (4, 1), (5, 0)], owners, universe)
        rest = table_of([(4, 1), (5, 0)], None if owners is None else owners[1:])
        assert norm(table - rest) == 0.0


def test_weights_are_those_of_ridge_regression_and_noise_shrinks_them():
    random = np.random.default_rng(1)
    vectors = np.abs(random.normal(size=(20_000, 6)))
    vectors[:, -1] = 0.0
    vectors *= (0.95**0.5) / np.linalg.norm(vectors, axis=1, keepdims=True)
    vectors[:, -1] = 0.05**0.5
    labels = (vectors[:, 0] > vectors[:, 1]).astype(int)
    exact = moments_by_class(vectors, np.eye(NUM_CLASSES)[labels])
    weights = weights_of_moments(exact, NUM_CLASSES, 0.1)
    expected = np.linalg.lstsq(vectors, np.eye(NUM_CLASSES)[labels], rcond=None)[0]
    # Equal up to a temperature factor and a term that all classes share.
    actual, expected = (each[:, 1] - each[:, 0] for each in (weights, expected))
    factor = actual @ expected / (expected @ expected)
    np.testing.assert_allclose(actual, factor * expected, atol=0.05 * factor)
    chances = scipy.special.softmax(vectors @ weights, axis=1)
    assert np.mean(chances.argmax(axis=1) == labels) > 0.97
    assert abs(chances.max(axis=1).mean() - 0.97) < 0.1
    noise = random.normal(size=exact.shape) * LATTICE
    for scale in (1e3, 1e5, 1e10):
        noisy = (exact + scale * noise).astype(np.int64)
        shrunk = weights_of_moments(noisy, NUM_CLASSES, scale, num_records=len(labels))
        assert np.isfinite(shrunk).all()
        assert np.linalg.norm(shrunk[:-1]) < np.linalg.norm(weights[:-1])


def test_weights_of_neighboring_bins_are_alike():
    """Two numbers in 30 bins each. Under noise, numbers with a known order are more accurate."""
    random = np.random.default_rng(0)
    places = random.integers(0, 30, (20_000, 2))
    one_hot = np.eye(30)[places].reshape(len(places), -1) * (0.95 / 2) ** 0.5
    vectors = np.hstack([one_hot, np.full((len(places), 1), 0.05**0.5)])
    labels = (places.sum(axis=1) > 35).astype(int)
    exact = moments_by_class(vectors, np.eye(NUM_CLASSES)[labels])
    groups, correct = np.repeat([0, 1], 30), {}
    for is_ordered in (False, True):
        numbered = -1 - groups if is_ordered else groups
        guesses = []
        for noise in np.random.default_rng(1).normal(size=(10, *exact.shape)):
            noisy = (exact + 100.0 * LATTICE * noise).astype(np.int64)
            weights = weights_of_moments(noisy, NUM_CLASSES, 100.0, groups=numbered)
            guesses.append((vectors @ weights).argmax(axis=1) == labels)
        correct[is_ordered] = np.mean(guesses)
    assert correct[True] > correct[False] + 0.02
    exactly = weights_of_moments(exact, NUM_CLASSES, 0.1, groups=-1 - groups)
    assert np.mean((vectors @ exactly).argmax(axis=1) == labels) > 0.97
