"""Asks in rounds: choose, ask, learn, choose again. TensorFlow is imported where it is needed."""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np

from pate_tf.accounting.charge import ReleasedLabels
from pate_tf.core import validation
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.core.settings import Settings, setting
from pate_tf.core.validation import IntArray
from pate_tf.data.named_function import Named
from pate_tf.queries.labels import Labels
from pate_tf.queries.strategies import (
    AUTO,
    STRATEGIES,
    choices_help,
    find_strategy,
    simple,
)
from pate_tf.queries.strategies.simple import FloatArray

ROUNDS_WITH_STUDENTS = 5
Choosing = Callable[[], contextlib.AbstractContextManager[None]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryConfig(Settings):
    """How queries are chosen.

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
        "name of docs/explanation/feature_sums.md, several joined by +, encoder:PATH for a model "
        "on disk (.keras or SavedModel), or module:function for a Keras model, from raw inputs to "
        "features. Default: that of the teachers, if they have one, else that of the data.",
    )
    rounds: int | None = None
    seed: int = 0
    num_neighbours: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds is not None:
            validation.whole(1, self.num_queries, rounds=self.rounds)
        if self.num_neighbours is not None:
            validation.whole(0, num_neighbours=self.num_neighbours)


def check_queries(config: QueryConfig, pool: Pool, *, with_students: bool = False) -> None:
    """Raises ValueError, before anything is charged, unless strategy, pool and queries fit.

    `with_students` is whether the mechanism uses predictions of a student of earlier answers.
    """
    strategy = find_strategy(config.strategy)
    most = len(np.unique(_first_copies(pool))) if strategy.is_adaptive else len(pool)
    if config.num_queries > most:
        distinct = " distinct inputs" if strategy.is_adaptive else ""
        raise ValueError(
            f"num_queries: expected from 1 to the pool's {most}{distinct}, got {config.num_queries}"
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
    if with_students and strategy.is_adaptive:
        raise ValueError(
            f"strategy: expected one that fixes all queries in advance, for a mechanism that uses "
            f"a student of earlier answers, got {config.strategy}"
        )
    if (config.rounds or 1) > 1 and not strategy.is_adaptive and not with_students:
        raise ValueError(
            f"rounds: expected 1 for strategy {config.strategy}, which does not depend on "
            f"answers, got {config.rounds}"
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
        config: how many, and how they are chosen.
        pool: public inputs.
        ask: from positions in the pool, int64 `[num_asked]`, to their labels. Called in each round
            with all positions so far, so that its last answer covers all of them; earlier ones are
            answered from the ledger.
        with_students: chooses all queries at once, and from the second round on hands `ask` what a
            student of the answers so far predicts, `[num_asked, num_classes]`, as its second
            argument (`mechanisms.InteractiveGaussianNoisyMax`); None in the first round.
        choosing: entered for as long as something is learned about the pool.

    Raises:
        ValueError: as `check_queries`; nothing was asked then.
    """
    check_queries(config, pool, with_students=with_students)
    strategy = find_strategy(config.strategy)
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
                queries = _next_queries(strategy.score, queries, pool, released, config.seed)[:end]
        if not with_students:
            released = ask(queries)
            continue
        if released is not None and released.num_answered:
            with choosing():
                predictions = simple.predictions(pool, released, config.seed)
        released = ask(queries[:end], None if predictions is None else predictions[queries[:end]])
    training_labels: PoolLabels = released
    if released.num_answered and strategy.infer is not None:
        with choosing():
            training_labels = strategy.infer(pool, released, config.seed, **features)
    return Labels(
        pool=pool,
        queries=queries,
        released=released,
        training_labels=training_labels,
        strategy=config.strategy,
    )


def _next_queries(
    score: Callable[[Pool, ReleasedLabels, int], FloatArray],
    queries: IntArray,
    pool: Pool,
    released: ReleasedLabels | None,
    seed: int,
) -> IntArray:
    """Returns the queries so far, then all others by ascending score; never a copy of another."""
    order = np.arange(len(pool))
    if released is not None:
        order = np.argsort(score(pool, released, seed), kind="stable")
    candidates = _first_copies(pool)[np.concatenate([queries, order])]
    _, first = np.unique(candidates, return_index=True)
    return candidates[np.sort(first)]


def _first_copies(pool: Pool) -> IntArray:
    """Returns for each input the position of the first one with the same values."""
    places: dict[bytes, int] = {}
    return np.array(
        [places.setdefault(row.tobytes(), place) for place, row in enumerate(pool.inputs)]
    )
