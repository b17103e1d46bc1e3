"""Asks in rounds: choose, ask, learn, choose again."""

import contextlib
from collections.abc import Callable

import numpy as np

from pate_tf.accounting.released_labels import ReleasedLabels
from pate_tf.core import artifacts
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.core.validation import IntArray
from pate_tf.queries import simple
from pate_tf.queries.catalogue import STRATEGIES, find_strategy
from pate_tf.queries.config import QueryConfig
from pate_tf.queries.queried import QueriedLabels
from pate_tf.representations.catalogue import check_representation
from pate_tf.students.batches import FloatArray

Ask = Callable[[IntArray], ReleasedLabels]
AskWithStudent = Callable[[IntArray, FloatArray | None], ReleasedLabels]
ROUNDS_WITH_STUDENTS = 5


def check_queries(config: QueryConfig, pool: Pool, *, with_students: bool = False) -> None:
    """Checks that queries can be chosen, before anything is paid for.

    Args:
      config: how many, and how they are chosen.
      pool: public inputs.
      with_students: whether a student of earlier answers has a say in later ones.

    Raises:
      ValueError: if there is no such strategy, or pool, queries and rounds do not fit each other.
    """
    strategy = find_strategy(config.strategy)
    if config.num_queries > len(pool):
        raise ValueError(
            f"num_queries: expected from 1 to the pool's {len(pool)}, got {config.num_queries}"
        )
    if strategy.is_adaptive and config.num_queries > len(np.unique(_first_copies(pool))):
        raise ValueError(
            f"num_queries: expected at most as many as the pool has distinct inputs, got "
            f"{config.num_queries}"
        )
    if strategy.by_likeness and config.representation is not None:
        check_representation(config.representation, pool.dataset)
    if with_students and strategy.is_adaptive:
        raise ValueError(
            f"strategy: expected one that fixes all queries beforehand, for a mechanism that heeds "
            f"a student of earlier answers, got {config.strategy}"
        )
    if (config.rounds or 1) > 1 and not strategy.is_adaptive and not with_students:
        raise ValueError(
            f"rounds: expected 1 for strategy {config.strategy}, which does not depend on "
            f"answers, got {config.rounds}"
        )


def check_likeness(config: QueryConfig) -> None:
    """Raises ValueError if a representation is named, and the strategy looks at none."""
    if config.representation is None or find_strategy(config.strategy).by_likeness:
        return
    likeness = [name for name, strategy in STRATEGIES.items() if strategy.by_likeness]
    raise ValueError(
        f"representation: expected with strategy {' or '.join(likeness)} alone, got it with "
        f"{config.strategy}, which does not look at likeness"
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
    likeness = {"representation": config.representation} if strategy.by_likeness else {}
    rounds = config.rounds or min(strategy.rounds, config.num_queries)
    first, *later = [(index + 1) * config.num_queries // rounds for index in range(rounds)]
    with choosing():
        asked = strategy.choose(pool, first, config.seed, **likeness)
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
    labels: PoolLabels = released
    if released.num_answered:
        with choosing():
            labels = strategy.infer(pool, released, config.seed, **likeness)
    return QueriedLabels(
        queries=asked,
        released=released,
        labels=labels,
        strategy=config.strategy,
        pool_digest=artifacts.digest_array(pool.inputs),
    )


def ask_with_students(
    config: QueryConfig,
    pool: Pool,
    ask: AskWithStudent,
    *,
    choosing: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> QueriedLabels:
    """Chooses all queries at once and has them answered in rounds, with a student's own answers.

    From the second round on, a student of the answers so far says what it thinks of the queries:
    `pate_tf.accounting.mechanisms.InteractiveGaussianNoisyMax`. Nothing here is drawn but from the
    seed.

    Args:
      config: how many, and how they are chosen; `rounds` defaults to 5.
      pool: public inputs.
      ask: from positions in the pool, int64 `[num_asked]`, and the student's probabilities for
        them, `[num_asked, num_classes]` or None without one, to their labels. Called in each round
        with all positions so far, as `ask_in_rounds` does.
      choosing: as of `ask_in_rounds`.

    Raises:
      ValueError: if pool, queries, strategy and rounds do not fit each other; nothing was asked
        then.
    """
    check_queries(config, pool, with_students=True)
    strategy = find_strategy(config.strategy)
    likeness = {"representation": config.representation} if strategy.by_likeness else {}
    rounds = config.rounds or min(ROUNDS_WITH_STUDENTS, config.num_queries)
    with choosing():
        asked = strategy.choose(pool, config.num_queries, config.seed, **likeness)
        # The pool's order may be by likeness, and a round should have something of all.
        asked = asked[np.argsort(np.arange(len(asked)) % rounds, kind="stable")]
    said: FloatArray | None = None
    for one in range(1, rounds + 1):
        end = one * config.num_queries // rounds
        released = ask(asked[:end], None if said is None else said[asked[:end]])
        if released.num_answered and one < rounds:
            with choosing():
                said = simple.predictions(pool, released, config.seed)
    labels: PoolLabels = released
    if released.num_answered:
        with choosing():
            labels = strategy.infer(pool, released, config.seed, **likeness)
    return QueriedLabels(
        queries=asked,
        released=released,
        labels=labels,
        strategy=config.strategy,
        pool_digest=artifacts.digest_array(pool.inputs),
    )


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
