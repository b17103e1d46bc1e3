"""Mechanisms that are charged once, for sums of what records add."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, nextafter, sqrt
from typing import ClassVar, Final

from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.mechanisms.base import (
    NoiseDraws,
    OfSigma,
    ReleasesFeatureSums,
    parameter,
    register,
)
from pate_tf.core.checks import IntArray

# Sums by class of what private records add, with noise: no teacher is asked.


CHANGED = 2.0  # L2 sensitivity of the sums to the replacement of one record
FEWEST_OF_CLASS = 20.0  # records over classes, over the noise on a number of a sum
MOST_ROUNDS = 64
# Length to which a record's part of a later round is clipped: most are shorter, and the noise is in
# proportion to it.
RESIDUAL_NORM = 0.5
BELOW: Final = 1.0 - 2.0**-40  # more than is lost by rounding, so that no norm is above 1
MOMENT_WEIGHT = 1.0  # of second moments beside sums by class


@register
@dataclass(frozen=True, kw_only=True)
class GaussianFeatureSums(OfSigma, ReleasesFeatureSums):
    """Releases the sum of the records' vectors of each class, with Gaussian noise.

    A record adds a vector of L2 norm at most 1 to the column of its class, which follows from the
    record and public values alone; the records of an owner together add L2 norm at most 1, too. So
    the L2 sensitivity of the sums is 2 if a record is replaced, and with unit "owner" 1 if an owner
    is added or removed and 2 if one is replaced: a Gaussian mechanism on multiples of 1 / LATTICE
    (docs/proofs/theory.md, Proposition D8). Nothing is assumed of how records are partitioned among
    teachers. Perturbed sufficient statistics: Vu and Slavkovic 2009, Foulds et al. 2016.

    >>> import pate_tf
    >>> round(pate_tf.mechanisms.GaussianFeatureSums(sigma=61.5).composed_epsilon(1, delta=1e-5), 3)
    0.1

    Attributes:
        sigma: standard deviation of the noise on each number; a record's vector has L2 norm 1.
        unit: "record" (default) is charged for a record replaced, or any change of an owner;
            "owner" for an owner added or removed.
    """

    name: ClassVar[str] = "gaussian_feature_sums"
    squared_sensitivity: ClassVar[float] = CHANGED**2
    lacks: ClassVar[Mapping[str, str]] = {
        "draw": "it adds up records' features and asks no teacher; name a `target_epsilon`",
        "bounds": "it costs the same for all records",
    }
    words: ClassVar[str] = (
        "Each record was mapped to a vector of L2 norm at most 1 by a public function. The vectors "
        "were added up by class. Discrete Gaussian noise of standard deviation {self.sigma:.3g} "
        "({self.sensitivity}) was added to each number of the sums, once. Nothing else was "
        "computed from the records."
    )
    released_in_words: ClassVar[str] = (
        "the sum of the private records' feature vectors of each class"
    )
    labels_in_words: ClassVar[str] = "labels computed from noisy feature sums"

    @property
    def sensitivity(self) -> str:
        """How far a neighbor moves the sums, in words."""
        squared = self.squared_sensitivity
        replaced = "2" if squared == CHANGED**2 else f"sqrt({squared:g})"
        if self.unit == "owner":
            return f"sensitivity 1 to an owner added or removed, {replaced} to one replaced"
        return f"sensitivity {replaced}"

    @property
    def fewest_of_class(self) -> float:
        """Private records over classes from which labels of sums are worth their cost."""
        return FEWEST_OF_CLASS * self.sigma


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
        "({self.sensitivity}) was added to each number of the sums, once. This was the first of "
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
class GaussianMoments(GaussianFeatureSums):
    """Releases sums of vectors by class and second moments together, with Gaussian noise, once.

    A record adds the outer product of its vector v, of L2 norm at most 1 and without negative
    numbers, with (its class's one-hot vector, w v) / sqrt(1 + w^2), w being `MOMENT_WEIGHT`: a
    table of norm at most 1; an owner's records add a norm of at most 1 together. Two such tables
    have no negative inner product. So replacing a record or an owner moves the total by at most
    sqrt(2), adding or removing an owner by at most 1 (docs/proofs/theory.md, Proposition D11).
    These are the sufficient statistics of linear regression (Vu and Slavkovic 2009, Wang 2018).

    >>> import pate_tf
    >>> moments = pate_tf.mechanisms.GaussianMoments(sigma=43.5)
    >>> round(moments.composed_epsilon(1, delta=1e-5), 3)
    0.1

    Attributes:
        sigma: standard deviation of the noise on each number; a record's table has L2 norm 1.
    """

    name: ClassVar[str] = "gaussian_moments"
    squared_sensitivity: ClassVar[float] = 2.0
    replaced_steps = sqrt(2.0)
    words: ClassVar[str] = (
        "Each record was mapped to a vector of L2 norm at most 1, without negative numbers, by a "
        "public function. The vectors were added up by class, and so were the products of any two "
        "numbers of a vector, scaled so that a record adds a table of norm at most 1. Discrete "
        "Gaussian noise of standard deviation {self.sigma:.3g} ({self.sensitivity}) was added to "
        "each number of both sums, once. Nothing else was computed from the records."
    )
    released_in_words: ClassVar[str] = (
        "the sum of the private records' feature vectors of each class, and their second moments"
    )
    labels_in_words: ClassVar[str] = "labels computed from noisy moments"


@register
@dataclass(frozen=True, kw_only=True)
class LaplaceClusterCounts(ReleasesFeatureSums):
    """Releases how many records of each class are in each public cluster, with Laplace noise.

    A record adds 1 in the cell of its cluster and its class; an owner's records add at most 1
    together. Replacing a record, or an owner, moves the table by at most 2 in the L1 norm, so that
    noise of scale b costs a pure epsilon of 2 / b at delta 0; adding or removing an owner 1 / b
    (Proposition D9).

    >>> import pate_tf
    >>> round(pate_tf.mechanisms.LaplaceClusterCounts(scale=20.0, num_clusters=50).pure_epsilon, 3)
    0.1

    Attributes:
        scale: b of the discrete Laplace noise, in records.
        num_clusters: rows of the table.
        unit: as of `GaussianFeatureSums`.
    """

    scale: float = parameter(above=0.0, help="Scale of the discrete Laplace noise, in records.")
    num_clusters: int = parameter(1, least=1, help="Clusters of the pool.")
    name: ClassVar[str] = "laplace_cluster_counts"
    noise_fields: ClassVar[tuple[str, ...]] = ("scale",)
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

    def __post_init__(self) -> None:
        """Raises ValueError if a value is out of range; sets `pure_epsilon`, rounded up."""
        super().__post_init__()
        moved = 1.0 if self.unit == "owner" else CHANGED
        object.__setattr__(self, "pure_epsilon", nextafter(moved / self.scale, inf))

    def draw_sums(self, sums: IntArray, noise: NoiseDraws) -> IntArray:
        """Adds discrete Laplace variables, in steps of 1 / LATTICE."""
        scale = nextafter(self.scale * LATTICE, inf)
        return sums + noise.laplace_integers(scale, sums.size).reshape(sums.shape)
