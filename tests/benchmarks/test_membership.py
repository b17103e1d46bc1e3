"""What canaries show."""

import numpy as np
import pytest

from benchmarks.paper.membership import least_epsilon


def test_all_right_shows_what_randomised_response_would_need():
    shown = least_epsilon(total=150, guessed=150, right=150, delta=0.0)
    chance = 0.05 ** (1 / 150)
    assert shown == pytest.approx(np.log(chance / (1 - chance)), abs=1e-3)
    assert least_epsilon(total=300, guessed=150, right=150, delta=0.0) == shown
    assert least_epsilon(total=150, guessed=150, right=150, delta=1e-3) < shown - 0.1


def test_chance_shows_nothing():
    assert least_epsilon(total=100, guessed=50, right=25, delta=1e-5) == 0.0
    assert least_epsilon(total=100, guessed=0, right=0, delta=1e-5) == 0.0


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_randomised_response_is_seldom_said_to_cost_more_than_it_does(epsilon):
    generator = np.random.default_rng(0)
    right = generator.binomial(200, 1 / (1 + np.exp(-epsilon)), size=200)
    shown = [least_epsilon(total=200, guessed=200, right=int(one), delta=0.0) for one in right]
    assert np.mean(np.array(shown) > epsilon) <= 0.1
    assert np.median(shown) > epsilon / 3
