"""What a silo pays for a vote in a noisy histogram that parties add up under secret sharing."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from math import inf, isfinite, sqrt
from typing import ClassVar

import numpy as np

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.conversions import SAFETY_MARGIN, gaussian_dp_epsilon
from pate_tf.accounting.divergences import FloatArray

# Noise is drawn on multiples of 1 / LATTICE votes, as by every other mechanism.
LATTICE = 2**20


@dataclasses.dataclass(frozen=True)
class SecureHistogram(Charge):
    """A vote in a histogram to which each party adds discrete Gaussian noise of its own.

    Each party's noise has variance sigma^2 / (num_parties - threshold), in votes: those that keep
    to the protocol reach sigma. Holds against whoever sees the histogram and all that up to
    `threshold` parties know (docs/theory_local.md, Theorem L5).

    Attributes:
        sigma: standard deviation of the noise that is counted on, in votes.
        num_parties: m, at least `least_parties(threshold)`.
        threshold: t, how many parties may pool what they know; at least 1.
    """

    sigma: float
    num_parties: int
    threshold: int
    name: ClassVar[str] = "secure_histogram"
    answers: ClassVar[bool] = True
    counted: ClassVar[tuple[str, str]] = ("query", "queries")
    lacks: ClassVar[Mapping[str, str]] = {
        "dp event": "a sum of several discrete Gaussians is none that dp-accounting knows"
    }

    def __post_init__(self) -> None:
        """Raises ValueError if a parameter is out of its range."""
        if not (isfinite(self.sigma) and 0.0 < self.sigma <= 2.0**30):
            raise ValueError(f"sigma: expected above 0 and up to 2**30 votes, got {self.sigma}")
        if self.threshold < 1 or self.num_parties < self.least_parties(self.threshold):
            raise ValueError(
                "threshold: expected t of at least 1 and at least 2 t + 2 parties, got "
                f"{self.threshold} of {self.num_parties}"
            )

    @staticmethod
    def least_parties(threshold: int) -> int:
        """Returns 2 t + 2: honest parties' shares alone show whether they fit each other."""
        return 2 * threshold + 2

    @property
    def num_honest(self) -> int:
        """How many parties are counted on."""
        return self.num_parties - self.threshold

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns l (l+1) (1 + h^2 / (4 LATTICE^2)) / sigma^2, h honest parties, [num_moments]."""
        lattice = 1.0 + self.num_honest**2 / (4.0 * LATTICE**2)
        costs = moments * (moments + 1.0) * lattice / self.sigma**2
        return np.asarray(costs * (1.0 + SAFETY_MARGIN))

    def composed_epsilon(self, number: int, *, delta: float) -> float:
        """Returns the epsilon of Gaussian differential privacy, and the lattice's share.

        (docs/theory_secure.md, Theorem V6.) Infinite where a party's scale is below a lattice step.
        """
        if self.sigma * LATTICE < sqrt(self.num_honest) * (1.0 + SAFETY_MARGIN):
            return inf
        votes_moved = 2.0 * number / self.sigma**2 * (1.0 + SAFETY_MARGIN)
        squared_distance = votes_moved * (1.0 + self.num_honest**2 / (4.0 * LATTICE**2))
        smooth = gaussian_dp_epsilon(sqrt(squared_distance), delta)
        return smooth + votes_moved * self.num_honest / LATTICE

    def number_charged(self, num_queries: int) -> int:
        """Returns num_queries."""
        return num_queries

    def to_dict(self) -> dict[str, object]:
        """Returns the JSON-able fields with the name."""
        return {"name": self.name, **dataclasses.asdict(self)}

    def summary(self) -> str:
        """Returns name and parameters in a few words."""
        return (
            f"{self.name}, sigma {self.sigma:g}, {self.num_parties} parties of which "
            f"{self.threshold} may pool what they know"
        )

    def in_words(self) -> str:
        """Returns what is done with the votes, in sentences for a privacy statement."""
        return (
            f"A silo's vote is split into shares for {self.num_parties} parties, of which any "
            f"{self.threshold} together learn nothing from theirs. The parties add up all silos' "
            f"shares, each adds Gaussian noise of its own, and the noisy numbers of votes of all "
            f"classes open, nothing else. {self.num_honest} honest parties' noise together has "
            f"standard deviation {self.sigma:.4g} votes on each number."
        )
