"""What noisy shared training costs: sums of clipped gradients with Gaussian noise.

Everything here is against *replacement* of a record (or of a participant's records), as in the rest
of the library. What is drawn is a discrete Gaussian on a lattice, which costs no more than what is
computed here (docs/proofs/selective_sgd.md, Theorem F3).
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache, partial
from math import inf, isfinite
from typing import ClassVar

import numpy as np
import scipy

from pate_tf.accounting.composition import Charge
from pate_tf.accounting.conversions import SAFETY_MARGIN, FloatArray, epsilon_from_alphas, least
from pate_tf.core import checks
from pate_tf.core.settings import ProtectedUnit

UNITS = ("record", "participant")
FINEST = 400_000  # points of a quadrature; a moment that needs more counts as infinite
FINEST_LOSS = 1e-4  # step of a loss distribution
MAX_LOSSES = 50_000  # such steps
DEPTH = 60.0  # natural logarithms below the peak at which an integrand is left out


def _log_mixture(x: FloatArray, place: float, rate: float, sigma: float) -> FloatArray:
    """Returns ln of (1 - rate) N(0, sigma^2) + rate N(place, sigma^2), but for a constant."""
    with np.errstate(divide="ignore"):
        weights = np.log([1.0 - rate, rate])
    exponents = np.stack([-(x**2), -((x - place) ** 2)]) / (2.0 * sigma**2)
    return np.asarray(scipy.special.logsumexp(exponents + weights[:, None], axis=0))


@lru_cache(maxsize=2**14)
def _moment(moment: float, rate: float, sigma: float) -> float:
    """Returns ln of the integral of P^(l+1) Q^-l over the real line; infinite if it is too sharp.

    P = (1 - q) N(0) + q N(1), Q = (1 - q) N(0) + q N(-1). The integrand is analytic in a strip, so
    that the trapezoid rule errs by less than rounding once its step is a fraction of the sharpest
    feature.
    """

    def log_integrand(x: FloatArray) -> FloatArray:
        return (moment + 1.0) * _log_mixture(x, 1.0, rate, sigma) - moment * _log_mixture(
            x, -1.0, rate, sigma
        )

    margin = 1.0 + 12.0 * sigma
    coarse = np.arange(-margin, 2.0 * moment + 1.0 + margin, sigma / 4.0)
    if len(coarse) > FINEST:
        return inf
    heights = log_integrand(coarse)
    used = coarse[heights > heights.max() - DEPTH]
    low = used[0] - sigma
    high = used[-1] + sigma
    step = min(sigma, 2.0 * sigma**2 / np.sqrt(moment + 1.0)) / 8.0
    if not (high - low) / step < FINEST:
        return inf
    points = np.arange(low, high + step, step)
    total = (
        scipy.special.logsumexp(log_integrand(points))
        + np.log(step)
        - 0.5 * np.log(2.0 * np.pi * sigma**2)
    )
    return float(max(total, 0.0))


@lru_cache(maxsize=64)
def _loss_distribution_epsilon(rate: float, sigma: float, number: int, delta: float) -> float:
    """Returns epsilon from dp-accounting's distribution of the privacy loss; infinite if none."""
    import dp_accounting
    from dp_accounting.pld import privacy_loss_distribution as distributions

    # Losses of one round lie within about this range; a coarser step errs upward.
    spread = 2.0 / sigma**2 + 20.0 / sigma
    try:
        loss = distributions.from_gaussian_mechanism(
            standard_deviation=sigma,
            sampling_prob=rate,
            value_discretization_interval=max(FINEST_LOSS, spread / MAX_LOSSES),
            neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE,
        )
        epsilon = float(loss.self_compose(number).get_epsilon_for_delta(delta))
    except (ValueError, OverflowError, MemoryError, ZeroDivisionError):
        return inf  # moments still hold
    return epsilon * (1.0 + SAFETY_MARGIN) if isfinite(epsilon) else inf


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisyTraining(ProtectedUnit, Charge):
    """Rounds of sums of clipped gradients, or of one clipped upload, with Gaussian noise.

    In each round every record is sampled with probability q, independently and in secret; what it
    adds has length at most C, and each coordinate of the sum gets Gaussian noise of standard
    deviation sigma C. Against replacement of a record a round costs no more than telling
    (1 - q) N(0, sigma^2) + q N(1, sigma^2) from (1 - q) N(0, sigma^2) + q N(-1, sigma^2), whatever
    the model, the other records, and the rounds before (docs/proofs/selective_sgd.md, Theorems F1
    and F2). With q = 1 the same holds for a participant whose whole upload has length at most C.

    Attributes:
        sampling_rate: q, in (0, 1].
        noise_multiplier: sigma, in clipping lengths.
        rounds: sums that a record is part of at most: rounds, times the participants that hold it.
        unit: what is protected: "record", or "participant" with all its records.

    Raises:
        ValueError: if a value is out of its range.
    """

    sampling_rate: float
    noise_multiplier: float
    rounds: int
    name: ClassVar[str] = "noisy_training"
    counted: ClassVar[tuple[str, str]] = ("training", "trainings")

    def __post_init__(self) -> None:
        checks.between(0, 1, ends="(]", sampling_rate=self.sampling_rate)
        checks.positive(noise_multiplier=self.noise_multiplier)
        checks.whole(1, rounds=self.rounds)
        checks.one_of(UNITS, unit=self.unit)
        if self.unit == "participant" and self.sampling_rate != 1.0:
            raise ValueError("expected sampling_rate 1 where participants are protected")

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns the cost of all rounds at each moment, [num_moments], by quadrature."""
        if self.sampling_rate == 1.0:
            # N(1) against N(-1): a Gaussian mechanism of sensitivity 2.
            return self.rounds * 2.0 * moments * (moments + 1.0) / self.noise_multiplier**2
        of_round = np.array(
            [
                _moment(moment, self.sampling_rate, self.noise_multiplier)
                for moment in moments.tolist()
            ]
        )
        return self.rounds * (of_round * (1.0 + SAFETY_MARGIN) + 1e-12)

    def composed_epsilon(self, number: int, *, delta: float) -> float:
        """Returns epsilon by the distribution of the privacy loss (dp-accounting), rounded up."""
        checks.between(0, 1, ends="[)", delta=delta)
        if number == 0:
            return 0.0
        if not delta:
            return inf
        return _loss_distribution_epsilon(
            self.sampling_rate, self.noise_multiplier, number * self.rounds, delta
        )

    def summary(self) -> str:
        """Returns what is noised, how often and how much."""
        return (
            f"{self.rounds} rounds of noisy sums, sampling rate {self.sampling_rate:.4g}, "
            f"noise multiplier {self.noise_multiplier:.4g}"
        )

    def in_words(self) -> str:
        """Returns what leaves a participant."""
        if self.unit == "participant":
            return (
                f"In each of {self.rounds:,} rounds a participant's whole upload is clipped to a "
                f"fixed length, and to each of its numbers Gaussian noise of standard deviation "
                f"{self.noise_multiplier:.3g} times that length is added before it leaves."
            )
        return (
            f"In each round a participant draws each of its records with probability "
            f"{self.sampling_rate:.3g}, clips what each contributes to a fixed length, and adds "
            f"Gaussian noise of standard deviation {self.noise_multiplier:.3g} times that length "
            f"to each number of their sum before it leaves. A record takes part in {self.rounds:,} "
            f"such sums at most."
        )


# The least noise of a training that meets a target; see `NoisyTraining`.


_FEW_MOMENTS: FloatArray = np.geomspace(0.5, 128.0, 24)
MAX_MULTIPLIER = 1024.0
CLOSE = 1.0 - 1.0 / 1.001  # of the least noise multiplier, as a share


def noise_for(
    target_epsilon: float, *, delta: float, sampling_rate: float, rounds: int, unit: str = "record"
) -> NoisyTraining:
    """Returns the training of the least noise whose epsilon at delta is at most the target.

    Within a thousandth of the least noise multiplier.

    Raises:
        ValueError: if no noise multiplier up to 1,024 suffices, or a value is out of its range.
    """
    checks.between(0, 1, delta=delta)
    checks.positive(target_epsilon=target_epsilon)

    training = partial(NoisyTraining, sampling_rate=sampling_rate, rounds=rounds, unit=unit)

    def by_moments(sigma: float) -> bool:
        costs = training(noise_multiplier=sigma).alphas(_FEW_MOMENTS)
        return epsilon_from_alphas(costs, _FEW_MOMENTS, delta)[0] <= target_epsilon

    high = 0.5
    while not by_moments(high):
        high *= 2.0
        if high > MAX_MULTIPLIER:
            raise ValueError(
                f"target_epsilon: expected one that noise of {MAX_MULTIPLIER:g} clipping "
                f"lengths can reach, got {target_epsilon} for {rounds} rounds"
            )
    high = least(by_moments, high / 2.0, high, within=CLOSE, digits=4)
    # The distribution of losses is slower and needs a little less noise.
    sigma = least(
        lambda less: (
            training(noise_multiplier=less).composed_epsilon(1, delta=delta) <= target_epsilon
        ),
        0.8 * high,
        high,
        within=CLOSE,
        digits=4,
    )
    return training(noise_multiplier=sigma)
