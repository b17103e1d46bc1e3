"""Defines charges, and computes the total privacy cost of several charges.

A charge is anything that spends privacy budget. A mechanism is a charge that also draws labels
(`pate_tf.accounting.mechanisms`). The release of a data-dependent cost is another charge
(`pate_tf.accounting.charge`). Code that composes costs, such as the ledger, uses only the interface
of `Charge` and works with every subclass.

An alpha is the cost of a charge at a moment l: l times the Renyi divergence of order l + 1.

The alphas of charges add up at each moment. For charges that are only (epsilon, delta)
differentially private, there are two methods. One adds the epsilons and deltas (basic composition),
and the other combines the distributions of the privacy losses. The smaller result is used. All
these methods are valid for any charges, in any order.
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
    """Anything that spends privacy budget: an immutable value with a privacy cost.

    The cost has a part with moments (`alphas`). Some charges also have a part that is only
    (epsilon, delta) differentially private (`approximate`). Both parts are worst cases over all
    ordered pairs of neighboring data sets. They hold even if the charge depends on earlier outputs.

    Attributes:
        name: name of the charge in ledgers.
        answers: whether the charge pays for answers to queries.
        releases_counts: whether noisy counts are released together with the labels. The Gaussian
            noise of the counts has standard deviation `noise_scales["sigma"]`, in votes.
        releases_feature_sums: whether the charge pays for feature sums of records, without
            teachers.
        counted: name of the unit that is charged, as singular and plural, such as "query" and
            "queries".
        labels_in_words: description of the labels that follow from the release.
        approximate: (epsilon, delta) of the part that has no finite moments; None if there is no
            such part.
        pure_epsilon: epsilon at delta 0; None if the charge has no guarantee at delta 0.
        unit: definition of neighboring data sets. "record": one record is replaced, or one teacher
            changes in any other way. "owner": one owner is added or removed.
        replaced_steps: how far the value that gets Gaussian noise moves if one owner is replaced,
            as a multiple of the distance between neighbors.
        chosen_by_answers: whether somebody, such as the coordinator of several silos, may choose
            between different charges based on earlier answers. If so, different charges are
            composed only by moments.
        noise_fields: names of the fields that contain noise scales, in votes.
        lacks: unsupported operations: maps the name of an operation to the reason, which becomes
            the end of an error message. A test checks that each charge supports every operation of
            its base classes or lists it here.
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
        """Returns the worst-case cost of one charge at each moment (natural log), [num_moments].

        The cost at moment l is l times the Renyi divergence of order l + 1. It is infinite if there
        is no finite bound, and zero if `approximate` covers the whole cost. By default, the result
        is the cost of randomized response at `pure_epsilon`.
        """
        if self.approximate is not None:
            return np.zeros_like(moments)
        if self.pure_epsilon is None:
            return np.full_like(moments, inf)
        return pure_alpha(self.pure_epsilon, moments)

    @property
    def noise_multipliers(self) -> tuple[float, ...]:
        """Noise multipliers of Gaussian mechanisms that together cost no less than this charge.

        A multiplier is the standard deviation divided by the L2 sensitivity. The tuple is empty if
        there are no such mechanisms.
        """
        return ()

    @property
    def noise_scales(self) -> Mapping[str, float]:
        """Maps the name of each noise field to the scale of the noise, in votes."""
        return {name: getattr(self, name) for name in self.noise_fields}

    def composed_epsilon(self, number: int, *, delta: float) -> float:
        """Returns the epsilon of `number` such charges, from a theorem that uses no moments.

        By default, the result is the optimal composition of pure mechanisms, and infinite if the
        charge has no pure epsilon.
        """
        if self.pure_epsilon is None:
            return inf
        return pure_composition_epsilon(self.pure_epsilon, number, delta)

    def number_charged(self, num_queries: int) -> int:
        """Returns how often this charge is made for a batch of `num_queries` new queries.

        If `answers` is False, the result is 1. For feature sums, the result is 1 if there are
        queries, else 0. For every other charge, the result is `num_queries`.
        """
        if not self.answers:
            return 1
        return min(num_queries, 1) if self.releases_feature_sums else num_queries

    def to_dict(self) -> dict[str, object]:
        """Returns the fields as JSON values. `charge.charge_from_dict` rebuilds the charge.

        For feature sums, the unit "record" is omitted, for compatibility with earlier versions.
        """
        fields = {"name": self.name, **dataclasses.asdict(cast(Any, self))}
        unit = fields.pop("unit", None)  # inserted again as the last field
        if unit is not None and not (self.releases_feature_sums and unit == "record"):
            fields["unit"] = unit
        return fields

    def summary(self) -> str:
        """Returns the name and the parameters, such as `gaussian_noisy_max, sigma 40`."""
        parameters = Charge.to_dict(self)
        parameters.pop("name")
        parts = [
            f"{name} {value}" if isinstance(value, str) else f"{name} {value:g}"
            for name, value in parameters.items()
        ]
        return ", ".join([self.name, *parts])

    def several(self, number: int) -> str:
        """Describes a number of charges, such as `20 queries of laplace_noisy_max, gamma 0.1`."""
        return f"{number:,} {self.counted[number != 1]} of {self.summary()}"

    @abstractmethod
    def in_words(self) -> str:
        """Returns sentences that describe the charge in a privacy statement."""


def from_fields(kind: Callable[..., Result], values: Mapping[str, Any]) -> Result:
    """Returns an instance of a dataclass with the given field values.

    Raises:
        ValueError: if a field is missing, unknown or not valid.
    """
    expected = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if "unit" in expected and getattr(kind, "releases_feature_sums", False):
        values = {"unit": "record", **values}  # see `Charge.to_dict`
    if set(values) != expected:
        raise ValueError(f"{kind.__name__} needs fields {sorted(expected)}, got {sorted(values)}")
    return kind(**values)


def lacking(charge: Charge | type[Charge], expected: str, what: str) -> ValueError:
    """Returns a ValueError that explains why a charge does not support an operation.

    Args:
        charge: charge that does not support the operation, or its class.
        expected: name of the missing part, with an article, such as "a sampler".
        what: name of the operation, as in `Charge.lacks`.
    """
    reason = charge.lacks.get(what, f"it defines no {what}")
    return ValueError(f"{charge.name} does not have {expected}: {reason}")


# Composition of (epsilon, delta) guarantees, with each other and with moments.
#
# In the worst case, an (epsilon, delta)-private mechanism reveals everything with probability
# delta, and otherwise behaves like randomized response at epsilon (Kairouz, Oh and Viswanath 2015).
# The privacy loss of several such mechanisms has a discrete distribution, which is combined with
# the moments of all other charges (docs/proofs/approximate_dp.md, Theorems G4 and G5). All results
# are rounded up.


# Maximum number of distinct privacy losses. If there are more, groups of adjacent losses are
# replaced by their maximum.
MAX_LOSSES = 2**13

MAX_EPSILON = 2.0**30

# (epsilon, delta) of one mechanism. The guarantee covers every change of one teacher.
Guarantee = tuple[float, float]


def composed_epsilon(
    guarantees: Sequence[Guarantee],
    *,
    delta: float,
    alphas: FloatArray | None = None,
    mu: float = 0.0,
) -> float:
    """Returns the total epsilon at delta of (epsilon, delta) guarantees and all other charges.

    The mechanisms may be interleaved in any order, and each mechanism may depend on the outputs of
    all others. The guarantees and the total alphas must be fixed in advance. The result is rounded
    up. It never exceeds basic composition: the sum of the epsilons, plus the epsilon of the moments
    at the remaining delta.

    The result is infinite if the deltas of the guarantees add up to `delta` or more. There is one
    exception: if there are no moments and the deltas add up to exactly `delta`, the result is the
    sum of the epsilons.

    Args:
        guarantees: (epsilon, delta) of each mechanism without moments; may be empty.
        delta: total delta, in [0, 1).
        alphas: total costs of all other charges at `DEFAULT_MOMENTS`, each the maximum over both
            orders of two neighbors; None if there are no other charges. Moments with infinite or
            NaN alphas are ignored.
        mu: if the other charges are described by Gaussian differential privacy instead of `alphas`,
            the parameter mu; otherwise 0.
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
        if high > MAX_EPSILON:
            return basic
    low = 0.0 if high == 1.0 else high / 2.0
    if low == 0.0 and holds(0.0):
        return 0.0
    return min(least(holds, low, high, within=SAFETY_MARGIN) * (1.0 + SAFETY_MARGIN), basic)


def privacy_profile(
    guarantees: Sequence[Guarantee], alphas: FloatArray | None, mu: float = 0.0
) -> Callable[[float], float]:
    """Returns the function from epsilon to the total delta of guarantees and all other charges.

    Theorem G4 gives the distribution of the guarantees' privacy losses: the finite losses, their
    conditional probabilities, and the probability of an infinite loss. Theorem G5 combines this
    distribution with the moments of all other charges. If these charges have Gaussian differential
    privacy, the combination is exact (docs/proofs/theory.md, Proposition S5). If there are too many
    losses, groups of adjacent losses are replaced by their maximum, which can only increase delta.
    For the arguments, see `composed_epsilon`.
    """
    survived = fsum(log1p(-used) if used < 1.0 else -inf for _, used in guarantees)
    certain_loss = -expm1(survived)
    if certain_loss > 0.0:
        certain_loss = min(nextafter(certain_loss, inf) * (1.0 + SAFETY_MARGIN), 1.0)

    def merged(losses: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        possible = weights > 0.0
        losses = losses[possible]
        weights = weights[possible]
        if len(losses) <= MAX_LOSSES:
            return losses, weights
        lowest = float(losses.min())
        width = (float(losses.max()) - lowest) / (MAX_LOSSES - 1)
        if width == 0.0:
            return losses[:1], np.array([weights.sum()])
        places = np.floor((losses - lowest) / width).astype(np.int64)
        largest = np.full(MAX_LOSSES + 1, -np.inf)
        np.maximum.at(largest, places, losses)
        total = np.bincount(places, weights, MAX_LOSSES + 1).astype(np.float64)
        used = total > 0.0
        return largest[used], total[used]

    losses = np.zeros(1)
    weights = np.ones(1)
    for epsilon, number in sorted(Counter(epsilon for epsilon, _ in guarantees).items()):
        wins = np.arange(number + 1)
        new_losses: FloatArray = np.asarray(epsilon * (2.0 * wins - number), np.float64)
        # The binomial coefficient satisfies log C(n, k) = -log(n + 1) - log B(n - k + 1, k + 1).
        # For all numbers that can occur here, the rounding error is far below SAFETY_MARGIN.
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
            # e^(alpha - l epsilon) (l/(l+1))^l / (l+1) at the best moment (Balle et al. 2020). The
            # formula needs a nonnegative epsilon. For a negative epsilon, apply it to -epsilon and
            # convert the result.
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

# Maximum number of charges without moments. If there are more, only basic composition is used.
MAX_APPROXIMATE = 1024
CACHE_SIZE: Final = 1024  # number of cached results of each function


def total_alphas(
    charges: Charges, moments: FloatArray, *, num_teachers: int = 1, replaced: bool = False
) -> FloatArray:
    """Returns the total worst-case cost of all charges at each moment, [num_moments].

    Parts that are only (epsilon, delta) private (`Charge.approximate`) are not included. For the
    arguments `num_teachers` and `replaced`, see `several_teachers_alpha`.
    """
    total = np.zeros_like(moments)
    for charge, number in charges.items():
        if number:  # 0 times infinity would be NaN
            alphas = several_teachers_alpha(charge, moments, num_teachers, replaced=replaced)
            total += number * alphas
    return total


def remembered(compute: Callable[..., Result]) -> Callable[..., Result]:
    """Decorator that caches the results of a function of charges."""
    compute_once = functools.lru_cache(CACHE_SIZE)(
        lambda charges, *others, **named: compute(dict(charges), *others, **named)
    )
    return functools.wraps(compute)(
        lambda charges, *others, **named: compute_once(tuple(charges.items()), *others, **named)
    )


@remembered
def moments_epsilon(charges: Charges, delta: float) -> tuple[float, float | None]:
    """Returns the total epsilon from moments, and the best moment (None if no moment was used).

    Before the moments are converted, the deltas of the parts without moments are subtracted from
    `delta`. Epsilon is infinite if these deltas exceed `delta`. At delta 0, the result is
    `pure_epsilon`.

    Raises:
        ValueError: if delta is outside [0, 1), or if a part without moments has an epsilon that is
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
    """Returns the total epsilon at delta 0: the sum of all pure epsilons, correctly rounded.

    Pure epsilons add up (Dwork and Roth 2014, Corollary 3.15). The result is infinite if a charge
    has no pure epsilon.
    """
    total = Fraction(0)
    for charge, number in charges.items():
        if number:
            if charge.pure_epsilon is None or not charge.pure_epsilon < inf:
                return inf
            total += number * Fraction(charge.pure_epsilon)
    return float(total)


def check_pure(charge: Charge) -> None:
    """Raises ValueError if a charge has no guarantee at delta 0."""
    if charge.pure_epsilon is None:
        raise ValueError(
            f"delta must be above 0 for {charge.name}, which has no guarantee at delta 0. The "
            "mechanism laplace_noisy_max has one."
        )


@remembered
def smallest_epsilon(
    charges: Charges, delta: float, *, enough: float = 0.0
) -> tuple[float, float | None]:
    """Returns the smallest known total epsilon, and the moment that gives it (or None).

    The function also tries theorems that use no moments. If one of them gives the smallest epsilon,
    the moment is None. If all charges are equal, it tries their composition theorem
    (`composed_epsilon`). Otherwise, it tries `by_losses`. If some charges have a pure epsilon, it
    also tries to add all pure epsilons to the epsilon of all other charges (Proposition S5).

    Args:
        charges: charges, each with the number of times it was made.
        delta: total delta, in [0, 1).
        enough: if the epsilon from moments is at most this value, the other theorems are not
            tried, because they are slow for many queries.
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
    """Returns whether the total epsilon of charges at `delta` is within `epsilon_budget`."""
    return smallest_epsilon(charges, delta, enough=epsilon_budget)[0] <= epsilon_budget


def delta_of_chosen_kinds(charges: Charges, delta: float) -> float:
    """Returns the total delta if earlier answers influence the choice between different charges.

    If all charges are equal, this is `delta`. Otherwise, any moment may turn out to be the best
    one, so `delta` is multiplied by the number of moments. Another `delta` is added for the
    composition theorem of the first charge (docs/proofs/theory.md, Proposition S4 c).
    """
    kinds = sum(1 for number in charges.values() if number)
    return delta if kinds <= 1 else min(1.0, (len(DEFAULT_MOMENTS) + 1) * delta)


# Group privacy: the cost if several teachers change instead of one.
#
# The teacher of an owner is determined by a hash of the owner's name. So adding or removing all
# records of one owner changes one teacher. All other costs in this module assume such a change.
# Replacing an owner removes one owner and adds another, whose records usually belong to a different
# teacher. So two votes of each query may move. Similarly, k records of one person can belong to up
# to k teachers, and replacing all of them may move k votes of each query. The cost for k teachers
# follows from k steps between neighbors. This cost is more than k times the cost of one step,
# because the moments of a Gaussian grow with the square of k. For k = 2, labels have the following
# costs, for any counts and any moved votes: - Pure: each moved vote multiplies any probability by
# at most e^{2 gamma}. Two moved votes multiply it by at most e^{4 gamma}, so D* of 4 gamma bounds
# the moments. - Gaussian: the distance of the counts is largest if both votes move between the same
# two classes. The squared distance is then 8, and alpha = 8 l (l+1) / (2 sigma^2). - A part that is
# only (epsilon, delta): (2 epsilon, delta (1 + e^epsilon)) (docs/proofs/approximate_dp.md, Theorem
# G6). - Threshold test: two moved votes change the largest count by at most 2, so alpha = 4 l (l+1)
# / (2 sigma^2). In addition, group privacy applies to the whole release, however its epsilon was
# composed: if one step is (epsilon, delta), k steps are (k epsilon, (1 + e^epsilon + ... + e^((k-1)
# epsilon)) delta). The smallest of these costs is used (docs/proofs/theory.md, Proposition S2).


def moved_guarantee(guarantee: Guarantee, num_teachers: int) -> Guarantee:
    """Returns the (epsilon, delta) guarantee of a mechanism if several teachers change, rounded up.

    For k teachers, the guarantee is (k epsilon, delta (1 + e^epsilon + ... + e^((k-1) epsilon))),
    where delta is capped at 1 (docs/proofs/approximate_dp.md, Theorem G6).
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
    """Returns the worst-case cost of one charge if several teachers change, `[num_moments]`.

    The cost is derived from the attributes of the charge. It is infinite if the attributes do not
    determine it. The part `Charge.approximate` is not included, even if it covers the whole cost.
    For `replaced`, see `by_losses`.
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
    """Returns the squared shift of the means, divided by the variance, if teachers change."""
    steps = charge.replaced_steps if replaced else num_teachers
    return sum((steps / multiplier) ** 2 for multiplier in charge.noise_multipliers)


def _squared_distance_of_all(
    charges: Charges, num_teachers: int, *, replaced: bool
) -> float | None:
    """Returns `_squared_distance`, summed over all Gaussian charges.

    Returns None if a charge is neither Gaussian nor pure, and `Charge.approximate` does not cover
    its whole cost.
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
    """Returns the epsilon at delta from the distributions of all privacy losses.

    The result is infinite if these distributions are unknown. A part that is only (epsilon, delta)
    private is treated as randomized response that leaks everything with probability delta. The
    losses of these parts are combined with the moments of all other charges
    (docs/proofs/approximate_dp.md, Theorem G5). If all other charges are pure or Gaussian, pure
    parts are treated as randomized response, and all Gaussian parts are treated exactly, as one
    Gaussian (docs/proofs/theory.md, Proposition S5).

    Args:
        charges: maps each charge to how often it is made. There is at least one charge, and all are
            fixed in advance.
        delta: in [0, 1).
        num_teachers: number of teachers, records or owners that change.
        replaced: whether the two changed teachers result from the replacement of one owner.
    """
    if not delta or (len(charges) > 1 and any(charge.chosen_by_answers for charge in charges)):
        return inf
    num_lossy = sum(n for charge, n in charges.items() if charge.approximate is not None)
    num_pure = sum(n for charge, n in charges.items() if charge.pure_epsilon is not None)
    if num_lossy > MAX_APPROXIMATE:
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
    if squared is None or is_all_lossy or num_lossy + num_pure > MAX_APPROXIMATE:
        return epsilon
    pure = [
        moved_guarantee((charge.pure_epsilon, 0.0), num_teachers)
        for charge, number in charges.items()
        if charge.pure_epsilon is not None
        for _ in range(number)
    ]
    exact = composed_epsilon([*lossy, *pure], delta=delta, mu=sqrt(squared))
    # If a coordinate moves by s votes, the privacy loss of noise on the lattice exceeds the loss of
    # continuous noise by at most s / (LATTICE sigma^2), and s <= s^2. Releases of costs have a
    # different lattice, but they do not reach this line.
    return min(epsilon, exact + squared / LATTICE)


def several_teachers_epsilon(
    charges: Mapping[Charge, int], *, delta: float, num_teachers: int | None = None
) -> float:
    """Returns the smallest known epsilon at delta if several teachers change.

    By default, this is the cost if one owner is replaced. In contrast, `smallest_epsilon` returns
    the cost if one owner is added or removed.

    Args:
        charges: charges, each with the number of times it was made. The charges may have been
            chosen adaptively.
        delta: in [0, 1).
        num_teachers: number of teachers, records or owners that change, at least 2; None for the
            replacement of one owner.

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
    # For sums with Gaussian noise, the squared distance gives the smallest epsilon. Group privacy
    # can't improve it, so it is not tried.
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
        # The composition theorem needs equal epsilons, so the largest epsilon is assumed for all
        # charges.
        largest = number_changed * max(pure)
        epsilons.append(pure_composition_epsilon(largest, sum(charged.values()), delta))
    return min(epsilons)


def group_epsilon(
    one_teacher_epsilon: Callable[[float], float], delta: float, *, num_steps: int = 2
) -> float:
    """Returns the epsilon at delta for several steps between neighbors, by group privacy.

    P(S) <= e^a P'(S) + d <= e^a (e^a P''(S) + d) + d for every set of outcomes S. Therefore, if one
    step has epsilon a at delta d, k steps have epsilon k a at delta (1 + e^a + ... + e^((k-1) a))
    d. The inequality holds for every d, so the function searches for the best d.

    Args:
        one_teacher_epsilon: function from a delta to the epsilon of one step; infinite if it is
            unknown.
        delta: delta for all steps together, in [0, 1).
        num_steps: number k of steps, at least 2.

    Raises:
        ValueError: if delta is outside [0, 1).
    """
    checks.between(0, 1, ends="[)", delta=delta)
    if not delta:
        return num_steps * one_teacher_epsilon(0.0) * (1.0 + SAFETY_MARGIN)

    def epsilon_if_it_holds(depth: float) -> float:
        """Returns the epsilon for d = delta e^-depth; infinite if `delta` is too small."""
        epsilon = one_teacher_epsilon(float(np.exp(log(delta) - depth)))
        if epsilon == inf:
            return inf
        holds = (
            scipy.special.logsumexp(epsilon * np.arange(num_steps)) * (1.0 + SAFETY_MARGIN) <= depth
        )
        return epsilon if holds else inf

    low = 0.0
    high = 1.0
    deepest = log(delta) + 690.0  # so that exp(log(delta) - depth) does not underflow
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
