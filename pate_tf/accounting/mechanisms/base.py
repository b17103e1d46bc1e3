"""What a mechanism is: a charge that also draws labels from votes.

One value draws the noise and accounts for it, so the two can't drift apart. What is fixed here is
the law of the released label given the counts; nothing may change it without changing the
accounting with it.

Ties. The additive samplers give every class of every query an independent, uniformly random
priority that is drawn without looking at the counts; equal noisy counts go to the higher priority.
In integers: score = counts * LATTICE + noise, where the noise of `LaplaceNoisyMax` is
(discrete Laplace) * LATTICE + (random permutation of 0 .. num_classes - 1), and the noise of
`GaussianNoisyMax` is a discrete Gaussian of scale sigma * LATTICE. Exact outcome probabilities
follow that rule and so do not depend on the order of the classes, and the bound `paper` of
`LaplaceNoisyMax` needs it (docs/proofs/theory.md, Proposition D1); every other bound counts a tie
against the plurality and holds for any rule that does not look at the counts.
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
TOLERANCE: Final = 1e-9  # relative, of a scale
ROUNDED: Final = 8.0  # lattice steps of standard deviation beyond sigma, which cover the lattice

_FAR: Final = 50.0  # a factor of e^50 too much is as bad as infinitely much
_SMALLEST_STEP: Final = 1e-14  # of a logarithm

Member = TypeVar("Member", bound=Charge)


@dataclass(frozen=True, kw_only=True)
class Target(EpsilonDelta, ProtectedUnit, Settings):
    """What the labels of a plan may cost, in the worst case over all data.

    Attributes:
        epsilon: the most that they may cost together, above 0.
        delta: what it holds at; 0 for pure differential privacy.
        num_queries: how many queries are asked, at least 1.
        unit: what is protected, "record" (default) or "owner".

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
        """Returns what `num_queries` of a charge cost at delta; infinite where nothing is known."""
        number = charge.number_charged(self.num_queries)
        return smallest_epsilon({charge: number}, self.delta)[0]

    def least_noise(self, of_scale: Callable[[float], Member]) -> Member:
        """Returns the affordable member with the least scale, which is never too small.

        Args:
            of_scale: from a scale of noise in votes to the charge that has it; more noise never
                costs more.

        Raises:
            ValueError: if no scale between 2^-30 and 2^60 votes is affordable, or at delta 0 the
                member has no pure epsilon.
        """
        if not self.delta:
            check_pure(of_scale(1.0))
        from scipy.optimize import brentq  # a silo plans nothing, and stays small without it

        lowest, highest = (log(scale) for scale in SCALE_RANGE)

        def excess(log_scale: float) -> float:
            """By what factor too much is charged, as a logarithm; finite, for the search."""
            spent = self.epsilon_of(of_scale(exp(log_scale))) / self.epsilon
            return min(max(log(spent), -_FAR), _FAR) if spent > 0.0 else -_FAR

        too_little = lowest
        enough = 0.0
        while (over := excess(enough)) > 0.0:
            # Epsilon falls at least as fast as the scale grows: this one step is most often enough.
            too_little = enough
            enough += min(max(over, log(2.0)), log(64.0))
            if enough > highest:
                raise ValueError(
                    f"expected a reachable epsilon, got {self.epsilon} at delta {self.delta}"
                )
        if excess(too_little) > 0.0:
            step = TOLERANCE / 4.0
            enough = brentq(excess, too_little, enough, xtol=step, rtol=_SMALLEST_STEP)
        else:
            enough = too_little
        # The search ends on either side of where the target is met.
        while not self.epsilon_of(of_scale(exp(enough))) <= self.epsilon:
            enough += TOLERANCE / 2.0
        return of_scale(exp(enough))


def parameter(default: Any = dataclasses.MISSING, **facts: Any) -> Any:
    """Returns a field of a mechanism: a number with its interval and flag."""
    return setting(default, group="mechanisms", advanced=True, **facts)


# What a mechanism draws with, and what it draws: integers in, labels out.


class NoiseDraws(Protocol):
    """The primitive draws that mechanisms are composed of; `pate_tf.release.noise` has them."""

    def words(self, size: int) -> NDArray[np.uint64]:
        """Returns independent uniform 64-bit words, uint64 `[size]`."""

    def laplace_integers(self, scale: float, size: int) -> IntArray:
        """Returns integers k with probability proportional to e^(-|k|/scale), `[size]`."""

    def gaussian_integers(self, scale: float, size: int) -> IntArray:
        """Returns integers k with probability proportional to e^(-k^2/(2 scale^2)), `[size]`."""

    def uniform_integers(self, bounds: IntArray) -> IntArray:
        """Returns uniform whole numbers from 0 to bounds - 1, same shape as bounds `[size]`."""

    def random_orders(self, num_queries: int, num_classes: int) -> IntArray:
        """Returns uniform random orders of the classes, `[num_queries, num_classes]`."""


def largest_sums(counts: IntArray, noise: IntArray) -> IntArray:
    """Returns the first class with the largest counts * LATTICE + noise, int64 [num_queries].

    Args:
        counts: int64 [num_queries, num_classes].
        noise: likewise, in units of 1 / LATTICE votes.
    """
    return np.asarray(np.argmax(counts * LATTICE + noise, axis=1))


@dataclass(frozen=True)
class Answers:
    """What a mechanism drew for a batch: all of it is released, and nothing else.

    Attributes:
        labels: of each query; None where it was withheld.
        noisy_counts: what is released with the labels, int64 [num_queries, num_classes] in units of
            1 / LATTICE votes; those of withheld queries are not released. None if labels
            are released alone.
    """

    labels: Sequence[int | None] = dataclasses.field(repr=False)
    noisy_counts: IntArray | None = dataclasses.field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class Mechanism(Charge, Settings):
    """A randomized rule that turns the counts of queries into labels, and their cost.

    Adjacency: one training record is replaced, or all records of one owner are added or removed;
    so at most one teacher changes, and at most one vote of every query moves from one class to
    another (docs/proofs/theory.md, Propositions S1 and S2). An owner replaced by another can change
    two teachers (`pate_tf.accounting.composition`).

    A family member gives `name`, `alphas`, `draw`, `words` and fields made by `parameter`, or says
    in `lacks` why not ("draw", "bounds"); and whatever else it can: a plan for
    a target, the bounds of its data-dependent cost with the methods they rest on, `pure_epsilon`,
    `noise_multipliers`.

    Attributes:
        name: in records and as value of `--mechanism`.
        words: what it does, in sentences with fields of `self` in braces.
        bounds: data-dependent bounds that it has, of `pate_tf.accounting.moments.BOUNDS`.
        withholds: whether a query may get no label.
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

        The moment is None where a composition theorem other than moments gives the result.
        """
        checks.whole(0, num_queries=num_queries)
        return smallest_epsilon({self: self.number_charged(num_queries)}, delta)

    @classmethod
    def for_target(cls, target: Target, counts: IntArray) -> Self:
        """Returns the member that labels best within a target, for votes that are assumed.

        `counts` must be assumed from public values; no cost holds for a mechanism that was chosen
        by looking at votes.

        Args:
            target: what the labels may cost.
            counts: assumed, int64 [num_queries, num_classes].

        Raises:
            ValueError: if no member is affordable, or its parameters don't follow from a target.
        """
        del target, counts
        raise lacking(cls, "parameters that follow from a target", "calibration")

    def expected_correct(self, counts: IntArray) -> float:
        """Returns how many queries of a batch get class 0 as their label, in expectation.

        Args:
            counts: assumed, int64 [num_queries, num_classes]; class 0 is the correct one.

        Raises:
            ValueError: if the mechanism has no known outcome law.
        """
        del counts
        raise lacking(self, "an outcome law", "outcome law")

    def draw(self, counts: IntArray, noise: NoiseDraws) -> Answers:
        """Draws the answers to a batch of queries.

        Takes the same steps whatever is drawn: a batch that is killed before its answers are stored
        is drawn anew under the same debit (docs/proofs/theory.md, Proposition S6).

        Args:
            counts: int64 [num_queries, num_classes]. Sensitive.
            noise: what everything random is drawn from.

        Raises:
            ValueError: if the mechanism has no sampler.
        """
        del counts, noise
        raise lacking(self, "a sampler", "draw")

    def in_words(self) -> str:
        """Returns what the mechanism does with the votes, in sentences."""
        return self.words.format(self=self)


# What some mechanisms can do besides.


class OneScale(Mechanism):
    """A mechanism with a single scale of noise: the least that is affordable is planned.

    Attributes:
        scale_name: keyword of its scale, in votes; more of it never costs more.
        num_rounds: how often it draws such noise for one charge, one after another.
    """

    scale_name: ClassVar[str] = "scale"
    num_rounds: int = 1

    @classmethod
    def for_target(cls, target: Target, counts: IntArray) -> Self:
        """Returns the affordable member with the least noise; `counts` are not read."""
        del counts
        of_unit = {"unit": target.unit} if cls.releases_feature_sums else {}
        return target.least_noise(lambda scale: cls(**{cls.scale_name: scale}, **of_unit))


@dataclass(frozen=True, kw_only=True)
class OfSigma(OneScale):
    """A mechanism with Gaussian noise of one scale.

    The Renyi divergence between shifts of discrete Gaussians by whole steps of their lattice is at
    most the continuous one's (docs/proofs/theory.md, Proposition D4).

    Attributes:
        sigma: standard deviation of the noise, in votes.
        squared_sensitivity: how far one record or owner replaced moves what noise is added to, in
            Euclidean distance, squared; of counts 2: one vote of a query moves two of them by one.
    """

    sigma: float = parameter(above=0.0, help="Standard deviation of the Gaussian noise, in votes.")
    scale_name: ClassVar[str] = "sigma"
    noise_fields: ClassVar[tuple[str, ...]] = ("sigma",)
    squared_sensitivity: ClassVar[float] = 2.0

    @property
    def squared_distance(self) -> float:
        """How far one neighbor moves it, squared: an owner added or removed by a length of 1."""
        return 1.0 if self.unit == "owner" else self.squared_sensitivity

    @property
    def noise_multipliers(self) -> tuple[float, ...]:
        """One for each round; noise on a lattice costs no more."""
        return (self.sigma / sqrt(self.squared_distance),) * self.num_rounds

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns l (l+1) / (2 multiplier^2) of each `noise_multipliers`, [num_moments]."""
        of_round = moments * (moments + 1.0) / (2.0 * (self.sigma**2 / self.squared_distance))
        return self.num_rounds * of_round

    def composed_epsilon(self, number: int, *, delta: float) -> float:
        """Returns the epsilon of Gaussian differential privacy, and the lattice's share.

        A discrete Gaussian is stochastically at most one lattice step above the continuous one, so
        with k shifted coordinates the privacy loss is that of the continuous one plus at most
        k / (LATTICE sigma^2): squared distance / LATTICE when every shift is one vote. Feature sums
        draw a little more noise instead, which covers it.
        """
        squared = number * self.num_rounds / (self.sigma**2 / self.squared_distance)
        smooth = gaussian_dp_epsilon(sqrt(squared), delta)
        if self.releases_feature_sums:
            return smooth * (1.0 + SAFETY_MARGIN)
        return smooth + squared / LATTICE

    def draw_sums(self, sums: IntArray, noise: NoiseDraws) -> IntArray:
        """Draws discrete Gaussian variables of scale sigma * LATTICE and a little more.

        Args:
            sums: in steps of 1 / LATTICE, of any shape. SENSITIVE.
            noise: what everything random is drawn from.
        """
        scale = hypot(self.sigma * LATTICE, ROUNDED) * (1.0 + 2.0**-50)  # rounded up
        return sums + noise.gaussian_integers(scale, sums.size).reshape(sums.shape)


class OutcomeLaw(Mechanism):
    """A mechanism with a known law of the label of each query.

    Attributes:
        noise_law: of one that adds noise to every count: which field has its scale, and from that
            to the quadrature of the noise.
    """

    noise_law: ClassVar[tuple[str, Callable[..., Quadrature]]]

    def outcome_probabilities(self, counts: IntArray) -> FloatArray:
        """Returns the law of the label, [num_queries, num_classes]: here of the largest sum."""
        field, quadrature = self.noise_law
        return additive_outcomes(counts, partial(quadrature, getattr(self, field)))

    @abstractmethod
    def pairwise_tail(self, gaps: FloatArray) -> FloatArray:
        """Returns F(D), at least Pr[a class with D votes fewer is preferred], same shape as gaps.

        F is nonincreasing, and convex on D >= 0 for every mechanism that adds noise.
        """

    def expected_correct(self, counts: IntArray) -> float:
        """Returns the sum of the probabilities of class 0."""
        rows, number = np.unique(counts, axis=0, return_counts=True)
        return float(number @ self.outcome_probabilities(rows)[:, 0])


Tail = Callable[[FloatArray], FloatArray]


_SMALLEST_Q: Final = 1e-300


class Bound(NamedTuple):
    """A data-dependent bound on the cost of one query, as a function of q and u.

    `costs` are nondecreasing in q and in u, and constant for q > 1/(E+1), E = e^{2 gamma}.

    Attributes:
        tail: F, that q and u are evaluated with.
        formula: from q = Pr[label != plurality] or a bound on it, above 0, and u, its largest term,
            both [num_queries], and moments to costs [num_queries, num_moments]; infinite where none
            is proved.
        cap: from moments to what a query costs at most, [num_moments].
        reach: by how many votes q and u are moved first: 1 for `two_sided` on Gaussian mechanisms,
            else 0. The reverse moment at n is the forward moment at a neighbor n', and the forward
            formula is nondecreasing in q, so the two-sided cost is the formula at qmax_1(n)
            (docs/proofs/theory.md, Proposition D5). A cost that must hold k votes away (K_k of
            Theorem B2) is that of the union bound with k + reach moved votes.
    """

    tail: Tail
    formula: Callable[[FloatArray, FloatArray, FloatArray], FloatArray]
    cap: Callable[[FloatArray], FloatArray]
    reach: int = 0

    def costs(self, q: FloatArray, u: FloatArray, moments: FloatArray) -> FloatArray:
        """Returns the cost of each query, [num_queries, num_moments].

        No safety margin is added: results that leave the accounting are multiplied by
        1 + SAFETY_MARGIN. A probability below 1e-300 counts as 1e-300, and a cost that overflows as
        the cap.

        Args:
            q: Pr[label != plurality] or a bound on it `reach` votes away, [num_queries].
            u: largest single term of q, [num_queries]; read by "class_aware" alone.
            moments: [num_moments].
        """
        reached = np.maximum(q, _SMALLEST_Q)
        largest = np.minimum(np.maximum(u, _SMALLEST_Q), reached)
        with np.errstate(over="ignore", invalid="ignore"):
            costs = self.formula(reached, largest, moments)
        return np.asarray(np.fmin(costs, self.cap(moments)))


class DataDependent(OutcomeLaw):
    """A mechanism with bounds on what a query costs at the true votes; `bounds` has their names."""

    @property
    def answering(self) -> DataDependent:
        """What chooses the label of a query that is answered."""
        return self

    def test_alphas(self, moments: FloatArray) -> FloatArray:
        """Returns what a query costs before it is known whether it is answered, [num_moments]."""
        return np.zeros_like(moments)

    @abstractmethod
    def cost_cap(self, moments: FloatArray) -> FloatArray:
        """Returns the cap that data-dependent costs of a query end at, [num_moments].

        A closed form, and no less than `alphas`, which a search over all counts may have lowered.
        """

    @abstractmethod
    def bound(self, name: str) -> Bound:
        """Returns a bound that `answering` has, one of `bounds` but "exact"."""

    @abstractmethod
    def neighbour_laws(self, row: IntArray) -> NeighbourLaws:
        """Returns the exact laws at one histogram [num_classes] and at every neighbor."""


class ReleasesFeatureSums(OneScale, ProtectedUnit):
    """A mechanism that releases sums by class of what records add, and asks no teacher.

    Attributes:
        num_clusters: rows of the table where records are counted in clusters; None for sums of
            feature vectors.
        released_in_words: what is summed, for a plan.
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
        """Of the noise on one number, in what a record adds at most."""
        return float(getattr(self, self.scale_name))

    @abstractmethod
    def draw_sums(self, sums: IntArray, noise: NoiseDraws) -> IntArray:
        """Returns sums int64 [num_features + 1, num_classes] with noise, in 1 / LATTICE both."""


# Every mechanism by its name.


MECHANISMS: dict[str, type[Mechanism]] = {}

Kind = TypeVar("Kind", bound=type[Mechanism])


def register(kind: Kind) -> Kind:
    """Makes a mechanism known: to records, flags, calibration and statements.

    Raises:
        ValueError: if its name is taken.
    """
    if kind.name in MECHANISMS:
        raise ValueError(f"expected a new name for a mechanism, got {kind.name!r} again")
    MECHANISMS[kind.name] = kind
    return kind


def offered() -> dict[str, type[Mechanism]]:
    """Returns the mechanisms that draw labels, by name in order."""
    return {name: kind for name, kind in sorted(MECHANISMS.items()) if "draw" not in kind.lacks}


def check_mechanism(mechanism: object) -> None:
    """Raises ValueError unless something is a registered mechanism's value."""
    if type(mechanism) not in MECHANISMS.values():
        raise ValueError(
            f"mechanism: expected one such as LaplaceNoisyMax(scale=5.0), got "
            f"{type(mechanism).__name__}"
        )
