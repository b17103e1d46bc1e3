"""Mechanisms that release noisy sums over the records. They are charged once, not per query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, nextafter, sqrt
from typing import ClassVar, Final

from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.mechanisms import base
from pate_tf.core.checks import IntArray

# These mechanisms add up the private records of each class and need no teachers.


CHANGED = 2.0  # L2 sensitivity of the sums if one record is replaced
MAX_ROUNDS = 128
# In later rounds, a record's contribution is clipped to this norm. Most contributions are shorter,
# and a smaller norm needs less noise.
RESIDUAL_NORM = 0.5
BELOW: Final = 1.0 - 2.0**-40  # slightly below 1, so that rounding errors raise no norm above 1
MOMENT_WEIGHT = 1.0  # weight of second moments relative to class sums


@base.register
@dataclass(frozen=True, kw_only=True)
class GaussianFeatureSums(base.OfSigma, base.ReleasesFeatureSums):
    """Releases the sum of the feature vectors of each class, with Gaussian noise.

    A record adds a vector of L2 norm at most 1 to the column of its class. The vector depends only
    on the record and on public values. All records of one owner together also add a table of L2
    norm at most 1. So the L2 sensitivity of the sums is 2 if a record or an owner is replaced, and
    1 if an owner is added or removed. This is a Gaussian mechanism on multiples of 1 / LATTICE
    (docs/proofs/theory.md, Proposition D8). No teachers are used. Vu and Slavkovic 2009 and Foulds
    et al. 2016 describe such noisy sufficient statistics.

    >>> import pate_tf
    >>> round(pate_tf.mechanisms.GaussianFeatureSums(sigma=61.5).composed_epsilon(1, delta=1e-5), 3)
    0.1

    Attributes:
        sigma: standard deviation of the noise on each number. The vector of a record has L2 norm at
            most 1.
        unit: "record" (default): the cost covers the replacement of a record and any change of one
            owner. "owner": the cost covers only the addition or removal of an owner.
    """

    name: ClassVar[str] = "gaussian_feature_sums"
    squared_sensitivity: ClassVar[float] = CHANGED**2
    lacks: ClassVar[Mapping[str, str]] = {
        "draw": "it sums features of records and uses no teachers; pass `target_epsilon` instead",
        "bounds": "its cost is the same for all data",
    }
    words: ClassVar[str] = (
        "A public function mapped each record to a vector of length at most 1. The vectors of "
        "each class were added up. Discrete Gaussian noise of standard deviation {self.sigma:.3g} "
        "({self.sensitivity}) was added to each number of the sums, once. Nothing else was "
        "computed from the records."
    )
    released_in_words: ClassVar[str] = "the sum of the private feature vectors of each class"
    labels_in_words: ClassVar[str] = "labels computed from noisy feature sums"

    @property
    def sensitivity(self) -> str:
        """A description of the L2 sensitivity of the sums."""
        squared = self.squared_sensitivity
        replaced = "2" if squared == CHANGED**2 else f"sqrt({squared:g})"
        if self.unit == "owner":
            return f"sensitivity 1 if an owner is added or removed, {replaced} if one is replaced"
        return f"sensitivity {replaced}"


@base.register
@dataclass(frozen=True, kw_only=True)
class GaussianResidualSums(GaussianFeatureSums):
    """Releases feature sums, then sums of the errors of a public model, in several rounds.

    Round 1 is `GaussianFeatureSums`. In each later round a record adds its vector times `e_y - p`,
    clipped to L2 norm `RESIDUAL_NORM` and divided by this norm. Here `e_y` is the one-hot class of
    the record. `p` contains the class probabilities of the record, predicted by a model that was
    computed from the earlier noisy sums. Each round is a Gaussian mechanism of sensitivity 2. All
    rounds are charged together before the first one is drawn (docs/proofs/theory.md, Proposition
    D10).

    >>> import pate_tf
    >>> sums = pate_tf.mechanisms.GaussianResidualSums(sigma=123.0, num_rounds=4)
    >>> round(sums.composed_epsilon(1, delta=1e-5), 3)
    0.1

    Attributes:
        sigma: standard deviation of the noise on each number, in every round.
        num_rounds: number of rounds, at least 1.
    """

    num_rounds: int = base.parameter(1, least=1, most=MAX_ROUNDS, help="Number of rounds of sums.")

    name: ClassVar[str] = "gaussian_residual_sums"
    words: ClassVar[str] = (
        "A public function mapped each record to a vector of length at most 1. The vectors of "
        "each class were added up. Discrete Gaussian noise of standard deviation {self.sigma:.3g} "
        "({self.sensitivity}) was added to each number of the sums, once. This was the first of "
        "{self.num_rounds} rounds. In each later round, a linear model was computed from all "
        "earlier noisy sums. Each record then added its vector times the difference between its "
        "class and the probabilities that the model predicted for it. This contribution was "
        "clipped to a fixed L2 norm and divided by that norm. Each round got independent noise of "
        "the same standard deviation. Nothing else was computed from the records."
    )
    released_in_words: ClassVar[str] = (
        "the sum of the private feature vectors of each class, then sums of the errors of a linear "
        "model on the private records"
    )


@base.register
@dataclass(frozen=True, kw_only=True)
class GaussianMoments(GaussianFeatureSums):
    """Releases class sums of vectors and their second moments together, with Gaussian noise.

    The vector v of a record has L2 norm at most 1 and no negative numbers. The record adds a table:
    the outer product of v with (one-hot class, w v) / sqrt(1 + w^2), where w is `MOMENT_WEIGHT`.
    This table has norm at most 1, and so does the sum of the tables of one owner. The inner product
    of two such tables is not negative. Therefore, the total moves by at most sqrt(2) if a record or
    owner is replaced, and by at most 1 if an owner is added or removed (docs/proofs/theory.md,
    Proposition D11). These are the sufficient statistics of linear regression (Vu and Slavkovic
    2009, Wang 2018).

    >>> import pate_tf
    >>> moments = pate_tf.mechanisms.GaussianMoments(sigma=43.5)
    >>> round(moments.composed_epsilon(1, delta=1e-5), 3)
    0.1

    Attributes:
        sigma: standard deviation of the noise on each number. The table that a record adds has L2
            norm at most 1.
    """

    name: ClassVar[str] = "gaussian_moments"
    squared_sensitivity: ClassVar[float] = 2.0
    replaced_steps = sqrt(2.0)
    words: ClassVar[str] = (
        "A public function mapped each record to a vector of length at most 1 without negative "
        "numbers. The vectors of each class were added up. The products of any two numbers of a "
        "vector were added up, too. Both were scaled so that one record adds a table of norm at "
        "most 1. Discrete Gaussian noise of standard deviation {self.sigma:.3g} "
        "({self.sensitivity}) was added to each number of both sums, once. Nothing else was "
        "computed from the records."
    )
    released_in_words: ClassVar[str] = (
        "the sum of the private feature vectors of each class, and their second moments"
    )
    labels_in_words: ClassVar[str] = "labels computed from noisy moments"


@base.register
@dataclass(frozen=True, kw_only=True)
class LaplaceClusterCounts(base.ReleasesFeatureSums):
    """Releases the number of records of each class in each public cluster, with Laplace noise.

    A record adds 1 to the count of its cluster and class. All records of an owner together add at
    most 1. Replacing a record or an owner changes the counts by at most 2 in the L1 norm, so noise
    of scale b costs epsilon 2 / b at delta 0. If an owner is added or removed, the cost is 1 / b
    (docs/proofs/theory.md, Proposition D9).

    >>> import pate_tf
    >>> round(pate_tf.mechanisms.LaplaceClusterCounts(scale=20.0, num_clusters=50).pure_epsilon, 3)
    0.1

    Attributes:
        scale: scale b of the discrete Laplace noise, in records.
        num_clusters: number of clusters of the public pool.
        unit: see `GaussianFeatureSums`.
    """

    scale: float = base.parameter(above=0.0, help="Scale of discrete Laplace noise, in records.")
    num_clusters: int = base.parameter(1, least=1, help="Number of clusters of the pool.")
    name: ClassVar[str] = "laplace_cluster_counts"
    noise_fields: ClassVar[tuple[str, ...]] = ("scale",)
    lacks: ClassVar[Mapping[str, str]] = {
        "draw": "it counts records in clusters and uses no teachers; plan it from an `epsilon`",
        "bounds": "its cost is the same for all data",
    }
    words: ClassVar[str] = (
        "Each record was assigned to one of {self.num_clusters} clusters of the public pool. The "
        "records of each class in each cluster were counted. Discrete Laplace noise of scale "
        "{self.scale:.3g} was added to each count, and only these sums were released. Nothing else "
        "was computed from the records."
    )
    released_in_words: ClassVar[str] = (
        "the number of private records of each class in each cluster of the pool"
    )
    labels_in_words: ClassVar[str] = "labels computed from noisy counts of records in clusters"

    @property
    def standard_deviation(self) -> float:
        """The standard deviation of the noise on one count, about sqrt(2) times `scale`."""
        return sqrt(2.0) * self.scale

    def __post_init__(self) -> None:
        """Raises ValueError if a value is out of range; sets `pure_epsilon`, rounded up."""
        super().__post_init__()
        moved = 1.0 if self.unit == "owner" else CHANGED
        object.__setattr__(self, "pure_epsilon", nextafter(moved / self.scale, inf))

    def draw_sums(self, sums: IntArray, noise: base.NoiseDraws) -> IntArray:
        """Returns sums plus discrete Laplace noise, in units of 1 / LATTICE."""
        scale = nextafter(self.scale * LATTICE, inf)
        return sums + noise.laplace_integers(scale, sums.size).reshape(sums.shape)
