"""Plans from public values: least noise for a budget, assumed votes, recommendations."""

from __future__ import annotations

import dataclasses
import html
import textwrap
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any, Final

import numpy as np

from pate_tf.accounting.charge import rounded_up
from pate_tf.accounting.conversions import check_delta, least
from pate_tf.accounting.mechanisms import (
    ConfidentGaussianNoisyMax,
    ExponentialMechanism,
    GaussianHistogram,
    GaussianNoisyMax,
    Mechanism,
    Parameter,
    StabilityGate,
    base,
)
from pate_tf.accounting.quadrature import IntArray
from pate_tf.accounting.target import Target

# The least noise, or the most queries, that a data-independent budget allows.
#
# One-sided: what is returned has been accounted for, and its epsilon never exceeds the target.


LARGEST_NUM_QUERIES = 2**40


def _check_target(epsilon: float, delta: float) -> None:
    check_delta(delta)
    if not epsilon > 0.0:
        raise ValueError(f"expected epsilon > 0, got {epsilon}")


def least_noise(
    mechanism_class: type[Mechanism], *, num_queries: int, epsilon: float, delta: float
) -> Mechanism:
    """Returns the mechanism with least noise whose num_queries labels cost at most epsilon.

    The smallest scale, `Mechanism.of_scale`, to about nine digits, whose data-independent epsilon
    at delta is at most the target.

    Raises:
        ValueError: if the class has no single scale of noise, num_queries is below 1, or no noise
            between 2^-30 and 2^60 votes meets the target.
    """
    target = Target(epsilon=epsilon, delta=delta, num_queries=num_queries)
    return target.least_noise(mechanism_class.of_scale)


def most_queries(mechanism: Mechanism, *, epsilon: float, delta: float) -> int:
    """Returns the largest number of queries, all answered, that cost at most epsilon at delta.

    0 if not even one is affordable; at most 2^40.
    """
    _check_target(epsilon, delta)

    def affordable(num_queries: int) -> bool:
        spent, _ = mechanism.data_independent_epsilon(num_queries=num_queries, delta=delta)
        return spent <= epsilon

    enough, too_many = 0, 1
    while affordable(too_many):
        enough, too_many = too_many, too_many * 2
        if enough >= LARGEST_NUM_QUERIES:
            return LARGEST_NUM_QUERIES
    return least(lambda number: not affordable(number), enough, too_many) - 1


# What a user fixes of a release before there are votes, so that no vote can advise it.


DEFAULT_PROFILE = 0.8
KINDS = ("log_cost", "smooth_sensitivity")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedRelease:
    """How the data-dependent cost of a ledger's labels will be released, if ever. Public.

    The ledger keeps it from when it is opened. With mechanism, number of labels, classes and
    teachers, all public, it decides the `ReleasePlan`.

    Attributes:
        release: "log_cost" (a sanitised epsilon) or "smooth_sensitivity".
        profile: lead of the first class over the second, as a share of the teachers, in the
            hypothetical votes that the plan is made for.
        moment: of the plan; this and the following default to what planning finds best.
        smoothness: eta, or beta for "smooth_sensitivity".
        sigma: of the release's noise, in sensitivities.
        confidence: that the released epsilon is not too low.

    Raises:
        ValueError: if a value is out of range.
    """

    release: str = "log_cost"
    profile: float = DEFAULT_PROFILE
    moment: float | None = None
    smoothness: float | None = None
    sigma: float | None = None
    confidence: float | None = None

    def __post_init__(self) -> None:
        if self.release not in KINDS:
            raise ValueError(f"release: expected one of {', '.join(KINDS)}, got {self.release!r}")
        if not 0.0 < self.profile <= 1.0:
            raise ValueError(f"profile: expected in (0, 1], got {self.profile}")
        for name in ("moment", "smoothness", "sigma"):
            value = getattr(self, name)
            if value is not None and not 0.0 < value < inf:
                raise ValueError(f"{name}: expected above 0 and finite, got {value}")
        if self.confidence is not None and not 0.5 < self.confidence < 1.0:
            raise ValueError(f"confidence: expected in (0.5, 1), got {self.confidence}")

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values; see `from_dict`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> PlannedRelease:
        """Rebuilds what `to_dict` returned.

        Raises:
            ValueError: if it is none.
        """
        try:
            return cls(**fields)
        except TypeError as error:
            raise ValueError(
                f"expected the plan of a release, got something else: {error}"
            ) from None


# Votes that a plan assumes, from public values, before anybody looks at real ones.


# As planned releases assume it. A public guess: what teachers that are right nearly always have in
# common on inputs that are typical of their class. Data on which people disagree have less.
DEFAULT_MARGIN: Final = DEFAULT_PROFILE


def profile_counts(num_teachers: int, num_classes: int, profile: float) -> IntArray:
    """Returns the sorted counts of the profile, int64 [1, num_classes].

    The first class leads the others by the share `profile` of the teachers; what is left is spread
    evenly over all classes.

    Raises:
        ValueError: unless 0 < profile <= 1, num_teachers >= 1 and num_classes >= 1.
    """
    if not 0.0 < profile <= 1.0:
        raise ValueError(f"expected profile in (0, 1], got {profile}")
    if num_teachers < 1 or num_classes < 1:
        raise ValueError(
            f"expected at least one teacher and one class, got {num_teachers} and {num_classes}"
        )
    lead = round(profile * num_teachers) if num_classes > 1 else num_teachers
    each, left = divmod(num_teachers - lead, num_classes)
    counts = np.full((1, num_classes), each, np.int64)
    counts[0, 0] += lead
    counts[0, 1 : 1 + left] += 1
    return -np.sort(-counts, axis=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AssumedVotes:
    """An assumption about votes that nobody has looked at. Public.

    On every query but the exceptions one class, the right one, leads each other class by the same
    share of the teachers; what is left of them is spread evenly over all classes. On an exception
    the right class and one other have half of the votes each.

    Attributes:
        num_teachers: at least 1.
        num_classes: at least 2.
        margin: by how many of the teachers, as a share in (0, 1], the first class leads the second.
        num_exceptions: of the queries, on which teachers are divided. Default 0.

    Raises:
        ValueError: if a value is out of range.
    """

    num_teachers: int
    num_classes: int
    margin: float = DEFAULT_MARGIN
    num_exceptions: int = 0

    def __post_init__(self) -> None:
        if self.num_teachers < 1 or self.num_classes < 2:
            raise ValueError(
                f"expected at least one teacher and two classes, got {self.num_teachers} and "
                f"{self.num_classes}"
            )
        if not 0.0 < self.margin <= 1.0:
            raise ValueError(f"margin: expected in (0, 1], got {self.margin}")
        if self.num_exceptions != int(self.num_exceptions) or self.num_exceptions < 0:
            raise ValueError(f"num_exceptions: expected at least 0, got {self.num_exceptions}")

    def counts(self, num_queries: int) -> IntArray:
        """Returns the assumed counts, int64 [num_queries, num_classes]; class 0 is right.

        Raises:
            ValueError: if there are fewer queries than exceptions.
        """
        if num_queries < self.num_exceptions:
            raise ValueError(
                f"num_exceptions: expected at most the {num_queries} queries, got "
                f"{self.num_exceptions}"
            )
        counts = np.repeat(
            profile_counts(self.num_teachers, self.num_classes, self.margin), num_queries, axis=0
        )
        counts[: self.num_exceptions] = 0
        counts[: self.num_exceptions, 0] = self.num_teachers // 2
        counts[: self.num_exceptions, 1] = self.num_teachers - self.num_teachers // 2
        return counts

    def with_half_the_margin(self) -> AssumedVotes:
        """Returns the same with teachers that agree half as well."""
        return dataclasses.replace(self, margin=self.margin / 2.0)

    def in_words(self) -> str:
        """Returns the assumption as one sentence."""
        but = f" but {self.num_exceptions:,}" if self.num_exceptions else ""
        return (
            f"on every query{but} the right class leads every other by {100.0 * self.margin:g} % "
            f"of {self.num_teachers:,} teachers, among {self.num_classes:,} classes"
        )


# How many queries to ask, from public values alone.


NUMBERS: Final = (10, 20, 50, 100, 200, 500, 1000)
LEAST_LARGE_BATCH: Final = 50
QUERIES_A_CLASS: Final = 5
GOOD_SHARE: Final = 0.95
# Calibrated in no time, and near the best of those that are not.
_QUICK: Final = (GaussianHistogram, ExponentialMechanism, StabilityGate)
_STANDS_FOR: Final[dict[type[Mechanism], type[Mechanism]]] = {
    GaussianNoisyMax: GaussianHistogram,
    ConfidentGaussianNoisyMax: GaussianHistogram,
}


def planned_num_queries(
    target: Target,
    assumed: AssumedVotes,
    *,
    kinds: Sequence[type[Mechanism]] | None = None,
    at_most: int | None = None,
    adaptive: bool = False,
) -> int:
    """Returns the number of queries with most right labels, of which nearly all are right.

    Of 10, 20, 50 and so on up to 1,000: the one with most expected right labels among those of
    which some mechanism labels 95 % right even if teachers agree half as well as assumed; else
    among those of which it does as assumed; else the one with the largest share. A mechanism that
    labels whole batches is asked for `largest_batch` at most.

    Args:
        target: what the labels may cost; its own number of queries is not read.
        assumed: the votes that are assumed.
        kinds: mechanisms to choose from. Default: some that are calibrated quickly.
        at_most: the most that can be asked.
        adaptive: whether batches that are fixed beforehand are left out.

    Raises:
        ValueError: if no number is possible.
    """
    limit = NUMBERS[-1] if at_most is None else min(at_most, NUMBERS[-1])
    numbers = [one for one in NUMBERS if assumed.num_exceptions < one <= limit] or [limit]
    batch = max(largest_batch(assumed), numbers[0])
    best, most = numbers[0], (False, False, 0.0)
    for kind in kinds or _QUICK:
        quick = _STANDS_FOR.get(kind, kind)
        if adaptive and quick.is_paid_once:
            continue
        for number in numbers:
            if not (quick.is_paid_once and number > batch):
                worth = _worth(quick, dataclasses.replace(target, num_queries=number), assumed)
                best, most = (number, worth) if worth > most else (best, most)
    return best


def largest_batch(assumed: AssumedVotes) -> int:
    """Returns how many queries a batch has that is paid once: five a class, but at least 50.

    It costs the same whatever its size, but each query more may be the one on which teachers
    disagree.
    """
    return max(LEAST_LARGE_BATCH, QUERIES_A_CLASS * assumed.num_classes)


def _worth(
    kind: type[Mechanism], target: Target, assumed: AssumedVotes
) -> tuple[bool, bool, float]:
    number = target.num_queries
    counts = assumed.counts(number)
    try:
        planned = kind.for_target(target, counts)
        right = planned.expected_right(counts)
        at_half = planned.expected_right(assumed.with_half_the_margin().counts(number))
    except ValueError:  # it can't be planned for; who compares them says why
        return False, False, 0.0
    if right < GOOD_SHARE * number:
        return False, False, right / number
    return at_half >= GOOD_SHARE * number, True, right


# Which mechanism, with how much noise: what came of comparing all of them, before any vote.
#
# Everything here is computed from public values. The comparison rests on an assumption about how
# far
# teachers agree; what the labels cost does not.


WIDTH: Final = 96


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """One mechanism, with the least noise that keeps to the target. Public.

    Attributes:
        mechanism: with its noise.
        epsilon: what the labels cost, whatever the votes; never above the target.
        expected_right: expected number of right labels, if the assumption holds.
        expected_right_at_half: the same if teachers agree half as well.
    """

    mechanism: Mechanism
    epsilon: float
    expected_right: float
    expected_right_at_half: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recommendation:
    """Mechanisms compared within one budget, the recommended one first. Public.

    Attributes:
        target: what the labels may cost.
        assumed: the votes that are assumed.
        candidates: at least one; the first is recommended.
        is_num_queries_planned: whether the number of queries is a part of the recommendation.
        strategy: how queries are chosen: typical ones, which what is assumed of votes is about,
            unless the plan is for others.
        purpose: what the labels are for, if single labels need not be right; in sentences.
    """

    target: Target
    assumed: AssumedVotes
    candidates: tuple[Candidate, ...]
    is_num_queries_planned: bool = False
    strategy: str = "medoids"
    purpose: str = ""

    @property
    def mechanism(self) -> Mechanism:
        """The recommended mechanism."""
        return self.candidates[0].mechanism

    @property
    def num_queries(self) -> int:
        """How many queries to ask."""
        return self.target.num_queries

    @property
    def expected_share(self) -> float:
        """Expected share of the queries that get a right label, if the assumption holds."""
        return self.candidates[0].expected_right / self.num_queries

    @property
    def flags(self) -> tuple[str, ...]:
        """What to type for the recommended one: flags of `train_student.py`."""
        if "flags" in self.mechanism.lacks:  # a plan alone gives its numbers
            typed: tuple[str, ...] = (f"--target_epsilon={self.target.epsilon!r}",)
        else:
            typed = mechanism_flags(self.mechanism, delta=self.target.delta)
            if self.purpose:
                typed = (f"--query_strategy={self.strategy}", *typed)
        return (
            f"--nb_teachers={self.assumed.num_teachers}",
            f"--queries={self.num_queries}",
            f"--delta={self.target.delta!r}",
            *typed,
        )

    @property
    def reason(self) -> str:
        """Why this one, and that no vote had a say; for statements and reports."""
        number = ", noise and number of queries" if self.is_num_queries_planned else " and noise"
        return (
            f"Mechanism{number} were chosen from a plan, not from votes: for epsilon "
            f"{self.target.epsilon:g} at delta {self.target.delta:g} and {self.num_queries:,} "
            f"queries, assuming that {self.assumed.in_words()}. Under that assumption "
            f"{self.mechanism.name} labels {_share(self.expected_share)} of the queries right. The "
            f"assumption is from public values; what the labels cost does not depend on it."
            f"{' ' if self.purpose else ''}{self.purpose}"
        )

    def in_words(self) -> str:
        """Returns the comparison as a table in text, with what it rests on and what to type."""
        names = [one.mechanism.name for one in self.candidates]
        width = max(map(len, names))
        lines = [
            f"Plan for epsilon {self.target.epsilon:g} at delta {self.target.delta:g}, "
            f"{self._protected()}, and {self.num_queries:,} queries",
            "",
            f"  {'mechanism'.ljust(width)}  epsilon  right labels  at half the margin",
        ]
        for name, one in zip(names, self.candidates, strict=True):
            lines.append(
                f"  {name.ljust(width)}  {self._epsilon(one.epsilon):>7}  "
                f"{self._right(one.expected_right):>12}  "
                f"{self._right(one.expected_right_at_half):>18}"
            )
        return "\n".join(
            [
                *lines,
                "",
                f"Recommended: {self.mechanism.name}",
                f"  {' '.join(self.flags)}",
                "",
                *(textwrap.fill(sentence, WIDTH) for sentence in self.sentences()),
            ]
        )

    __str__ = in_words

    def sentences(self) -> list[str]:
        """Returns what the comparison rests on, a sentence or two each."""
        found = [
            f"Assumed, not measured: {self.assumed.in_words()}. That is a guess from public "
            f"values, and an optimistic one where people disagree. If teachers agree less, fewer "
            f"labels are right; epsilon holds whatever the votes."
        ]
        if self.mechanism.is_paid_once and not self.purpose:
            found.append(
                f"Labels of {self.mechanism.name} leave together or not at all, and the query that "
                f"teachers agree on least decides: ask typical ones."
            )
        if self.purpose:
            found.append(self.purpose)
        elif self.expected_share < 0.9:
            found.append(
                "No mechanism labels nine in ten queries right: take more teachers, a larger "
                "epsilon or fewer queries."
            )
        return found

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        return {
            "target_epsilon": self.target.epsilon,
            "delta": self.target.delta,
            "unit": self.target.unit,
            "num_changed_teachers": self.target.num_changed_teachers,
            "queries": self.num_queries,
            "queries_were_planned": self.is_num_queries_planned,
            "assumed": {**dataclasses.asdict(self.assumed), "in_words": self.assumed.in_words()},
            "candidates": [
                {**vars(one), "mechanism": one.mechanism.to_dict()} for one in self.candidates
            ],
            "flags": list(self.flags),
            "reason": self.reason,
        }

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.in_words())}</pre>"

    def _protected(self) -> str:
        number = self.target.num_changed_teachers
        if self.target.unit == "owner" and number == 2:
            return "against replacing one owner by another"
        several = f"{number} {self.target.unit}s at once" if number > 1 else f"{self.target.unit}"
        return f"for {several if number > 1 else 'every ' + several}"

    def _epsilon(self, epsilon: float) -> str:
        # Rounding up must not make a number that keeps to the target look as if it did not.
        shown = rounded_up(epsilon)
        return shown if float(shown) <= self.target.epsilon else f"{self.target.epsilon:.12g}"

    def _right(self, expected: float) -> str:
        return f"{expected:,.1f} {_share(expected / self.num_queries):>8}"


def mechanism_flags(mechanism: Mechanism, *, delta: float) -> tuple[str, ...]:
    """Returns the flags that give a mechanism: `--mechanism=NAME` and its parameters.

    Numbers are rounded to nine digits, towards more noise.

    Args:
        mechanism: any that is offered.
        delta: of the labels, which some parameters are unless they are given.
    """
    fields = dataclasses.asdict(mechanism)
    return (
        f"--mechanism={mechanism.name}",
        *(
            f"--{one.flag.name}={one.flag.shown(fields[one.field])}"
            for one in mechanism.parameters
            if fields[one.field] != _by_default(one, delta)
        ),
    )


def _by_default(parameter: Parameter, delta: float) -> float:
    # Flags that are not about delta are left out at 0, where they do nothing.
    return parameter.flag.by_default({"delta": delta}) if parameter.flag.same_as else 0.0


def _share(value: float) -> str:
    """Returns a share in per cent; all and nearly all are told apart."""
    return f"{int(value * 1000.0 + 1e-6) / 10.0:.1f} %"


# Compares all mechanisms within one budget, and recommends one.


DEFAULT_DELTA: Final = 1e-5
# Mechanisms whose right labels differ by less than this share of the queries count as equally good.
EQUALLY_GOOD: Final = 0.005


def recommend(
    *,
    target_epsilon: float,
    num_teachers: int,
    num_classes: int,
    delta: float = DEFAULT_DELTA,
    num_queries: int | None = None,
    pool_size: int | None = None,
    unit: str = "record",
    num_changed_teachers: int = 1,
    margin: float = DEFAULT_MARGIN,
    num_exceptions: int = 0,
    mechanism: type[Mechanism] | str | None = None,
    adaptive: bool = False,
) -> Recommendation:
    """Compares all mechanisms within a budget, and recommends one. Reads no votes.

    Each gets the least noise whose worst-case epsilon, over all data, keeps to the target. Compared
    are the expected numbers of right labels, right as most teachers see it, under a public
    assumption about votes. Those that give as many, but for half a hundredth of the queries, are
    ranked by what is left if teachers agree half as well. A gate, which labels all of a batch or
    none of it, is recommended only where nothing else labels 95 % of the queries right: it pays for
    nothing if the assumption fails on a single query.

    >>> import pate_tf
    >>> plan = pate_tf.recommend(target_epsilon=0.25, num_teachers=250, num_classes=10)
    >>> plan.mechanism.name, plan.num_queries
    ('stability_gate', 50)
    >>> print(plan)  # the comparison, and what to type

    Args:
        target_epsilon: the most that the labels may cost together.
        num_teachers: who vote.
        num_classes: that they choose from.
        delta: what epsilon holds at. Default 1e-5.
        num_queries: how many labels. Default: planned, `planned_queries.planned_num_queries`.
        pool_size: the most that can be asked; no limit by default.
        unit: what is protected, "record" (default) or "owner".
        num_changed_teachers: how many teachers the change may reach that epsilon protects against:
            1 (default) for one record replaced, or one owner added or removed; 2 for one owner
            replaced by another; k for k records of one person.
        margin: by how many of the teachers, as a share, the first class leads the second on every
            query: an assumption, never measured on the votes that are to be labelled. Default 0.8:
            what teachers that are nearly always right have on inputs typical of their class.
        num_exceptions: queries on which teachers are assumed to be divided. Default 0.
        mechanism: the only one to calibrate, by class or name. Default: all.
        adaptive: whether queries will be chosen by earlier noisy labels, which leaves out whatever
            labels a batch that was fixed beforehand.

    Raises:
        ValueError: if a number is out of range, or no mechanism can be planned for.
    """
    assumed = AssumedVotes(
        num_teachers=num_teachers,
        num_classes=num_classes,
        margin=margin,
        num_exceptions=num_exceptions,
    )
    kinds = _kinds(mechanism, adaptive=adaptive)
    target = Target(
        epsilon=target_epsilon,
        delta=delta,
        num_queries=1 if num_queries is None else num_queries,
        unit=unit,
        num_changed_teachers=num_changed_teachers,
    )
    if num_queries is None:
        number = planned_num_queries(
            target,
            assumed,
            kinds=kinds if mechanism else None,
            at_most=pool_size,
            adaptive=adaptive,
        )
        target = dataclasses.replace(target, num_queries=number)
    elif pool_size is not None and num_queries > pool_size:
        raise ValueError(
            f"num_queries: expected from 1 to the pool's {pool_size}, got {num_queries}"
        )
    return Recommendation(
        target=target,
        assumed=assumed,
        candidates=_ranked(
            _candidates(kinds, target, assumed),
            target.num_queries,
            num_in_batch=largest_batch(assumed) if num_queries is None else target.num_queries,
        ),
        is_num_queries_planned=num_queries is None,
    )


def _kinds(mechanism: type[Mechanism] | str | None, *, adaptive: bool) -> list[type[Mechanism]]:
    offered = base.offered()
    if mechanism is None:
        return [kind for kind in offered.values() if not (adaptive and kind.is_paid_once)]
    if isinstance(mechanism, str):
        if mechanism not in offered:
            raise ValueError(f"mechanism: expected one of {', '.join(offered)}, got {mechanism!r}")
        mechanism = offered[mechanism]
    if adaptive and mechanism.is_paid_once:
        raise ValueError(
            f"mechanism: expected one that answers queries chosen by earlier labels, got "
            f"{mechanism.name}, whose batch is fixed beforehand"
        )
    return [mechanism]


def _candidates(
    kinds: Sequence[type[Mechanism]], target: Target, assumed: AssumedVotes
) -> list[Candidate]:
    counts = assumed.counts(target.num_queries)
    at_half = assumed.with_half_the_margin().counts(target.num_queries)
    found, refused = [], ""
    for kind in kinds:
        try:
            planned = kind.for_target(target, counts)
            found.append(
                Candidate(
                    mechanism=planned,
                    epsilon=target.epsilon_of(planned),
                    expected_right=planned.expected_right(counts),
                    expected_right_at_half=planned.expected_right(at_half),
                )
            )
        except ValueError as error:  # it says what it lacks
            refused = str(error)
    if not found:
        raise ValueError(f"mechanism: expected one that can be planned for: {refused}")
    return found


def _ranked(
    candidates: Sequence[Candidate], num_queries: int, *, num_in_batch: int
) -> tuple[Candidate, ...]:
    def is_suited(one: Candidate) -> bool:
        return num_queries <= num_in_batch or not one.mechanism.is_paid_once

    def is_sure(one: Candidate) -> bool:
        is_good = one.expected_right >= GOOD_SHARE * num_queries
        return is_good and not one.mechanism.is_paid_once

    suited = [one for one in candidates if is_suited(one)] or candidates
    compared = [one for one in suited if is_sure(one)] or suited
    enough = max(one.expected_right for one in compared) - EQUALLY_GOOD * num_queries

    def rank(one: Candidate) -> tuple[bool, float]:
        is_best = one in compared and one.expected_right >= enough
        return not is_best, -(one.expected_right_at_half if is_best else one.expected_right)

    return tuple(sorted(candidates, key=rank))
