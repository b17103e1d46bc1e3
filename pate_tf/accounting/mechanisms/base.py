"""Mechanisms: charges that also draw labels from votes.

The same object draws the noise and accounts for it, so that the two always agree. It defines the
distribution of the released label given the counts. Whoever changes this distribution must change
the accounting, too.

Ties. The additive samplers give every class of every query an independent, uniformly random
priority, which is drawn without looking at the counts. Among equal noisy counts the higher priority
wins. In integers: score = counts * LATTICE + noise, where the noise of `LaplaceNoisyMax` is
(discrete Laplace) * LATTICE + (random permutation of 0 .. num_classes - 1), and the noise of
`GaussianNoisyMax` is a discrete Gaussian of scale sigma * LATTICE. Exact outcome probabilities
follow this rule, so they do not depend on the order of the classes. The bound `paper` of
`LaplaceNoisyMax` needs this rule (docs/proofs/theory.md, Proposition D1). Every other bound counts
a tie against the plurality, and holds for any rule that does not look at the counts.
"""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import exp, hypot, log, sqrt
from typing import Any, ClassVar, Final, NamedTuple, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from pate_tf.accounting.composition import Charge, check_pure, lacking, smallest_epsilon
from pate_tf.accounting.conversions import LATTICE, SAFETY_MARGIN, FloatArray, gaussian_dp_epsilon
from pate_tf.accounting.noisy_max_costs import NeighbourLaws, Quadrature, additive_outcomes
from pate_tf.core import checks
from pate_tf.core.checks import IntArray
from pate_tf.core.settings import EpsilonDelta, ProtectedUnit, Settings, setting

SCALE_RANGE: Final = (2.0**-30, 2.0**60)
UNITS: Final = ("record", "owner")
TOLERANCE: Final = 1e-9  # relative tolerance of a planned noise scale
ROUNDED: Final = 8.0  # lattice steps, added to sigma in quadrature to cover the lattice

_FAR: Final = 50.0  # overspending by a factor of e^50 is treated like overspending without limit
_MIN_STEP: Final = 1e-14  # relative tolerance of the search for log(scale)

Member = TypeVar("Member", bound=Charge)


@dataclass(frozen=True, kw_only=True)
class Target(EpsilonDelta, ProtectedUnit, Settings):
    """The privacy budget for the labels of a plan, in the worst case over all data.

    Attributes:
        epsilon: maximal epsilon of all labels together, above 0.
        delta: the delta of this guarantee; 0 for pure differential privacy.
        num_queries: number of queries, at least 1.
        unit: the protected unit, "record" (default) or "owner".

    Raises:
        ValueError: if a value is out of range.
    """

    num_queries: int = setting(1, least=1, help="")

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive(epsilon=self.epsilon)
        checks.between(0, 1, ends="[)", delta=self.delta)
        checks.one_of(UNITS, unit=self.unit)

    def epsilon_of(self, charge: Charge) -> float:
        """Returns the epsilon of `num_queries` charges at delta; inf if no bound is known."""
        number = charge.number_charged(self.num_queries)
        return smallest_epsilon({charge: number}, self.delta)[0]

    def least_noise(self, of_scale: Callable[[float], Member]) -> Member:
        """Returns the mechanism with the least noise that meets the target.

        Rounding errors never make the scale too small.

        Args:
            of_scale: function from a noise scale, in votes, to the charge with that scale. More
                noise must never cost more.

        Raises:
            ValueError: if no scale between 2^-30 and 2^60 votes meets the target, or if delta is 0
                and the mechanism has no pure epsilon.
        """
        if not self.delta:
            check_pure(of_scale(1.0))
        from scipy.optimize import brentq  # only here, because silos need less memory without it

        lowest, highest = (log(scale) for scale in SCALE_RANGE)

        def excess(log_scale: float) -> float:
            """Returns log(spent / target), clipped to finite values for the search."""
            spent = self.epsilon_of(of_scale(exp(log_scale))) / self.epsilon
            return min(max(log(spent), -_FAR), _FAR) if spent > 0.0 else -_FAR

        too_little = lowest
        enough = 0.0
        while (over := excess(enough)) > 0.0:
            # Epsilon falls at least as fast as the scale grows, so one step usually suffices.
            too_little = enough
            enough += min(max(over, log(2.0)), log(64.0))
            if enough > highest:
                raise ValueError(
                    f"epsilon={self.epsilon} at delta {self.delta} needs too much noise; raise it"
                )
        if excess(too_little) > 0.0:
            step = TOLERANCE / 4.0
            enough = brentq(excess, too_little, enough, xtol=step, rtol=_MIN_STEP)
        else:
            enough = too_little
        # The search may end slightly above the target; add noise until the target is met.
        while not self.epsilon_of(of_scale(exp(enough))) <= self.epsilon:
            enough += TOLERANCE / 2.0
        return of_scale(exp(enough))


def parameter(default: Any = dataclasses.MISSING, **facts: Any) -> Any:
    """Returns a dataclass field for a number of a mechanism, with its interval and flag."""
    return setting(default, group="mechanisms", advanced=True, **facts)


# Random draws that mechanisms use, and the answers that they return.


NoisyWinners = Callable[[IntArray, IntArray], IntArray]


class NoiseDraws(Protocol):
    """The random draws that mechanisms are built from, implemented by `pate_tf.release.noise`.

    Attributes:
        noisy_winners: returns the class with the largest noisy count, like `largest_sums`. It may
            run a TensorFlow graph.
    """

    noisy_winners: NoisyWinners

    def words(self, size: int) -> NDArray[np.uint64]:
        """Returns independent uniform 64-bit words, uint64 `[size]`."""

    def laplace_integers(self, scale: float, size: int) -> IntArray:
        """Returns integers k with probability proportional to e^(-|k|/scale), `[size]`."""

    def gaussian_integers(self, scale: float, size: int) -> IntArray:
        """Returns integers k with probability proportional to e^(-k^2/(2 scale^2)), `[size]`."""

    def uniform_integers(self, bounds: IntArray) -> IntArray:
        """Returns uniform integers from 0 to bounds - 1, with the shape of bounds `[size]`."""

    def random_orders(self, num_queries: int, num_classes: int) -> IntArray:
        """Returns uniform random orders of the classes, `[num_queries, num_classes]`."""


def largest_sums(counts: IntArray, noise: IntArray) -> IntArray:
    """Returns the class with the largest counts * LATTICE + noise, int64 [num_queries].

    Args:
        counts: int64 [num_queries, num_classes].
        noise: int64 [num_queries, num_classes], in units of 1 / LATTICE votes.
    """
    return np.asarray(np.argmax(counts * LATTICE + noise, axis=1))


@dataclass(frozen=True)
class Answers:
    """The released answers to a batch of queries. Nothing else is released.

    Attributes:
        labels: label of each query; None if it was withheld.
        noisy_counts: noisy counts that are released with the labels, int64
            [num_queries, num_classes] in units of 1 / LATTICE votes. The rows of withheld queries
            are not released. None if only labels are released.
    """

    labels: Sequence[int | None] = dataclasses.field(repr=False)
    noisy_counts: IntArray | None = dataclasses.field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class Mechanism(Charge, Settings):
    """A randomized rule that turns vote counts into labels, with its privacy cost.

    Neighboring data: one training record is replaced, or all records of one owner are added or
    removed. Either changes at most one teacher, so at most one vote of every query moves from one
    class to another (docs/proofs/theory.md, Propositions S1 and S2). Replacing an owner by another
    can change two teachers (`pate_tf.accounting.composition`).

    A subclass defines `name`, `alphas`, `draw`, `words` and fields made by `parameter`. If it has
    no sampler or no data-dependent bounds, `lacks` gives the reason under "draw" or "bounds".
    Optional: `for_target`, data-dependent bounds with the methods that they need, `pure_epsilon`,
    `noise_multipliers`.

    Attributes:
        name: name in ledgers and plans, and the value of `--mechanism`.
        words: description in sentences, with fields of `self` in braces.
        bounds: names of its data-dependent bounds, from `pate_tf.accounting.moments.BOUNDS`.
        withholds: whether a query can remain without a label.
    """

    name: ClassVar[str]
    answers: ClassVar[bool] = True
    counted: ClassVar[tuple[str, str]] = ("query", "queries")
    words: ClassVar[str] = ""
    bounds: ClassVar[tuple[str, ...]] = ()
    withholds: ClassVar[bool] = False

    def data_independent_epsilon(
        self, *, num_queries: int, delta: float
    ) -> tuple[float, float | None]:
        """Returns the smallest known data-independent epsilon at delta, and its moment.

        The moment is None if the result comes from a composition theorem that uses no moments.
        """
        checks.whole(0, num_queries=num_queries)
        return smallest_epsilon({self: self.number_charged(num_queries)}, delta)

    @classmethod
    def for_target(cls, target: Target, counts: IntArray) -> Self:
        """Returns the mechanism that labels most accurately within a target, for assumed votes.

        `counts` must be assumptions from public values. If the mechanism were chosen by looking at
        real votes, no privacy guarantee would hold.

        Args:
            target: the privacy budget.
            counts: assumed counts, int64 [num_queries, num_classes].

        Raises:
            ValueError: if no parameters meet the target, or if the mechanism does not derive its
                parameters from a target.
        """
        del target, counts
        raise lacking(cls, "parameters that follow from a target", "calibration")

    def expected_correct(self, counts: IntArray) -> float:
        """Returns the expected number of queries that get the label 0.

        Args:
            counts: assumed counts, int64 [num_queries, num_classes]; class 0 is correct.

        Raises:
            ValueError: if the distribution of the mechanism's labels is not known.
        """
        del counts
        raise lacking(self, "an outcome law", "outcome law")

    def draw(self, counts: IntArray, noise: NoiseDraws) -> Answers:
        """Draws the answers to a batch of queries.

        The order of the steps does not depend on the random draws. If the process is killed before
        the answers are stored, the batch is drawn again under the same debit
        (docs/proofs/theory.md, Proposition S6).

        Args:
            counts: int64 [num_queries, num_classes]. Sensitive.
            noise: source of all random draws.

        Raises:
            ValueError: if the mechanism has no sampler.
        """
        del counts, noise
        raise lacking(self, "a sampler", "draw")

    def in_words(self) -> str:
        """Returns a description of the mechanism in sentences."""
        return self.words.format(self=self)


# Optional abilities of mechanisms.


class OneScale(Mechanism):
    """A mechanism with one noise scale. A plan uses the smallest scale that meets the target.

    Attributes:
        scale_name: keyword of the noise scale, in votes. More noise never costs more.
        num_rounds: number of successive rounds of noise in one charge.
    """

    scale_name: ClassVar[str] = "scale"
    num_rounds: int = 1

    @classmethod
    def for_target(cls, target: Target, counts: IntArray) -> Self:
        """Returns the mechanism with the least noise that meets the target; ignores `counts`."""
        del counts
        of_unit = {"unit": target.unit} if cls.releases_feature_sums else {}
        return target.least_noise(lambda scale: cls(**{cls.scale_name: scale}, **of_unit))


@dataclass(frozen=True, kw_only=True)
class OfSigma(OneScale):
    """A mechanism with Gaussian noise of one scale.

    If a discrete Gaussian is shifted by whole lattice steps, the Renyi divergence is at most as
    large as for a continuous Gaussian (docs/proofs/theory.md, Proposition D4).

    Attributes:
        sigma: standard deviation of the noise, in votes.
        squared_sensitivity: squared L2 distance by which replacing one record or owner moves the
            values that get the noise. It is 2 for counts, because a vote that moves from one class
            to another changes two counts by one.
    """

    sigma: float = parameter(above=0.0, help="Standard deviation of the Gaussian noise, in votes.")
    scale_name: ClassVar[str] = "sigma"
    noise_fields: ClassVar[tuple[str, ...]] = ("sigma",)
    squared_sensitivity: ClassVar[float] = 2.0

    @property
    def squared_distance(self) -> float:
        """The squared distance between two neighbors: 1 if an owner is added or removed."""
        return 1.0 if self.unit == "owner" else self.squared_sensitivity

    @property
    def noise_multipliers(self) -> tuple[float, ...]:
        """The noise multiplier of each round; noise on a lattice costs no more."""
        return (self.sigma / sqrt(self.squared_distance),) * self.num_rounds

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns the sum of l (l+1) / (2 multiplier^2) over all rounds, [num_moments]."""
        of_round = moments * (moments + 1.0) / (2.0 * (self.sigma**2 / self.squared_distance))
        return self.num_rounds * of_round

    def composed_epsilon(self, number: int, *, delta: float) -> float:
        """Returns the epsilon of Gaussian differential privacy, with a surcharge for the lattice.

        A discrete Gaussian is stochastically dominated by the continuous Gaussian of the same scale
        plus one lattice step. So with k shifted coordinates the privacy loss exceeds the continuous
        loss by at most k / (LATTICE sigma^2), which is squared distance / LATTICE if every shift is
        one vote. Feature sums need no surcharge, because they draw slightly more noise.
        """
        squared = number * self.num_rounds / (self.sigma**2 / self.squared_distance)
        smooth = gaussian_dp_epsilon(sqrt(squared), delta)
        if self.releases_feature_sums:
            return smooth * (1.0 + SAFETY_MARGIN)
        return smooth + squared / LATTICE

    def draw_sums(self, sums: IntArray, noise: NoiseDraws) -> IntArray:
        """Adds discrete Gaussian noise of a scale slightly above sigma * LATTICE.

        Args:
            sums: values in steps of 1 / LATTICE, of any shape. SENSITIVE.
            noise: source of all random draws.
        """
        scale = hypot(self.sigma * LATTICE, ROUNDED) * (1.0 + 2.0**-50)  # rounded up
        return sums + noise.gaussian_integers(scale, sums.size).reshape(sums.shape)


class OutcomeLaw(Mechanism):
    """A mechanism whose distribution of the label of each query is known.

    Attributes:
        noise_law: for a mechanism that adds noise to every count, the name of the field with the
            noise scale, and a function from the scale to the quadrature of the noise.
    """

    noise_law: ClassVar[tuple[str, Callable[..., Quadrature]]]

    def outcome_probabilities(self, counts: IntArray) -> FloatArray:
        """Returns the probability of each label, [num_queries, num_classes]."""
        field, quadrature = self.noise_law
        return additive_outcomes(counts, partial(quadrature, getattr(self, field)))

    @abstractmethod
    def pairwise_tail(self, gaps: FloatArray) -> FloatArray:
        """Returns F(D), an upper bound on Pr[a class that is D votes behind wins].

        The result has the shape of gaps. F is nonincreasing, and it is convex on D >= 0 for every
        mechanism that adds noise.
        """

    def expected_correct(self, counts: IntArray) -> float:
        """Returns the sum of the probabilities of class 0."""
        rows, number = np.unique(counts, axis=0, return_counts=True)
        return float(number @ self.outcome_probabilities(rows)[:, 0])


Tail = Callable[[FloatArray], FloatArray]


_MIN_Q: Final = 1e-300


class Bound(NamedTuple):
    """A data-dependent bound on the cost of one query, as a function of q and u.

    `costs` are nondecreasing in q and in u, and constant for q > 1/(E+1), E = e^{2 gamma}.

    Attributes:
        tail: the function F that q and u are computed with.
        formula: function from q, u and moments to costs [num_queries, num_moments]. q is
            Pr[label != plurality] or an upper bound on it, above 0, [num_queries]; u is its largest
            term, [num_queries]. Costs are inf where no bound is proved.
        cap: function from moments to the maximal cost of a query, [num_moments].
        reach: number of votes by which the counts are moved before q and u are computed: 1 for
            `two_sided` on Gaussian mechanisms, else 0. The reverse moment at n is the forward
            moment at a neighbor n', and the forward formula is nondecreasing in q, so the two-sided
            cost is the formula at qmax_1(n) (docs/proofs/theory.md, Proposition D5). For a cost
            that must hold k votes away (K_k of Theorem B2), the union bound moves k + reach votes.
    """

    tail: Tail
    formula: Callable[[FloatArray, FloatArray, FloatArray], FloatArray]
    cap: Callable[[FloatArray], FloatArray]
    reach: int = 0

    def costs(self, q: FloatArray, u: FloatArray, moments: FloatArray) -> FloatArray:
        """Returns the cost of each query, [num_queries, num_moments].

        The costs contain no safety margin. The accounting multiplies its final results by
        1 + SAFETY_MARGIN. Probabilities below 1e-300 are raised to 1e-300, and a cost that
        overflows becomes the cap.

        Args:
            q: Pr[label != plurality] or a bound on it `reach` votes away, [num_queries].
            u: largest term of q, [num_queries]; only "class_aware" uses it.
            moments: [num_moments].
        """
        reached = np.maximum(q, _MIN_Q)
        largest = np.minimum(np.maximum(u, _MIN_Q), reached)
        with np.errstate(over="ignore", invalid="ignore"):
            costs = self.formula(reached, largest, moments)
        return np.asarray(np.fmin(costs, self.cap(moments)))


class DataDependent(OutcomeLaw):
    """A mechanism with data-dependent bounds on the cost of a query; `bounds` has their names."""

    @property
    def answering(self) -> DataDependent:
        """The mechanism that draws the label of an answered query."""
        return self

    def test_alphas(self, moments: FloatArray) -> FloatArray:
        """Returns the cost of the test whether a query is answered, [num_moments]."""
        return np.zeros_like(moments)

    @abstractmethod
    def cost_cap(self, moments: FloatArray) -> FloatArray:
        """Returns an upper bound on the data-dependent cost of any query, [num_moments].

        It is a closed form, and at least `alphas`, which a search over all counts can lower.
        """

    @abstractmethod
    def bound(self, name: str) -> Bound:
        """Returns a bound of `answering` by its name in `bounds`, except "exact"."""

    @abstractmethod
    def neighbour_laws(self, row: IntArray) -> NeighbourLaws:
        """Returns the exact label distributions at a histogram [num_classes] and its neighbors."""


class ReleasesFeatureSums(OneScale, ProtectedUnit):
    """A mechanism that releases noisy sums over the records of each class, without teachers.

    Attributes:
        num_clusters: number of clusters for counts of records in clusters; None for sums of feature
            vectors.
        released_in_words: description of the sums, for a plan.
    """

    releases_feature_sums: ClassVar[bool] = True
    counted: ClassVar[tuple[str, str]] = ("release", "releases")
    num_clusters: int | None = None
    released_in_words: ClassVar[str]

    def __post_init__(self) -> None:
        """Raises ValueError if a value is out of range."""
        super().__post_init__()
        checks.one_of(UNITS, unit=self.unit)

    @property
    def standard_deviation(self) -> float:
        """The standard deviation of the noise on one number, to which a record adds at most 1."""
        return float(getattr(self, self.scale_name))

    @abstractmethod
    def draw_sums(self, sums: IntArray, noise: NoiseDraws) -> IntArray:
        """Returns sums plus noise, int64 [num_features + 1, num_classes], in units 1 / LATTICE."""


# Registered mechanisms by name.


MECHANISMS: dict[str, type[Mechanism]] = {}

Kind = TypeVar("Kind", bound=type[Mechanism])


def register(kind: Kind) -> Kind:
    """Registers a mechanism for ledgers, flags, plans and statements.

    Raises:
        ValueError: if its name is taken.
    """
    if kind.name in MECHANISMS:
        raise ValueError(f"{kind.__name__}.name must be new, but {kind.name!r} is registered")
    MECHANISMS[kind.name] = kind
    return kind


def offered() -> dict[str, type[Mechanism]]:
    """Returns the mechanisms that draw labels, sorted by name."""
    return {name: kind for name, kind in sorted(MECHANISMS.items()) if "draw" not in kind.lacks}


def check_mechanism(mechanism: object) -> None:
    """Raises ValueError if an object is not an instance of a registered mechanism."""
    if type(mechanism) not in MECHANISMS.values():
        raise ValueError(
            f"mechanism must be registered, such as LaplaceNoisyMax(scale=5.0), got {mechanism}"
        )
