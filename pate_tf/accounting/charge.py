"""What released labels cost, and the labels: `Cost` and `ReleasedLabels`."""

from __future__ import annotations

import dataclasses
import decimal
from collections.abc import Callable, Mapping
from typing import Any, Self, TypeVar

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.composition import Charge
from pate_tf.core.public import PoolLabels
from pate_tf.core.validation import IntArray, frozen_view, whole_numbers

Kind = TypeVar("Kind")


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
    epsilon 2.138 at delta 1e-05 for every record, in the worst case: 100 ...

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
