"""Sums by class of what private records add, with noise: no teacher is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import hypot, inf, nextafter, sqrt
from typing import ClassVar

from pate_tf.accounting.conversions import (
    LATTICE,
    SAFETY_MARGIN,
    FloatArray,
    gaussian_dp_epsilon,
    pure_alpha,
)
from pate_tf.accounting.mechanisms.base import (
    NoiseDraws,
    OfSigma,
    OneScale,
    ReleasesFeatureSums,
    parameter,
    register,
)
from pate_tf.core.validation import IntArray

CHANGED = 2.0  # L2 sensitivity of the sums to the replacement of one record
FEWEST_OF_CLASS = 20.0  # records over classes, over the noise on a number of a sum
MOST_ROUNDS = 64
# Length to which a record's part of a later round is clipped: most are shorter, and the noise is in
# proportion to it.
RESIDUAL_NORM = 0.5
ROUNDED = 8.0  # lattice steps of standard deviation beyond sigma, which cover the lattice


@register
@dataclass(frozen=True, kw_only=True)
class GaussianFeatureSums(OfSigma, ReleasesFeatureSums):
    """Releases the sum of the records' vectors of each class, with Gaussian noise.

    A record adds a vector of L2 norm at most 1 to the column of its class, which follows from the
    record and public values alone; the records of an owner together add L2 norm at most 1, too. So
    the L2 sensitivity of the sums is 2 if a record is replaced, and 1 if an owner is added or
    removed, which is charged like the other: a Gaussian mechanism of sensitivity 2, on multiples of
    1 / LATTICE (docs/proofs/theory.md, Proposition D8). Nothing is assumed of how records are
    partitioned among teachers. Perturbed sufficient statistics: Vu and Slavkovic 2009, Foulds et
    al. 2016.

    >>> import pate_tf
    >>> round(pate_tf.mechanisms.GaussianFeatureSums(sigma=61.5).composed_epsilon(1, delta=1e-5), 3)
    0.1

    Attributes:
        sigma: standard deviation of the noise on each number; a record's vector has L2 norm 1.
    """

    name: ClassVar[str] = "gaussian_feature_sums"
    lacks: ClassVar[Mapping[str, str]] = {
        "draw": "it adds up records' features and asks no teacher; name a `target_epsilon`",
        "bounds": "it costs the same for all records",
    }
    words: ClassVar[str] = (
        "Each record was mapped to a vector of L2 norm at most 1 by a public function. The vectors "
        "were added up by class. Discrete Gaussian noise of standard deviation {self.sigma:.3g} "
        "(sensitivity 2) was added to each number of the sums, once. Nothing else was computed "
        "from the records."
    )
    released_in_words: ClassVar[str] = (
        "the sum of the private records' feature vectors of each class"
    )
    labels_in_words: ClassVar[str] = "labels computed from noisy feature sums"

    @property
    def standard_deviation(self) -> float:
        """Sigma."""
        return self.sigma

    @property
    def noise_multipliers(self) -> tuple[float, ...]:
        """One for each round: sensitivity 2; the lattice is free, as a little more is drawn."""
        return (self.sigma / CHANGED,) * self.num_rounds

    @property
    def fewest_of_class(self) -> float:
        """Private records over classes from which labels of sums are worth their cost."""
        return FEWEST_OF_CLASS * self.sigma

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns 2 num_rounds l (l+1) / sigma^2, [num_moments]."""
        of_round = CHANGED**2 * moments * (moments + 1.0) / (2.0 * self.sigma**2)
        return self.num_rounds * of_round

    def composed_epsilon(self, number: int, *, delta: float) -> float:
        """Returns the epsilon of Gaussian differential privacy, rounded up."""
        moved = CHANGED * (number * self.num_rounds) ** 0.5 / self.sigma
        return gaussian_dp_epsilon(moved, delta) * (1.0 + SAFETY_MARGIN)

    def draw_sums(self, sums: IntArray, noise: NoiseDraws) -> IntArray:
        """Draws discrete Gaussian variables of scale sigma * LATTICE and a little more."""
        scale = hypot(self.sigma * LATTICE, ROUNDED)
        return sums + noise.gaussian_integers(scale, sums.size).reshape(sums.shape)


@register
@dataclass(frozen=True, kw_only=True)
class GaussianResidualSums(GaussianFeatureSums):
    """Releases feature sums, then sums of what a public model misses of them, round by round.

    Round 1 is `GaussianFeatureSums`. In each later round a record adds its vector times
    `e_y - p`, clipped to L2 norm `RESIDUAL_NORM` and divided by it, where p are the probabilities
    that a model of the earlier noisy sums gives the record. Each round is a Gaussian mechanism of
    sensitivity 2; all rounds are charged together before the first is drawn
    (docs/proofs/theory.md, Proposition D10).

    >>> import pate_tf
    >>> sums = pate_tf.mechanisms.GaussianResidualSums(sigma=123.0, num_rounds=4)
    >>> round(sums.composed_epsilon(1, delta=1e-5), 3)
    0.1

    Attributes:
        sigma: standard deviation of the noise on each number of each round.
        num_rounds: rounds, at least 1.
    """

    num_rounds: int = parameter(1, least=1, most=MOST_ROUNDS, help="Rounds of sums.")

    name: ClassVar[str] = "gaussian_residual_sums"
    words: ClassVar[str] = (
        "Each record was mapped to a vector of L2 norm at most 1 by a public function. The vectors "
        "were added up by class. Discrete Gaussian noise of standard deviation {self.sigma:.3g} "
        "(sensitivity 2) was added to each number of the sums, once. This was the first of "
        "{self.num_rounds} rounds: in each later one a linear model followed from the noisy sums "
        "so far; a record added its vector times the difference between its class and the model's "
        "probabilities, clipped to a fixed L2 norm and divided by it, with the same noise. Nothing "
        "else was computed from the records."
    )
    released_in_words: ClassVar[str] = (
        "the sum of the private records' feature vectors of each class, then sums of what a linear "
        "model misses of them"
    )


@register
@dataclass(frozen=True, kw_only=True)
class LaplaceClusterCounts(OneScale, ReleasesFeatureSums):
    """Releases how many records of each class are in each public cluster, with Laplace noise.

    A record adds 1 in the cell of its cluster and its class; an owner's records add at most 1
    together. Replacing a record, or an owner, moves the table by at most 2 in the L1 norm, so that
    noise of scale b costs a pure epsilon of 2 / b at delta 0 (Proposition D9).

    >>> import pate_tf
    >>> round(pate_tf.mechanisms.LaplaceClusterCounts(scale=20.0, num_clusters=50).pure_epsilon, 3)
    0.1

    Attributes:
        scale: b of the discrete Laplace noise, in records.
        num_clusters: rows of the table.
    """

    scale: float = parameter(above=0.0, help="Scale of the discrete Laplace noise, in records.")
    num_clusters: int = parameter(1, least=1, help="Clusters of the pool.")

    name: ClassVar[str] = "laplace_cluster_counts"
    lacks: ClassVar[Mapping[str, str]] = {
        "draw": "it counts records in clusters and asks no teacher; it is planned for an `epsilon`",
        "bounds": "it costs the same for all records",
    }
    words: ClassVar[str] = (
        "Each record was assigned to one of {self.num_clusters} clusters of the public pool. Of "
        "each cluster the number of records of each class was released, after a random whole "
        "number from the discrete Laplace law of scale {self.scale:.3g} was added to it. Nothing "
        "else was computed from the records."
    )
    released_in_words: ClassVar[str] = (
        "how many private records of each class are in each cluster of the pool"
    )
    labels_in_words: ClassVar[str] = "labels computed from noisy counts of records in clusters"

    @property
    def standard_deviation(self) -> float:
        """About sqrt(2) scales."""
        return sqrt(2.0) * self.scale

    @property
    def pure_epsilon(self) -> float:
        """Returns 2 / scale, rounded up."""
        return nextafter(CHANGED / self.scale, inf)

    @property
    def noise_scales(self) -> Mapping[str, float]:
        """The scale, in records."""
        return {"scale": self.scale}

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns the cost of randomised response at `pure_epsilon`, [num_moments]."""
        return pure_alpha(self.pure_epsilon, moments)

    def draw_sums(self, sums: IntArray, noise: NoiseDraws) -> IntArray:
        """Adds discrete Laplace variables, in steps of 1 / LATTICE."""
        scale = nextafter(self.scale * LATTICE, inf)
        return sums + noise.laplace_integers(scale, sums.size).reshape(sums.shape)
