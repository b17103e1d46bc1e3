"""What can be charged, and what charges cost together: by moments, and by other theorems.

A mechanism is a charge that also draws (`pate_tf.accounting.mechanisms`); a plan to release the
data-dependent cost is another one (`pate_tf.accounting.charge`). Whatever composes costs, the
ledger first of all, asks a charge alone and never what kind it is.

Charges with moments add up at each moment; those that are only (epsilon, delta) differentially
private add their epsilons and deltas to that (basic composition), or their losses where that gives
less (`pate_tf.accounting.composition`). All of it holds for charges of any kind in any order.
"""

from __future__ import annotations

import dataclasses
import functools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from math import expm1, fsum, inf, log, log1p, nextafter, sqrt
from typing import Any, ClassVar, Final, TypeVar, cast

import numpy as np
import scipy

from pate_tf.accounting.conversions import (
    DEFAULT_MOMENTS,
    LATTICE,
    SAFETY_MARGIN,
    FloatArray,
    epsilon_from_alphas,
    gaussian_dp_delta,
    least,
    pure_alpha,
    pure_composition_epsilon,
)
from pate_tf.core import checks

Result = TypeVar("Result")


class Charge(ABC):
    """Anything that can be charged: a frozen value that says what one of it costs.

    One costs a part with moments (`alphas`) and, of some, a part that is merely (epsilon, delta)
    differentially private (`approximate`). Both hold in the worst case over all data and neighbors
    and in both directions, also where it was chosen by looking at earlier outputs.

    Attributes:
        name: in records.
        answers: whether it is charged for answers to queries, rather than for something else.
        releases_counts: whether noisy counts leave with labels, with Gaussian noise of standard
            deviation `noise_scales["sigma"]`, in votes.
        releases_feature_sums: whether it adds up what is known of records, and asks no teacher.
        counted: what one and several of them are called.
        labels_in_words: what its labels are called.
        approximate: the (epsilon, delta) of the part that has no finite moments; None without one.
        pure_epsilon: at which one is differentially private with delta 0; None without one.
        unit: what one costs is for: "record" for a record replaced, or for whatever changes one
            teacher; "owner" for an owner added or removed.
        replaced_steps: how many times as far as one neighbor an owner replaced by another moves
            what Gaussian noise is added to.
        chosen_by_answers: whether somebody may choose among several kinds by earlier answers, as
            a coordinator of silos. Then only moments hold for several kinds together.
        noise_fields: the fields that are scales of noise it draws, in votes.
        lacks: what it can't do, and why, in words that end a sentence. Every member of a family
            has all that the family asks for, or says here why not; a test holds it to that.
    """

    name: ClassVar[str]
    answers: ClassVar[bool] = False
    releases_counts: ClassVar[bool] = False
    releases_feature_sums: ClassVar[bool] = False
    counted: ClassVar[tuple[str, str]]
    labels_in_words: ClassVar[str] = "noisy labels"
    lacks: ClassVar[Mapping[str, str]] = {}
    noise_fields: ClassVar[tuple[str, ...]] = ()
    approximate: tuple[float, float] | None = None
    pure_epsilon: float | None = None
    unit: str = "record"
    replaced_steps: float = 2.0
    chosen_by_answers: ClassVar[bool] = False

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns the largest cost of one, [num_moments], natural logarithm, whatever the data.

        l times the Renyi divergence of order l + 1; infinite where there is no finite one, zero for
        what `approximate` says all about. Here that of randomized response at `pure_epsilon`.
        """
        if self.approximate is not None:
            return np.zeros_like(moments)
        if self.pure_epsilon is None:
            return np.full_like(moments, inf)
        return pure_alpha(self.pure_epsilon, moments)

    @property
    def noise_multipliers(self) -> tuple[float, ...]:
        """Of Gaussian mechanisms that cost no less than one of this together; none if empty.

        Each is a standard deviation over the sensitivity in Euclidean distance.
        """
        return ()

    @property
    def noise_scales(self) -> Mapping[str, float]:
        """Scales of the noise that it draws, in votes, by what they are called."""
        return {name: getattr(self, name) for name in self.noise_fields}

    def composed_epsilon(self, number: int, *, delta: float) -> float:
        """Returns epsilon of `number` of these alone, by another theorem than moments.

        Of a pure epsilon the optimal composition of pure mechanisms; else infinite.
        """
        if self.pure_epsilon is None:
            return inf
        return pure_composition_epsilon(self.pure_epsilon, number, delta)

    def number_charged(self, num_queries: int) -> int:
        """Returns how many are charged for a batch of num_queries new queries.

        One for a release of feature sums, unless there are none; one for what answers no queries.
        """
        if not self.answers:
            return 1
        return min(num_queries, 1) if self.releases_feature_sums else num_queries

    def to_dict(self) -> dict[str, object]:
        """Returns the JSON-able fields; see `pate_tf.accounting.charge.charge_from_dict`.

        Of feature sums without a unit of "record", as those of earlier versions.
        """
        fields = {"name": self.name, **dataclasses.asdict(cast(Any, self))}
        unit = fields.pop("unit", None)  # stands last
        if unit is not None and not (self.releases_feature_sums and unit == "record"):
            fields["unit"] = unit
        return fields

    def summary(self) -> str:
        """Returns name and parameters, such as `gaussian_noisy_max, sigma 40`."""
        parameters = Charge.to_dict(self)
        parameters.pop("name")
        parts = [
            f"{name} {value}" if isinstance(value, str) else f"{name} {value:g}"
            for name, value in parameters.items()
        ]
        return ", ".join([self.name, *parts])

    def several(self, number: int) -> str:
        """Returns so many of it in words, such as `20 queries of laplace_noisy_max, gamma 0.1`."""
        return f"{number:,} {self.counted[number != 1]} of {self.summary()}"

    @abstractmethod
    def in_words(self) -> str:
        """Returns what is done with the votes, in sentences for a privacy statement."""


def from_fields(kind: Callable[..., Result], values: Mapping[str, Any]) -> Result:
    """Returns the value of a dataclass that has exactly the given fields.

    Raises:
        ValueError: if they are not exactly its fields, or not valid.
    """
    expected = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if "unit" in expected and getattr(kind, "releases_feature_sums", False):
        values = {"unit": "record", **values}  # see `Charge.to_dict`
    if set(values) != expected:
        raise ValueError(
            f"{kind.__name__}: expected fields {sorted(expected)}, got {sorted(values)}"
        )
    return kind(**values)


def lacking(charge: Charge | type[Charge], expected: str, what: str) -> ValueError:
    """Returns the refusal of something that a charge can't do.

    Args:
        charge: the charge, or its class.
        expected: what was asked for, after "one with".
        what: the key of `lacks`.
    """
    reason = charge.lacks.get(what, f"it defines no {what}")
    return ValueError(f"expected one with {expected}, got {charge.name}: {reason}")


# Composition of (epsilon, delta) guarantees with each other and with moments.
#
# An (epsilon, delta)-private mechanism tells no more than this: with probability delta everything,
# else randomized response at epsilon (Kairouz, Oh and Viswanath 2015). The privacy loss of several
# such mechanisms is a discrete distribution; the moments of everything else are laid over it
# (docs/proofs/approximate_dp.md, Theorems G4 and G5). Every result errs upward.


# Privacy losses beyond this number are merged into the largest of their neighborhood.
MOST_LOSSES = 2**13

LARGEST_EPSILON = 2.0**30

# (epsilon, delta) of one mechanism, for one moved teacher, in both directions.
Guarantee = tuple[float, float]


def composed_epsilon(
    guarantees: Sequence[Guarantee],
    *,
    delta: float,
    alphas: FloatArray | None = None,
    mu: float = 0.0,
) -> float:
    """Returns the epsilon at delta of all guarantees and everything else together, rounded up.

    The mechanisms may be interleaved, and each may depend on what the others gave out; their
    guarantees and total alphas must have been fixed in advance. Never above the basic composition
    (sum of epsilons + epsilon of the moments at what the guarantees leave of delta).

    Infinite if the guarantees' deltas use up delta. One exception: without moments, deltas that add
    up to delta exactly leave the sum of the epsilons.

    Args:
        guarantees: of each mechanism that has no moments; may be empty.
        delta: in [0, 1).
        alphas: total costs of everything else at `DEFAULT_MOMENTS`, in both directions; None if
            there is nothing else. Infinite or NaN rules a moment out.
        mu: of Gaussian differential privacy of everything else, instead of `alphas`; 0 if there is
            nothing else.
    """
    checks.between(0, 1, ends="[)", delta=delta)
    basic = inf
    if (
        alphas is None
        and not mu
        and sum((Fraction(used) for _, used in guarantees), Fraction(0)) <= delta
    ):
        basic = fsum(epsilon for epsilon, _ in guarantees)
        if basic == 0.0:
            return 0.0
        basic = nextafter(basic, inf)
    profile = privacy_profile(guarantees, alphas, mu)

    def holds(epsilon: float) -> bool:
        return profile(epsilon) * (1.0 + SAFETY_MARGIN) <= delta

    if profile(inf) > delta:
        return basic
    high = 1.0
    while not holds(high):
        high *= 2.0
        if high > LARGEST_EPSILON:
            return basic
    low = 0.0 if high == 1.0 else high / 2.0
    if low == 0.0 and holds(0.0):
        return 0.0
    return min(least(holds, low, high, within=SAFETY_MARGIN) * (1.0 + SAFETY_MARGIN), basic)


def privacy_profile(
    guarantees: Sequence[Guarantee], alphas: FloatArray | None, mu: float = 0.0
) -> Callable[[float], float]:
    """Returns delta as a function of epsilon, of all guarantees and everything else together.

    From the losses of the guarantees (Theorem G4: finite ones, their probabilities given that one
    occurs, and that of infinity) and the moments of everything else (Theorem G5), or its Gaussian
    differential privacy, exactly (docs/proofs/theory.md, Proposition S5). Where there are
    too many losses, those that lie close together count as the largest of them, which can only
    raise delta. Arguments as of `composed_epsilon`.
    """
    survived = fsum(log1p(-used) if used < 1.0 else -inf for _, used in guarantees)
    certain_loss = -expm1(survived)
    if certain_loss > 0.0:
        certain_loss = min(nextafter(certain_loss, inf) * (1.0 + SAFETY_MARGIN), 1.0)

    def merged(losses: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        possible = weights > 0.0
        losses = losses[possible]
        weights = weights[possible]
        if len(losses) <= MOST_LOSSES:
            return losses, weights
        lowest = float(losses.min())
        width = (float(losses.max()) - lowest) / (MOST_LOSSES - 1)
        if width == 0.0:
            return losses[:1], np.array([weights.sum()])
        places = np.floor((losses - lowest) / width).astype(np.int64)
        largest = np.full(MOST_LOSSES + 1, -np.inf)
        np.maximum.at(largest, places, losses)
        total = np.bincount(places, weights, MOST_LOSSES + 1).astype(np.float64)
        used = total > 0.0
        return largest[used], total[used]

    losses = np.zeros(1)
    weights = np.ones(1)
    for epsilon, number in sorted(Counter(epsilon for epsilon, _ in guarantees).items()):
        wins = np.arange(number + 1)
        new_losses: FloatArray = np.asarray(epsilon * (2.0 * wins - number), np.float64)
        # Binomial: log C(n, k) = -log(n + 1) - log B(n - k + 1, k + 1). Its rounding is far below
        # SAFETY_MARGIN for as many as there can be.
        exponents = -scipy.special.betaln(number - wins + 1, wins + 1) - log1p(number)
        exponents -= wins * np.log1p(np.exp(-epsilon)) + (number - wins) * np.logaddexp(0, epsilon)
        new_losses, new_weights = merged(new_losses, np.exp(exponents))
        losses, weights = merged(
            np.add.outer(losses, new_losses).ravel(), np.outer(weights, new_weights).ravel()
        )

    def delta_of(epsilon: float) -> float:
        above = epsilon - losses
        if epsilon == inf:
            return certain_loss
        if mu:
            deltas = gaussian_dp_delta(mu, above)
        elif alphas is None:
            deltas = np.maximum(-np.expm1(np.minimum(above, 0.0)), 0.0)
        else:
            # e^(alpha - l epsilon) (l/(l+1))^l / (l+1) at the best moment (Balle et al. 2020); of
            # an epsilon below zero by the same for its reflection.
            size = np.abs(above)
            costs = np.where(np.isnan(alphas), inf, alphas)
            fixed = costs - DEFAULT_MOMENTS * np.log1p(1.0 / DEFAULT_MOMENTS)
            fixed = fixed - np.log1p(DEFAULT_MOMENTS)
            exponents = np.min(fixed[None, :] - np.outer(size, DEFAULT_MOMENTS), axis=1)
            direct = np.exp(np.minimum(exponents, 0.0))
            reflected = -np.expm1(-size) + np.exp(-size) * direct
            deltas = np.where(above < 0.0, reflected, direct)
        return certain_loss + (1.0 - certain_loss) * float(weights @ deltas)

    return delta_of


Charges = Mapping[Charge, int]

# Beyond so many charges without moments only basic composition is tried.
MOST_APPROXIMATE = 1024
MOST_REMEMBERED: Final = 1024  # results, of the latest questions


def total_alphas(
    charges: Charges, moments: FloatArray, *, num_teachers: int = 1, replaced: bool = False
) -> FloatArray:
    """Returns the total cost of the parts with moments, [num_moments], whatever the data.

    Other arguments are as of `several_teachers_alpha`.
    """
    total = np.zeros_like(moments)
    for charge, number in charges.items():
        if number:  # 0 times infinity would be no number
            alphas = several_teachers_alpha(charge, moments, num_teachers, replaced=replaced)
            total += number * alphas
    return total


def remembered(compute: Callable[..., Result]) -> Callable[..., Result]:
    """Returns a function of charges and more that computes each of its latest results once."""
    compute_once = functools.lru_cache(MOST_REMEMBERED)(
        lambda charges, *others, **named: compute(dict(charges), *others, **named)
    )
    return functools.wraps(compute)(
        lambda charges, *others, **named: compute_once(tuple(charges.items()), *others, **named)
    )


@remembered
def moments_epsilon(charges: Charges, delta: float) -> tuple[float, float | None]:
    """Returns epsilon by moments, and the moment that gave it; None if none did.

    What the parts without moments use of delta is taken off before the moments are converted;
    infinite if they use more than there is. At delta 0 it is `pure_epsilon`.

    Raises:
        ValueError: if delta is outside [0, 1), or a part without moments has an epsilon that is
            negative or not finite, or a delta outside [0, 1].
    """
    checks.between(0, 1, ends="[)", delta=delta)
    if not delta:
        return pure_epsilon(charges), None
    alphas = total_alphas(charges, DEFAULT_MOMENTS)
    added = used = Fraction(0)
    for charge, number in charges.items():
        if charge.approximate is not None:
            of_epsilon, of_delta = charge.approximate
            checks.between(0, inf, ends="[)", epsilon=of_epsilon)
            checks.between(0, 1, ends="[]", delta=of_delta)
            added += number * Fraction(of_epsilon)
            used += number * Fraction(of_delta)
    if used > Fraction(delta):
        return inf, None
    basic = float(added)
    if Fraction(basic) < added:
        basic = nextafter(basic, inf)
    if not alphas.any():
        return basic, None
    if not used:
        return epsilon_from_alphas(alphas, DEFAULT_MOMENTS, delta)
    left = float((Fraction(delta) - used) * (1 - Fraction(SAFETY_MARGIN)))
    if not left > 0.0:
        return inf, None
    epsilon, moment = epsilon_from_alphas(alphas, DEFAULT_MOMENTS, left)
    return nextafter(epsilon + basic, inf), moment


def pure_epsilon(charges: Charges) -> float:
    """Returns epsilon at delta 0: the sum of all pure epsilons, correctly rounded.

    Infinite where a charge has none (Dwork and Roth 2014, Corollary 3.15).
    """
    total = Fraction(0)
    for charge, number in charges.items():
        if number:
            if charge.pure_epsilon is None or not charge.pure_epsilon < inf:
                return inf
            total += number * Fraction(charge.pure_epsilon)
    return float(total)


def check_pure(charge: Charge) -> None:
    """Raises ValueError unless a charge has a pure epsilon, as delta 0 needs."""
    if charge.pure_epsilon is None:
        raise ValueError(
            f"delta: expected above 0 for {charge.name}, which has no guarantee at delta 0, got 0; "
            f"laplace_noisy_max is one of those that have one"
        )


@remembered
def smallest_epsilon(
    charges: Charges, delta: float, *, enough: float = 0.0
) -> tuple[float, float | None]:
    """Returns the smallest epsilon known, and its moment; None where another theorem gave it.

    Other theorems are a single charge's own composition theorem, and of several kinds `by_losses`
    and the sum of all pure epsilons and of what the others cost together (Proposition S5).

    Args:
        charges: how many of each charge.
        delta: in [0, 1).
        enough: an epsilon by moments up to here is returned without trying the others, which are
            slow for many queries.
    """
    epsilon, moment = moments_epsilon(charges, delta)
    if epsilon <= enough or not delta:
        return epsilon, moment
    charged = {charge: number for charge, number in charges.items() if number}
    pure = {charge: number for charge, number in charged.items() if charge.pure_epsilon is not None}
    others = {charge: number for charge, number in charged.items() if charge not in pure}
    if len(charged) == 1 and not any(charge.approximate for charge in charged):
        ((charge, number),) = charged.items()
        composed = charge.composed_epsilon(number, delta=delta)
    else:
        composed = by_losses(charged, delta)
    are_fixed = not any(charge.chosen_by_answers for charge in others)
    if pure and len(charged) > 1 and (are_fixed or not others):
        rest = smallest_epsilon(others, delta)[0] if others else 0.0
        composed = min(composed, nextafter(pure_epsilon(pure) + rest, inf))
    return (composed, None) if composed < epsilon else (epsilon, moment)


def fits(charges: Charges, delta: float, epsilon_budget: float) -> bool:
    """Whether the total cost stays within the budget."""
    return smallest_epsilon(charges, delta, enough=epsilon_budget)[0] <= epsilon_budget


def delta_of_chosen_kinds(charges: Charges, delta: float) -> float:
    """Returns the delta at which a budget holds whose kinds of charge earlier answers chose.

    One kind keeps delta. Of several, any of the moments may decide, and before them the first
    kind's own theorem (docs/proofs/theory.md, Proposition S4 c).
    """
    kinds = sum(1 for number in charges.values() if number)
    return delta if kinds <= 1 else min(1.0, (len(DEFAULT_MOMENTS) + 1) * delta)


# What it costs that several teachers change instead of one.
#
# An owner's teacher is a hash of the owner's name. So adding or removing all records of one owner
# changes one teacher, which is what every other cost here counts. Replacing an owner removes one
# and adds another, mostly at another teacher: two votes of every query may move. Likewise k records
# of one person lie with up to k teachers, and replacing all of them may move k votes of every
# query.
#
# Each step leads from one neighbor to the next, and what a charge says of one step gives what
# holds for k. It is more than k times as much: a Gaussian's moments grow with the square of k. For
# labels, whatever the counts and whichever votes move, here for k = 2:
#
# - Pure: each moved vote multiplies no probability by more than e^{2 gamma}, so two do not by more
#   than e^{4 gamma}, and D* of 4 gamma bounds the moments.
# - Gaussian: the counts are furthest apart, by the squared distance 8, where both votes move
#   between the same two classes; then alpha = 8 l (l+1) / (2 sigma^2).
# - A part that is merely (epsilon, delta): (2 epsilon, delta (1 + e^epsilon))
#   (docs/proofs/approximate_dp.md, Theorem G6).
# - Threshold: two moved votes change the largest count by at most 2; alpha = 4 l (l+1) / (2
#   sigma^2).
#
# Beside them stands group privacy of whatever is released, by any composition: k steps that are
# each (epsilon, delta) are together (k epsilon, (1 + e^epsilon + ... + e^((k-1) epsilon)) delta).
# The smallest is taken (docs/proofs/theory.md, Proposition S2).


def moved_guarantee(guarantee: Guarantee, num_teachers: int) -> Guarantee:
    """Returns what holds if that many teachers differ at once, rounded up.

    (k epsilon, delta (1 + e^epsilon + ... + e^((k-1) epsilon))), delta at most 1
    (docs/proofs/approximate_dp.md, Theorem G6).
    """
    if num_teachers == 1:
        return guarantee
    epsilon, delta = guarantee
    with np.errstate(over="ignore"):
        factor = float(np.sum(np.exp(epsilon * np.arange(num_teachers)))) * (1.0 + SAFETY_MARGIN)
    moved = nextafter(min(delta * factor, 1.0), inf) if delta else 0.0
    return nextafter(epsilon * num_teachers, inf) if epsilon else 0.0, min(moved, 1.0)


def several_teachers_alpha(
    charge: Charge, moments: FloatArray, num_teachers: int, *, replaced: bool = False
) -> FloatArray:
    """Returns the largest cost of one charge if so many teachers change, `[num_moments]`.

    From what it says of itself for one teacher; infinite where it says nothing. Without a part
    that `Charge.approximate` is about, which may be all of it. `replaced` is as of `by_losses`.
    """
    if num_teachers == 1:
        return charge.alphas(moments)
    if charge.approximate is not None and not charge.alphas(moments).any():
        return np.zeros_like(moments)
    spread = moments * (moments + 1.0)
    alphas = np.full_like(moments, inf)
    if charge.pure_epsilon is not None:
        moved = num_teachers * charge.pure_epsilon
        alphas = np.minimum(alphas, pure_alpha(moved, moments))
    if charge.noise_multipliers:
        squared = _squared_distance(charge, num_teachers, replaced=replaced)
        alphas = np.minimum(alphas, squared * spread / 2.0)
    return alphas


def _squared_distance(charge: Charge, num_teachers: int, *, replaced: bool) -> float:
    """How far so many neighbors take the means of Gaussian noise of scale 1, squared."""
    steps = charge.replaced_steps if replaced else num_teachers
    return sum((steps / multiplier) ** 2 for multiplier in charge.noise_multipliers)


def _squared_distance_of_all(
    charges: Charges, num_teachers: int, *, replaced: bool
) -> float | None:
    """Returns how far so many neighbors take the means of all Gaussian charges, squared.

    None where others are among them than Gaussian ones, pure ones, and those of which
    `Charge.approximate` says all.
    """
    squared = 0.0
    for charge, number in charges.items():
        if charge.pure_epsilon is not None:
            continue
        if charge.answers and charge.approximate is None:
            if not charge.noise_multipliers:
                return None
            squared += number * _squared_distance(charge, num_teachers, replaced=replaced)
        elif charge.alphas(DEFAULT_MOMENTS).any():
            return None
    return squared


def by_losses(
    charges: Charges, delta: float, *, num_teachers: int = 1, replaced: bool = False
) -> float:
    """Returns an epsilon at delta by the losses of all charges; infinite where none is known.

    What is (epsilon, delta) private counts as leaking randomized response, beside the moments of
    everything else (docs/proofs/approximate_dp.md, Theorem G5); or, where all else is pure or
    Gaussian, pure parts count as randomized response and Gaussian ones exactly, as one
    (docs/proofs/theory.md, Proposition S5).

    Args:
        charges: how many of each, at least one, fixed in advance.
        delta: in [0, 1).
        num_teachers: how many teachers, records or owners change.
        replaced: whether these two are an owner that is replaced by another.
    """
    if not delta or (len(charges) > 1 and any(charge.chosen_by_answers for charge in charges)):
        return inf
    num_lossy = sum(n for charge, n in charges.items() if charge.approximate is not None)
    num_pure = sum(n for charge, n in charges.items() if charge.pure_epsilon is not None)
    if num_lossy > MOST_APPROXIMATE:
        return inf
    epsilon = inf
    lossy = [
        moved_guarantee(charge.approximate, num_teachers)
        for charge, number in charges.items()
        if charge.approximate is not None
        for _ in range(number)
    ]
    if lossy:
        alphas = total_alphas(
            charges, DEFAULT_MOMENTS, num_teachers=num_teachers, replaced=replaced
        )
        others = alphas if alphas.any() else None
        epsilon = composed_epsilon(lossy, delta=delta, alphas=others)
    squared = _squared_distance_of_all(charges, num_teachers, replaced=replaced)
    is_all_lossy = not num_pure and all(charge.approximate is not None for charge in charges)
    if squared is None or is_all_lossy or num_lossy + num_pure > MOST_APPROXIMATE:
        return epsilon
    pure = [
        moved_guarantee((charge.pure_epsilon, 0.0), num_teachers)
        for charge, number in charges.items()
        if charge.pure_epsilon is not None
        for _ in range(number)
    ]
    exact = composed_epsilon([*lossy, *pure], delta=delta, mu=sqrt(squared))
    # A coordinate moved by s votes adds at most s / (LATTICE sigma^2) to the loss of continuous
    # noise, and s is at most s^2. Releases of costs have another lattice.
    return min(epsilon, exact + squared / LATTICE)


def several_teachers_epsilon(
    charges: Mapping[Charge, int], *, delta: float, num_teachers: int | None = None
) -> float:
    """Returns the least epsilon known at delta where so many neighbors differ at once.

    By default it holds against replacing one owner's records by another's, where
    `smallest_epsilon` of the same holds against adding or removing an owner.

    Args:
        charges: how many of each charge, chosen adaptively or not.
        delta: in [0, 1).
        num_teachers: how many teachers, records or owners change, at least 2; None for an owner
            replaced by another.

    Raises:
        ValueError: if delta is outside [0, 1), a number is negative, or num_teachers is below 2.
    """
    checks.whole(2, num_teachers=num_teachers or 2)
    checks.between(0, 1, ends="[)", delta=delta)
    for number in charges.values():
        checks.whole(0, number=number)
    charged = {charge: number for charge, number in charges.items() if number}
    if not charged:
        return 0.0
    replaced = num_teachers is None
    number_changed = num_teachers or 2
    epsilons = [by_losses(charged, delta, num_teachers=number_changed, replaced=replaced)]
    # Of sums that leave with all of their Gaussian noise the distance says everything: steps one
    # after another say no more.
    are_sums = all(charge.releases_feature_sums and charge.noise_multipliers for charge in charged)
    if not are_sums or epsilons[0] == inf:
        epsilons.append(
            group_epsilon(
                lambda smaller: smallest_epsilon(charged, smaller)[0],
                delta,
                num_steps=number_changed,
            )
        )
    if any(charge.approximate is not None for charge in charged):
        return min(epsilons)
    alphas = total_alphas(charged, DEFAULT_MOMENTS, num_teachers=number_changed, replaced=replaced)
    epsilons.append(epsilon_from_alphas(alphas, DEFAULT_MOMENTS, delta)[0])
    pure = [charge.pure_epsilon for charge in charged if charge.pure_epsilon is not None]
    if len(pure) == len(charged):
        # Of different scales, all count as the largest.
        largest = number_changed * max(pure)
        epsilons.append(pure_composition_epsilon(largest, sum(charged.values()), delta))
    return min(epsilons)


def group_epsilon(
    one_teacher_epsilon: Callable[[float], float], delta: float, *, num_steps: int = 2
) -> float:
    """Returns an epsilon at delta for neighboring steps one after another, of a known curve each.

    P(S) <= e^a P'(S) + d <= e^a (e^a P''(S) + d) + d for every set of outcomes S: k steps are k a
    at (1 + e^a + ... + e^((k-1) a)) d, for any a that holds at d. The d is searched for; whichever
    is found holds.

    Args:
        one_teacher_epsilon: from delta to the epsilon of one step; infinite where none is known.
        delta: in [0, 1).
        num_steps: k, at least 2.

    Raises:
        ValueError: if delta is outside [0, 1).
    """
    checks.between(0, 1, ends="[)", delta=delta)
    if not delta:
        return num_steps * one_teacher_epsilon(0.0) * (1.0 + SAFETY_MARGIN)

    def epsilon_if_it_holds(depth: float) -> float:
        """The epsilon of one step at d = delta e^-depth, if the sum of e^(i epsilon) d allows."""
        epsilon = one_teacher_epsilon(float(np.exp(log(delta) - depth)))
        if epsilon == inf:
            return inf
        holds = (
            scipy.special.logsumexp(epsilon * np.arange(num_steps)) * (1.0 + SAFETY_MARGIN) <= depth
        )
        return epsilon if holds else inf

    low = 0.0
    high = 1.0
    deepest = log(delta) + 690.0  # below it exp(log(delta) - depth) is no normal number
    while (best := epsilon_if_it_holds(high)) == inf:
        low, high = high, 2.0 * high
        if high > deepest:
            return inf
    for _ in range(30):
        middle = (low + high) / 2.0
        if (epsilon := epsilon_if_it_holds(middle)) < inf:
            high, best = middle, min(best, epsilon)
        else:
            low = middle
    return num_steps * best * (1.0 + SAFETY_MARGIN)
