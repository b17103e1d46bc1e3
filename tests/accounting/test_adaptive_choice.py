"""Charges chosen by earlier answers: what a limit still promises (Proposition S4)."""

import math

import numpy as np
import pytest

from pate_tf.accounting.composition import delta_of_chosen_kinds
from pate_tf.accounting.conversions import DEFAULT_MOMENTS, epsilon_from_alphas
from pate_tf.accounting.local import RandomisedResponse

MOMENTS = np.array([0.5, 1.0, 2.0, 4.0, 8.0, 16.0])
DELTA, DEPTH = 0.02, 6


def randomised_response(epsilon):
    share = 1.0 / (1.0 + math.exp(-epsilon))
    return np.array([share, 1.0 - share]), np.array([1.0 - share, share])


# Pairs of laws, in both directions. The last two are optimal at other moments than the first.
PAIRS = [
    *(randomised_response(epsilon) for epsilon in (0.1, 0.3)),
    (np.array([0.998, 0.002]), np.array([0.9999, 0.0001])),
    (np.array([0.97, 0.03]), np.array([0.99, 0.01])),
]


def cost(pair):
    """Returns the larger cost of both directions at each moment."""
    both = (pair, pair[::-1])
    return np.max(
        [np.log((p[:, None] ** (MOMENTS + 1) * q[:, None] ** -MOMENTS).sum(0)) for p, q in both],
        axis=0,
    )


COSTS = [cost(pair) for pair in PAIRS]


def laws(choose, fits, p=1.0, q=1.0, spent=None, depth=DEPTH, history=()):
    """Returns the probabilities of all outputs in both worlds, with payments chosen by earlier
    outputs.
    """
    place = choose(history)
    after = COSTS[place] + (0.0 if spent is None else spent)
    if depth == 0 or not fits(after):
        return [(p, q)]
    actual = []
    for output, (one, other) in enumerate(zip(*PAIRS[place], strict=True)):
        actual += laws(
            choose, fits, p * one, q * other, after, depth - 1, (*history, (place, output))
        )
    return actual


def divergence(outputs, epsilon):
    p, q = np.array(outputs).T
    grown = math.exp(epsilon)
    return max(np.maximum(0.0, p - grown * q).sum(), np.maximum(0.0, q - grown * p).sum())


def chooser(seed, number):
    """Returns an arbitrary rule from outputs to the next payment."""
    return lambda history: int(np.random.default_rng([seed, *map(sum, history)]).integers(number))


def test_the_least_epsilon_over_moments_is_a_filter_at_a_larger_delta():
    worst = []
    for seed in range(30):
        limit = 1.2 + 0.2 * (seed % 4)

        def fits(spent, limit=limit):
            return epsilon_from_alphas(spent, MOMENTS, DELTA)[0] <= limit

        outputs = laws(chooser(seed, len(PAIRS)), fits)
        assert sum(p for p, _ in outputs) == pytest.approx(1.0)
        assert divergence(outputs, limit) <= len(MOMENTS) * DELTA
        worst.append(divergence(outputs, 0.0))
    assert np.median(worst) > DELTA, "hardly anything was charged"


def test_several_kinds_of_answers_hold_at_the_delta_of_all_moments_that_could_decide():
    one, other = (RandomisedResponse(num_classes=3, epsilon=epsilon) for epsilon in (0.5, 1.0))
    assert delta_of_chosen_kinds({one: 10, other: 0}, 1e-6) == 1e-6
    assert delta_of_chosen_kinds({one: 10, other: 1}, 1e-6) == pytest.approx(
        (len(DEFAULT_MOMENTS) + 1) * 1e-6
    )
    assert delta_of_chosen_kinds({one: 1, other: 1}, 0.5) == 1.0
