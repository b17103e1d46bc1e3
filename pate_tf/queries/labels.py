"""Noisy labels of public inputs, and the files that store them.

This module does not import TensorFlow.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.charge import Cost, ReleasedLabels, charge_from_dict
from pate_tf.core import artifacts, checks
from pate_tf.core.checks import IntArray, whole_numbers
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.data.named_function import OnFeatures

LABELS_FILE = "labels.npz"
COST_FILE = "labels.json"
PARTS = ("query_indices", "labels", "weights")  # stored fields of `PoolLabels`
NOISY = ("noisy_counts", "noisy_sums")  # stored fields of `ReleasedLabels`
OTHER_POOL = "labels belong to another pool. Pass the pool that they were released for."


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Labels(OnFeatures):
    """Public: noisy labels for some inputs of a public pool, and their privacy cost.

    >>> import pate_tf
    >>> stored = pate_tf.Labels.load(folder / "labels", data.pool)
    >>> inputs, noisy = stored.to_numpy()
    >>> len(inputs) == len(noisy) == len(stored)
    True

    Attributes:
        pool: public inputs.
        queries: positions of the queried inputs in the pool, int64 `[num_queries]`, in the order of
            the queries. If the mechanism has a threshold, some queries may have no label.
        released: the noisy labels whose privacy cost was charged.
        training_labels: labels that a student learns from: the released labels, or labels that
            were inferred from them without further queries.
        strategy: name of the strategy that chose the queries, see `pate_tf.queries.strategies`.
        choice: text that states how the mechanism, the noise and the number of queries were chosen;
            None if this is unknown.
        seal: message authentication code of `record`, computed with the key of the privacy ledger
            that was charged. It proves that stored labels are unchanged. None if there is no
            ledger.
        labeller: the `Labeller` with the charged ledger, for `Student.publish`; None if unknown.
        linear_head: linear model that maps raw inputs to logits, computed from feature sums and
            used by the student linear_head; None for labels from votes and for stored labels.
        representation: representation of the inputs in which teachers learned or feature sums were
            computed; for stored labels, its public name. None if teachers learned from raw inputs.
        forecast: expected accuracy of the labels; None if there is no forecast, and for stored
            labels.
        exceeds_noise: whether the noisy sums of different classes differ by more than the noise;
            see `label_inference.exceed_noise`; None for labels from votes, for several rounds
            without a pool, and for stored labels.
        has_public_labels: whether `training_labels` also depend on public labels of the pool.
    """

    pool: Pool
    queries: IntArray
    released: ReleasedLabels
    training_labels: PoolLabels
    strategy: str
    choice: str | None = None
    seal: str | None = None
    labeller: Any = None
    linear_head: Any = None
    forecast: Any = None
    exceeds_noise: bool | None = None
    has_public_labels: bool = False

    def __getstate__(self) -> dict[str, Any]:
        """Returns the state for pickling, without the labeller, whose votes are private."""
        left_out = ["labeller", "linear_head"] + ["representation"] * callable(self.representation)
        return {**vars(self), **dict.fromkeys(left_out)}

    def __len__(self) -> int:
        return len(self.released.labels)

    def __repr__(self) -> str:
        return f"Labels(<{len(self)} of {self.pool.dataset.name}, {self.cost.in_words()}>)"

    @property
    def query_indices(self) -> IntArray:
        """Positions of the labeled inputs in the pool, int64 `[num_labels]`."""
        return self.released.query_indices

    @property
    def labels(self) -> IntArray:
        """The noisy labels, int64 `[num_labels]`, in the order of `query_indices`."""
        return self.released.labels

    @property
    def weights(self) -> npt.NDArray[np.float32] | None:
        """Confidence in each class, float32 `[num_labels, num_classes]`; each row adds up to 1.

        Confidence is computed from the noisy counts of a `GaussianHistogram`; None for other
        mechanisms.
        """
        return self.released.weights

    @property
    def cost(self) -> Cost:
        """The worst-case privacy cost of these labels, including `epsilon`, `delta` and `unit`.

        See `Labeller.spent` for the total cost of all releases from the source.
        """
        return self.released.cost

    @functools.cached_property
    def inferred(self) -> PoolLabels:
        """Labels of further inputs, which were inferred from the noisy labels without queries."""
        labels = self.training_labels
        is_inferred = ~np.isin(labels.query_indices, self.released.query_indices)
        return PoolLabels(
            query_indices=labels.query_indices[is_inferred],
            labels=labels.labels[is_inferred],
            num_classes=labels.num_classes,
            weights=None if labels.weights is None else labels.weights[is_inferred],
        )

    def to_numpy(self, *, inferred: bool = False) -> tuple[npt.NDArray[Any], IntArray]:
        """Returns the labeled raw inputs `[num_labels, *input_shape]`, and their labels.

        Args:
            inferred: whether to return the labels that a `Student` learns from. With the strategies
                "diverse" and "medoids", these include inferred labels of inputs that were not
                queried.
        """
        labels = self.training_labels if inferred else self.released
        return self.pool.inputs[labels.query_indices], np.array(labels.labels)

    def check_pool(self, pool: Pool) -> None:
        """Raises ValueError if these labels belong to another pool."""
        digests = {artifacts.digest_array(each.inputs) for each in {self.pool, pool}}
        if len(digests) > 1:
            raise ValueError(OTHER_POOL)

    def record(self) -> dict[str, Any]:
        """Returns the JSON values that describe these labels and that `seal` authenticates."""
        released = self.released
        cost = released.cost
        arrays = self._arrays()
        before = [{"charge": charge.to_dict(), "number": number} for charge, number in cost.before]
        record = {
            "strategy": self.strategy,
            "pool_digest": artifacts.digest_array(self.pool.inputs),
            "choice": self.choice,
            "labels_digest": artifacts.digest_arrays(arrays[name] for name in sorted(arrays)),
            "num_classes": released.num_classes,
            "num_queries": released.num_queries,
            "cost": {**vars(cost), "charge": cost.charge.to_dict(), "before": before},
            "ledger_rows": list(released.ledger_rows),
            "secure_noise": released.secure_noise,
        }
        if self.has_public_labels:
            record["has_public_labels"] = True
        if self.representation is not None:
            from pate_tf.representations.pretrained import public_name

            record["representation"] = public_name(self.representation)
        return record

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes the labels and their cost to a folder, for `load`. The folder may be published.

        Raises:
            OSError: if the files can't be written.
        """
        path = pathlib.Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        # The second file contains the digest of the first file, so `load` detects if the process
        # ended between writing the two files.
        artifacts.write_arrays(path / LABELS_FILE, self._arrays())
        artifacts.write_json(path / COST_FILE, {**self.record(), "seal": self.seal})

    @classmethod
    def load(cls, folder: str | os.PathLike[str], pool: Pool, *, labeller: Any = None) -> Self:
        """Reads labels that `save` wrote to a folder.

        >>> import pate_tf
        >>> stored = pate_tf.Labels.load(folder / "labels", data.pool)
        >>> stored.cost.delta
        1e-05

        Args:
            folder: folder that `save` wrote.
            pool: the pool whose inputs were labeled.
            labeller: the `Labeller` whose ledger was charged for the labels; only needed to publish
                a student.

        Raises:
            ValueError: if the folder contains no labels, or if the labels are damaged or belong to
                another pool.
        """
        path = pathlib.Path(folder)
        try:
            arrays = artifacts.read_arrays(path / LABELS_FILE, is_exact=True)
            fields = artifacts.read_json(path / COST_FILE)
        except OSError as error:
            raise ValueError(f"labels: {path} contains no labels") from error
        try:
            cost = {**fields["cost"], "charge": charge_from_dict(fields["cost"]["charge"])}
            cost["before"] = tuple(
                (charge_from_dict(row["charge"]), int(row["number"])) for row in cost["before"]
            )
            for _, number in cost["before"]:
                checks.whole(1, number=number)
            known: dict[str, Any] = {
                name: arrays[name] for name in (*PARTS, *NOISY) if name in arrays
            }
            known |= {name: fields[name] for name in ("num_classes", "num_queries", "secure_noise")}
            released = ReleasedLabels(
                cost=Cost(**cost), ledger_rows=tuple(fields["ledger_rows"]), **known
            ).checked()
            training: PoolLabels = released
            learnt = {
                name: arrays[f"learnt_{name}"] for name in PARTS if f"learnt_{name}" in arrays
            }
            if learnt:
                training = PoolLabels(num_classes=released.num_classes, **learnt).checked()
            queries = whole_numbers(arrays["queries"], "queries")
            checks.shape([released.num_queries], queries=queries)
            labels = cls(
                pool=pool,
                queries=queries,
                released=released,
                training_labels=training,
                **{name: fields[name] for name in ("strategy", "choice", "seal")},
                representation=fields.get("representation"),
                has_public_labels=fields.get("has_public_labels", False),
                labeller=labeller,
            )
            record = labels.record()
            # The digest also covers arrays that earlier versions wrote, although this version does
            # not use them.
            stored = artifacts.digest_arrays(arrays[name] for name in sorted(arrays))
            is_whole = stored == fields["labels_digest"]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"labels: the files in {path} are damaged") from error
        if not is_whole:
            raise ValueError(f"labels: {path / LABELS_FILE} does not belong to {COST_FILE}")
        if record["pool_digest"] != fields["pool_digest"]:
            raise ValueError(OTHER_POOL)
        return labels

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        released = self.released
        training = self.training_labels
        arrays = {name: getattr(released, name) for name in (*PARTS, *NOISY)}
        arrays["queries"] = self.queries
        if training is not released:
            arrays |= {f"learnt_{name}": getattr(training, name) for name in PARTS}
        return {name: array for name, array in arrays.items() if array is not None}
