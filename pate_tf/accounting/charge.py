"""What can be charged, and what charges cost: `Charge` and `Cost`.

A mechanism is a charge that also draws (`pate_tf.accounting.mechanisms`); a plan to release the
data-dependent cost is another one (`pate_tf.accounting.charges`). Whatever composes costs, the
ledger first of all, asks a charge alone and never what kind it is.
"""

from __future__ import annotations

import dataclasses
import decimal
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, ClassVar, TypeVar, cast

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.conversions import FloatArray, pure_composition_epsilon
from pate_tf.core import validation
from pate_tf.core.public import PoolLabels
from pate_tf.core.validation import IntArray, frozen_view, whole_numbers

Kind = TypeVar("Kind")


class Charge(ABC):
    """Anything that can be charged: a frozen value that says what one of it costs.

    One costs a part with moments (`alphas`) and, of some, a part that is merely (epsilon, delta)
    differentially private (`approximate`). Both hold in the worst case over all data and neighbours
    and in both directions, also where it was chosen by looking at earlier outputs.

    Attributes:
        name: in records.
        answers: whether it is charged for answers to queries, rather than for something else.
        releases_counts: whether noisy counts leave with labels, with Gaussian noise of standard
            deviation `noise_scales["sigma"]`, in votes.
        charged_per_batch: whether a whole batch is charged once, instead of each of its queries.
        releases_feature_sums: whether it adds up what is known of records, and asks no teacher.
        counted: what one and several of them are called.
        labels_in_words: what its labels are called.
        lacks: what it can't do, and why, in words that end a sentence. Every member of a family
            has all that the family asks for, or says here why not; a test holds it to that.
    """

    name: ClassVar[str]
    answers: ClassVar[bool] = False
    charged_per_batch: ClassVar[bool] = False
    releases_counts: ClassVar[bool] = False
    releases_feature_sums: ClassVar[bool] = False
    counted: ClassVar[tuple[str, str]]
    labels_in_words: ClassVar[str] = "noisy labels"
    lacks: ClassVar[Mapping[str, str]] = {}

    @abstractmethod
    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns the largest cost of one, [num_moments], natural logarithm, whatever the data.

        l times the Renyi divergence of order l + 1; infinite where there is no finite one, zero for
        what `approximate` says all about.
        """

    @property
    def approximate(self) -> tuple[float, float] | None:
        """The (epsilon, delta) of the part that has no finite moments; None without one."""
        return None

    @property
    def pure_epsilon(self) -> float | None:
        """The epsilon at which one is differentially private with delta 0; None without one."""
        return None

    @property
    def bounded_range(self) -> float | None:
        """How far the log ratios of its outcomes span at most; None if nothing is known."""
        return None

    @property
    def noise_multipliers(self) -> tuple[float, ...]:
        """Of Gaussian mechanisms that cost no less than one of this together; none if empty.

        Each is a standard deviation over the sensitivity in Euclidean distance.
        """
        return ()

    @property
    def noise_scales(self) -> Mapping[str, float]:
        """Scales of the noise that it draws, in votes, by what they are called."""
        return {}

    def composed_epsilon(self, number: int, *, delta: float) -> float:
        """Returns epsilon of `number` of these alone, by another theorem than moments.

        Of a pure epsilon the optimal composition of pure mechanisms; else infinite.
        """
        if self.pure_epsilon is None:
            return inf
        return pure_composition_epsilon(self.pure_epsilon, number, delta)

    def number_charged(self, num_queries: int) -> int:
        """Returns how many are charged for a batch of num_queries new queries.

        One for a whole batch, or a release of feature sums, unless there are none; one for what
        answers no queries.
        """
        validation.whole(0, num_queries=num_queries)
        if not self.answers:
            return 1
        is_once = self.charged_per_batch or self.releases_feature_sums
        return min(num_queries, 1) if is_once else num_queries

    def to_dict(self) -> dict[str, object]:
        """Returns the JSON-able fields; see `pate_tf.accounting.charges.charge_from_dict`."""
        return {"name": self.name, **dataclasses.asdict(cast(Any, self))}

    def summary(self) -> str:
        """Returns name and parameters, such as `gaussian_noisy_max, sigma 40`."""
        parameters = dataclasses.asdict(cast(Any, self)).items()
        return ", ".join([self.name, *(f"{name} {value:g}" for name, value in parameters)])

    def several(self, number: int) -> str:
        """Returns so many of it in words, such as `20 queries of laplace_noisy_max, gamma 0.1`."""
        return f"{number:,} {self.counted[number != 1]} of {self.summary()}"

    @abstractmethod
    def in_words(self) -> str:
        """Returns what is done with the votes, in sentences for a privacy statement."""


def lacking(charge: Charge | type[Charge], expected: str, what: str) -> ValueError:
    """Returns the refusal of something that a charge can't do.

    Args:
        charge: the charge, or its class.
        expected: what was asked for, after "one with".
        what: the key of `lacks`.
    """
    reason = charge.lacks.get(what, f"it defines no {what}")
    return ValueError(f"expected one with {expected}, got {charge.name}: {reason}")


def from_fields(kind: Callable[..., Kind], values: Mapping[str, Any]) -> Kind:
    """Returns the value of a dataclass that has exactly the given fields.

    Raises:
        ValueError: if they are not exactly its fields, or not valid.
    """
    expected = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    if set(values) != expected:
        raise ValueError(
            f"{kind.__name__}: expected fields {sorted(expected)}, got {sorted(values)}"
        )
    return kind(**values)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cost:
    """What a charge costs, whatever the data. Publishable.

    >>> import pate_tf
    >>> mechanism = pate_tf.LaplaceNoisyMax(scale=20.0)
    >>> epsilon, _ = mechanism.data_independent_epsilon(num_queries=100, delta=1e-5)
    >>> print(pate_tf.Cost(charge=mechanism, number=100, epsilon=epsilon, delta=1e-5).in_words())
    epsilon 2.138 at delta 1e-05 for every record, whatever the data: 100 ...

    Attributes:
        charge: what was charged.
        number: how often.
        epsilon: of all of them together, at `delta`.
        delta: what epsilon holds at.
        unit: what is protected, "record" or "owner".
        before: other charges that `epsilon` counts too, and how often: batches of a mechanism that
            is charged once for a batch, which led to these.
    """

    charge: Charge
    number: int
    epsilon: float
    delta: float
    unit: str = "record"
    before: tuple[tuple[Charge, int], ...] = ()

    def in_words(self) -> str:
        """Returns the cost as one line; epsilon is rounded up."""
        earlier = ", ".join(charge.several(number) for charge, number in self.before)
        return (
            f"epsilon {rounded_up(self.epsilon)} at delta {self.delta:g} for every {self.unit}, "
            f"whatever the data: {self.charge.several(self.number)}"
            f"{', after ' if earlier else ''}{earlier}"
        )

    def to_dict(self) -> dict[str, object]:
        """Returns the JSON-able fields."""
        return {
            **vars(self),
            "charge": self.charge.to_dict(),
            "before": [
                {"charge": charge.to_dict(), "number": number} for charge, number in self.before
            ],
        }


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
            1 / LATTICE; None if labels were drawn.
    """

    num_queries: int
    cost: Cost
    ledger_rows: tuple[int, ...]
    secure_noise: bool
    noisy_counts: IntArray | None = dataclasses.field(default=None, repr=False)
    noisy_sums: IntArray | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        # They follow from the released counts; a caller can't give others.
        object.__setattr__(self, "weights", None)
        super().__post_init__()
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
            object.__setattr__(self, "noisy_counts", counts)
            object.__setattr__(self, "weights", frozen_view(shares(counts)))
        if self.noisy_sums is not None:
            sums = whole_numbers(self.noisy_sums, "noisy sums")
            if sums.ndim != 2 or sums.shape[1] != self.num_classes:
                raise ValueError(
                    f"released labels: expected noisy sums [num_features + 1, {self.num_classes}], "
                    f"got {list(sums.shape)}"
                )
            object.__setattr__(self, "noisy_sums", sums)

    @property
    def have_no_noise(self) -> bool:
        """Whether all are without noise: of a mechanism that releases a batch so, or not at all.

        Of several batches some may have had noise, where counts leave otherwise.
        """
        charge = self.cost.charge
        is_single = not charge.releases_counts or self.cost.number == 1
        has_noise = self.noisy_counts is not None or self.noisy_sums is not None
        return not has_noise and charge.charged_per_batch and is_single

    @property
    def num_answered(self) -> int:
        """How many of the queries got a label."""
        return len(self.labels)
