"""Types for released labels and their cost, and for the release of a data-dependent cost."""

from __future__ import annotations

import dataclasses
import decimal
import functools
from collections.abc import Mapping
from math import ceil, expm1, inf
from typing import Any, ClassVar, Final, Self, TypeVar

import numpy as np
import numpy.typing as npt
import scipy

from pate_tf.accounting.composition import Charge, from_fields
from pate_tf.accounting.conversions import FloatArray
from pate_tf.accounting.mechanisms import base
from pate_tf.accounting.mechanisms.base import Mechanism
from pate_tf.accounting.mechanisms.retired import RETIRED
from pate_tf.accounting.moments import check_bound
from pate_tf.core import checks
from pate_tf.core.checks import IntArray, frozen_view, whole, whole_numbers
from pate_tf.core.public import PoolLabels
from pate_tf.core.settings import EpsilonDelta, ProtectedUnit, Settings, setting

DEFAULT_PROFILE: Final = 0.8
RELEASES: Final = ("log_cost", "smooth_sensitivity")
BOUNDS: Final = ("paper", "tight", "two_sided", "class_aware")
SMOOTH_BOUNDS: Final = ("paper", "tight", "two_sided")

Smoothness = TypeVar("Smoothness", float, FloatArray)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost(EpsilonDelta, ProtectedUnit):
    """Public: the total worst-case privacy cost of `number` identical charges.

    >>> import pate_tf
    >>> mechanism = pate_tf.LaplaceNoisyMax(scale=20.0)
    >>> epsilon, _ = mechanism.data_independent_epsilon(num_queries=100, delta=1e-5)
    >>> print(pate_tf.Cost(charge=mechanism, number=100, epsilon=epsilon, delta=1e-5).in_words())
    epsilon 2.138 at delta 1e-05 for every record, in the worst case: 100 ...

    Attributes:
        charge: the mechanism or other charge that was charged.
        number: how often `charge` was charged.
        before: earlier charges that `epsilon` also covers, with their numbers. These charges come
            from earlier batches of a mechanism that is charged once per batch.
    """

    charge: Charge
    number: int
    before: tuple[tuple[Charge, int], ...] = ()

    def __repr__(self) -> str:
        return f"Cost({self.in_words()})"

    def in_words(self) -> str:
        """Returns a description of the cost in one line, with epsilon rounded up."""
        earlier = ", ".join(charge.several(number) for charge, number in self.before)
        return (
            f"epsilon {rounded_up(self.epsilon)} at delta {self.delta:g} for every {self.unit}, "
            f"in the worst case: {self.charge.several(self.number)}"
            f"{', after ' if earlier else ''}{earlier}"
        )


def rounded_up(value: float) -> str:
    """Formats a number with four significant digits, rounded up."""
    context = decimal.Context(prec=4, rounding=decimal.ROUND_CEILING)
    return f"{context.create_decimal_from_float(value):f}"


def shares(values: npt.NDArray[np.number]) -> npt.NDArray[np.float32]:
    """Returns the estimated fraction of the votes for each class; each row sums to 1.

    Negative entries are treated as 0, and each row is divided by its sum. If a row has no positive
    entry, all classes get the same fraction. This post-processing costs no privacy.

    Args:
        values: noisy counts, or means of noisy counts, `[num_labels, num_classes]`.
    """
    positive = np.maximum(values, 0).astype(np.float64)
    total = positive.sum(axis=1, keepdims=True)
    even = np.full_like(positive, 1.0 / max(values.shape[1], 1))
    return np.asarray(np.divide(positive, total, out=even, where=total > 0), np.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryCounts:
    """Public: the number of queries, and the number of answered queries.

    Attributes:
        num_queries: number of queries.
        num_answered: number of queries that got a label. A mechanism with a threshold can withhold
            labels.
    """

    num_queries: int
    num_answered: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleasedLabels(PoolLabels):
    """Public: released noisy labels, with their cost.

    Only `pate_tf.Labeller` creates objects of this class.

    Attributes:
        query_indices: int64 `[num_answered]`, positions of the answered queries in the pool.
        labels: int64 `[num_answered]`, the noisy winners.
        num_classes: number of classes.
        num_queries: number of queries. A mechanism with a threshold may answer fewer queries.
        cost: worst-case cost of these queries, without earlier queries. `cost` also contains the
            mechanism.
        ledger_rows: sequence numbers of the ledger rows that record the charges of these queries.
        secure_noise: False if the noise was drawn with a seed, as in tests. The labels are then not
            private.
        weights: `shares` of the noisy counts; None if there are no noisy counts.
        noisy_counts: noisy counts released with the labels, int64 `[num_answered, num_classes]` in
            units of 1 / LATTICE votes; None if only labels were released.
        noisy_sums: the released noisy feature sums from which the labels were computed: for each
            class, the sum of the vectors of its records, int64 `[num_features + 1, num_classes]` in
            units of 1 / LATTICE. If there is no public pool, further columns contain second
            moments. None if the labels were drawn from votes.
    """

    num_queries: int
    cost: Cost
    ledger_rows: tuple[int, ...]
    secure_noise: bool
    noisy_counts: IntArray | None = dataclasses.field(default=None, repr=False)
    noisy_sums: IntArray | None = dataclasses.field(default=None, repr=False)

    def checked(self) -> Self:
        """Returns validated labels (see `PoolLabels.checked`), weighted by noisy counts."""
        labels = dataclasses.replace(super().checked(), weights=None)
        if len(self.labels) > self.num_queries:
            raise ValueError(
                f"a query gets at most one label, got {len(self.labels)} for {self.num_queries}"
            )
        if self.noisy_counts is not None:
            counts = whole_numbers(self.noisy_counts, "noisy counts")
            checks.shape([len(self.labels), self.num_classes], noisy_counts=counts)
            weights = frozen_view(shares(counts))
            labels = dataclasses.replace(labels, noisy_counts=counts, weights=weights)
        if self.noisy_sums is not None:
            sums = whole_numbers(self.noisy_sums, "noisy sums")
            if sums.ndim != 2 or sums.shape[1] < self.num_classes:
                raise ValueError(
                    f"noisy sums need {self.num_classes} columns or more, got {list(sums.shape)}"
                )
            labels = dataclasses.replace(labels, noisy_sums=sums)
        return labels

    @property
    def num_answered(self) -> int:
        """Number of queries that got a label."""
        return len(self.labels)


# Release of a data-dependent cost. Such a cost depends on the private votes, so it needs noise.


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedRelease(Settings):
    """Public: a plan for the later release of the data-dependent cost of a ledger's labels.

    The plan is fixed when the ledger is opened. Together with the mechanism and the numbers of
    labels, classes and teachers, which are all public, the plan determines the `CostRelease`.

    Attributes:
        release: "log_cost" (noise on the logarithm of the cost) or "smooth_sensitivity".
        profile: vote margin that the plan assumes for every query, as a fraction of the teachers.
        moment: moment at which the cost is released. Default: the best value for the assumed votes.
        smoothness: eta of Theorem B2, or beta of Theorem B1 for "smooth_sensitivity". Default: the
            best value for the assumed votes.
        sigma: standard deviation of the noise, as a multiple of the sensitivity. Default: the best
            value for the assumed votes.
        confidence: probability that the noise does not make the released epsilon too small.
            Default: 0.99.

    Raises:
        ValueError: if a value is out of range.
    """

    release: str = setting("log_cost", choices=RELEASES, help="")
    profile: float = setting(DEFAULT_PROFILE, above=0.0, most=1.0, help="")
    moment: float | None = setting(None, above=0.0, help="")
    smoothness: float | None = setting(None, above=0.0, help="")
    sigma: float | None = setting(None, above=0.0, help="")
    confidence: float | None = setting(None, above=0.5, below=1.0, help="")


def integer_step(smoothness: Smoothness) -> Smoothness:
    """Returns eta', the step size in which ln Cbar is released. It is slightly larger than eta.

    Rounding errors can make the computed values of ln Cbar of two neighbors differ by slightly more
    than eta. The difference between eta' and eta covers these errors.
    """
    return smoothness * (1.0 + 1e-6) + 1e-8


def steps_above(sigma: float, failure: float) -> int:
    """Returns the smallest s with Pr[discrete Gaussian of scale sigma > s] <= failure.

    The function adds up the probabilities of the discrete Gaussian and rounds them up. The result
    is about one step smaller than ceil(b sigma), the bound for the continuous Gaussian.
    """
    steps = np.arange(ceil(39.0 * sigma) + 2, dtype=np.float64)
    weights = np.exp(-0.5 * (steps / sigma) ** 2)
    above = np.cumsum(weights[:0:-1])[::-1]
    allowed = failure * (weights[0] + 2.0 * above[0]) * (1.0 - 1e-9)
    return int(np.argmax(above <= allowed)) if above[-1] <= allowed else len(above)


def gaussian_smooth_sensitivity_rdp(
    order: float, *, beta: float, sigma: float, b: float = 0.0
) -> float:
    """Returns a bound on the Renyi divergence of R + sigma U (Z + b) between two neighbors.

    Z is a standard normal variable, and `order` is the order of the divergence. U must be a smooth
    bound on the local sensitivity of R: between neighbors, U changes by a factor of at most e^beta.
    The bound is Theorem B1 of docs/proofs/theory.md, which is exact for b = 0. The result is
    infinite if (order - 1)(e^{2 beta} - 1) >= 1, because the theorem does not apply then.

    Raises:
        ValueError: unless order > 1, beta > 0, sigma > 0 and b >= 0.
    """
    checks.between(1, inf, order=order)
    checks.between(0, inf, ends="(]", beta=beta, sigma=sigma)
    checks.between(0, inf, ends="[]", b=b)
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
    """Checks that Theorem A applies to a mechanism's bound; returns its pure epsilon, 2 gamma.

    The theorem requires that the cost is convex in ln q until it becomes constant (Lemma 3), and
    that q(n') <= E q(n) for neighbors n and n' (Lemma 1).

    Raises:
        ValueError: if the bound is `class_aware`, for which no smooth sensitivity is known; if the
            mechanism is Gaussian, because one vote can multiply its q by more than E; or if the
            mechanism does not have the bound.
    """
    if mechanism.pure_epsilon is None or bound not in SMOOTH_BOUNDS:
        raise ValueError(
            "smooth sensitivity needs a mechanism with the parameter gamma and one of the bounds "
            f"{list(SMOOTH_BOUNDS)}, got {mechanism.name} and {bound!r}"
        )
    check_bound(bound, mechanism)
    return mechanism.pure_epsilon


@dataclasses.dataclass(frozen=True, kw_only=True)
class CostRelease(Charge):
    """Public: the parameters of the release of a data-dependent cost, published in the statement.

    Attributes:
        release: "log_cost" (Theorem B2) or "smooth_sensitivity" (Theorem B1).
        bound: bound on the cost of a query: "paper", "tight", "two_sided" or "class_aware".
        moment: l, the Renyi order minus one.
        smoothness: eta of Theorem B2 (the maximum change of ln Cbar if one teacher changes), or
            beta of Theorem B1.
        sigma: standard deviation of the noise, as a multiple of the sensitivity. The sensitivity is
            one step of ln Cbar (Theorem B2), or U (Theorem B1).
        failure: tau, the probability that the published cost is below the true cost.
        num_queries: number of labeled queries.
        profile: description of the assumed votes. The parameters were optimized for these votes.

    Raises:
        ValueError: if a value is out of range.
    """

    release: str
    bound: str
    moment: float
    smoothness: float
    sigma: float
    failure: float
    num_queries: int
    profile: str = "set by hand"
    name: ClassVar[str] = "release"
    counted: ClassVar[tuple[str, str]] = ("release", "releases")

    def __post_init__(self) -> None:
        checks.one_of(RELEASES, release=self.release)
        checks.one_of(BOUNDS, bound=self.bound)
        checks.positive(moment=self.moment, smoothness=self.smoothness)
        checks.between(1e-3, 1e4, ends="[]", sigma=self.sigma)
        checks.between(0, 0.5, failure=self.failure)
        checks.whole(1, num_queries=self.num_queries)

    @property
    def step(self) -> float:
        """Size of one integer step of ln Cbar, see `integer_step`."""
        return integer_step(self.smoothness)

    @property
    def shift(self) -> float:
        """The b of Theorem B1: the upward shift of the result, in standard deviations."""
        return -float(scipy.special.ndtri(self.failure))

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns the data-independent cost of one draw at each moment, [num_moments].

        For Theorem B2, a discrete Gaussian of scale sigma is added to the integer Y = ceil(ln Cbar
        / step). Replacing one record changes the votes of one teacher. Such a change moves ln Cbar
        by at most eta < step, and therefore Y by at most 1, for every pair of neighboring data
        sets. The Renyi divergence of order l + 1 is then at most (l + 1) / (2 sigma^2) (Proposition
        D4), and alpha is l times this divergence. The published epsilon is computed from the draw,
        so it is post-processing. For smooth sensitivity, Theorem B1 gives the cost. In both cases,
        the cost is added to the alphas of the labels. This is valid even if the plan was made when
        the labels were known.
        """
        if self.release == "smooth_sensitivity":
            rdp = functools.partial(
                gaussian_smooth_sensitivity_rdp,
                beta=self.smoothness,
                sigma=self.sigma,
                b=self.shift,
            )
            return np.array([moment * rdp(float(moment) + 1.0) for moment in moments])
        return moments * (moments + 1.0) / (2.0 * self.sigma**2)

    @property
    def noise_multipliers(self) -> tuple[float, ...]:
        """Noise multiplier of the noisy log cost (sensitivity 1); () for smooth sensitivity."""
        return () if self.release == "smooth_sensitivity" else (self.sigma,)

    def summary(self) -> str:
        """Returns a short description of the release with the scale of its noise."""
        return f"the data-dependent cost ({self.release}, sigma {self.sigma:.4g})"

    def in_words(self) -> str:
        """Returns a description of the published number for a privacy statement."""
        return (
            "The published number shows the privacy cost of all labels for these votes, with "
            f"random noise of standard deviation {self.sigma:.4g} times the largest effect of one "
            "record."
        )

    @property
    def cost_floor(self) -> float:
        """The public constant c_0 of Theorem B2, which keeps ln Cbar finite if a cost is 0."""
        return 1e-9 * self.num_queries

    def check_mechanism(self, mechanism: Mechanism) -> None:
        """Checks that these parameters allow the release of a mechanism's cost.

        Raises:
            ValueError: if the mechanism does not have the bound, or if the release uses smooth
                sensitivity and Theorem A does not hold for the mechanism. The mechanism
                `ConfidentGaussianNoisyMax` is refused, too: the votes determine which queries
                it answers, and the theorems need queries that were chosen in advance.
        """
        if mechanism.withholds or not mechanism.bounds:
            raise ValueError(
                f"{mechanism.name} has no data-dependent cost to release, because it has no noise "
                "or does not answer every query. Use its worst-case epsilon."
            )
        check_bound(self.bound, mechanism)
        if self.release == "smooth_sensitivity":
            check_smooth_sensitivity(self.bound, mechanism)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SanitisedEpsilon(EpsilonDelta):
    """Public: a data-dependent epsilon that was released with noise.

    The epsilon covers the labels and this release together. It is valid at `delta`, for the votes
    of this run.

    Attributes:
        confidence: probability that the noise did not make `epsilon` too small.
        worst_case_epsilon: worst-case epsilon of the labels and this release together. After the
            release, the epsilon of the labels is no longer the whole cost.
        plan_was_fixed: whether the ledger proves that the plan was fixed before teachers voted.
    """

    confidence: float
    worst_case_epsilon: float
    plan_was_fixed: bool = False


# Rebuilds charges from stored fields.


def charge_from_dict(fields: Mapping[str, Any]) -> Charge:
    """Rebuilds a charge from the result of `Charge.to_dict`.

    Raises:
        ValueError: if the fields don't describe a charge.
    """
    kinds: dict[str, type[Charge]] = {**base.MECHANISMS, **RETIRED, CostRelease.name: CostRelease}
    values = dict(fields)
    name = values.pop("name", None) or values.pop("training", None)
    if name is None and "release" in values and values.pop("budget", None) is None:
        name = CostRelease.name  # old ledgers contain these two charges without a `name`
    if name not in kinds:  # imported only if needed, because few ledgers contain these charges
        from pate_tf.accounting.local import SILO_CHARGES
        from pate_tf.accounting.noisy_training import NoisyTraining

        kinds |= {**SILO_CHARGES, NoisyTraining.name: NoisyTraining}
    if name not in kinds:
        raise ValueError(f"unknown charge {name!r}; known charges: {sorted(kinds)}")
    return from_fields(kinds[name], values)


@functools.cache
def check_recordable(charge: Charge) -> None:
    """Raises ValueError if a charge can't be rebuilt from its fields, as ledgers require."""
    if charge_from_dict(charge.to_dict()) != charge:
        raise ValueError(f"{charge.name} can't be rebuilt from its fields")


def profile_counts(num_teachers: int, num_classes: int, profile: float) -> IntArray:
    """Returns assumed counts for one query, in descending order, int64 [1, num_classes].

    The first class gets the fraction `profile` of the votes. All other votes are distributed evenly
    among all classes, including the first.

    Args:
        num_teachers: number of teachers, at least 1.
        num_classes: number of classes, at least 1.
        profile: vote margin of the first class as a fraction of the teachers, in (0, 1].

    Raises:
        ValueError: if a number is below 1.
    """
    whole(num_teachers=num_teachers, num_classes=num_classes)
    margin = round(profile * num_teachers) if num_classes > 1 else num_teachers
    each, left = divmod(num_teachers - margin, num_classes)
    counts = np.full((1, num_classes), each, np.int64)
    counts[0, 0] += margin
    counts[0, 1 : 1 + left] += 1
    return -np.sort(-counts, axis=1)
