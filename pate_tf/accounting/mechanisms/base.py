"""Base classes of mechanisms. A mechanism is a charge that also draws labels from votes.

One object draws the noise and computes its cost, so that the two always agree. The object defines
the distribution of the released label given the counts. If you change this distribution, you must
also change the cost.

Ties between noisy counts are broken at random. For every query, the additive samplers assign the
classes random priorities (a uniformly random permutation), without looking at the counts. Among
equal noisy counts, the class with the higher priority wins. In integers: score = counts * LATTICE +
noise, where the noise of `LaplaceNoisyMax` is (discrete Laplace) * LATTICE + (random permutation of
0 .. num_classes - 1), and the noise of `GaussianNoisyMax` is a discrete Gaussian of scale sigma *
LATTICE. Exact outcome probabilities assume this rule, so they do not depend on the order of the
classes. The bound `paper` of `LaplaceNoisyMax` holds only with this rule (docs/proofs/theory.md,
Proposition D1). Every other bound assumes that the plurality loses all ties. Therefore, it also
holds for any other tie-breaking rule that does not look at the counts.
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
ROUNDED: Final = 8.0  # in lattice steps; noise of scale hypot(sigma, this) covers the lattice

_FAR: Final = 50.0  # the search treats a cost above e^50 times the target as infinite
_MIN_STEP: Final = 1e-14  # relative tolerance of the search for log(scale)

Member = TypeVar("Member", bound=Charge)


@dataclass(frozen=True, kw_only=True)
class Target(EpsilonDelta, ProtectedUnit, Settings):
    """The worst-case privacy budget for all labels of a plan.

    Attributes:
        epsilon: maximum epsilon of all labels together, above 0.
        delta: delta of the guarantee; 0 for pure differential privacy.
        num_queries: number of queries, at least 1.
        unit: protected unit, "record" (default) or "owner".

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
        """Returns the epsilon of `num_queries` charges at delta; infinite if no bound is known."""
        number = charge.number_charged(self.num_queries)
        return smallest_epsilon({charge: number}, self.delta)[0]

    def least_noise(self, of_scale: Callable[[float], Member]) -> Member:
        """Returns the mechanism with the least noise that meets the target.

        Rounding errors never make the scale too small.

        Args:
            of_scale: function that takes a noise scale, in votes, and returns the charge with this
                scale. A larger scale must never cost more.

        Raises:
            ValueError: if no scale between 2^-30 and 2^60 votes meets the target, or if delta is 0
                and the mechanism has no pure epsilon.
        """
        if not self.delta:
            check_pure(of_scale(1.0))
        from scipy.optimize import brentq  # imported only here, so that silos need less memory

        lowest, highest = (log(scale) for scale in SCALE_RANGE)

        def excess(log_scale: float) -> float:
            """Returns log(epsilon / target epsilon), clipped to finite values for the search."""
            spent = self.epsilon_of(of_scale(exp(log_scale))) / self.epsilon
            return min(max(log(spent), -_FAR), _FAR) if spent > 0.0 else -_FAR

        too_little = lowest
        enough = 0.0
        while (over := excess(enough)) > 0.0:
            # Doubling the scale at least halves epsilon, so one step usually suffices.
            too_little = enough
            enough += min(max(over, log(2.0)), log(64.0))
            if enough > highest:
                raise ValueError(
                    f"epsilon={self.epsilon} at delta {self.delta} needs too much noise. Raise it."
                )
        if excess(too_little) > 0.0:
            step = TOLERANCE / 4.0
            enough = brentq(excess, too_little, enough, xtol=step, rtol=_MIN_STEP)
        else:
            enough = too_little
        # The search may end slightly above the target. Add noise until the target is met.
        while not self.epsilon_of(of_scale(exp(enough))) <= self.epsilon:
            enough += TOLERANCE / 2.0
        return of_scale(exp(enough))


def parameter(default: Any = dataclasses.MISSING, **facts: Any) -> Any:
    """Returns a dataclass field for a parameter of a mechanism; see `settings.setting`."""
    return setting(default, group="mechanisms", advanced=True, **facts)


# The random draws that mechanisms need, and the answers that they return.


NoisyWinners = Callable[[IntArray, IntArray], IntArray]


class NoiseDraws(Protocol):
    """Interface of the random draws that mechanisms need. `pate_tf.release.noise` implements it.

    Attributes:
        noisy_winners: function with the arguments and results of `largest_sums`. It may run a
            TensorFlow graph.
    """

    noisy_winners: NoisyWinners

    def words(self, size: int) -> NDArray[np.uint64]:
        """Returns independent uniform 64-bit words, uint64 `[size]`."""

    def laplace_integers(self, scale: float, size: int) -> IntArray:
        """Returns integers k with probability proportional to e^(-|k|/scale), `[size]`."""

    def gaussian_integers(self, scale: float, size: int) -> IntArray:
        """Returns integers k with probability proportional to e^(-k^2/(2 scale^2)), `[size]`."""

    def uniform_integers(self, bounds: IntArray) -> IntArray:
        """Returns a uniform integer from 0 to bound - 1 for each bound of `bounds`, `[size]`."""

    def random_orders(self, num_queries: int, num_classes: int) -> IntArray:
        """Returns a random order of the classes for each query, `[num_queries, num_classes]`."""


def largest_sums(counts: IntArray, noise: IntArray) -> IntArray:
    """Returns the class with the largest noisy count for each query, int64 [num_queries].

    Args:
        counts: SENSITIVE; numbers of votes, int64 [num_queries, num_classes].
        noise: int64 [num_queries, num_classes], in units of 1 / LATTICE votes.
    """
    return np.asarray(np.argmax(counts * LATTICE + noise, axis=1))


@dataclass(frozen=True)
class Answers:
    """Public: the answers to a batch of queries, the only released facts about the votes.

    Attributes:
        labels: label of each query; None if the label is withheld.
        noisy_counts: noisy counts that are released together with the labels, int64 [num_queries,
            num_classes] in units of 1 / LATTICE votes. The rows of queries without a label are not
            released. None if only labels are released.
    """

    labels: Sequence[int | None] = dataclasses.field(repr=False)
    noisy_counts: IntArray | None = dataclasses.field(default=None, repr=False)


@dataclass(frozen=True, kw_only=True)
class Mechanism(Charge, Settings):
    """A randomized rule that computes labels from vote counts, with its privacy cost.

    In neighboring data sets, one training record is replaced, or all records of one owner are added
    or removed. Either change affects at most one teacher, so for every query at most one vote moves
    from one class to another (docs/proofs/theory.md, Propositions S1 and S2). Replacing an owner by
    another can change two teachers (`pate_tf.accounting.composition`).

    A subclass defines `name`, `alphas`, `draw`, `words`, and fields that are made with `parameter`.
    If it has no sampler or no data-dependent bounds, it gives the reason in `lacks` under "draw" or
    "bounds". A subclass may also define `for_target`, `pure_epsilon`, `noise_multipliers`, and
    data-dependent bounds with the necessary methods.

    Attributes:
        name: name of the mechanism in ledgers and plans, and as the value of `--mechanism`.
        words: description of the mechanism in sentences. The text contains names of fields in
            braces, which are replaced by their values.
        bounds: names of the data-dependent bounds that the mechanism has, from
            `pate_tf.accounting.moments.BOUNDS`.
        withholds: whether the mechanism may withhold the label of a query.
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
        """Returns the smallest known worst-case epsilon at delta, and the moment that gives it.

        The moment is None if a composition theorem without moments gives the result.
        """
        checks.whole(0, num_queries=num_queries)
        return smallest_epsilon({self: self.number_charged(num_queries)}, delta)

    @classmethod
    def for_target(cls, target: Target, counts: IntArray) -> Self:
        """Returns the mechanism that meets a target and labels most accurately for assumed votes.

        `counts` must be computed from public values. A mechanism that was chosen by looking at real
        votes would have no privacy guarantee.

        Args:
            target: privacy budget that the labels must not exceed.
            counts: assumed counts, int64 [num_queries, num_classes].

        Raises:
            ValueError: if no parameters meet the target, or if the mechanism does not derive its
                parameters from a target.
        """
        del target, counts
        raise lacking(cls, "parameters that follow from a target", "calibration")

    def expected_correct(self, counts: IntArray) -> float:
        """Returns the expected number of queries with the label 0, which is the correct class.

        Args:
            counts: assumed counts, int64 [num_queries, num_classes], in which class 0 is correct.

        Raises:
            ValueError: if the distribution of the mechanism's labels is not known.
        """
        del counts
        raise lacking(self, "an outcome law", "outcome law")

    def draw(self, counts: IntArray, noise: NoiseDraws) -> Answers:
        """Draws the answers to a batch of queries.

        The sequence of steps does not depend on the random draws. If the process is killed before
        the answers are stored, the batch is drawn again without a further charge
        (docs/proofs/theory.md, Proposition S6).

        Args:
            counts: SENSITIVE; int64 [num_queries, num_classes].
            noise: source of all random draws.

        Raises:
            ValueError: if the mechanism has no sampler.
        """
        del counts, noise
        raise lacking(self, "a sampler", "draw")

    def in_words(self) -> str:
        """Returns sentences that describe the mechanism in a privacy statement."""
        return self.words.format(self=self)


# Base classes for properties that only some mechanisms have.


class OneScale(Mechanism):
    """A mechanism with one noise scale. A plan uses the smallest scale that meets the target.

    Attributes:
        scale_name: name of the argument with the noise scale, in votes. A larger scale never costs
            more.
        num_rounds: number of successive noisy releases in one charge.
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
    """A mechanism with Gaussian noise of one scale, `sigma`.

    If discrete Gaussian noise is shifted by whole lattice steps, the Renyi divergence is at most as
    large as with continuous Gaussian noise (docs/proofs/theory.md, Proposition D4).

    Attributes:
        sigma: standard deviation of the noise, in votes.
        squared_sensitivity: squared L2 sensitivity of the values that get the noise, if one record
            or owner is replaced. The value is 2 for counts, because a vote that moves from one
            class to another changes two counts by one.
    """

    sigma: float = parameter(above=0.0, help="Standard deviation of the Gaussian noise, in votes.")
    scale_name: ClassVar[str] = "sigma"
    noise_fields: ClassVar[tuple[str, ...]] = ("sigma",)
    squared_sensitivity: ClassVar[float] = 2.0

    @property
    def squared_distance(self) -> float:
        """The squared L2 distance between neighbors; 1 if an owner is added or removed."""
        return 1.0 if self.unit == "owner" else self.squared_sensitivity

    @property
    def noise_multipliers(self) -> tuple[float, ...]:
        """The noise multiplier of each round.

        Drawing noise on a lattice does not increase the cost.
        """
        return (self.sigma / sqrt(self.squared_distance),) * self.num_rounds

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns the sum of l (l+1) / (2 multiplier^2) over all rounds, [num_moments]."""
        of_round = moments * (moments + 1.0) / (2.0 * (self.sigma**2 / self.squared_distance))
        return self.num_rounds * of_round

    def composed_epsilon(self, number: int, *, delta: float) -> float:
        """Returns the epsilon of Gaussian differential privacy, with a surcharge for the lattice.

        A discrete Gaussian is stochastically dominated by the continuous Gaussian of the same scale
        plus one lattice step. If k coordinates are shifted, the privacy loss exceeds the loss of
        continuous noise by at most k / (LATTICE sigma^2). If every shift is one vote, k
        is the squared distance in votes, so k / sigma^2 is the squared distance in units of sigma.
        Feature sums need no surcharge, because slightly more noise than sigma is drawn for them.
        """
        squared = number * self.num_rounds / (self.sigma**2 / self.squared_distance)
        smooth = gaussian_dp_epsilon(sqrt(squared), delta)
        if self.releases_feature_sums:
            return smooth * (1.0 + SAFETY_MARGIN)
        return smooth + squared / LATTICE

    def draw_sums(self, sums: IntArray, noise: NoiseDraws) -> IntArray:
        """Returns sums plus discrete Gaussian noise of a scale slightly above sigma * LATTICE.

        Args:
            sums: SENSITIVE; values in units of 1 / LATTICE, of any shape.
            noise: source of all random draws.
        """
        scale = hypot(self.sigma * LATTICE, ROUNDED) * (1.0 + 2.0**-50)  # rounded up
        return sums + noise.gaussian_integers(scale, sums.size).reshape(sums.shape)


class OutcomeLaw(Mechanism):
    """A mechanism for which the probability of each label can be computed.

    Attributes:
        noise_law: for a mechanism that adds noise to every count, a pair: the name of the field
            with the noise scale, and a function that takes this scale and returns a `Quadrature`
            for the noise.
    """

    noise_law: ClassVar[tuple[str, Callable[..., Quadrature]]]

    def outcome_probabilities(self, counts: IntArray) -> FloatArray:
        """Returns the probability of each label, [num_queries, num_classes]."""
        field, quadrature = self.noise_law
        return additive_outcomes(counts, partial(quadrature, getattr(self, field)))

    @abstractmethod
    def pairwise_tail(self, gaps: FloatArray) -> FloatArray:
        """Returns F(D), an upper bound on Pr[a class wins although it is D votes behind].

        The values D are given by `gaps`, and the result has the shape of `gaps`. F is
        nonincreasing, and it is convex on D >= 0 for every mechanism that adds noise.
        """

    def expected_correct(self, counts: IntArray) -> float:
        """Returns the sum over all queries of the probability of class 0."""
        rows, number = np.unique(counts, axis=0, return_counts=True)
        return float(number @ self.outcome_probabilities(rows)[:, 0])


Tail = Callable[[FloatArray], FloatArray]


_MIN_Q: Final = 1e-300


class Bound(NamedTuple):
    """A data-dependent bound on the cost of one query.

    The bound is a function of q and u. Here, q is the probability that the label is not the
    plurality, or an upper bound on this probability. In either case, q is a sum with one term for
    each other class, and u is the largest of these terms. The results of `costs` are nondecreasing
    in q and in u, and constant for q > 1/(E+1), where E = e^{2 gamma}.

    Attributes:
        tail: function F, used to compute q and u; see `OutcomeLaw.pairwise_tail`.
        formula: function from q, u and moments to costs [num_queries, num_moments]. q is Pr[label
            != plurality] or an upper bound on it, above 0, [num_queries]; u is its largest term,
            [num_queries]. Costs are infinite where no bound is proved.
        cap: function that takes moments and returns the maximum cost of a query, [num_moments].
        reach: number of votes that are assumed to move, in the worst way, before q and u are
            computed. It is 1 for the bound `two_sided` of Gaussian mechanisms, else 0. The reverse
            moment at n is the forward moment at a neighbor n', and the forward formula is
            nondecreasing in q, so the two-sided cost is the formula at qmax_1(n)
            (docs/proofs/theory.md, Proposition D5). If a cost must hold for all counts up to k
            votes away (K_k of Theorem B2), k + reach votes are assumed to move.
    """

    tail: Tail
    formula: Callable[[FloatArray, FloatArray, FloatArray], FloatArray]
    cap: Callable[[FloatArray], FloatArray]
    reach: int = 0

    def costs(self, q: FloatArray, u: FloatArray, moments: FloatArray) -> FloatArray:
        """Returns the cost of each query, [num_queries, num_moments].

        The costs contain no safety margin, because the accounting multiplies its final results by 1
        + SAFETY_MARGIN. Probabilities below 1e-300 are raised to 1e-300. A cost that overflows is
        replaced by the cap.

        Args:
            q: Pr[label != plurality], or an upper bound on this probability for all counts up to
                `reach` votes away, [num_queries].
            u: largest term of q, [num_queries]. Only the bound "class_aware" uses it.
            moments: [num_moments].
        """
        reached = np.maximum(q, _MIN_Q)
        largest = np.minimum(np.maximum(u, _MIN_Q), reached)
        with np.errstate(over="ignore", invalid="ignore"):
            costs = self.formula(reached, largest, moments)
        return np.asarray(np.fmin(costs, self.cap(moments)))


class DataDependent(OutcomeLaw):
    """A mechanism with data-dependent bounds on the cost of a query. `bounds` lists their names."""

    @property
    def answering(self) -> DataDependent:
        """The mechanism that draws the label of an answered query."""
        return self

    def test_alphas(self, moments: FloatArray) -> FloatArray:
        """Returns the cost of the threshold test of one query, [num_moments]; 0 without a test."""
        return np.zeros_like(moments)

    @abstractmethod
    def cost_cap(self, moments: FloatArray) -> FloatArray:
        """Returns an upper bound on the data-dependent cost of any query, [num_moments].

        The bound is a closed formula. It is at least `alphas`, which may come from a search over
        all counts.
        """

    @abstractmethod
    def bound(self, name: str) -> Bound:
        """Returns the data-dependent bound with this name (except "exact") of `answering`."""

    @abstractmethod
    def neighbour_laws(self, row: IntArray) -> NeighbourLaws:
        """Returns the exact label distributions for a row of counts and for all its neighbors."""


class ReleasesFeatureSums(OneScale, ProtectedUnit):
    """A mechanism that releases noisy sums over the records of each class, without teachers.

    Attributes:
        num_clusters: for counts of records in clusters, the number of clusters; None for sums of
            feature vectors.
        released_in_words: description of the sums that a plan displays.
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
        """Standard deviation of the noise on each sum. A record adds at most 1 to a sum."""
        return float(getattr(self, self.scale_name))

    @abstractmethod
    def draw_sums(self, sums: IntArray, noise: NoiseDraws) -> IntArray:
        """Returns the noisy sums in units of 1 / LATTICE, int64 [num_features + 1, num_classes]."""


# Registered mechanisms by name.


MECHANISMS: dict[str, type[Mechanism]] = {}

Kind = TypeVar("Kind", bound=type[Mechanism])


def register(kind: Kind) -> Kind:
    """Class decorator that makes a mechanism available in ledgers, flags, plans and statements.

    Raises:
        ValueError: if another mechanism has the same name.
    """
    if kind.name in MECHANISMS:
        raise ValueError(f"{kind.__name__}.name must be new, but {kind.name!r} is taken")
    MECHANISMS[kind.name] = kind
    return kind


def offered() -> dict[str, type[Mechanism]]:
    """Maps the name of each mechanism that draws labels to its class, sorted by name."""
    return {name: kind for name, kind in sorted(MECHANISMS.items()) if "draw" not in kind.lacks}


def check_mechanism(mechanism: object) -> None:
    """Raises ValueError unless an object is an instance of a registered mechanism."""
    if type(mechanism) not in MECHANISMS.values():
        raise ValueError(
            f"mechanism must be registered, such as LaplaceNoisyMax(scale=5.0), got {mechanism}"
        )
