"""Labels as they come back from asking: kept in a folder and taken up again.

`labels.npz` holds what was released, `labels.json` beside it what that cost. Both may be published.
"""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.charge import Cost
from pate_tf.accounting.charges import charge_from_dict, charges_from_list
from pate_tf.accounting.released_labels import ReleasedLabels
from pate_tf.core import artifacts
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.core.validation import IntArray, frozen_view, whole_numbers

LABELS_FILE, COST_FILE = "labels.npz", "labels.json"
_ARRAYS = ("query_indices", "labels")


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueriedLabels:
    """Public: what came of asking.

    Attributes:
      queries: int64 `[num_queries]`, positions in the pool in the order of asking; a mechanism with
        a threshold may have answered fewer.
      released: the released labels, of all rounds.
      labels: what a student learns from: those, or what follows from them without a query.
      strategy: how the queries were chosen, by its name in `queries/strategies/`.
      pool_digest: `artifacts.digest_array` of the pool's inputs, which the positions belong to.
      neighbours: int64 `[num_queries, num_neighbours]`, what each query was asked together with
        (`queries/neighbours.py`); None where each was asked alone.
      certainty: how sure labels are that were worked out from feature sums: the mean
        probability that the class named is the likeliest one, as far as noise alone can tell; None
        of other labels, and where clusters were named.
      choice: how mechanism, noise and number of queries were chosen, in sentences; None if nobody
        said.
      seal: of `record`, by the ledger that was charged, so that what lay in a folder meanwhile is
        known again; None where nobody sealed it.
    """

    queries: IntArray = dataclasses.field(repr=False)
    released: ReleasedLabels
    labels: PoolLabels
    strategy: str
    pool_digest: str
    neighbours: IntArray | None = dataclasses.field(default=None, repr=False)
    certainty: float | None = None
    choice: str | None = None
    seal: str | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        queries = whole_numbers(self.queries, "queries")
        if queries.shape != (self.released.num_queries,):
            raise ValueError(
                f"queries: expected [{self.released.num_queries}], got {list(queries.shape)}"
            )
        object.__setattr__(self, "queries", frozen_view(queries))
        if self.neighbours is not None:
            neighbours = whole_numbers(self.neighbours, "neighbours")
            if neighbours.ndim != 2 or len(neighbours) != len(queries):
                raise ValueError(
                    f"neighbours: expected [{len(queries)}, num_neighbours], got "
                    f"{list(neighbours.shape)}"
                )
            object.__setattr__(self, "neighbours", frozen_view(neighbours))

    @property
    def num_neighbours(self) -> int:
        """How many neighbours each query was asked together with."""
        return 0 if self.neighbours is None else self.neighbours.shape[1]

    @property
    def inferred(self) -> PoolLabels:
        """The labels of inputs that were saved a query."""
        is_inferred = ~np.isin(self.labels.query_indices, self.released.query_indices)
        weights = self.labels.weights
        return PoolLabels(
            query_indices=self.labels.query_indices[is_inferred],
            labels=self.labels.labels[is_inferred],
            num_classes=self.labels.num_classes,
            weights=None if weights is None else weights[is_inferred],
        )

    @property
    def num_inferred(self) -> int:
        """How many queries were saved."""
        return len(self.inferred.labels)

    def check_pool(self, pool: Pool) -> None:
        """Checks that these are labels of a pool.

        Raises:
          ValueError: if they are of another one.
        """
        if self.pool_digest != artifacts.digest_array(pool.inputs):
            raise ValueError(
                "labels: expected labels of this pool, got those of another: positions in the pool "
                "would name other inputs"
            )

    def asked(self, pool: Pool) -> npt.NDArray[Any]:
        """Returns what teachers were asked: `[num_queries, *input_shape]`, of neighbours groups.

        Raises:
          ValueError: if a position is not in the pool.
        """
        return asked_inputs(pool, self.queries, self.neighbours)

    def save(self, folder: pathlib.Path) -> None:
        """Writes `labels.npz` and `labels.json` to a folder, in the place of earlier ones.

        Raises:
          OSError: if they can't be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        # The digest goes with the second file: a crash between both is seen when they are read.
        artifacts.write_arrays(folder / LABELS_FILE, self._arrays())
        artifacts.write_json(folder / COST_FILE, {**self.record(), "seal": self.seal})

    def record(self) -> dict[str, Any]:
        """Returns all that is known of these labels, as JSON values: what `seal` is of."""
        return {
            "strategy": self.strategy,
            "pool_digest": self.pool_digest,
            "choice": self.choice,
            "labels_digest": _digest(self._arrays()),
            "num_classes": self.released.num_classes,
            "num_queries": self.released.num_queries,
            "cost": self.released.cost.to_dict(),
            "ledger_rows": list(self.released.ledger_rows),
            "secure_noise": self.released.secure_noise,
            **({} if self.certainty is None else {"certainty": self.certainty}),
        }

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        arrays = {"queries": self.queries, **_arrays(self.released)}
        if self.neighbours is not None:
            arrays["neighbours"] = self.neighbours
        if self.released.noisy_counts is not None:
            arrays["noisy_counts"] = self.released.noisy_counts
        if self.released.noisy_sums is not None:
            arrays["noisy_sums"] = self.released.noisy_sums
        if self.labels is not self.released:
            arrays |= {f"learnt_{name}": array for name, array in _arrays(self.labels).items()}
        return arrays

    @classmethod
    def load(cls, folder: pathlib.Path) -> "QueriedLabels":
        """Reads what `save` wrote.

        Raises:
          ValueError: if a file is broken, or the files don't belong together.
          OSError: if a file is missing.
        """
        arrays = artifacts.read_arrays(folder / LABELS_FILE)
        fields = artifacts.read_json(folder / COST_FILE)
        try:
            if fields.pop("labels_digest") != _digest(arrays):
                raise ValueError(
                    f"{folder}: expected the labels that {COST_FILE} was written for, got others"
                )
            kept = {name: fields.pop(name) for name in ("strategy", "pool_digest")}
            kept |= {name: fields.pop(name, None) for name in ("certainty", "choice", "seal")}
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
            learnt: PoolLabels = released
            if "learnt_labels" in arrays:
                learnt = PoolLabels(
                    query_indices=arrays["learnt_query_indices"],
                    labels=arrays["learnt_labels"],
                    num_classes=released.num_classes,
                    weights=arrays.get("learnt_weights"),
                )
            return cls(
                queries=arrays["queries"],
                neighbours=arrays.get("neighbours"),
                released=released,
                labels=learnt,
                **kept,
            )
        except (KeyError, TypeError) as error:
            raise ValueError(
                f"{folder}: expected labels and their cost, got files of another kind"
            ) from error


def asked_inputs(pool: Pool, queries: IntArray, neighbours: IntArray | None) -> npt.NDArray[Any]:
    """Returns what teachers are asked.

    Args:
      pool: public inputs.
      queries: positions in it, `[num_queries]`.
      neighbours: of each those that it is asked together with, `[num_queries, num_neighbours]`;
        None for each alone.

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


def _arrays(labels: PoolLabels) -> dict[str, npt.NDArray[Any]]:
    found = {name: getattr(labels, name) for name in _ARRAYS}
    return found if labels.weights is None else {**found, "weights": labels.weights}


def _digest(arrays: Mapping[str, Any]) -> str:
    return artifacts.digest_arrays(arrays[name] for name in sorted(arrays))
