"""Asks in rounds, and the released labels with their pool; TensorFlow is imported where needed."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
from collections.abc import Callable
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.charge import Cost, ReleasedLabels
from pate_tf.accounting.charges import charge_from_dict, charges_from_list
from pate_tf.core import artifacts, validation
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.core.validation import IntArray, setting, whole_numbers
from pate_tf.data.named_function import Named
from pate_tf.queries import strategies
from pate_tf.queries.strategies import AUTO, STRATEGIES, FloatArray, choices_help

LABELS_FILE, COST_FILE = "labels.npz", "labels.json"
PARTS = ("query_indices", "labels", "weights")  # of `PoolLabels`, as they are stored


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False, eq=False)
class Labels:
    """Public: noisy labels of some of a pool, and what they cost.

    >>> import pate_tf
    >>> stored = pate_tf.Labels.load(folder / "labels", data.pool)
    >>> inputs, noisy = stored.to_numpy()
    >>> len(inputs) == len(noisy) == len(stored)
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
        choice: how mechanism, noise and number of queries were chosen, in sentences; None if
            unknown.
        seal: of `record`, by the ledger that was charged, so that stored labels can be verified;
            None without a ledger.
        labeller: whose ledger was charged, for `Student.publish`; None if unknown.
        linear_head: a model from raw inputs to logits with the weights that follow from feature
            sums, for the student of this name; None of other labels, and of stored ones.
    """

    pool: Pool
    queries: IntArray
    released: ReleasedLabels
    training_labels: PoolLabels
    strategy: str
    neighbours: IntArray | None = None
    choice: str | None = None
    seal: str | None = None
    labeller: Any = None
    linear_head: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Returns what a pickle holds: no labeller, as its votes are private, and no model."""
        return {**vars(self), **dict.fromkeys(("labeller", "linear_head"))}

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
        """How many neighbors each query was asked together with."""
        return 0 if self.neighbours is None else self.neighbours.shape[1]

    @functools.cached_property
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

    def to_numpy(self, *, inferred: bool = False) -> tuple[npt.NDArray[Any], IntArray]:
        """Returns the labeled inputs `[num_labels, *input_shape]`, raw, and their labels.

        Args:
            inferred: whether to give what a `Student` learns from: with some strategies ("diverse",
                "siamese") labels of other inputs of the pool follow from those that were charged.
        """
        labels = self.training_labels if inferred else self.released
        return self.pool.inputs[labels.query_indices], np.array(labels.labels)

    def check_pool(self, pool: Pool) -> None:
        """Raises ValueError if these are labels of another pool."""
        digests = {artifacts.digest_array(each.inputs) for each in {self.pool, pool}}
        if len(digests) > 1:
            raise ValueError("labels: expected labels of this pool, got those of another")

    def record(self) -> dict[str, Any]:
        """Returns all that is known of these labels, as JSON values: what `seal` is of."""
        released, cost, arrays = self.released, self.released.cost, self._arrays()
        before = [{"charge": charge.to_dict(), "number": number} for charge, number in cost.before]
        return {
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

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes labels and cost to a folder, which may be published; `load` reads them.

        Raises:
            OSError: if they can't be written.
        """
        path = pathlib.Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        # The digest goes with the second file: a crash between both is seen when they are read.
        artifacts.write_arrays(path / LABELS_FILE, self._arrays())
        artifacts.write_json(path / COST_FILE, {**self.record(), "seal": self.seal})

    @classmethod
    def load(cls, folder: str | os.PathLike[str], pool: Pool, *, labeller: Any = None) -> Self:
        """Reads labels that `save` wrote.

        >>> import pate_tf
        >>> stored = pate_tf.Labels.load(folder / "labels", data.pool)
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
            cost = {**fields["cost"], "charge": charge_from_dict(fields["cost"]["charge"])}
            cost["before"] = charges_from_list(cost.get("before", ()))
            released = ReleasedLabels(
                **{name: arrays[name] for name in PARTS if name in arrays},
                noisy_counts=arrays.get("noisy_counts"),
                noisy_sums=arrays.get("noisy_sums"),
                num_classes=fields["num_classes"],
                num_queries=fields["num_queries"],
                cost=Cost(**cost),
                ledger_rows=tuple(fields["ledger_rows"]),
                secure_noise=fields["secure_noise"],
            ).checked()
            inferred = {
                name: arrays[f"learnt_{name}"] for name in PARTS if f"learnt_{name}" in arrays
            }
            positions: dict[str, Any] = dict.fromkeys(("queries", "neighbours"))
            for name, axes in (("queries", [None]), ("neighbours", [None, None])):
                if name in arrays or name == "queries":
                    positions[name] = whole_numbers(arrays[name], name)
                    validation.shape([released.num_queries, *axes[1:]], **{name: positions[name]})
            labels = cls(
                pool=pool,
                **positions,
                released=released,
                training_labels=PoolLabels(num_classes=released.num_classes, **inferred).checked()
                if inferred
                else released,
                strategy=fields["strategy"],
                choice=fields["choice"],
                seal=fields["seal"],
                labeller=labeller,
            )
            record = labels.record()
            is_whole = record["labels_digest"] == fields["labels_digest"]
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(
                f"{path}: expected labels and their cost, got files of another kind"
            ) from error
        if not is_whole:
            raise ValueError(f"{path}: expected the labels of {COST_FILE}, got others")
        if record["pool_digest"] != fields["pool_digest"]:
            raise ValueError("labels: expected labels of this pool, got those of another")
        return labels

    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        released, training = self.released, self.training_labels
        arrays = {name: getattr(released, name) for name in PARTS}
        arrays |= {"queries": self.queries, "neighbours": self.neighbours}
        arrays |= {"noisy_counts": released.noisy_counts, "noisy_sums": released.noisy_sums}
        if training is not released:
            arrays |= {f"learnt_{name}": getattr(training, name) for name in PARTS}
        return {name: array for name, array in arrays.items() if array is not None}


def asked_inputs(pool: Pool, queries: IntArray, neighbours: IntArray | None) -> npt.NDArray[Any]:
    """Returns what teachers are asked about queries, each together with its neighbors.

    Args:
        pool: public inputs.
        queries: positions in it, `[num_queries]`.
        neighbours: `[num_queries, num_neighbours]`; None for each query alone.

    Returns:
        `[num_queries, *input_shape]`; with neighbors, `[num_queries, 1 + num_neighbours,
        *input_shape]`, the query first.

    Raises:
        ValueError: if a position is not in the pool.
    """
    places = queries if neighbours is None else np.column_stack([queries, neighbours])
    if places.size and not 0 <= places.min() <= places.max() < len(pool.inputs):
        raise ValueError(
            f"queries: expected positions in a pool of {len(pool)}, got {places.min()} to "
            f"{places.max()}"
        )
    return pool.inputs[places]


ROUNDS_WITH_STUDENTS = 5
Choosing = Callable[[], contextlib.AbstractContextManager[None]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryConfig:
    """How queries are chosen, as `check_queries` has it.

    Attributes:
        rounds: in how many rounds of about equal size a strategy that learns from earlier answers
            asks; None for the strategy's own number.
        seed: of random choices of queries and of what is trained between rounds. Another seed asks
            other queries, which are charged.
        num_neighbours: how many nearest neighbors of a query in the pool go with it; a teacher
            votes once for all. None: `propagation.default_number` where it suits the mechanism.
    """

    strategy: str = setting(
        "first",
        flag="query_strategy",
        choices=(AUTO, *STRATEGIES),
        help="Which of the pool are put to the teachers; true labels play no part. "
        + choices_help(),
    )
    num_queries: int = setting(
        flag="queries",
        least=1,
        help="How many of the pool are put to the teachers, over all rounds.",
    )
    representation: Named | None = setting(
        None,
        help="Features that feature sums are of, and that diverse and medoids compare inputs by: a "
        "name of docs/how-to/small_teachers.md, several joined by +, encoder:PATH for a model "
        "on disk (.keras or SavedModel), or module:function for a Keras model, from raw inputs to "
        "features. Default: that of the teachers, if they have one, else that of the data.",
    )
    rounds: int | None = None
    seed: int = 0
    num_neighbours: int | None = None


def check_queries(
    config: QueryConfig,
    pool: Pool,
    *,
    with_students: bool = False,
    covers: Callable[[npt.NDArray[Any]], bool] = lambda inputs: True,
) -> None:
    """Raises ValueError, before anything is charged, unless strategy, pool and queries fit.

    Args:
        config: how many, and how they are chosen.
        pool: public inputs.
        with_students: whether the mechanism uses predictions of a student of earlier answers.
        covers: whether teachers can vote on each of raw inputs `[num_inputs, *input_shape]`.
    """
    strategy, number = STRATEGIES.get(config.strategy), config.num_queries
    if strategy is None:
        raise ValueError(
            f"strategy: expected one of {', '.join(STRATEGIES)}, got {config.strategy!r}"
        )
    for name in ("num_queries", "rounds", "num_neighbours", "seed"):
        value = getattr(config, name)
        if value is not None and type(value) is not int and not isinstance(value, np.integer):
            raise ValueError(f"{name}: expected a whole number, got {value!r}")
    if config.rounds is not None and not 1 <= config.rounds <= number:
        raise ValueError(f"rounds: expected from 1 to {number}, got {config.rounds}")
    if (config.num_neighbours or 0) < 0:
        raise ValueError(f"num_neighbours: expected at least 0, got {config.num_neighbours}")
    is_adaptive = strategy.score is not None
    most = len(np.unique(_first_copies(pool))) if is_adaptive else len(pool.inputs)
    if not 1 <= number <= most:
        distinct = " distinct inputs" if is_adaptive else ""
        raise ValueError(
            f"num_queries: expected from 1 to the pool's {most}{distinct}, got {number}"
        )
    if config.representation is not None and not strategy.uses_representation:
        users = [name for name, each in STRATEGIES.items() if each.uses_representation]
        raise ValueError(
            f"representation: expected with strategy {' or '.join(users)} alone, got it with "
            f"{config.strategy}, which compares no inputs"
        )
    if config.representation is not None:
        from pate_tf.representations.catalogue import check_representation

        check_representation(config.representation, pool.dataset)
    if with_students and is_adaptive:
        raise ValueError(
            f"strategy: expected one that fixes all queries in advance, for a mechanism that uses "
            f"a student of earlier answers, got {config.strategy}"
        )
    if (config.rounds or 1) > 1 and not is_adaptive and not with_students:
        raise ValueError(
            f"rounds: expected 1 for strategy {config.strategy}, which does not depend on "
            f"answers, got {config.rounds}"
        )
    if is_adaptive and not covers(pool.inputs):
        raise ValueError(
            f"strategy: expected labels of the whole pool for {config.strategy}, whose later "
            f"queries follow from earlier labels, got labels of a part of it"
        )
    if config.num_neighbours and not (
        strategy.uses_representation
        and covers(pool.inputs)
        and config.num_neighbours < len(pool.inputs)
    ):
        raise ValueError(
            f"num_neighbours: expected 0 but for a strategy that compares inputs, fewer than the "
            f"pool's {len(pool)} inputs, and teachers that can label all of them, got "
            f"{config.num_neighbours} for strategy {config.strategy}"
        )


def ask_in_rounds(
    config: QueryConfig,
    pool: Pool,
    ask: Callable[..., ReleasedLabels],
    *,
    with_students: bool = False,
    choosing: Choosing = contextlib.nullcontext,
) -> Labels:
    """Chooses queries, and has them answered round by round.

    Args:
        config: how many, and how they are chosen, as `check_queries` lets pass.
        pool: public inputs.
        ask: from positions in the pool, int64 `[num_asked]`, to their labels. Called in each round
            with all positions so far, so that its last answer covers all of them; earlier ones are
            answered from the ledger.
        with_students: chooses all queries at once, and from the second round on hands `ask` what a
            student of the answers so far predicts, `[num_asked, num_classes]`, as its second
            argument (`mechanisms.InteractiveGaussianNoisyMax`); None in the first round.
        choosing: entered for as long as something is learned about the pool.
    """
    strategy = STRATEGIES[config.strategy]
    features = {"representation": config.representation} if strategy.uses_representation else {}
    default = ROUNDS_WITH_STUDENTS if with_students else strategy.rounds
    num_rounds = config.rounds or min(default, config.num_queries)
    ends = [(index + 1) * config.num_queries // num_rounds for index in range(num_rounds)]
    with choosing():
        number = config.num_queries if with_students else ends[0]
        queries = strategy.choose(pool, number, config.seed, **features)
    if with_students:
        # A pool may be sorted by class, and a round should have something of all.
        queries = queries[np.argsort(np.arange(len(queries)) % num_rounds, kind="stable")]
    released: Any = None
    predictions: FloatArray | None = None
    for end in ends:
        if strategy.score is not None:
            with choosing():
                order = np.arange(len(pool))
                if released is not None:
                    order = np.argsort(strategy.score(pool, released, config.seed), kind="stable")
                # The queries so far, then all others by ascending score; never a copy of another.
                candidates = _first_copies(pool)[np.concatenate([queries, order])]
                _, first = np.unique(candidates, return_index=True)
                queries = candidates[np.sort(first)][:end]
        if not with_students:
            released = ask(queries)
            continue
        if released is not None and len(released.labels):
            with choosing():
                predictions = strategies.predictions(pool, released, config.seed)
        released = ask(queries[:end], None if predictions is None else predictions[queries[:end]])
    training_labels: PoolLabels = released
    if len(released.labels) and strategy.infer is not None:
        with choosing():
            training_labels = strategy.infer(pool, released, config.seed, **features)
    return Labels(
        pool=pool,
        queries=queries,
        released=released,
        training_labels=training_labels,
        strategy=config.strategy,
    )


def _first_copies(pool: Pool) -> IntArray:
    """Returns for each input the position of the first one with the same values."""
    places: dict[bytes, int] = {}
    return np.array(
        [places.setdefault(row.tobytes(), place) for place, row in enumerate(pool.inputs)]
    )
