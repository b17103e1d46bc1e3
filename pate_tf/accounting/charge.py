"""What released labels cost, and the labels; releases of their data-dependent cost.

And any charge, read back from a record.
"""

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
    """What a number of a charge costs together, whatever the data. Publishable.

    >>> import pate_tf
    >>> mechanism = pate_tf.LaplaceNoisyMax(scale=20.0)
    >>> epsilon, _ = mechanism.data_independent_epsilon(num_queries=100, delta=1e-5)
    >>> print(pate_tf.Cost(charge=mechanism, number=100, epsilon=epsilon, delta=1e-5).in_words())
    epsilon 2.138 at delta 1e-05 for every record, in the worst case: 100 ...

    Attributes:
        charge: what was charged.
        number: how often.
        before: other charges that `epsilon` counts too, and how often: batches of a mechanism that
            is charged once for a batch, which led to these.
    """

    charge: Charge
    number: int
    before: tuple[tuple[Charge, int], ...] = ()

    def __repr__(self) -> str:
        return f"Cost({self.in_words()})"

    def in_words(self) -> str:
        """Returns the cost as one line; epsilon is rounded up."""
        earlier = ", ".join(charge.several(number) for charge, number in self.before)
        return (
            f"epsilon {rounded_up(self.epsilon)} at delta {self.delta:g} for every {self.unit}, "
            f"in the worst case: {self.charge.several(self.number)}"
            f"{', after ' if earlier else ''}{earlier}"
        )


def rounded_up(value: float) -> str:
    """Returns four significant digits of a number, never less than it."""
    context = decimal.Context(prec=4, rounding=decimal.ROUND_CEILING)
    return f"{context.create_decimal_from_float(value):f}"


def shares(values: npt.NDArray[np.number]) -> npt.NDArray[np.float32]:
    """Returns estimated shares of the votes, each row with a sum of 1: a weight for each class.

    Negative entries count as 0 and each row is divided by its sum; where nothing is above 0 every
    class gets the same. It is post-processing, which costs nothing.

    Args:
        values: noisy counts, or means of them, `[num_labels, num_classes]`.
    """
    positive = np.maximum(values, 0).astype(np.float64)
    total = positive.sum(axis=1, keepdims=True)
    even = np.full_like(positive, 1.0 / max(values.shape[1], 1))
    return np.asarray(np.divide(positive, total, out=even, where=total > 0), np.float32)


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryCounts:
    """How many queries were asked and answered. Public.

    Attributes:
        num_queries: that were asked.
        num_answered: whose answer is a label; a mechanism with a threshold may withhold some.
    """

    num_queries: int
    num_answered: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleasedLabels(PoolLabels):
    """Public: noisy labels that were charged, with their cost.

    Only the labeller makes them (`pate_tf.release.votes`).

    Attributes:
        query_indices: int64 `[num_answered]`, positions of the answered queries in the pool.
        labels: int64 `[num_answered]`, the noisy winners.
        num_classes: number of classes.
        num_queries: how many queries were asked; a mechanism with a threshold may answer fewer.
        cost: of these queries alone, data-independent, with the mechanism that was charged.
        ledger_rows: sequence numbers of the ledger rows that charged them.
        secure_noise: False if the noise came from a seed; then nothing is private.
        weights: `shares` of the noisy counts; None without them.
        noisy_counts: what the mechanism released with the labels, int64 `[num_answered,
            num_classes]` in units of 1 / LATTICE votes; None if it releases labels alone.
        noisy_sums: what it released instead of labels, from which these were worked out: noisy sums
            of records' vectors by class, int64 `[num_features + 1, num_classes]` in units of
            1 / LATTICE, without a pool with more columns of second moments; None if labels were
            drawn.
    """

    num_queries: int
    cost: Cost
    ledger_rows: tuple[int, ...]
    secure_noise: bool
    noisy_counts: IntArray | None = dataclasses.field(default=None, repr=False)
    noisy_sums: IntArray | None = dataclasses.field(default=None, repr=False)

    def checked(self) -> Self:
        """See `PoolLabels.checked`; weights follow from the counts."""
        labels = dataclasses.replace(super().checked(), weights=None)
        if len(self.labels) > self.num_queries:
            raise ValueError(
                f"released labels: expected at most {self.num_queries} answers, got "
                f"{len(self.labels)}"
            )
        if self.noisy_counts is not None:
            counts = whole_numbers(self.noisy_counts, "noisy counts")
            if counts.shape != (len(self.labels), self.num_classes):
                raise ValueError(
                    f"released labels: expected noisy counts [{len(self.labels)}, "
                    f"{self.num_classes}], got {list(counts.shape)}"
                )
            weights = frozen_view(shares(counts))
            labels = dataclasses.replace(labels, noisy_counts=counts, weights=weights)
        if self.noisy_sums is not None:
            sums = whole_numbers(self.noisy_sums, "noisy sums")
            if sums.ndim != 2 or sums.shape[1] < self.num_classes:
                raise ValueError(
                    f"released labels: expected noisy sums of {self.num_classes} columns at least, "
                    f"got {list(sums.shape)}"
                )
            labels = dataclasses.replace(labels, noisy_sums=sums)
        return labels

    @property
    def num_answered(self) -> int:
        """How many of the queries got a label."""
        return len(self.labels)


# Releases of the data-dependent cost of labels.


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlannedRelease(Settings):
    """How the data-dependent cost of a ledger's labels will be released, if ever. Public.

    The ledger keeps it from when it is opened. With mechanism, number of labels, classes and
    teachers, all public, it decides the `CostRelease`.

    Attributes:
        release: "log_cost" (a sanitised epsilon) or "smooth_sensitivity".
        profile: vote margin, as a fraction of the teachers, in the hypothetical votes that the
            plan is made for.
        moment: of the plan; this and the following default to what planning finds best.
        smoothness: eta, or beta for "smooth_sensitivity".
        sigma: of the release's noise, in sensitivities.
        confidence: that the released epsilon is not too low.

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
    """Returns eta', the size of one integer step of ln Cbar: a little more than eta.

    The excess covers that the computed ln Cbar of neighbors may differ by eta and rounding errors.
    """
    return smoothness * (1.0 + 1e-6) + 1e-8


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
class CostRelease(Charge):
    """The public numbers of a release; part of the statement that is published with it.

    Attributes:
        release: "log_cost" (Theorem B2) or "smooth_sensitivity" (B1).
        bound: the cost of a query: "paper", "tight", "two_sided" or "class_aware".
        moment: l, the Renyi order less one.
        smoothness: eta of B2 (how much ln Cbar may change with one teacher), beta of B1.
        sigma: standard deviation of the noise, in sensitivities: steps of ln Cbar, or U.
        failure: tau, the probability that the published cost is below the true one.
        num_queries: number of labeled queries.
        profile: the hypothetical votes that the numbers were chosen for.

    Raises:
        ValueError: if a value is out of its range.
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
        """Of B1, b there: standard deviations added, so that the true cost is seldom undercut."""
        return -float(scipy.special.ndtri(self.failure))

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns what one draw costs at each moment, whatever the data: data-independent.

        B2 draws Y + discrete Gaussian of scale sigma, Y = ceil(ln Cbar / step) a whole number.
        Replacing one record changes one teacher's votes, ln Cbar by at most eta < step (Theorem
        B2), hence Y by at most 1, on all data sets and in both directions. Then the Renyi
        divergence at order l + 1 is at most (l + 1) / (2 sigma^2) (Proposition D4), and alpha is l
        times that. The sanitised epsilon, which is read from the draw, is post-processing. B1 costs
        what Theorem B1 says. Either adds to the alphas of the labels, also where the plan was made
        when they were known.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class SanitisedEpsilon(EpsilonDelta):
    """Publishable: a privately released data-dependent epsilon, of the labels and of itself.

    It holds for these votes, at `delta`.

    Attributes:
        confidence: probability that the release's own noise did not make `epsilon` too small.
        worst_case_epsilon: data-independent, of the labels and of the release together: once this
            is published, that of the labels alone no longer says it all.
        plan_was_fixed: whether its plan was fixed before there were votes, as the ledger shows.
    """

    confidence: float
    worst_case_epsilon: float
    plan_was_fixed: bool = False


# Any charge, from a record.


def charge_from_dict(fields: Mapping[str, Any]) -> Charge:
    """Returns the charge that `Charge.to_dict` described.

    Raises:
        ValueError: if the fields are those of no charge.
    """
    kinds: dict[str, type[Charge]] = {**base.MECHANISMS, **RETIRED, CostRelease.name: CostRelease}
    values = dict(fields)
    name = values.pop("name", None) or values.pop("training", None)
    if name is None and "release" in values and values.pop("budget", None) is None:
        name = CostRelease.name  # of ledgers where releases and trainings had no `name`
    if name not in kinds:  # of several holders, whom few ledgers name
        from pate_tf.accounting.local import SILO_CHARGES
        from pate_tf.accounting.noisy_training import NoisyTraining

        kinds |= {**SILO_CHARGES, NoisyTraining.name: NoisyTraining}
    if name not in kinds:
        raise ValueError(f"expected a charge of {sorted(kinds)}, got {name!r}")
    return from_fields(kinds[name], values)


@functools.cache
def check_recordable(charge: Charge) -> None:
    """Raises ValueError unless a charge's record gives it back: else nobody could read a ledger."""
    if charge_from_dict(charge.to_dict()) != charge:
        raise ValueError(f"expected one whose record gives it back, got {charge.name}")


def profile_counts(num_teachers: int, num_classes: int, profile: float) -> IntArray:
    """Returns the sorted counts of the profile, int64 [1, num_classes].

    The first class leads the others by the fraction `profile` of the teachers; what is left is
    spread evenly over all classes.

    Args:
        num_teachers: at least 1.
        num_classes: at least 1.
        profile: in (0, 1].

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
