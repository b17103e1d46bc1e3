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
    CHOICES,
    STRATEGIES,
    FloatArray,
    choices_help,
    find_strategy,
    simple,
)

ROUNDS_WITH_STUDENTS = 5
Choosing = Callable[[], contextlib.AbstractContextManager[None]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryConfig(Settings):
    """How queries are chosen. `num_neighbours` None: `propagation.default_number` where fitting."""

    strategy: str = setting(
        "first",
        flag="query_strategy",
        choices=CHOICES.keys(),
        help="Which of the pool are put to the teachers; true labels play no part. "
        + choices_help(),
    )
    num_queries: int = setting(
        flag="queries",
        least=1,
        help="How many of the pool are put to the teachers, over all rounds.",
    )
    rounds: int | None = setting(
        None,
        flag="query_rounds",
        least=1,
        help="In how many rounds of about equal size a strategy that learns from earlier answers "
        "asks. Default: the strategy's own number.",
    )
    seed: int = setting(
        0,
        flag="query_seed",
        least=0,
        most=2**31 - 1,
        help="Seed of random choices of queries and of what is trained between rounds. Another "
        "seed asks other queries, which are charged.",
    )
    representation: Named | None = setting(
        None,
        help="Features that feature sums are of, and that diverse and medoids compare inputs by: "
        "contrastive or patches, learnt from the pool alone and cached in ~/.cache/pate_tf (or "
        "$PATE_TF_CACHE); raw, or bins of tables; several of them joined by +; encoder:PATH for a "
        "model on disk (.keras or SavedModel), or module:function for a Keras model, from raw "
        "inputs to features. Default: that of the teachers, if they have one; of feature sums "
        "contrastive+patches for grey images, bins for tables; else contrastive for grey images, "
        "raw for tables.",
    )
    num_neighbours: int | None = setting(
        None,
        flag="query_neighbours",
        least=0,
        help="With diverse and medoids: how many nearest neighbours of a query in the pool go with "
        "it; a teacher votes once, for the class that it names most often among them, so that "
        "teachers agree more. 0: each query alone. Default: some for a stability_gate on "
        "images, else none.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.rounds is not None:
            validation.whole(1, self.num_queries, rounds=self.rounds)


def check_queries(config: QueryConfig, pool: Pool, *, with_students: bool = False) -> None:
    """Raises ValueError, before anything is charged, unless strategy, pool and queries fit.

    `with_students` is whether the mechanism uses predictions of a student of earlier answers.
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
    if config.representation is not None:
        if not strategy.uses_representation:
            users = [name for name, each in STRATEGIES.items() if each.uses_representation]
            raise ValueError(
                f"representation: expected with strategy {' or '.join(users)} alone, got it with "
                f"{config.strategy}, which compares no inputs"
            )
        from pate_tf.representations.catalogue import check_representation

        check_representation(config.representation, pool.dataset)
    if with_students and strategy.is_adaptive:
        raise ValueError(
            f"strategy: expected one that fixes all queries beforehand, for a mechanism that uses "
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
        choosing: entered for as long as something is learnt about the pool.

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
    copy_of = None if strategy.score is None else _first_copies(pool)
    released: Any = None
    predicted: FloatArray | None = None
    for end in ends:
        if strategy.score is not None and copy_of is not None:
            order = np.arange(len(pool))
            if released is not None:
                with choosing():
                    order = np.argsort(strategy.score(pool, released, config.seed), kind="stable")
            # Never a copy of another: those so far, and of the others the first in order.
            candidates = copy_of[np.concatenate([queries, order])]
            _, first = np.unique(candidates, return_index=True)
            queries = candidates[np.sort(first)][:end]
        if not with_students:
            released = ask(queries)
            continue
        if released is not None and released.num_answered:
            with choosing():
                predicted = simple.predictions(pool, released, config.seed)
        released = ask(queries[:end], None if predicted is None else predicted[queries[:end]])
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


def _first_copies(pool: Pool) -> IntArray:
    """Returns for each input the position of the first one with the same values."""
    places: dict[bytes, int] = {}
    return np.array(
        [places.setdefault(row.tobytes(), place) for place, row in enumerate(pool.inputs)]
    )
