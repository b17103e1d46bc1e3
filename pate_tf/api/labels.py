"""Released labels, with the pool that they are of."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.accounting.charge import Cost
from pate_tf.accounting.released_labels import ReleasedLabels
from pate_tf.core.public import Pool
from pate_tf.core.validation import IntArray
from pate_tf.queries.queried import QueriedLabels
from pate_tf.statement.privacy_statement import to_html


@dataclasses.dataclass(frozen=True, repr=False)
class Labels:
    """Public: noisy labels of some of a pool, and what they cost.

    >>> import pate_tf
    >>> labels = pate_tf.load_labels(folder / "labels", data.pool)
    >>> inputs, given = labels.to_numpy()
    >>> len(inputs) == len(given) == len(labels)
    True

    Attributes:
      queried: labels, queries and cost, for `pate_tf.api`.
      pool: the public inputs that they are of.

    Raises:
      ValueError: if they are of another pool.
    """

    queried: QueriedLabels
    pool: Pool

    def __post_init__(self) -> None:
        self.queried.check_pool(self.pool)

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        return f"Labels(<{len(self)} of {self.pool.dataset.name}, {self.cost.in_words()}>)"

    @property
    def released(self) -> ReleasedLabels:
        """The labels that were charged."""
        return self.queried.released

    @property
    def query_indices(self) -> IntArray:
        """Positions in the pool of the queries that got a label, int64 `[num_labels]`."""
        return self.released.query_indices

    @property
    def labels(self) -> IntArray:
        """The noisy labels that were charged, int64 `[num_labels]`, as `query_indices`."""
        return self.released.labels

    @property
    def weights(self) -> npt.NDArray[np.float32] | None:
        """Confidence in each class, float32 `[num_labels, num_classes]`, rows with a sum of 1.

        Of a `GaussianHistogram`, whose noisy counts say so; None of other mechanisms.
        """
        return self.released.weights

    @property
    def cost(self) -> Cost:
        """What these labels cost, whatever the data: `epsilon`, `delta`, `unit`, `in_words()`.

        Of these labels alone; `Labeller.spent` counts everything released from the teachers.
        """
        return self.released.cost

    def to_numpy(self, *, inferred: bool = False) -> tuple[npt.NDArray[Any], IntArray]:
        """Returns the labelled inputs `[num_labels, *input_shape]`, raw, and their labels.

        Args:
          inferred: whether to give what a `Student` learns from: with some strategies ("diverse",
            "siamese") labels of other inputs of the pool follow from those that were charged.
        """
        given = self.queried.labels if inferred else self.released
        return self.pool.inputs[given.query_indices], np.array(given.labels)

    def as_dataset(
        self, *, batch_size: int | None = None, inferred: bool = False
    ) -> tf.data.Dataset:
        """Returns a `tf.data.Dataset` of (input, label), raw and in the order of asking.

        Args:
          batch_size: labels a batch; None for one at a time, for `shuffle` and `batch` to follow.
          inferred: as `to_numpy` takes it.

        Raises:
          ValueError: if the batch size is below 1.
        """
        dataset = tf.data.Dataset.from_tensor_slices(self.to_numpy(inferred=inferred))
        if batch_size is None:
            return dataset
        if batch_size < 1:
            raise ValueError(f"batch_size: expected at least 1, got {batch_size}")
        return dataset.batch(batch_size)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes labels and cost to a folder, which may be published; `load_labels` reads them.

        Raises:
          OSError: if they can't be written.
        """
        self.queried.save(pathlib.Path(folder))

    def _repr_html_(self) -> str:
        cost = self.cost
        return to_html(
            "Labels",
            [
                ("labels", f"{len(self):,} for {self.released.num_queries:,} queries"),
                ("chosen by", self.queried.strategy),
                ("cost", cost.in_words()),
                *([] if self.released.secure_noise else [("privacy", "NONE: noise from a seed")]),
            ],
        )


def load_labels(folder: str | os.PathLike[str], pool: Pool) -> Labels:
    """Reads labels that `Labels.save` wrote.

    Args:
      folder: where they lie.
      pool: the pool that they are of.

    Raises:
      ValueError: if there are none, they are broken, or of another pool.
    """
    path = pathlib.Path(folder)
    try:
        queried = QueriedLabels.load(path)
    except OSError as error:
        raise ValueError(f"labels: expected labels in {path}, got none") from error
    return Labels(queried, pool)
