"""Asks in rounds: choose, ask, learn, choose again."""

import contextlib
import dataclasses
from collections.abc import Callable

import numpy as np

from pate_tf.queries.catalogue import find_strategy
from pate_tf.queries.config import QueryConfig
from pate_tf.records import IntArray, Pool, PoolLabels, ReleasedLabels

Ask = Callable[[IntArray], ReleasedLabels]


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueriedLabels:
    """What came of asking.

    Attributes:
      queries: int64 `[num_queries]`, positions in the pool in the order of asking; a mechanism with
        a threshold may have answered fewer.
      released: the labels that were paid for, of all rounds.
      labels: what a student learns from: those, or what follows from them without a query.
    """

    queries: IntArray = dataclasses.field(repr=False)
    released: ReleasedLabels
    labels: PoolLabels

    @property
    def inferred(self) -> PoolLabels:
        """The labels of inputs that were saved a query."""
        is_inferred = ~np.isin(self.labels.query_indices, self.released.query_indices)
        return PoolLabels(
            query_indices=self.labels.query_indices[is_inferred],
            labels=self.labels.labels[is_inferred],
            num_classes=self.labels.num_classes,
        )

    @property
    def num_inferred(self) -> int:
        """How many queries were saved."""
        return len(self.inferred.labels)


def check_queries(config: QueryConfig, pool: Pool) -> None:
    """Checks that queries can be chosen, before anything is paid for.

    Raises:
      ValueError: if there is no such strategy, or pool, queries and rounds do not fit each other.
    """
    strategy = find_strategy(config.strategy)
    if config.num_queries > len(pool):
        raise ValueError(
            f"queries: expected from 1 to the pool's {len(pool)}, got {config.num_queries}"
        )
    if strategy.is_adaptive and config.num_queries > len(np.unique(_first_copies(pool))):
        raise ValueError(
            f"queries: expected at most as many as the pool has distinct inputs, got "
            f"{config.num_queries}"
        )
    if (config.rounds or 1) > 1 and not strategy.is_adaptive:
        raise ValueError(
            f"query_rounds: expected 1 for strategy {config.strategy}, which does not depend on "
            f"answers, got {config.rounds}"
        )


def ask_in_rounds(
    config: QueryConfig,
    pool: Pool,
    ask: Ask,
    *,
    choosing: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> QueriedLabels:
    """Chooses queries and has them answered, round by round.

    Nothing here is drawn but from the seed: on the same machine, the same answers lead to the same
    queries, so that a run that was stopped asks what it asked before.

    An adaptive strategy asks no input twice, copies of it included: how many distinct queries there
    are is what epsilon is stated for, and must not depend on answers.

    Args:
      config: how many, and how they are chosen.
      pool: public inputs.
      ask: from positions in the pool, int64 `[num_asked]`, to their labels. Called in each round
        with all positions so far, so that its last answer covers all of them; `Labeller.label`
        answers earlier ones from memory.
      choosing: entered for as long as something is learnt about the pool: minutes for some
        strategies.

    Raises:
      ValueError: if there is no such strategy, or pool, queries and rounds do not fit each other;
        nothing was asked then.
    """
    check_queries(config, pool)
    strategy = find_strategy(config.strategy)
    rounds = config.rounds or min(strategy.rounds, config.num_queries)
    first, *later = [(index + 1) * config.num_queries // rounds for index in range(rounds)]
    with choosing():
        asked = strategy.choose(pool, first, config.seed)
    if strategy.score is not None:
        copy_of = _first_copies(pool)
        asked = _fill_up(copy_of[asked], np.arange(len(pool)), copy_of, first)
    released = ask(asked)
    if strategy.score is not None:
        for end in later:
            with choosing():
                scores = strategy.score(pool, released, config.seed)
            asked = _fill_up(asked, np.argsort(scores, kind="stable"), copy_of, end)
            released = ask(asked)
    with choosing():
        labels = strategy.infer(pool, released, config.seed)
    return QueriedLabels(queries=asked, released=released, labels=labels)


def _first_copies(pool: Pool) -> IntArray:
    """Returns for each input the position of the first one with the same values."""
    places: dict[bytes, int] = {}
    return np.array(
        [places.setdefault(row.tobytes(), place) for place, row in enumerate(pool.inputs)]
    )


def _fill_up(asked: IntArray, order: IntArray, copy_of: IntArray, number: int) -> IntArray:
    """Returns `number` inputs without copies: those asked, and of the others the first in order."""
    candidates = copy_of[np.concatenate([asked, order])]
    _, first = np.unique(candidates, return_index=True)
    return candidates[np.sort(first)][:number]
