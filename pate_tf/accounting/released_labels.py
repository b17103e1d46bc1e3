"""Labels that were paid for: all that ever leaves of the votes, and what it cost."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.charge import Cost
from pate_tf.core.public import PoolLabels
from pate_tf.core.validation import IntArray, frozen_view, whole_numbers


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
    """Public: noisy labels that were paid for, with their cost.

    Only the labeller makes them (`pate_tf.aggregation.labeller`).

    Attributes:
      query_indices: int64 `[num_answered]`, positions of the answered queries in the pool.
      labels: int64 `[num_answered]`, the noisy winners.
      num_classes: number of classes.
      num_queries: how many queries were asked; a mechanism with a threshold may answer fewer.
      cost: of these queries alone, data-independent, with the mechanism that was charged.
      ledger_rows: sequence numbers of the ledger rows that paid for them.
      secure_noise: False if the noise came from a seed; then nothing is private.
      weights: `shares` of the noisy counts; None without them.
      noisy_counts: what the mechanism released with the labels, int64 `[num_answered, num_classes]`
        in units of 1 / LATTICE votes; None if it releases labels alone.
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
        # Never anybody's own: they are what the counts that were paid for say.
        object.__setattr__(self, "weights", None)
        super().__post_init__()
        if len(self.labels) > self.num_queries:
            raise ValueError(
                f"released labels: expected at most {self.num_queries} answers, got "
                f"{len(self.labels)}"
            )
        if self.noisy_counts is not None:
            counts = whole_numbers(self.noisy_counts, "noisy counts")
            if counts.shape != (self.num_answered, self.num_classes):
                raise ValueError(
                    f"released labels: expected noisy counts [{self.num_answered}, "
                    f"{self.num_classes}], got {list(counts.shape)}"
                )
            object.__setattr__(self, "noisy_counts", frozen_view(counts))
            object.__setattr__(self, "weights", frozen_view(shares(counts)))
        if self.noisy_sums is not None:
            sums = whole_numbers(self.noisy_sums, "noisy sums")
            if sums.ndim != 2 or sums.shape[1] != self.num_classes:
                raise ValueError(
                    f"released labels: expected noisy sums [num_features + 1, {self.num_classes}], "
                    f"got {list(sums.shape)}"
                )
            object.__setattr__(self, "noisy_sums", frozen_view(sums))

    @property
    def have_no_noise(self) -> bool:
        """Whether all left as they are: of a mechanism that releases a batch so, or not at all.

        Of several batches some may have had noise, where counts leave otherwise.
        """
        charge = self.cost.charge
        is_sure = charge.gaussian_noise_on_counts is None or self.cost.number == 1
        has_noise = self.noisy_counts is not None or self.noisy_sums is not None
        return not has_noise and charge.is_paid_once and is_sure

    @property
    def num_answered(self) -> int:
        """How many of the queries got a label."""
        return len(self.labels)
