"""Strategies of choosing queries, by name.

None of them sees a true label: a `Pool` has none, and `ReleasedLabels` are what the ledger paid
for.
"""

import dataclasses
from collections.abc import Callable

from pate_tf.accounting.released_labels import ReleasedLabels
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.core.validation import IntArray
from pate_tf.queries import binary_experts, diverse, siamese, simple, typical
from pate_tf.students.batches import FloatArray

Choose = Callable[..., IntArray]  # (pool, num_queries, seed)
Score = Callable[[Pool, ReleasedLabels, int], FloatArray]
Infer = Callable[..., PoolLabels]  # (pool, released, seed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strategy:
    """One way to choose queries.

    Attributes:
      choose: the queries of the first round, from the pool, their number and a seed: int64
        `[num_queries]`, distinct.
      score: what later rounds ask, from the pool, the labels so far and a seed: float64
        `[num_inputs]`, the lowest first. None where queries don't depend on answers, so that there
        is one round.
      infer: what a student learns from, made of the pool, all released labels and a seed: those
        labels, or others that follow from them without a query.
      rounds: where the user says nothing.
      by_likeness: whether `choose` and `infer` look at features: they take `representation` then.
    """

    choose: Choose
    score: Score | None = None
    infer: Infer = simple.as_released
    rounds: int = 1
    by_likeness: bool = False

    @property
    def is_adaptive(self) -> bool:
        """Whether queries depend on earlier noisy answers."""
        return self.score is not None


STRATEGIES = {
    "first": Strategy(choose=simple.choose_first),
    "random": Strategy(choose=simple.choose_random),
    "diverse": Strategy(choose=diverse.choose, infer=diverse.infer, by_likeness=True),
    "typical": Strategy(choose=typical.choose, infer=diverse.infer, by_likeness=True),
    "uncertain": Strategy(choose=simple.choose_random, score=simple.score, rounds=5),
    "binary_experts": Strategy(choose=simple.choose_random, score=binary_experts.score, rounds=5),
    "siamese": Strategy(
        choose=simple.choose_random, score=siamese.score, infer=siamese.infer, rounds=5
    ),
}


def find_strategy(name: str) -> Strategy:
    """Returns the strategy of a name.

    Raises:
      ValueError: if there is none.
    """
    if name not in STRATEGIES:
        raise ValueError(f"strategy: expected one of {', '.join(STRATEGIES)}, got {name!r}")
    return STRATEGIES[name]
