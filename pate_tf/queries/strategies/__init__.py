"""Query strategies by name.

A strategy's entry says all that others need: `--query_strategy` takes its choices and help from
here, and the privacy statement its words. No strategy sees a true label: a `Pool` has none, and
`ReleasedLabels` were charged to the ledger. Flags and statements read the entries without
TensorFlow: strategies import it inside of their functions.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Final

from pate_tf.accounting.charge import ReleasedLabels
from pate_tf.core import validation
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.core.validation import IntArray
from pate_tf.data.named_function import Named
from pate_tf.queries.strategies import clusters, siamese, simple
from pate_tf.queries.strategies.simple import FloatArray


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strategy:
    """One way to choose queries.

    Attributes:
        help: what it chooses, for `--help`: words that follow "name: ".
        words: what it chose, for the statement: words that follow "queries, ".
        choose: from pool, number of queries and seed to the queries of the first round: positions
            int64 `[num_queries]`, distinct.
        score: from pool, labels so far and seed to float64 `[num_inputs]`: later rounds ask the
            lowest first. None where queries do not depend on answers: there is one round then.
        infer: from pool, all released labels and seed to what a student learns from: labels that
            follow from those without a query. None where nothing else follows from them.
        rounds: default number.
        uses_representation: whether `choose` and `infer` also take `representation=`, the name of
            the features that they compare inputs by; None for the data set's default.
    """

    help: str
    words: str
    choose: Callable[..., IntArray]
    score: Callable[[Pool, ReleasedLabels, int], FloatArray] | None = None
    infer: Callable[..., PoolLabels] | None = None
    rounds: int = 1
    uses_representation: bool = False

    @property
    def is_adaptive(self) -> bool:
        """Whether queries depend on earlier noisy answers."""
        return self.score is not None


def infer_from_labels(
    pool: Pool, released: ReleasedLabels, seed: int, *, representation: Named | None = None
) -> PoolLabels:
    """Returns what released labels say of the whole pool, see `pate_tf.queries.propagation`."""
    from pate_tf.queries import propagation

    return propagation.infer_from_labels(pool, released, seed, representation=representation)


AUTO: Final = "auto"
QUERIES_A_CLASS: Final = 5  # from which on each class is likely to be among diverse queries
STRATEGIES = {
    "first": Strategy(
        help="the first ones", words="the first of the public pool", choose=simple.choose_first
    ),
    "random": Strategy(
        help="drawn at random",
        words="drawn at random from the public pool",
        choose=simple.choose_random,
    ),
    "uncertain": Strategy(
        help="where a student of them is least confident",
        words="in rounds, where a student of the earlier noisy labels was least confident",
        choose=simple.choose_random,
        score=simple.student_confidence,
        rounds=5,
    ),
    "binary_experts": Strategy(
        help="where one-against-all experts contradict each other",
        words="in rounds, where experts taught by the earlier noisy labels disagreed",
        choose=simple.choose_random,
        score=simple.expert_scores,
        rounds=5,
    ),
    "diverse": Strategy(
        help="the medoid of each cluster of features; labels propagate to neighbors",
        words="medoids of clusters of the public pool, by features computed without labels",
        choose=clusters.choose,
        infer=infer_from_labels,
        uses_representation=True,
    ),
    "medoids": Strategy(
        help="the same for the denser ones of a fifth more clusters, on which teachers agree most",
        words="medoids of dense clusters of the public pool, by features computed without labels",
        choose=functools.partial(clusters.choose, clusters_a_query=clusters.CLUSTERS_A_QUERY),
        infer=infer_from_labels,
        uses_representation=True,
    ),
    "siamese": Strategy(
        help="at random, but what matches a labeled input takes its label without a query",
        words="in rounds, where no input with an earlier noisy label matched",
        choose=simple.choose_random,
        score=siamese.score,
        infer=siamese.infer,
        rounds=5,
    ),
}


def recommended(
    of_mechanism: str, dataset: Dataset, num_queries: int, *, is_whole_pool: bool
) -> str:
    """Returns the strategy that `auto` stands for; a public rule.

    Args:
        of_mechanism: the mechanism's own: "first" if it has none.
        dataset: of the pool. Without an augmentation nothing is known to propagate labels by.
        num_queries: that are asked; a class that no query hits is never predicted.
        is_whole_pool: whether all of the pool can be asked about, not its first inputs alone.
    """
    has_features = dataset.augmentation != "none" and is_whole_pool
    if of_mechanism != "first" or not has_features:
        return of_mechanism
    return "diverse" if num_queries >= QUERIES_A_CLASS * dataset.num_classes else of_mechanism


def find_strategy(name: str) -> Strategy:
    """Returns the strategy of a name; ValueError if there is none."""
    validation.one_of(STRATEGIES, strategy=name)
    return STRATEGIES[name]


def choices_help() -> str:
    """Returns what every strategy chooses, in one sentence each kind: for `--help`."""
    fixed = [
        f"{AUTO}: the mechanism's own, such as medoids for a stability_gate or a plan; else "
        f"diverse for images whose data set names an augmentation and at least {QUERIES_A_CLASS} "
        f"queries a class; else first"
    ]
    adaptive: list[str] = []
    for name, strategy in STRATEGIES.items():
        (adaptive if strategy.is_adaptive else fixed).append(f"{name}: {strategy.help}")
    return f"{'; '.join(fixed)}. In rounds, from the noisy labels so far: {'; '.join(adaptive)}."
