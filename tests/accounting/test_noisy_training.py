"""The cost of noisy shared training, against slow reference versions and dp-accounting."""

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.stats import norm

from pate_tf.accounting.charge import charge_from_dict
from pate_tf.accounting.composition import moments_epsilon, smallest_epsilon
from pate_tf.accounting.conversions import DEFAULT_MOMENTS
from pate_tf.accounting.noisy_training import NoisyTraining, noise_for

TRAININGS = [
    NoisyTraining(sampling_rate=0.1, noise_multiplier=1.2, rounds=200),
    NoisyTraining(sampling_rate=0.01, noise_multiplier=0.7, rounds=10),
    NoisyTraining(sampling_rate=0.5, noise_multiplier=5.0, rounds=60),
    NoisyTraining(sampling_rate=1.0, noise_multiplier=20.0, rounds=30, unit="participant"),
]


def twin(moment: float, rate: float, sigma: float) -> float:
    """Returns the moment by a plain sum over a fine grid, with many digits."""
    with mpmath.workdps(30):
        step = mpmath.mpf(min(sigma, sigma**2)) / 12
        low, high = -2 - 12 * sigma, 2 * moment + 2 + 12 * sigma
        rate, sigma, moment = mpmath.mpf(rate), mpmath.mpf(sigma), mpmath.mpf(moment)
        total = mpmath.mpf(0)
        for number in range(int((high - low) / step)):
            x = low + number * step
            middle = (1 - rate) * mpmath.npdf(x, 0, sigma)
            here = middle + rate * mpmath.npdf(x, 1, sigma)
            there = middle + rate * mpmath.npdf(x, -1, sigma)
            total += here ** (moment + 1) * there**-moment
        return float(mpmath.log(total * step))


@pytest.mark.parametrize(
    ("rate", "sigma", "moment"),
    [(0.1, 1.2, 0.3), (0.1, 1.2, 20.0), (0.5, 0.6, 2.0), (0.01, 2.0, 9.5), (0.9, 3.0, 30.0)],
)
def test_moments_are_those_of_the_twin(rate, sigma, moment):
    training = NoisyTraining(sampling_rate=rate, noise_multiplier=sigma, rounds=1)
    (alpha,) = training.alphas(np.array([moment]))
    expected = twin(moment, rate, sigma)
    assert alpha == pytest.approx(expected, rel=2e-8, abs=2e-12)
    assert alpha >= expected


def hockey_stick(u: np.ndarray, v: np.ndarray, rate: float, sigma: float, a: float) -> float:
    """Returns H_a of the two mixtures in the plane, by a sum over a grid."""
    axis = np.linspace(-7.0 * sigma - 1.0, 7.0 * sigma + 1.0, 241)
    x, y = np.meshgrid(axis, axis)

    def mixture(place):
        at = norm.pdf(x, place[0], sigma) * norm.pdf(y, place[1], sigma)
        return (1 - rate) * norm.pdf(x, 0, sigma) * norm.pdf(y, 0, sigma) + rate * at

    step = axis[1] - axis[0]
    return float(np.maximum(mixture(u) - a * mixture(v), 0.0).sum() * step**2)


@pytest.mark.parametrize(("rate", "sigma"), [(0.1, 0.8), (0.5, 1.5), (1.0, 1.0)])
def test_no_pair_of_records_tells_more_than_the_one_that_is_accounted_for(rate, sigma):
    generator = np.random.default_rng(0)
    levels = (0.5, 1.0, 1.3, 3.0)
    worst = [
        hockey_stick(np.array([1.0, 0.0]), np.array([-1.0, 0.0]), rate, sigma, a) for a in levels
    ]
    for _ in range(12):
        angles, lengths = generator.uniform(0, 2 * np.pi, 2), generator.uniform(0, 1, 2) ** 0.3
        u, v = (
            length * np.array([np.cos(angle), np.sin(angle)])
            for angle, length in zip(angles, lengths, strict=True)
        )
        for a, most in zip(levels, worst, strict=True):
            assert hockey_stick(u, v, rate, sigma, a) <= most + 1e-6


@pytest.mark.parametrize(("rate", "sigma"), [(0.1, 0.8), (0.5, 1.5)])
def test_the_pair_is_that_of_dp_accounting(rate, sigma):
    pld = privacy_loss_distribution.from_gaussian_mechanism(
        standard_deviation=sigma,
        sampling_prob=rate,
        neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE,
    )
    for epsilon in (0.1, 0.5, 1.5):
        ours = hockey_stick(
            np.array([1.0, 0.0]), np.array([-1.0, 0.0]), rate, sigma, float(np.exp(epsilon))
        )
        assert pld.get_delta_for_epsilon(epsilon) == pytest.approx(ours, rel=1e-3, abs=1e-5)


def test_the_noise_found_is_the_least():
    noise = noise_for(2.0, delta=1e-5, sampling_rate=0.1, rounds=100)
    assert smallest_epsilon({noise: 1}, 1e-5)[0] <= 2.0
    less = NoisyTraining(
        sampling_rate=0.1, noise_multiplier=0.99 * noise.noise_multiplier, rounds=100
    )
    assert smallest_epsilon({less: 1}, 1e-5)[0] > 2.0


def test_sigma_too_small_for_a_quadrature_costs_infinity_not_zero():
    tiny = NoisyTraining(sampling_rate=0.5, noise_multiplier=1e-3, rounds=1)
    assert np.isinf(tiny.alphas(DEFAULT_MOMENTS)[-1])
    assert (tiny.alphas(DEFAULT_MOMENTS) > 1e3).all()


@pytest.mark.parametrize("training", TRAININGS)
def test_records_give_charges_back_and_losses_agree_with_moments(training):
    assert charge_from_dict(training.to_dict()) == training
    assert training.in_words()
    by_moments, _ = moments_epsilon({training: 1}, 1e-5)
    assert 0.5 * by_moments < training.composed_epsilon(1, delta=1e-5) < by_moments
    with pytest.raises(ValueError, match="needs fields"):
        charge_from_dict({**training.to_dict(), "more": 1})


def test_rows_of_the_version_before_give_their_charges():
    """Uses rows as commit c602881 wrote them, when trainings and releases had no names."""
    sizes = {"sampling_rate": 0.1, "noise_multiplier": 2.0, "rounds": 10, "unit": "record"}
    assert charge_from_dict({"training": "noisy_training", **sizes}) == NoisyTraining(**sizes)
    with pytest.raises(ValueError, match="needs sampling_rate=1"):
        NoisyTraining(**{**sizes, "unit": "participant"})
    release = {"release": "log_cost", "bound": "class_aware", "failure": 0.01, "moment": 6.0}
    release |= {"num_queries": 20, "profile": "any", "sigma": 200.0, "smoothness": 0.001}
    assert charge_from_dict({**release, "budget": None}).sigma == 200.0
    with pytest.raises(ValueError, match="unknown charge"):
        charge_from_dict({**release, "budget": 2.0})  # a gate, since removed
