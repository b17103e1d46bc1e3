"""Computes the privacy cost of shared training with noisy sums of clipped gradients.

As in the rest of the library, neighboring data sets differ by the replacement of one record (or
participant). The formulas are for continuous Gaussian noise. The noise that is drawn is a discrete
Gaussian on a lattice, which costs no more (docs/proofs/selective_sgd.md, Theorem F3).
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
# If the quadrature of a moment needs more points, the moment is treated as infinite.
MAX_POINTS = 400_000
MIN_LOSS_STEP = 1e-4  # minimum step of a privacy loss distribution
MAX_LOSSES = 50_000  # maximum number of steps of a privacy loss distribution
DEPTH = 60.0  # where the log of an integrand is this far below its peak, it is ignored


def _log_mixture(x: FloatArray, place: float, rate: float, sigma: float) -> FloatArray:
    """Returns the unnormalized log density of (1 - rate) N(0, sigma^2) + rate N(place, sigma^2)."""
    with np.errstate(divide="ignore"):
        weights = np.log([1.0 - rate, rate])
    exponents = np.stack([-(x**2), -((x - place) ** 2)]) / (2.0 * sigma**2)
    return np.asarray(scipy.special.logsumexp(exponents + weights[:, None], axis=0))


@lru_cache(maxsize=2**14)
def _moment(moment: float, rate: float, sigma: float) -> float:
    """Returns ln of the integral of P^(l+1) Q^-l over the real line.

    P = (1 - q) N(0) + q N(1) and Q = (1 - q) N(0) + q N(-1), where q is the rate. The integrand is
    analytic in a strip. Therefore, the error of the trapezoid rule is smaller than rounding errors
    if the steps are small enough. The result is infinite if this needs too many points.
    """

    def log_integrand(x: FloatArray) -> FloatArray:
        return (moment + 1.0) * _log_mixture(x, 1.0, rate, sigma) - moment * _log_mixture(
            x, -1.0, rate, sigma
        )

    margin = 1.0 + 12.0 * sigma
    coarse = np.arange(-margin, 2.0 * moment + 1.0 + margin, sigma / 4.0)
    if len(coarse) > MAX_POINTS:
        return inf
    heights = log_integrand(coarse)
    used = coarse[heights > heights.max() - DEPTH]
    low = used[0] - sigma
    high = used[-1] + sigma
    step = min(sigma, 2.0 * sigma**2 / np.sqrt(moment + 1.0)) / 8.0
    if not (high - low) / step < MAX_POINTS:
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
    """Returns epsilon from dp-accounting's privacy loss distribution; infinite if this fails."""
    import dp_accounting
    from dp_accounting.pld import privacy_loss_distribution as distributions

    # `spread` is about the range of the privacy losses of one round. A larger step makes epsilon
    # larger, but never too small.
    spread = 2.0 / sigma**2 + 20.0 / sigma
    try:
        loss = distributions.from_gaussian_mechanism(
            standard_deviation=sigma,
            sampling_prob=rate,
            value_discretization_interval=max(MIN_LOSS_STEP, spread / MAX_LOSSES),
            neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE,
        )
        epsilon = float(loss.self_compose(number).get_epsilon_for_delta(delta))
    except (ValueError, OverflowError, MemoryError, ZeroDivisionError):
        return inf  # the bound from moments is still valid
    return epsilon * (1.0 + SAFETY_MARGIN) if isfinite(epsilon) else inf


@dataclasses.dataclass(frozen=True, kw_only=True)
class NoisyTraining(ProtectedUnit, Charge):
    """The charge for all rounds of a shared training with noisy sums of clipped gradients.

    Each round uploads a sum of clipped gradients of sampled records, or a participant's whole
    clipped upload, with Gaussian noise. In each round, every record is sampled with probability q,
    independently and in secret. The contribution of a sampled record has norm at most C, and each
    coordinate of the sum gets Gaussian noise of standard deviation sigma C. If one record is
    replaced, a round costs no more than distinguishing (1 - q) N(0, sigma^2) + q N(1, sigma^2) from
    (1 - q) N(0, sigma^2) + q N(-1, sigma^2). This holds for any model, other records and earlier
    rounds (docs/proofs/selective_sgd.md, Theorems F1 and F2). With q = 1, the same holds for
    replacing a participant whose whole upload has norm at most C.

    Attributes:
        sampling_rate: probability q that a record is sampled in a round, in (0, 1].
        noise_multiplier: standard deviation of the noise, as a multiple of the clipping norm.
        rounds: maximum number of sums to which a record can contribute: the number of rounds times
            the number of participants that have the record.
        unit: protected unit: "record", or "participant" (all records of a participant).

    Raises:
        ValueError: if a value is out of range.
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
            raise ValueError("unit=participant needs sampling_rate=1")

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns the total cost of all rounds, [num_moments], by numerical integration."""
        if self.sampling_rate == 1.0:
            # With rate 1, a round is a Gaussian mechanism with sensitivity 2, because its mean is 1
            # or -1.
            return self.rounds * 2.0 * moments * (moments + 1.0) / self.noise_multiplier**2
        of_round = np.array(
            [
                _moment(moment, self.sampling_rate, self.noise_multiplier)
                for moment in moments.tolist()
            ]
        )
        return self.rounds * (of_round * (1.0 + SAFETY_MARGIN) + 1e-12)

    def composed_epsilon(self, number: int, *, delta: float) -> float:
        """Returns epsilon from the privacy loss distribution (dp-accounting), rounded up."""
        checks.between(0, 1, ends="[)", delta=delta)
        if number == 0:
            return 0.0
        if not delta:
            return inf
        return _loss_distribution_epsilon(
            self.sampling_rate, self.noise_multiplier, number * self.rounds, delta
        )

    def summary(self) -> str:
        """Returns a short description: number of rounds, sampling rate and noise multiplier."""
        return (
            f"{self.rounds} rounds of noisy sums, sampling rate {self.sampling_rate:.4g}, "
            f"noise multiplier {self.noise_multiplier:.4g}"
        )

    def in_words(self) -> str:
        """Returns sentences that describe the uploads in a privacy statement."""
        if self.unit == "participant":
            return (
                f"In each of {self.rounds:,} rounds, a participant clips its whole upload to a "
                f"fixed length, and adds Gaussian noise of standard deviation "
                f"{self.noise_multiplier:.3g} times that length to each number of the upload."
            )
        return (
            f"In each round, a participant draws each of its records with probability "
            f"{self.sampling_rate:.3g}. It clips the contribution of each drawn record to a fixed "
            f"length and adds up these contributions. Before it uploads the sum, it adds Gaussian "
            f"noise of standard deviation {self.noise_multiplier:.3g} times that length to each "
            f"number of the sum. A record is part of at most {self.rounds:,} such sums."
        )


# Calibration: the smallest noise that meets a target epsilon.


_FEW_MOMENTS: FloatArray = np.geomspace(0.5, 128.0, 24)
MAX_MULTIPLIER = 1024.0
CLOSE = 1.0 - 1.0 / 1.001  # relative precision of the noise multiplier


def noise_for(
    target_epsilon: float, *, delta: float, sampling_rate: float, rounds: int, unit: str = "record"
) -> NoisyTraining:
    """Returns the charge with the smallest noise whose epsilon at `delta` meets the target.

    The noise multiplier is at most 0.1 % above the smallest possible value.

    Raises:
        ValueError: if the target needs a noise multiplier above 1,024, or a value is out of range.
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
                f"target_epsilon {target_epsilon} for {rounds} rounds needs too much noise "
                f"({MAX_MULTIPLIER:g} clipping norms). Choose a larger target_epsilon or fewer "
                "rounds."
            )
    high = least(by_moments, high / 2.0, high, within=CLOSE, digits=4)
    # Privacy loss distributions are slower to compute than moments, but need slightly less noise.
    # So the search starts from the result of the moments.
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
