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
import decimal
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, inf, log
from typing import Any, ClassVar, Final, NamedTuple, Protocol, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from pate_tf.accounting.charge import Charge, from_fields, lacking
from pate_tf.accounting.composition import check_pure, smallest_epsilon, total_alphas
from pate_tf.accounting.conversions import LATTICE, FloatArray
from pate_tf.accounting.group_privacy import several_teachers_epsilon
from pate_tf.accounting.outcomes import NeighbourLaws
from pate_tf.core import validation
from pate_tf.core.validation import IntArray

SCALE_RANGE: Final = (2.0**-30, 2.0**60)
UNITS: Final = ("record", "owner")
TOLERANCE: Final = 1e-9

_FAR: Final = 50.0  # a factor of e^50 too much is as bad as infinitely much
_SMALLEST_STEP: Final = 1e-14  # of a logarithm

Member = TypeVar("Member", bound=Charge)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """What the labels of a plan may cost, in the worst case over all data.

    Attributes:
        epsilon: the most that they may cost together, above 0.
        delta: what it holds at; 0 for pure differential privacy.
        num_queries: how many queries are asked, at least 1.
        unit: what is protected, "record" (default) or "owner".
        num_changed_teachers: how many teachers the change may reach that epsilon protects against:
            1 (default) for one record replaced, or one owner added or removed; 2 for one owner
            replaced by another; k for k records of one person.

    Raises:
        ValueError: if a value is out of range.
    """

    epsilon: float
    delta: float
    num_queries: int
    unit: str = "record"
    num_changed_teachers: int = 1

    def __post_init__(self) -> None:
        validation.positive(epsilon=self.epsilon)
        validation.between(0, 1, ends="[)", delta=self.delta)
        validation.whole(1, num_queries=self.num_queries)
        validation.whole(1, num_changed_teachers=self.num_changed_teachers)
        validation.one_of(UNITS, unit=self.unit)

    def epsilon_of(self, charge: Charge) -> float:
        """Returns what `num_queries` of a charge cost at delta; infinite where nothing is known."""
        charges = {charge: charge.number_charged(self.num_queries)}
        if self.num_changed_teachers == 1:
            return smallest_epsilon(charges, self.delta)[0]
        return several_teachers_epsilon(
            charges, delta=self.delta, num_teachers=self.num_changed_teachers
        )

    def least_noise(
        self, of_scale: Callable[[float], Member], *, tolerance: float = TOLERANCE
    ) -> Member:
        """Returns the affordable member with the least scale, which is never too small.

        Args:
            of_scale: from a scale of noise in votes to the charge that has it; more noise never
                costs more.
            tolerance: relative, of the scale.

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

        too_little, enough = lowest, 0.0
        while (over := excess(enough)) > 0.0:
            # Epsilon falls at least as fast as the scale grows: this one step is most often enough.
            too_little, enough = enough, enough + min(max(over, log(2.0)), log(64.0))
            if enough > highest:
                raise ValueError(
                    f"expected a reachable epsilon, got {self.epsilon} at delta {self.delta}"
                )
        if excess(too_little) > 0.0:
            step = max(tolerance / 4.0, _SMALLEST_STEP)
            enough = brentq(excess, too_little, enough, xtol=step, rtol=_SMALLEST_STEP)
        else:
            enough = too_little
        # The search ends on either side of where the target is met.
        while not self.epsilon_of(of_scale(exp(enough))) <= self.epsilon:
            enough += max(tolerance / 2.0, 2.0 * _SMALLEST_STEP)
        return of_scale(exp(enough))


# How the parameters of mechanisms are given on a command line and shown.


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One way to give a parameter.

    Attributes:
        name: of the flag, without dashes. Mechanisms that share a name share the flag.
        help: a sentence; the default is added to it.
        default: what is taken where the flag is not given.
        same_as: name of a flag of the same command whose value is taken before `default`, if it
            has one.
        share: how much of that value.
        is_whole: whether it is a whole number, at least 0.
        is_inverse: whether the parameter is one over it.
        is_positive: whether it must be above 0; else it must only be finite.
        at_most: the largest value.
        more_is_noisier: whether a larger value means more noise, so that rounding it up is safe.
        unit: what follows the number where it is shown.
    """

    name: str
    help: str
    default: float
    same_as: str = ""
    share: float = 1.0
    is_whole: bool = False
    is_inverse: bool = False
    is_positive: bool = True
    at_most: float = inf
    more_is_noisier: bool = True
    unit: str = "votes"

    def by_default(self, values: Mapping[str, float]) -> float:
        """Returns the flag's value where it is not given: `share` of `same_as`, or `default`.

        Args:
            values: of other flags of the same command.
        """
        return self.share * values[self.same_as] if self.same_as else self.default

    def to_field(self, value: float) -> float:
        """Returns the parameter that a value of the flag stands for."""
        if self.is_whole:
            return int(value)
        return 1.0 / value if self.is_inverse else value

    def shown(self, field: float) -> decimal.Decimal:
        """Returns the flag's value for a parameter: nine digits, rounded towards more noise.

        So a number that is typed off the screen still meets the target.
        """
        rounding = decimal.ROUND_CEILING if self.more_is_noisier else decimal.ROUND_FLOOR
        context = decimal.Context(prec=9, rounding=rounding)
        return context.create_decimal_from_float(self.to_field(field)).normalize()


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """A parameter of a mechanism.

    Attributes:
        field: name of the mechanism's attribute.
        flag: that gives it where labels are released, and in an analysis unless that has its own.
        analysis_flag: that gives it in an analysis; None if it is the same.
    """

    field: str
    flag: Flag
    analysis_flag: Flag | None = None

    @property
    def flags(self) -> tuple[Flag, ...]:
        """Every flag that gives it."""
        return (self.flag,) if self.analysis_flag is None else (self.flag, self.analysis_flag)

    def check(self, value: float) -> None:
        """Raises ValueError unless a value is in the flag's range."""
        least = 0.0 if self.flag.is_positive else -inf
        ends = "()" if self.flag.at_most == inf else "(]"
        validation.between(least, self.flag.at_most, ends=ends, **{self.field: value})


GAMMA = Parameter(
    field="gamma",
    flag=Flag(
        name="lap_scale",
        help="Scale b of the noise, in votes: Lap(b), or gamma = 1/b for the other mechanisms with "
        "a gamma.",
        default=20.0,
        is_inverse=True,
    ),
    analysis_flag=Flag(
        name="noise_eps",
        help="gamma of the mechanism, the inverse scale of its noise, per vote: Lap(1/gamma).",
        default=0.1,
        more_is_noisier=False,
        unit="",
    ),
)
SIGMA = Parameter(
    field="sigma",
    flag=Flag(
        name="sigma", help="Standard deviation of the Gaussian noise, in votes.", default=40.0
    ),
)


# What a mechanism draws with, and what it draws: integers in, labels out.


NoisyWinners = Callable[[IntArray, IntArray], IntArray]


class NoiseSource(Protocol):
    """The primitive draws that mechanisms are composed of; `pate_tf.release.noise` has them."""

    def laplace_integers(self, scale: float, size: int) -> IntArray:
        """Returns integers k with probability proportional to e^(-|k|/scale), `[size]`."""

    def gaussian_integers(self, scale: float, size: int) -> IntArray:
        """Returns integers k with probability proportional to e^(-k^2/(2 scale^2)), `[size]`."""

    def bernoulli_exp(self, gaps: IntArray, gamma: float) -> NDArray[np.bool_]:
        """Returns True with probability e^(-gamma * gap), same shape as gaps `[size]`."""

    def uniform_integers(self, bounds: IntArray) -> IntArray:
        """Returns uniform whole numbers from 0 to bounds - 1, same shape as bounds `[size]`."""

    def random_orders(self, num_queries: int, num_classes: int) -> IntArray:
        """Returns uniform random orders of the classes, `[num_queries, num_classes]`."""

    def uniform_below(self, bound: int) -> int:
        """Returns a uniform whole number from 0 to bound - 1, of any size."""

    def uniform_subset(self, number: int, *, below: int) -> list[int]:
        """Returns `number` different whole numbers from 0 to below - 1, every set as likely."""


def largest_sums(counts: IntArray, noise: IntArray) -> IntArray:
    """Returns the class with the largest counts * LATTICE + noise, int64 [num_queries].

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


Tail = Callable[[FloatArray], FloatArray]


@dataclass(frozen=True)
class Mechanism(Charge):
    """A randomised rule that turns the counts of queries into labels, and their cost.

    Adjacency: one training record is replaced, or all records of one owner are added or removed;
    so at most one teacher changes, and at most one vote of every query moves from one class to
    another (docs/proofs/theory.md, Propositions S1 and S2). An owner replaced by another can change
    two teachers (`pate_tf.accounting.group_privacy`).

    A family member gives `name`, `alphas`, `draw`, `words`, `parameters` and `of_scale`, or says in
    `lacks` why not ("draw", "words", "flags", "calibration"); and whatever else it can: the bounds
    of its data-dependent cost with the methods they rest on, `pure_epsilon`, `noise_multipliers`.

    Attributes:
        name: in records and as value of `--mechanism`.
        parameters: its fields, each with its flags.
        words: what it does, in sentences with its fields in braces.
        bounds: data-dependent bounds that it has, of `pate_tf.accounting.moments.BOUNDS`.
        withholds: whether a query may get no label.
        uses_student_predictions: whether answers depend on a student: `draw_with`.
        query_strategy: how queries are best chosen for it, by default; a public rule.
        unanswered_advice: what to say where every label was withheld.
    """

    name: ClassVar[str]
    answers: ClassVar[bool] = True
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    words: ClassVar[str] = ""
    bounds: ClassVar[tuple[str, ...]] = ()
    withholds: ClassVar[bool] = False
    uses_student_predictions: ClassVar[bool] = False
    query_strategy: ClassVar[str] = "first"
    unanswered_advice: ClassVar[str] = "every query was withheld"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "counted" not in vars(cls):
            cls.counted = ("batch", "batches") if cls.charged_per_batch else ("query", "queries")

    def __post_init__(self) -> None:
        """Raises ValueError if a parameter is out of the range of its flag."""
        for parameter in self.parameters:
            parameter.check(getattr(self, parameter.field))

    def number_charged(self, num_queries: int) -> int:
        """Returns num_queries, or one for the whole batch."""
        validation.whole(0, num_queries=num_queries)
        return min(num_queries, 1) if self.charged_per_batch else num_queries

    def data_independent_epsilon(
        self, *, num_queries: int, delta: float
    ) -> tuple[float, float | None]:
        """Returns the smallest known data-independent epsilon at delta, and its moment.

        The moment is None where a composition theorem other than moments gives the result.
        """
        return smallest_epsilon({self: self.number_charged(num_queries)}, delta)

    def check_counts(self, counts: IntArray) -> None:
        """Checks whatever `draw` and the cost demand of a batch's counts, before it is charged.

        Args:
            counts: int64 [num_queries, num_classes]. Sensitive.

        Raises:
            ValueError: if they are not such; the message carries no count.
        """
        del counts

    def draw(
        self,
        counts: IntArray,
        noise: NoiseSource,
        *,
        noisy_winners: NoisyWinners = largest_sums,
    ) -> Answers:
        """Draws the answers to a batch of queries.

        Args:
            counts: int64 [num_queries, num_classes]. Sensitive.
            noise: what everything random is drawn from.
            noisy_winners: what picks the largest of counts with noise; may be a graph.

        Raises:
            ValueError: if the mechanism has no sampler.
        """
        del counts, noise, noisy_winners
        raise lacking(self, "a sampler", "draw")

    def to_dict(self) -> dict[str, object]:
        """Returns the JSON-able fields, with the mechanism's name; see `mechanism_from_dict`."""
        return {"name": self.name, **dataclasses.asdict(self)}

    def summary(self) -> str:
        """Returns name and parameters, such as `gaussian_noisy_max, sigma 40`."""
        fields = dataclasses.asdict(self).items()
        return ", ".join([self.name, *(f"{name} {value:g}" for name, value in fields)])

    def in_words(self) -> str:
        """Returns what the mechanism does with the votes, in sentences.

        Raises:
            ValueError: if nothing private may come from it, or it has no words.
        """
        if not self.words or ("draw" in self.lacks and not self.releases_feature_sums):
            raise lacking(self, "words for a statement", "words")
        return self.words.format(**{key: f"{value:.3g}" for key, value in numbers(self).items()})


def numbers(mechanism: Mechanism) -> dict[str, float]:
    """Returns a mechanism's fields, and as `scale` the inverse of one whose flag is its scale."""
    fields = dataclasses.asdict(mechanism)
    for one in mechanism.parameters:
        if one.flag.is_inverse:
            fields["scale"] = one.flag.to_field(fields[one.field])
    return fields


def data_independent_alpha(
    mechanism: Mechanism, moments: FloatArray, *, num_queries: int
) -> FloatArray:
    """Returns the total cost of num_queries labels, [num_moments], whatever the counts."""
    return total_alphas({mechanism: mechanism.number_charged(num_queries)}, moments)


# What some mechanisms can do besides. Each kind is a base class; what a mechanism lacks of them
# stands in its `lacks`.


class Planned(Mechanism):
    """A mechanism whose parameters follow from a target."""

    @classmethod
    @abstractmethod
    def for_target(cls, target: Target, counts: IntArray) -> Self:
        """Returns the member that labels best within a target, for votes that are assumed.

        `counts` must be assumed from public values; no cost holds for a mechanism that was chosen
        by looking at votes.

        Args:
            target: what the labels may cost.
            counts: assumed, int64 [num_queries, num_classes].

        Raises:
            ValueError: if no member is affordable.
        """


class OneScale(Planned):
    """A mechanism with a single scale of noise: the least that is affordable is planned.

    Attributes:
        scale_name: keyword of its scale, in votes; more of it never costs more.
    """

    scale_name: ClassVar[str] = "scale"

    @classmethod
    def of_scale(cls, scale: float, **fields: Any) -> Self:
        """Returns the mechanism whose noise has a scale, with other fields as given.

        Raises:
            ValueError: if the scale is out of range.
        """
        kind: Any = cls
        return cast(Self, kind(**{cls.scale_name: scale}, **fields))

    @classmethod
    def for_target(cls, target: Target, counts: IntArray) -> Self:
        """Returns the affordable member with the least noise; `counts` are not read."""
        del counts
        return target.least_noise(cls.of_scale)


@dataclass(frozen=True, kw_only=True)
class OfSigma(OneScale):
    """A mechanism with Gaussian noise of one scale.

    Attributes:
        sigma: standard deviation of the noise, in votes.
    """

    sigma: float
    scale_name: ClassVar[str] = "sigma"
    parameters: ClassVar[tuple[Parameter, ...]] = (SIGMA,)

    @property
    def noise_scales(self) -> Mapping[str, float]:
        """Sigma."""
        return {"sigma": self.sigma}


class Expected(Mechanism):
    """A mechanism of which is known how many right labels to expect."""

    @abstractmethod
    def expected_right(self, counts: IntArray) -> float:
        """Returns how many queries of a batch get class 0 as their label, in expectation.

        Args:
            counts: assumed, int64 [num_queries, num_classes]; class 0 is the right one.
        """


class OutcomeLaw(Expected):
    """A mechanism with a known law of the label of each query."""

    @abstractmethod
    def outcome_probabilities(self, counts: IntArray) -> FloatArray:
        """Returns the exact law of the label, [num_queries, num_classes]."""

    @abstractmethod
    def pairwise_tail(self, gaps: FloatArray) -> FloatArray:
        """Returns F(D), at least Pr[a class with D votes fewer is preferred], same shape as gaps.

        F is nonincreasing, and convex on D >= 0 for every mechanism that adds noise.
        """

    def expected_right(self, counts: IntArray) -> float:
        """Returns the sum of the probabilities of class 0."""
        rows, number = np.unique(counts, axis=0, return_counts=True)
        return float(number @ self.outcome_probabilities(rows)[:, 0])


class Bound(NamedTuple):
    """A data-dependent bound on the cost of one query, as a function of q and u.

    Attributes:
        tail: F, that q and u are evaluated with.
        reach: by how many votes q and u are moved first; `moments.vote_reach` says why.
        cap: what a query costs at most, [num_moments].
        costs: from q = Pr[label != plurality] or a bound on it, above 0, and u, its largest term,
            both [num_queries], to costs [num_queries, num_moments]; infinite where none is proved.
    """

    tail: Tail
    reach: int
    cap: FloatArray
    costs: Callable[[FloatArray, FloatArray], FloatArray]


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
    def bound(self, name: str, moments: FloatArray) -> Bound:
        """Returns a bound that `answering` has, one of `bounds` but "exact"."""

    @abstractmethod
    def neighbour_laws(self, row: IntArray) -> NeighbourLaws:
        """Returns the exact laws at one histogram [num_classes] and at every neighbour."""


class UsesStudentPredictions(Mechanism):
    """A mechanism whose answers depend on a student of earlier labels."""

    uses_student_predictions: ClassVar[bool] = True

    @abstractmethod
    def draw_with(
        self,
        predictions: FloatArray,
        counts: IntArray,
        noise: NoiseSource,
        *,
        noisy_winners: NoisyWinners = largest_sums,
    ) -> Answers:
        """Draws as `draw`, given a student's probabilities [num_queries, num_classes]."""


class ReleasesFeatureSums(Mechanism):
    """A mechanism that releases sums by class of what records add, and asks no teacher.

    Attributes:
        num_clusters: rows of the table where records are counted in clusters; None for sums of
            feature vectors.
        num_rounds: tables that are released one after another; each may depend on earlier ones.
        released_in_words: what is summed, for a plan.
    """

    releases_feature_sums: ClassVar[bool] = True
    num_clusters: int | None = None
    num_rounds: int = 1
    released_in_words: ClassVar[str]

    def number_charged(self, num_queries: int) -> int:
        """Returns one, however many labels are computed; none for none."""
        return min(super().number_charged(num_queries), 1)

    @property
    @abstractmethod
    def standard_deviation(self) -> float:
        """Of the noise on one number, in what a record adds at most."""

    @abstractmethod
    def draw_sums(self, sums: IntArray, noise: NoiseSource) -> IntArray:
        """Returns sums int64 [num_features + 1, num_classes] with noise, in 1 / LATTICE both."""


# Every mechanism by its name.


MECHANISMS: dict[str, type[Mechanism]] = {}
FORMER_NAMES: Final = {"class_sums": "gaussian_feature_sums"}  # in ledgers of earlier versions

Kind = TypeVar("Kind", bound=type[Mechanism])


def register(kind: Kind) -> Kind:
    """Makes a mechanism known: to records, flags, calibration and statements.

    Raises:
        ValueError: if its name is taken, it lacks something and does not say why in `lacks`, or one
            of its flags has the name of another mechanism's different one.
    """
    if kind.name in MECHANISMS:
        raise ValueError(f"expected a new name for a mechanism, got {kind.name!r} again")
    unexplained = [what for what in missing(kind) if what not in kind.lacks]
    if unexplained:
        raise ValueError(
            f"{kind.name}: expected a reason in `lacks` for what it lacks, got none for "
            f"{', '.join(unexplained)}"
        )
    known = flags()
    for parameter in kind.parameters:
        for flag in parameter.flags:
            if known.get(flag.name, flag) != flag:
                raise ValueError(
                    f"{kind.name}: expected the flag {flag.name} as other mechanisms have it, got "
                    "another of that name"
                )
    MECHANISMS[kind.name] = kind
    return kind


def missing(kind: type[Mechanism]) -> list[str]:
    """Returns what a mechanism lacks of what the family asks for, by the keys of `lacks`."""

    def overrides(*names: str) -> bool:
        return any(
            vars(base).get(name) is not None
            for base in kind.__mro__[: kind.__mro__.index(Mechanism)]
            for name in names
        )

    there = {
        "draw": overrides("draw"),
        "words": bool(kind.words),
        "flags": {parameter.field for parameter in kind.parameters}
        == {field.name for field in dataclasses.fields(kind)},
        "calibration": issubclass(kind, OneScale),
        "bounds": bool(kind.bounds),
        "outcome law": issubclass(kind, OutcomeLaw),
        "dp event": overrides("noise_multipliers", "pure_epsilon"),
    }
    return [what for what, is_there in there.items() if not is_there]


def flags() -> dict[str, Flag]:
    """Returns every flag of every mechanism, by its name."""
    return {
        flag.name: flag
        for kind in MECHANISMS.values()
        for parameter in kind.parameters
        for flag in parameter.flags
    }


def offered() -> dict[str, type[Mechanism]]:
    """Returns the mechanisms that draw and whose parameters have flags, by name in order."""
    return {
        name: kind
        for name, kind in sorted(MECHANISMS.items())
        if not {"draw", "flags"} & set(kind.lacks)
    }


def check_mechanism(given: object) -> None:
    """Raises ValueError unless something is a registered mechanism's value."""
    if type(given) not in MECHANISMS.values():
        raise ValueError(
            f"mechanism: expected one such as LaplaceNoisyMax(scale=5.0), got "
            f"{type(given).__name__}"
        )


def mechanism_from_dict(fields: Mapping[str, Any]) -> Mechanism:
    """Returns the mechanism that `Mechanism.to_dict` described.

    Raises:
        ValueError: if the name is unknown or the fields are not exactly the mechanism's own.
    """
    values = dict(fields)
    name = values.pop("name", None)
    name = FORMER_NAMES.get(name, name)
    if name not in MECHANISMS:
        raise ValueError(f"expected a mechanism of {sorted(MECHANISMS)}, got {name!r}")
    return from_fields(MECHANISMS[name], values)
