"""Released labels with the pool that they are of: made once, learnt from, stored and read back."""

from __future__ import annotations

import dataclasses
import functools
import os
import pathlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.charge import Cost, ReleasedLabels
from pate_tf.accounting.charges import charge_from_dict, charges_from_list
from pate_tf.core import artifacts, validation
from pate_tf.core.public import Pool, PoolLabels, to_html
from pate_tf.core.validation import IntArray, frozen_view, whole_numbers

if TYPE_CHECKING:
    import tensorflow as tf

LABELS_FILE, COST_FILE = "labels.npz", "labels.json"
OTHER_POOL = (
    "labels: expected labels of this pool, got those of another: positions in the pool would name "
    "other inputs"
)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Labels:
    """Public: noisy labels of some of a pool, and what they cost.

    >>> import pate_tf
    >>> stored = pate_tf.load_labels(folder / "labels", data.pool)
    >>> inputs, given = stored.to_numpy()
    >>> len(inputs) == len(given) == len(stored)
    True

    Attributes:
        pool: the public inputs that they are of.
        queries: int64 `[num_queries]`, positions in the pool in the order of asking; a mechanism
            with a threshold may have answered fewer.
        released: what was released, of all rounds.
        training_labels: what a student learns from: the released labels, or what follows from them
            without a query.
        strategy: how the queries were chosen, by its name in `pate_tf.queries.strategies`.
        neighbours: int64 `[num_queries, num_neighbours]`, what each query was asked together with
            (`queries/propagation.py`); None where each was asked alone.
        certainty: of labels that follow from feature sums, the mean probability that the class
            named is the likeliest one, as far as noise alone can tell; None of other labels, and
            where clusters were named.
        choice: how mechanism, noise and number of queries were chosen, in sentences; None if
            unknown.
        seal: of `record`, by the ledger that was charged, so that stored labels can be verified;
            None without a ledger.
        labeller: whose ledger was charged, for `pate_tf.publish`; None if unknown.
        network: a Keras model that learnt from the same released numbers and the pool, on the way
            to `training_labels`; a student of its architecture goes on from it. None if there was
            none, and of stored labels.
        linear_head: a model from raw inputs to logits with the weights that follow from feature
            sums, for the student of this name; None of other labels, and of stored ones.
        network_is_better: whether features of `network` make sums clearly likelier than those that
            the sums are of.
        sums: the noisy sums, by which models are compared; None of other labels, and of stored
            ones.

    Raises:
        ValueError: if queries or neighbours have another shape.
    """

    pool: Pool
    queries: IntArray
    released: ReleasedLabels
    training_labels: PoolLabels
    strategy: str
    neighbours: IntArray | None = None
    certainty: float | None = None
    choice: str | None = None
    seal: str | None = None
    labeller: Any = None
    network: Any = None
    linear_head: Any = None
    network_is_better: bool = False
    sums: Any = None

    @property
    def prefers_linear_head(self) -> bool:
        """Whether several rounds were released, no clusters are classes and no network better."""
        rounds = getattr(self.released.cost.charge, "num_rounds", 1)
        names_no_clusters = self.certainty is not None and not self.network_is_better
        return self.linear_head is not None and rounds > 1 and names_no_clusters

    def __getstate__(self) -> dict[str, Any]:
        """Returns what a pickle holds: no labeller, as its votes are private, and no models."""
        left_out = ("labeller", "network", "linear_head", "sums")
        return {**vars(self), **dict.fromkeys(left_out)}

    def __post_init__(self) -> None:
        number = self.released.num_queries
        for name, axes in (("queries", [number]), ("neighbours", [number, None])):
            if (values := getattr(self, name)) is not None:
                checked = whole_numbers(values, name)
                validation.shape(axes, **{name: checked})
                object.__setattr__(self, name, frozen_view(checked))

    def __len__(self) -> int:
        return len(self.released.labels)

    def __repr__(self) -> str:
        return f"Labels(<{len(self)} of {self.pool.dataset.name}, {self.cost.in_words()}>)"

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

    @property
    def num_neighbours(self) -> int:
        """How many neighbours each query was asked together with."""
        return 0 if self.neighbours is None else self.neighbours.shape[1]

    @property
    def inferred(self) -> PoolLabels:
        """The labels of inputs that were not asked about."""
        labels = self.training_labels
        is_inferred = ~np.isin(labels.query_indices, self.released.query_indices)
        return PoolLabels(
            query_indices=labels.query_indices[is_inferred],
            labels=labels.labels[is_inferred],
            num_classes=labels.num_classes,
            weights=None if labels.weights is None else labels.weights[is_inferred],
        )

    @property
    def num_inferred(self) -> int:
        """How many inputs have a label that were not asked about."""
        return len(self.inferred.labels)

    def to_numpy(self, *, inferred: bool = False) -> tuple[npt.NDArray[Any], IntArray]:
        """Returns the labelled inputs `[num_labels, *input_shape]`, raw, and their labels.

        Args:
            inferred: whether to give what a `Student` learns from: with some strategies ("diverse",
                "siamese") labels of other inputs of the pool follow from those that were charged.
        """
        labels = self.training_labels if inferred else self.released
        return self.pool.inputs[labels.query_indices], np.array(labels.labels)

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
        import tensorflow as tf

        if batch_size is not None:
            validation.whole(batch_size=batch_size)
        dataset = tf.data.Dataset.from_tensor_slices(self.to_numpy(inferred=inferred))
        return dataset if batch_size is None else dataset.batch(batch_size)

    def check_pool(self, pool: Pool) -> None:
        """Raises ValueError if these are labels of another pool."""
        if pool is not self.pool and artifacts.digest_array(pool.inputs) != self.pool_digest:
            raise ValueError(OTHER_POOL)

    @functools.cached_property
    def pool_digest(self) -> str:
        """`artifacts.digest_array` of the pool's inputs, which the positions belong to."""
        return artifacts.digest_array(self.pool.inputs)

    def record(self) -> dict[str, Any]:
        """Returns all that is known of these labels, as JSON values: what `seal` is of."""
        released = self.released
        return {
            "strategy": self.strategy,
            "pool_digest": self.pool_digest,
            "choice": self.choice,
            "labels_digest": _digest(self._arrays()),
            "num_classes": released.num_classes,
            "num_queries": released.num_queries,
            "cost": released.cost.to_dict(),
            "ledger_rows": list(released.ledger_rows),
            "secure_noise": released.secure_noise,
            **({} if self.certainty is None else {"certainty": self.certainty}),
        }

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes labels and cost to a folder, which may be published; `load_labels` reads them.

        Raises:
            OSError: if they can't be written.
        """
        path = pathlib.Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        # The digest goes with the second file: a crash between both is seen when they are read.
        artifacts.write_arrays(path / LABELS_FILE, self._arrays())
        artifacts.write_json(path / COST_FILE, {**self.record(), "seal": self.seal})

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        released, learnt = self.released, self.training_labels
        arrays = {
            "queries": self.queries,
            "neighbours": self.neighbours,
            "noisy_counts": released.noisy_counts,
            "noisy_sums": released.noisy_sums,
            **_arrays(released),
        }
        if learnt is not released:
            arrays |= {f"learnt_{name}": array for name, array in _arrays(learnt).items()}
        return {name: array for name, array in arrays.items() if array is not None}

    def _repr_html_(self) -> str:
        return to_html(
            "Labels",
            [
                ("labels", f"{len(self):,} for {self.released.num_queries:,} queries"),
                ("chosen by", self.strategy),
                ("cost", self.cost.in_words()),
                *([] if self.released.secure_noise else [("privacy", "NONE: noise from a seed")]),
            ],
        )


def load_labels(folder: str | os.PathLike[str], pool: Pool, *, labeller: Any = None) -> Labels:
    """Reads labels that `Labels.save` wrote.

    >>> import pate_tf
    >>> stored = pate_tf.load_labels(folder / "labels", data.pool)
    >>> stored.cost.delta
    1e-05

    Args:
        folder: where they lie.
        pool: the pool that they are of.
        labeller: whose ledger was charged for them, if a student of them is to be published.

    Raises:
        ValueError: if there are none, they are broken, or of another pool.
    """
    path = pathlib.Path(folder)
    try:
        arrays = artifacts.read_arrays(path / LABELS_FILE)
        fields = artifacts.read_json(path / COST_FILE)
    except OSError as error:
        raise ValueError(f"labels: expected labels in {path}, got none") from error
    try:
        if fields.pop("labels_digest") != _digest(arrays):
            raise ValueError(
                f"{path}: expected the labels that {COST_FILE} was written for, got others"
            )
        pool_digest, strategy = fields.pop("pool_digest"), fields.pop("strategy")
        facts = {name: fields.pop(name, None) for name in ("certainty", "choice", "seal")}
        cost = fields.pop("cost")
        cost["charge"] = charge_from_dict(cost["charge"])
        cost["before"] = charges_from_list(cost.get("before", ()))
        released = ReleasedLabels(
            query_indices=arrays["query_indices"],
            labels=arrays["labels"],
            noisy_counts=arrays.get("noisy_counts"),
            noisy_sums=arrays.get("noisy_sums"),
            cost=Cost(**cost),
            **{**fields, "ledger_rows": tuple(fields["ledger_rows"])},
        )
        learnt = {
            name: arrays[f"learnt_{name}"]
            for name in _arrays(released)
            if f"learnt_{name}" in arrays
        }
        labels = Labels(
            pool=pool,
            queries=arrays["queries"],
            neighbours=arrays.get("neighbours"),
            released=released,
            training_labels=PoolLabels(num_classes=released.num_classes, **learnt)
            if learnt
            else released,
            strategy=strategy,
            labeller=labeller,
            **facts,
        )
    except (KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: expected labels and their cost, got files of another kind"
        ) from error
    if pool_digest != labels.pool_digest:
        raise ValueError(OTHER_POOL)
    return labels


def asked_inputs(pool: Pool, queries: IntArray, neighbours: IntArray | None) -> npt.NDArray[Any]:
    """Returns what teachers are asked about queries, each together with its neighbours.

    Args:
        pool: public inputs.
        queries: positions in it, `[num_queries]`.
        neighbours: `[num_queries, num_neighbours]`; None for each query alone.

    Returns:
        `[num_queries, *input_shape]`; with neighbours, `[num_queries, 1 + num_neighbours,
        *input_shape]`, the query first.

    Raises:
        ValueError: if a position is not in the pool.
    """
    places = queries if neighbours is None else np.column_stack([queries, neighbours])
    if places.size and not 0 <= places.min() <= places.max() < len(pool):
        raise ValueError(
            f"queries: expected positions in a pool of {len(pool)}, got {places.min()} to "
            f"{places.max()}"
        )
    return pool.inputs[places]


def _arrays(labels: PoolLabels) -> dict[str, npt.NDArray[Any] | None]:
    return {name: getattr(labels, name) for name in ("query_indices", "labels", "weights")}


def _digest(arrays: Mapping[str, Any]) -> str:
    return artifacts.digest_arrays(arrays[name] for name in sorted(arrays))
