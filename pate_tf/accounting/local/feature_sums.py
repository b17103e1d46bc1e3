"""Feature sums of many silos under secure aggregation: each silo adds a share of the noise."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from math import exp, pi, sqrt
from typing import Any, ClassVar, Final

import numpy as np

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.conversions import (
    LATTICE,
    SAFETY_MARGIN,
    FloatArray,
    gaussian_dp_epsilon,
    least,
)
from pate_tf.accounting.local.base import SILO_CHARGES, SecureHistogram
from pate_tf.core import validation

CHANGED: Final = 2.0  # L2 norms: by how much one record replaced moves the sums at most
LEAST_STEPS: Final = 8.0  # scale of a silo's share of the noise, in lattice steps
MOST_NUMBERS: Final = 2**24  # of a table of sums
MOST_SILOS: Final = 100_000


def log_ratio_of_sum(scale: float, number: int) -> float:
    """Returns how far a sum of discrete Gaussians is from the discrete Gaussian of its variance.

    The law of a sum of `number` independent discrete Gaussians of one scale, and the discrete
    Gaussian of scale `scale * sqrt(number)`, differ nowhere by more than a factor of e to what is
    returned: 5 sum_k e^(-2 pi^2 scale^2 k / (k + 1)), k from 1 to number - 1 (Kairouz, Liu and
    Steinke 2021, arXiv 2102.06387, Theorem 6; docs/proofs/secure.md, Lemma V7).

    >>> log_ratio_of_sum(1.0, 10) < 0.003
    True

    Args:
        scale: of each, at least 1/2, in steps of their lattice.
        number: how many are summed, at least 1.

    Raises:
        ValueError: if the scale is below 1/2 or the number below 1.
    """
    if not scale >= 0.5 or number < 1:
        raise ValueError(f"expected a scale of 1/2 or more and a number, got {scale} and {number}")
    few = min(number - 1, 1_000)
    total = sum(exp(-2.0 * pi**2 * scale**2 * k / (k + 1)) for k in range(1, few + 1))
    # Terms fall with k.
    total += (number - 1 - few) * exp(-2.0 * pi**2 * scale**2 * few / (few + 1))
    return 5.0 * total


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecureFeatureSums(Charge):
    """The sum of all silos' feature sums, to which each silo added a share of the noise.

    Each silo adds discrete Gaussian noise of variance sigma^2 / (least_silos - colluding) to each
    number before it shares its sums among parties. These open the total of at least `least_silos`
    silos and nothing else, so that at least `least_silos - colluding` honest shares of noise are in
    it, which reach sigma. A record's vector has an L2 norm of at most 1, so a record replaced moves
    the total by at most 2, as does an owner added, removed or replaced whose records have a norm of
    at most 1 together. Holds against anyone who sees the total, all that `threshold` parties and
    `colluding` silos know, and where silos drop out (docs/proofs/secure.md, Theorems V8 and V9).

    Attributes:
        sigma: standard deviation of the noise that is counted on, in L2 norms of a record.
        num_features: of the public representation; a table of sums has one row more.
        least_silos: fewest silos whose total opens.
        colluding: how many of these may add no noise, or pool what they know with parties; at
            least 1 and fewer than `least_silos`.
        num_parties: m, at least 2 `threshold` + 2.
        threshold: how many parties may pool what they know; at least 1.
    """

    sigma: float
    num_features: int
    least_silos: int
    colluding: int
    num_parties: int
    threshold: int
    name: ClassVar[str] = "secure_feature_sums"
    answers: ClassVar[bool] = True
    releases_feature_sums: ClassVar[bool] = True
    counted: ClassVar[tuple[str, str]] = ("release", "releases")
    labels_in_words: ClassVar[str] = "labels computed from noisy feature sums"

    def __post_init__(self) -> None:
        """Raises ValueError if a parameter is out of its range."""
        validation.between(0, 2.0**30, ends="(]", sigma=self.sigma)
        validation.whole(1, MOST_NUMBERS - 1, num_features=self.num_features)
        if not 1 <= self.colluding < self.least_silos <= MOST_SILOS:
            raise ValueError(
                f"least_silos: expected more than the {self.colluding} that may collude, 1 or "
                f"more, and up to {MOST_SILOS:,}, got {self.least_silos}"
            )
        if self.threshold < 1 or self.num_parties < SecureHistogram.least_parties(self.threshold):
            raise ValueError(
                "threshold: expected t of at least 1 and at least 2 t + 2 parties, got "
                f"{self.threshold} of {self.num_parties}"
            )
        if self.share_scale < LEAST_STEPS:
            raise ValueError(
                f"sigma: expected shares of noise of at least {LEAST_STEPS:g} steps of "
                f"1 / {LATTICE:,}, got sigma {self.sigma}"
            )

    @property
    def num_honest(self) -> int:
        """How many silos' shares of noise are counted on."""
        return self.least_silos - self.colluding

    @property
    def share_scale(self) -> float:
        """Scale of the discrete Gaussian that each silo draws, in steps of 1 / LATTICE.

        So many of `num_honest` have the variance (sigma LATTICE)^2 + 64, rounded up.
        """
        total = (self.sigma * LATTICE) ** 2 + LEAST_STEPS**2
        return sqrt(total / self.num_honest) * (1.0 + 2.0**-50)

    @property
    def noise_scales(self) -> Mapping[str, float]:
        """Sigma."""
        return {"sigma": self.sigma}

    @property
    def noise_multipliers(self) -> tuple[float, ...]:
        """The sums have sensitivity 2; what lattice and sum add lies below all rounding."""
        return (self.sigma / CHANGED,)

    @property
    def log_ratio(self) -> float:
        """How far the noise is from one discrete Gaussian on every number, at most."""
        return MOST_NUMBERS * log_ratio_of_sum(self.share_scale, self.num_honest)

    def total_sigma(self, num_silos: int) -> float:
        """Returns the standard deviation of the noise of so many silos on each number."""
        return sqrt(num_silos) * self.share_scale / LATTICE

    def number_charged(self, num_queries: int) -> int:
        """Returns one for any; none for none."""
        return min(num_queries, 1)

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns 2 l (l+1) / sigma^2 and what the sum of several Gaussians adds, [num_moments]."""
        gaussian = CHANGED**2 * moments * (moments + 1.0) / (2.0 * self.sigma**2)
        added = (2.0 * moments + 1.0) * self.log_ratio
        return np.asarray((gaussian + added) * (1.0 + SAFETY_MARGIN))

    def composed_epsilon(self, number: int, *, delta: float) -> float:
        """Returns the epsilon of Gaussian differential privacy with the sum's part, rounded up."""
        moved = CHANGED * number**0.5 / self.sigma
        validation.between(0, 1, ends="[)", delta=delta)
        smooth = gaussian_dp_epsilon(moved, delta * exp(-number * self.log_ratio))
        return (smooth + 2.0 * number * self.log_ratio) * (1.0 + SAFETY_MARGIN)

    @classmethod
    def for_epsilon(cls, epsilon: float, *, delta: float, **others: Any) -> SecureFeatureSums:
        """Returns the charge with the least noise whose one release costs at most epsilon.

        Args:
            epsilon: for every record of every silo, above 0.
            delta: that it holds at.
            **others: all fields but sigma.

        Raises:
            ValueError: if epsilon or a field is out of its range.
        """
        validation.positive(epsilon=epsilon)

        def holds(sigma: float) -> bool:
            return cls(sigma=sigma, **others).composed_epsilon(1, delta=delta) <= epsilon

        highest = 1.0
        while not holds(highest) and highest < 2.0**30:
            highest *= 2.0
        if not holds(highest):
            raise ValueError(
                f"epsilon: expected one that noise reaches at delta {delta:g}, got {epsilon}"
            )
        lowest = LEAST_STEPS * sqrt(others["least_silos"] - others["colluding"]) / LATTICE
        return cls(sigma=least(holds, lowest, highest, within=1e-6), **others)

    def to_dict(self) -> dict[str, object]:
        """Returns the JSON-able fields with the name."""
        return {"name": self.name, **dataclasses.asdict(self)}

    def summary(self) -> str:
        """Returns name and parameters in a few words."""
        return (
            f"{self.name}, sigma {self.sigma:.4g}, {self.least_silos} silos or more of which "
            f"{self.colluding} may collude, {self.num_parties} aggregators of which "
            f"{self.threshold} may"
        )

    def in_words(self) -> str:
        """Returns what is done with the records, in sentences for a privacy statement."""
        return (
            "Each record was mapped to a vector of L2 norm at most 1 by a public function. Each "
            "silo added the vectors up by class, added Gaussian noise of standard deviation "
            f"{self.share_scale / LATTICE:.3g} to each number, and split the result into secret "
            f"shares for {self.num_parties} aggregators, of which any {self.threshold} together "
            f"learn nothing from theirs. The aggregators opened the total of {self.least_silos} "
            f"silos or more, nothing else. The noise of {self.num_honest} of these silos together "
            f"has standard deviation {self.sigma:.3g} (sensitivity 2)."
        )


SILO_CHARGES[SecureFeatureSums.name] = SecureFeatureSums
