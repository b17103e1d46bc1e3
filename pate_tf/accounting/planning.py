"""Plans from public values: least noise for a budget, assumed votes, recommendations."""

from __future__ import annotations

import dataclasses
import html
import textwrap
from collections.abc import Mapping, Sequence
from math import ceil, expm1, inf, nextafter
from typing import Any, ClassVar, Final, TypeVar

import numpy as np

from pate_tf.accounting.charge import Charge, from_fields, lacking, rounded_up
from pate_tf.accounting.conversions import FloatArray, least, ndtri
from pate_tf.accounting.delta import DEFAULT_DELTA
from pate_tf.accounting.mechanisms import (
    ConfidentGaussianNoisyMax,
    ExponentialMechanism,
    GaussianFeatureSums,
    GaussianHistogram,
    GaussianNoisyMax,
    GaussianResidualSums,
    LaplaceClusterCounts,
    Mechanism,
    Parameter,
    StabilityGate,
    base,
)
from pate_tf.accounting.mechanisms.base import ReleasesFeatureSums, Target
from pate_tf.accounting.mechanisms.feature_sums import CHANGED
from pate_tf.accounting.moments import check_bound, is_two_sided
from pate_tf.accounting.outcomes import IntArray
from pate_tf.core import validation

# The least noise, or the most queries, that a data-independent budget allows.
#
# One-sided: what is returned has been accounted for, and its epsilon never exceeds the target.


LARGEST_NUM_QUERIES = 2**40


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
    if not issubclass(mechanism_class, base.OneScale):
        raise lacking(mechanism_class, "a single scale of noise", "calibration")
    target = Target(epsilon=epsilon, delta=delta, num_queries=num_queries)
    return target.least_noise(mechanism_class.of_scale)


def most_queries(mechanism: Mechanism, *, epsilon: float, delta: float) -> int:
    """Returns the largest number of queries, all answered, that cost at most epsilon at delta.

    0 if not even one is affordable; at most 2^40.
    """
    validation.between(0, 1, ends="[)", delta=delta)
    validation.between(0, inf, ends="(]", epsilon=epsilon)

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

    >>> import pate_tf
    >>> pate_tf.PlannedRelease(profile=0.9).release
    'log_cost'

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
        validation.one_of(KINDS, release=self.release)
        validation.between(0, 1, ends="(]", profile=self.profile)
        for name in ("moment", "smoothness", "sigma"):
            if getattr(self, name) is not None:
                validation.positive(**{name: getattr(self, name)})
        if self.confidence is not None:
            validation.between(0.5, 1, confidence=self.confidence)

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values; see `from_dict`."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> PlannedRelease:
        """Rebuilds what `to_dict` returned.

        Raises:
            ValueError: if it is none.
        """
        return from_fields(cls, fields)


# Votes that a plan assumes, from public values.


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
    validation.between(0, 1, ends="(]", profile=profile)
    validation.whole(1, num_teachers=num_teachers, num_classes=num_classes)
    lead = round(profile * num_teachers) if num_classes > 1 else num_teachers
    each, left = divmod(num_teachers - lead, num_classes)
    counts = np.full((1, num_classes), each, np.int64)
    counts[0, 0] += lead
    counts[0, 1 : 1 + left] += 1
    return -np.sort(-counts, axis=1)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AssumedVotes:
    """An assumption about votes, not read from any. Public.

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
        validation.whole(1, num_teachers=self.num_teachers)
        validation.whole(2, num_classes=self.num_classes)
        validation.between(0, 1, ends="(]", margin=self.margin)
        validation.whole(0, num_exceptions=self.num_exceptions)

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

    def in_words(self) -> str:
        """Returns the assumption as one sentence."""
        but = f" but {self.num_exceptions:,}" if self.num_exceptions else ""
        return (
            f"on every query{but} the right class leads every other by {100.0 * self.margin:g} % "
            f"of {self.num_teachers:,} teachers, among {self.num_classes:,} classes"
        )


# How many queries to ask, from public values alone.


# Shares of the assumed margin that a plan is judged at; the last is the worst reasonable case.
MARGINS: Final = (1.0, 0.5, 0.25)
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
    which some mechanism labels 95 % right even in the worst case of `MARGINS`; else among those of
    which it does at half the margin, then as assumed; else the one with the largest share. A
    mechanism that labels whole batches is asked for `largest_batch` at most, and counts only where
    nearly all labels arrive in the worst case.

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
    best, most = numbers[0], (0, 0.0)
    for kind in kinds or _QUICK:
        quick = _STANDS_FOR.get(kind, kind)
        if adaptive and quick.charged_per_batch:
            continue
        for number in numbers:
            if not (quick.charged_per_batch and number > batch):
                worth = _worth(quick, dataclasses.replace(target, num_queries=number), assumed)
                best, most = (number, worth) if worth > most else (best, most)
    return best


def largest_batch(assumed: AssumedVotes) -> int:
    """Returns how many queries a batch has that is charged once: five a class, but at least 50.

    It costs the same whatever its size, but each query more may be the one on which teachers
    disagree.
    """
    return max(LEAST_LARGE_BATCH, QUERIES_A_CLASS * assumed.num_classes)


def _planned(kind: type[Mechanism], target: Target, assumed: AssumedVotes) -> Mechanism:
    if not issubclass(kind, base.Planned):
        raise lacking(kind, "parameters that follow from a target", "calibration")
    return kind.for_target(target, assumed.counts(target.num_queries))


def _worth(kind: type[Mechanism], target: Target, assumed: AssumedVotes) -> tuple[int, float]:
    """Returns at how many margins nearly all labels are right, and how many or what share are."""
    number = target.num_queries
    try:
        outlooks = _outlooks(_planned(kind, target, assumed), assumed, number)
    except ValueError:  # it can't be planned for; who compares them says why
        return 0, 0.0
    # Unless nearly all labels arrive in the worst case.
    if kind.charged_per_batch and outlooks[-1].expected_labels < GOOD_SHARE * number:
        return 0, 0.0
    good = [one.expected_right >= GOOD_SHARE * number for one in outlooks]
    num_good = (*good, False).index(False)
    right = outlooks[0].expected_right
    return num_good, right if num_good else right / number


# Which mechanism, with how much noise: what came of comparing all of them, before any vote.
#
# Everything here is computed from public values. The comparison rests on an assumption about how
# far
# teachers agree; what the labels cost does not.


WIDTH: Final = 96


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outlook:
    """What is expected of a batch of queries at one margin. Public.

    Attributes:
        margin: by how many of the teachers, as a share, the first class leads the second.
        expected_labels: expected number of queries that get a label at all.
        expected_right: expected number of queries that get the right one.
    """

    margin: float
    expected_labels: float
    expected_right: float


def outlook(mechanism: Mechanism, assumed: AssumedVotes, num_queries: int) -> Outlook:
    """Returns what a mechanism is expected to label, for votes that are assumed.

    Raises:
        ValueError: if the mechanism has no known outcome law, or there are fewer queries than
            exceptions.
    """
    right, labels = expected_labels(mechanism, assumed.counts(num_queries))
    return Outlook(margin=assumed.margin, expected_labels=labels, expected_right=right)


def expected_labels(mechanism: Mechanism, counts: IntArray) -> tuple[float, float]:
    """Returns how many labels of class 0 are expected, and how many of any class.

    Args:
        mechanism: with its noise.
        counts: votes by class, `[num_queries, num_classes]`.

    Raises:
        ValueError: if the mechanism has no known outcome law.
    """
    if not isinstance(mechanism, base.Expected):
        raise lacking(mechanism, "an outcome law", "outcome law")
    right, labels = mechanism.expected_right(counts), float(len(counts))
    if mechanism.withholds:  # the sum over all classes that a label may be; equal columns once
        _, first, number = np.unique(counts, axis=1, return_index=True, return_counts=True)
        each = (mechanism.expected_right(np.roll(counts, -one, axis=1)) for one in first)
        labels = float(sum(share * one for share, one in zip(number, each, strict=True)))
    return right, max(right, min(labels, float(len(counts))))


def _outlooks(mechanism: Mechanism, assumed: AssumedVotes, num_queries: int) -> tuple[Outlook, ...]:
    return tuple(
        outlook(mechanism, dataclasses.replace(assumed, margin=assumed.margin * share), num_queries)
        for share in MARGINS
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """One mechanism, with the least noise that keeps to the target. Public.

    Attributes:
        mechanism: with its noise.
        epsilon: what the labels cost, whatever the votes; never above the target.
        outlooks: at the assumed margin, and at the lower ones of `MARGINS`.
    """

    mechanism: Mechanism
    epsilon: float
    outlooks: tuple[Outlook, ...]

    @property
    def expected_right(self) -> float:
        """Expected number of right labels, if the assumption holds."""
        return self.outlooks[0].expected_right

    @property
    def mean_right(self) -> float:
        """Mean over all margins of the expected number of right labels."""
        return sum(one.expected_right for one in self.outlooks) / len(self.outlooks)

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        return {
            "mechanism": self.mechanism.to_dict(),
            "epsilon": self.epsilon,
            "expected_right": self.expected_right,
            "outlooks": [dataclasses.asdict(one) for one in self.outlooks],
        }


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recommendation:
    """Mechanisms compared within one budget, the recommended one first. Public.

    >>> import pate_tf
    >>> found = pate_tf.recommend(target_epsilon=2.0, num_teachers=250, num_classes=10)
    >>> found.candidates[0].mechanism == found.mechanism
    True

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
            f"{self.mechanism.name} labels {_share(self.expected_share)} of the queries right, and "
            f"{_share(self.candidates[0].outlooks[-1].expected_right / self.num_queries)} if "
            f"teachers agree a quarter as well. The assumption is from public values; what the "
            f"labels cost does not depend on it."
            f"{' ' if self.purpose else ''}{self.purpose}"
        )

    def in_words(self, *, with_flags: bool = True) -> str:
        """Returns the comparison as a table in text, with what it rests on and what to type.

        Args:
            with_flags: whether the flags of the recommended mechanism are printed, too.
        """
        names = [one.mechanism.name for one in self.candidates]
        width = max(map(len, names))
        margins = [100.0 * one.margin for one in self.candidates[0].outlooks]
        lines = [
            f"Plan for epsilon {self.target.epsilon:g} at delta {self.target.delta:g}, "
            f"{self._protected()}, and {self.num_queries:,} queries",
            "",
            "Expected labels that arrive, and the share of them that noise leaves right, by margin",
            "",
            f"  {'mechanism'.ljust(width)}  epsilon"
            + "".join(f"  {f'margin {margin:g} %':>16}" for margin in margins),
        ]
        for name, one in zip(names, self.candidates, strict=True):
            cells = "".join(f"  {outlook_in_words(each):>16}" for each in one.outlooks)
            lines.append(f"  {name.ljust(width)}  {self._epsilon(one.epsilon):>7}{cells}")
        typed = (f"Recommended: {self.mechanism.name}", f"  {' '.join(self.flags)}", "")
        return "\n".join(
            [
                *lines,
                "",
                *(typed if with_flags else ()),
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
        if self.mechanism.charged_per_batch and not self.purpose:
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
            "candidates": [one.to_dict() for one in self.candidates],
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


def outlook_in_words(one: Outlook) -> str:
    """Returns labels that arrive, and the share of these that is right."""
    if one.expected_labels < 0.05:
        return "none"
    return f"{one.expected_labels:,.1f} {_share(one.expected_right / one.expected_labels):>8}"


def _share(value: float) -> str:
    """Returns a share in per cent; all and nearly all are told apart."""
    return f"{int(value * 1000.0 + 1e-6) / 10.0:.1f} %"


# Compares all mechanisms within one budget, and recommends one.


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
    are the expected numbers of right labels that arrive, in the mean over the margin that is
    assumed of the votes, half and a quarter of it (`MARGINS`). Those that give as many, but for
    half a hundredth of the queries, are ranked by the worst case. A gate, which labels all of a
    batch or none of it, is recommended only where nearly all labels arrive in the worst case too,
    and nothing else labels 95 % of the queries right.

    >>> import pate_tf
    >>> plan = pate_tf.recommend(target_epsilon=2.0, num_teachers=250, num_classes=10)
    >>> plan.mechanism.name, plan.num_queries
    ('gaussian_noisy_max', 50)
    >>> print(plan)  # the comparison, and what to type
    Plan for epsilon 2 at delta 1e-05, for every record, and 50 queries
    ...

    Args:
        target_epsilon: the most that the labels may cost together.
        num_teachers: who vote.
        num_classes: that they choose from.
        delta: what epsilon holds at. Default 1e-5; 0 leaves mechanisms with a pure epsilon.
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
        return [kind for kind in offered.values() if not (adaptive and kind.charged_per_batch)]
    if isinstance(mechanism, str):
        validation.one_of(offered, mechanism=mechanism)
        mechanism = offered[mechanism]
    if adaptive and mechanism.charged_per_batch:
        raise ValueError(
            f"mechanism: expected one that answers queries chosen by earlier labels, got "
            f"{mechanism.name}, whose batch is fixed beforehand"
        )
    return [mechanism]


def _candidates(
    kinds: Sequence[type[Mechanism]], target: Target, assumed: AssumedVotes
) -> list[Candidate]:
    found, refused = [], ""
    for kind in kinds:
        try:
            planned = _planned(kind, target, assumed)
            found.append(
                Candidate(
                    mechanism=planned,
                    epsilon=target.epsilon_of(planned),
                    outlooks=_outlooks(planned, assumed, target.num_queries),
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
        arrives = one.outlooks[-1].expected_labels >= GOOD_SHARE * num_queries
        return (num_queries <= num_in_batch and arrives) or not one.mechanism.charged_per_batch

    def is_good(one: Candidate) -> bool:
        return (
            not one.mechanism.charged_per_batch and one.expected_right >= GOOD_SHARE * num_queries
        )

    suited = [one for one in candidates if is_suited(one)] or candidates
    compared = [one for one in suited if is_good(one)] or suited
    enough = max(one.mean_right for one in compared) - EQUALLY_GOOD * num_queries

    def rank(one: Candidate) -> tuple[bool, float]:
        is_best = one in compared and one.mean_right >= enough
        return not is_best, -(one.outlooks[-1].expected_right if is_best else one.mean_right)

    return tuple(sorted(candidates, key=rank))


# Feature sums, or counts of records in clusters of the pool, by public values alone.

# More are never planned: where counts are, records of a class are fewer than 20 deviations of the
# noise on feature sums, which leaves a mean cluster of 7 a class 6 of its own at a delta of 1e-5.
CLUSTERS_OF_CLASS: Final = (1, 2, 3, 5, 10)
FEWEST_OF_CLUSTER: Final = 20  # inputs of the pool


def cluster_numbers(pool_size: int, num_classes: int) -> list[int]:
    """Returns the numbers of clusters that a pool can have, ascending; at least one."""
    most = max(pool_size // FEWEST_OF_CLUSTER, 1)
    return sorted({min(each * num_classes, most) for each in CLUSTERS_OF_CLASS})


CLUSTER_LEAD: Final = 6.0  # records of a mean cluster, over the noise on a count; at MNIST's pool
LEAST_LEAD: Final = 3.0  # records of a class over the noise, below which labels would be noise
# Rounds of residual sums, and from how many records of a class on, over the noise of a single
# release; chosen on the pool of Fashion-MNIST, where that is from an epsilon of about .5 on.
ROUNDS: Final = 16
ROUNDS_LEAD: Final = 400.0


def planned_sums(
    target: Target,
    num_records: int | None,
    num_classes: int,
    resolutions: Sequence[int],
    num_rounds: int | None = 1,
) -> ReleasesFeatureSums:
    """Returns what feature sums release within an epsilon, chosen from public values.

    Sums of features with Gaussian noise; or, where that noise is heavy for the number of records,
    counts of records in clusters with Laplace noise, which have no delta: as many clusters as leave
    a cluster `CLUSTER_LEAD` times the noise. At delta 0 these counts alone.

    Args:
        target: what they may cost.
        num_records: private records, as far as public; None if unknown.
        num_classes: number of classes.
        resolutions: numbers of clusters that can be had; none where clusters are no use.
        num_rounds: of residual sums; None for `ROUNDS` where a class has `ROUNDS_LEAD` times more
            records than a single release has noise, 1 otherwise.

    Raises:
        ValueError: if noise would exceed what the records say, or at delta 0 there are no clusters.
    """
    of_class = (num_records or 0) / num_classes
    scale = nextafter(CHANGED / target.epsilon, inf)
    while nextafter(CHANGED / scale, inf) > target.epsilon:
        scale = nextafter(scale, inf)
    counts = LaplaceClusterCounts(scale=scale)
    most = max(of_class * num_classes / (CLUSTER_LEAD * counts.standard_deviation), num_classes)
    fitting = [one for one in resolutions if num_classes <= one <= most] if num_records else []
    released: ReleasesFeatureSums
    if target.delta or not fitting or (num_rounds or 1) > 1:
        features = target.least_noise(GaussianFeatureSums.of_scale)
        if num_rounds is None:
            lead = of_class / features.standard_deviation
            num_rounds = ROUNDS if lead >= ROUNDS_LEAD else 1
        if num_rounds > 1:
            in_rounds = target.least_noise(
                lambda scale: GaussianResidualSums(sigma=scale, num_rounds=num_rounds)
            )
            least = in_rounds.fewest_of_class
            if num_records is not None and of_class < least:
                raise ValueError(
                    f"num_rounds: expected rounds whose noise leaves labels, got {num_rounds} at "
                    f"epsilon {target.epsilon:g}: about {of_class:,.0f} private records of a "
                    f"class, were all equally common, where {least:,.0f} are needed. Take fewer "
                    f"rounds, a larger epsilon or more records"
                )
            return in_rounds
        if num_records is None or of_class >= features.fewest_of_class:
            return features
        released, least = features, features.standard_deviation
    if fitting:
        released = dataclasses.replace(counts, num_clusters=max(fitting))
        least = LEAST_LEAD * counts.standard_deviation
    if of_class < least:
        raise ValueError(
            f"epsilon: expected one at which records say more than noise, got {target.epsilon:g}: "
            f"with about {of_class:,.0f} private records of a class, were all equally common, "
            f"labels would follow from noise of {least:,.0f}. Take a larger epsilon or more records"
        )
    return released


RELEASES = ("log_cost", "gate", "smooth_sensitivity")
BOUNDS = ("paper", "tight", "two_sided", "class_aware")
SMOOTH_BOUNDS = ("paper", "tight", "two_sided")
LEAST_SIGMA, LARGEST_SIGMA = 1e-3, 1e4

Smoothness = TypeVar("Smoothness", float, FloatArray)

_RELATIVE_SLACK = 1e-6
_ABSOLUTE_SLACK = 1e-8


def integer_step(smoothness: Smoothness) -> Smoothness:
    """Returns eta', the size of one integer step of ln Cbar: a little more than eta.

    The excess covers that the computed ln Cbar of neighbours may differ by eta and rounding errors.
    """
    return smoothness * (1.0 + _RELATIVE_SLACK) + _ABSOLUTE_SLACK


def steps_above(sigma: float, failure: float) -> int:
    """Returns the least s with Pr[discrete Gaussian of scale sigma > s] <= failure.

    By summing the probabilities, rounded up: sharper than ceil(b sigma) of the continuous Gaussian
    by one step or so.
    """
    steps = np.arange(ceil(39.0 * sigma) + 2, dtype=np.float64)
    weights = np.exp(-0.5 * (steps / sigma) ** 2)
    above = np.cumsum(weights[:0:-1])[::-1]
    allowed = failure * (weights[0] + 2.0 * above[0]) * (1.0 - 1e-9)
    return int(np.argmax(above <= allowed)) if above[-1] <= allowed else len(above)


def gaussian_smooth_sensitivity_rdp(
    order: float, *, beta: float, sigma: float, b: float = 0.0
) -> float:
    """Returns the Renyi divergence of order `order` of R + sigma U (Z + b), Z normal.

    U is e^beta-smooth and at least the local sensitivity of R (docs/proofs/theory.md, Theorem B1;
    exact for b = 0). Infinite where the theorem does not apply: (order - 1)(e^{2 beta} - 1) >= 1.

    Raises:
        ValueError: unless order > 1, beta > 0, sigma > 0 and b >= 0.
    """
    validation.between(1, inf, order=order)
    validation.between(0, inf, ends="(]", beta=beta, sigma=sigma)
    validation.between(0, inf, ends="[]", b=b)
    spread = (order - 1.0) * expm1(2.0 * min(beta, 300.0))
    if not spread < 1.0:
        return inf
    shift = 1.0 + b * sigma * expm1(beta)
    return float(
        order * shift**2 / (2.0 * sigma**2 * (1.0 - spread))
        - beta
        - np.log1p(-spread) / (2.0 * (order - 1.0))
    )


def check_smooth_sensitivity(bound: str, mechanism: Mechanism) -> float:
    """Returns the mechanism's pure epsilon 2 gamma if Theorem A holds for its bound.

    The theorem needs a cost that is convex in ln q up to where it is flat (Lemma 3), and Lemma 1's
    q(n') <= E q(n).

    Raises:
        ValueError: for `class_aware`, for which no smooth sensitivity was derived, for Gaussian
            mechanisms, whose q grows by more than E, and for bounds the mechanism does not have.
    """
    if mechanism.pure_epsilon is None or bound not in SMOOTH_BOUNDS:
        raise ValueError(
            f"expected a bound of {list(SMOOTH_BOUNDS)} on a mechanism with a gamma for smooth "
            f"sensitivity, got {bound!r} on {mechanism.name}"
        )
    check_bound(bound, mechanism)
    return mechanism.pure_epsilon


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleasePlan(Charge):
    """The public numbers of a release; part of the statement that is published with it.

    Attributes:
        release: "log_cost" (Theorem B2), "gate" (B3) or "smooth_sensitivity" (B1).
        bound: the cost of a query: "paper", "tight", "two_sided" or "class_aware".
        moment: l, the Renyi order less one.
        smoothness: eta of B2 and B3 (how much ln Cbar may change with one teacher), beta of B1.
        sigma: standard deviation of the noise, in sensitivities: steps of ln Cbar, or U.
        failure: tau, the probability that the published cost is below the true one; at a gate it
            is a part of delta.
        num_queries: number of labelled queries.
        budget: largest cost at the moment that a gate lets pass, in natural logarithms; None
            without a gate.
        profile: the hypothetical votes that the numbers were chosen for.

    Raises:
        ValueError: if a value is out of its range, or a gate has a bound that covers one direction
            only.
    """

    release: str
    bound: str
    moment: float
    smoothness: float
    sigma: float
    failure: float
    num_queries: int
    budget: float | None = None
    profile: str = "set by hand"
    name: ClassVar[str] = "release"
    counted: ClassVar[tuple[str, str]] = ("release", "releases")
    lacks: ClassVar[Mapping[str, str]] = {"dp event": "that library has no smooth sensitivity"}

    def __post_init__(self) -> None:
        validation.one_of(RELEASES, release=self.release)
        validation.one_of(BOUNDS, bound=self.bound)
        validation.positive(moment=self.moment, smoothness=self.smoothness)
        validation.between(LEAST_SIGMA, LARGEST_SIGMA, ends="[]", sigma=self.sigma)
        validation.between(0, 0.5, failure=self.failure)
        validation.whole(1, num_queries=self.num_queries)
        if self.release == "gate":
            validation.positive(budget=self.budget)
            if not is_two_sided(self.bound):
                raise ValueError(
                    f"expected a two-sided bound for a gate, got {self.bound!r}: it covers the "
                    "loss under the true data alone"
                )
        elif self.budget is not None:
            raise ValueError(f"expected no budget without a gate, got {self.budget}")

    @property
    def two_sided(self) -> bool:
        """Whether what is claimed covers both directions of every neighbouring pair."""
        return is_two_sided(self.bound)

    @property
    def step(self) -> float:
        """Size of one integer step of ln Cbar, see `integer_step`."""
        return integer_step(self.smoothness)

    @property
    def shift(self) -> float:
        """Of B1, b there: standard deviations added, so that the true cost is seldom undercut."""
        return -float(ndtri(self.failure))

    def alpha(self, moment: float) -> float:
        """Returns what one draw costs at a moment, whatever the data: data-independent.

        B2 and the gate draw Y + discrete Gaussian of scale sigma, Y = ceil(ln Cbar / step) a whole
        number. Replacing one record changes one teacher's votes, ln Cbar by at most eta < step
        (Theorem B2), hence Y by at most 1, on all data sets and in both directions. Then the Renyi
        divergence at order l + 1 is at most (l + 1) / (2 sigma^2) (Proposition D4), and alpha is l
        times that. Everything read from the draw, the sanitised epsilon and a gate's decision, is
        post-processing. B1 costs what Theorem B1 says. Either adds to the alphas of the labels,
        also where the plan was made when they were known.
        """
        if self.release == "smooth_sensitivity":
            return moment * gaussian_smooth_sensitivity_rdp(
                moment + 1.0, beta=self.smoothness, sigma=self.sigma, b=self.shift
            )
        return moment * (moment + 1.0) / (2.0 * self.sigma**2)

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns `alpha` at each moment, [num_moments]."""
        return np.array([self.alpha(float(moment)) for moment in moments])

    @property
    def noise_multipliers(self) -> tuple[float, ...]:
        """Of a draw of the noisy log cost, whose sensitivity is 1; none by smooth sensitivity."""
        return () if self.release == "smooth_sensitivity" else (self.sigma,)

    def summary(self) -> str:
        """Returns what is released, its kind and its noise."""
        return f"the data-dependent cost ({self.release}, sigma {self.sigma:.4g})"

    def in_words(self) -> str:
        """Returns what a draw under the plan publishes."""
        return (
            "A number about what all labels cost for the votes at hand is published, with random "
            f"noise of standard deviation {self.sigma:.4g} times what one record can change it by."
        )

    @property
    def cost_floor(self) -> float:
        """c_0 of Theorem B2, a public constant that keeps ln 0 out."""
        return 1e-9 * self.num_queries

    @property
    def gate_budget(self) -> float:
        """The budget.

        Raises:
            ValueError: if the plan is not for a gate.
        """
        if self.budget is None:
            raise ValueError(f"expected a plan for a gate, got one for {self.release!r}")
        return self.budget

    def check_mechanism(self, mechanism: Mechanism) -> None:
        """Checks that the plan can release the cost of a mechanism.

        Raises:
            ValueError: if the mechanism lacks the bound; for smooth sensitivity, if Theorem A does
                not hold for it; and for `ConfidentGaussianNoisyMax`, whose answered queries depend
                on the votes, so that their cost is not that of queries chosen in advance.
        """
        if mechanism.withholds or not mechanism.bounds:
            raise ValueError(
                "expected a mechanism with noise that answers every query, got "
                f"{mechanism.name}; account for it data-independently"
            )
        check_bound(self.bound, mechanism)
        if self.release == "smooth_sensitivity":
            check_smooth_sensitivity(self.bound, mechanism)

    def to_dict(self) -> dict[str, object]:
        """Returns the JSON-able fields; see `plan_from_dict`."""
        return dataclasses.asdict(self)


def plan_from_dict(fields: Mapping[str, Any]) -> ReleasePlan:
    """Returns the plan that `ReleasePlan.to_dict` described.

    Raises:
        ValueError: if the fields are not exactly a plan's, or not valid.
    """
    return from_fields(ReleasePlan, fields)
