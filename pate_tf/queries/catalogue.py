"""Strategies by the name that `--query_strategy` takes.

None of them sees a true label: a `Pool` has none, and `ReleasedLabels` are what the ledger paid
for.
"""

import dataclasses
from collections.abc import Callable

from pate_tf.queries import binary_experts, diverse, siamese, simple, uncertain
from pate_tf.records import IntArray, Pool, PoolLabels, ReleasedLabels
from pate_tf.students.outputs import FloatArray

Choose = Callable[[Pool, int, int], IntArray]
Score = Callable[[Pool, ReleasedLabels, int], FloatArray]
Infer = Callable[[Pool, ReleasedLabels, int], PoolLabels]


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
    """

    choose: Choose
    score: Score | None = None
    infer: Infer = simple.as_released
    rounds: int = 1

    @property
    def is_adaptive(self) -> bool:
        """Whether queries depend on earlier noisy answers."""
        return self.score is not None


STRATEGIES = {
    "first": Strategy(choose=simple.choose_first),
    "random": Strategy(choose=simple.choose_random),
    "diverse": Strategy(choose=diverse.choose, infer=diverse.infer),
    "uncertain": Strategy(choose=simple.choose_random, score=uncertain.score, rounds=5),
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
        raise ValueError(f"query_strategy: expected one of {', '.join(STRATEGIES)}, got {name!r}")
    return STRATEGIES[name]
