"""Which inputs of a pool teachers are asked about: strategies by name, settings, checks, asking.

A strategy's entry says all that others need: `--query_strategy` takes its choices and help from
here, and the privacy statement its words. No strategy sees a true label: a `Pool` has none, and
`ReleasedLabels` were charged to the ledger. Flags and statements read the entries without
TensorFlow: strategies import it inside of their functions.
"""

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar, Final

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.charge import ReleasedLabels
from pate_tf.core import checks
from pate_tf.core.checks import IntArray
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.core.settings import setting
from pate_tf.data.named_function import Named, OnFeatures
from pate_tf.queries.labels import Labels


def choose_random(pool: Pool, num_queries: int, seed: int) -> IntArray:
    """Returns positions drawn without replacement, `[num_queries]`.

    More queries of the same seed begin with the same ones, which were charged already.
    """
    return np.random.default_rng(seed).permutation(len(pool))[:num_queries]


MOST_PASSES = 50  # of k-means; the last of hundreds move next to nothing
# With fewer, teachers are divided on some query more often; with more, whole kinds of inputs are
# left out, and get other classes' labels.
CLUSTERS_A_QUERY = 1.2


def choose_medoids(
    pool: Pool,
    num_queries: int,
    seed: int,
    *,
    representation: Named | None = None,
    clusters_a_query: float = 1.0,
) -> IntArray:
    """Returns medoids of the densest clusters, in the pool's order: int64 `[num_queries]`.

    They are distinct; where clusters are fewer than queries, as copies are in one cluster, the
    first other inputs are added. The density of a cluster is its number of inputs over their mean
    distance from its center; of an input alone, which is like no other, 0.

    Args:
        pool: public inputs.
        num_queries: how many.
        seed: of the clusters.
        representation: whose features inputs are compared by; None for the data set's default.
        clusters_a_query: above 1 for mechanisms where the query that teachers agree on least
            decides about all others: odd inputs end up in sparse clusters, which are not asked
            about.
    """
    import sklearn.cluster

    from pate_tf.representations.catalogue import pool_features_by_name

    number = min(math.ceil(clusters_a_query * num_queries), len(pool))
    features = np.concatenate(
        [view for views in pool_features_by_name(pool, representation, seed) for view in views],
        axis=1,
    )
    kmeans = sklearn.cluster.KMeans(number, n_init=1, max_iter=MOST_PASSES, random_state=seed).fit(
        features
    )
    distances = kmeans.transform(features)[np.arange(len(features)), kmeans.labels_]
    by_distance = np.argsort(distances, kind="stable")
    labels, first, sizes = np.unique(
        kmeans.labels_[by_distance], return_index=True, return_counts=True
    )
    total = np.bincount(kmeans.labels_, distances, minlength=number)[labels]
    densities = np.where(sizes > 1, sizes**2 / np.maximum(total, np.finfo(np.float32).tiny), 0.0)
    medoids = by_distance[first][np.argsort(-densities, kind="stable")[:num_queries]]
    others = np.setdiff1d(np.arange(len(pool)), medoids)[: num_queries - len(medoids)]
    return np.sort(np.concatenate([medoids, others]))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strategy:
    """One way to choose queries.

    Attributes:
        help: what it chooses, for `--help`: words that follow "name: ".
        words: what it chose, for the statement: words that follow "queries, ".
        choose: from pool, number of queries and seed to the queries: positions int64
            `[num_queries]`, distinct.
        infer: from pool, all released labels and seed to what a student learns from: labels that
            follow from those without a query. None where nothing else follows from them. With it
            both also take `representation=`, the name of the features that they compare inputs by;
            None for the data set's default.
    """

    help: str
    words: str
    choose: Callable[..., IntArray]
    infer: Callable[..., PoolLabels] | None = None


def infer_from_labels(
    pool: Pool, released: ReleasedLabels, seed: int, *, representation: Named | None = None
) -> PoolLabels:
    """Returns what released labels say of the whole pool (`postprocessing/label_inference.py`)."""
    from pate_tf.postprocessing import label_inference

    return label_inference.infer_from_labels(pool, released, seed, representation=representation)


AUTO: Final = "auto"
QUERIES_A_CLASS: Final = 5  # from which on each class is likely to be among diverse queries
STRATEGIES = {
    "first": Strategy(
        help="the first ones",
        words="the first of the public pool",
        choose=lambda pool, num_queries, seed: np.arange(num_queries),
    ),
    "random": Strategy(
        help="drawn at random", words="drawn at random from the public pool", choose=choose_random
    ),
    "diverse": Strategy(
        help="the medoid of each cluster of features; labels propagate to neighbors",
        words="medoids of clusters of the public pool, by features computed without labels",
        choose=choose_medoids,
        infer=infer_from_labels,
    ),
    "medoids": Strategy(
        help="the same for the denser ones of a fifth more clusters, on which teachers agree most",
        words="medoids of dense clusters of the public pool, by features computed without labels",
        choose=functools.partial(choose_medoids, clusters_a_query=CLUSTERS_A_QUERY),
        infer=infer_from_labels,
    ),
}


def recommended(dataset: Dataset, num_queries: int, *, is_whole_pool: bool) -> str:
    """Returns the strategy that `auto` stands for; a public rule.

    Args:
        dataset: of the pool. Without an augmentation nothing is known to propagate labels by.
        num_queries: that are asked; a class that no query hits is never predicted.
        is_whole_pool: whether all of the pool can be asked about, not its first inputs alone.
    """
    has_features = dataset.augmentation != "none" and is_whole_pool
    has_enough = num_queries >= QUERIES_A_CLASS * dataset.num_classes
    return "diverse" if has_features and has_enough else "first"


# Settings, checks, and asking.


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryWishes(OnFeatures):
    """How queries are chosen, as far as a person decided it; None for what is planned.

    Attributes:
        seed: of random choices of queries. Another seed asks other queries, which are charged.
    """

    restated: ClassVar = {
        "representation": {
            "help": "Features that feature sums are of, and that diverse and medoids compare "
            "inputs by: a name of docs/how-to/small_teachers.md, several joined by +, encoder:PATH "
            "for a model on disk (.keras or SavedModel), or module:function for a Keras model, "
            "from raw inputs to features. Default: that of the teachers, if they have one, else "
            "that of the data."
        }
    }
    strategy: str | None = setting(
        None,
        flag="query_strategy",
        choices=(AUTO, *STRATEGIES),
        help="Which of the pool are put to the teachers; true labels play no part. "
        + f"{AUTO}: medoids for a plan; else diverse for images whose data set names an "
        f"augmentation and at least {QUERIES_A_CLASS} queries a class; else first. "
        + " ".join(f"{name}: {strategy.help}." for name, strategy in STRATEGIES.items()),
    )
    num_queries: int | None = setting(
        None, flag="queries", least=1, help="How many of the pool are put to the teachers."
    )
    seed: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryConfig(QueryWishes):
    """How queries are chosen, as `check_queries` has it."""

    strategy: str = "first"
    num_queries: int


def check_queries(config: QueryConfig, pool: Pool) -> None:
    """Raises ValueError, before anything is charged, unless strategy, pool and queries fit.

    Args:
        config: how many, and how they are chosen.
        pool: public inputs.
    """
    checks.one_of(STRATEGIES, strategy=config.strategy)
    strategy = STRATEGIES[config.strategy]
    for name in ("num_queries", "seed"):
        value = getattr(config, name)
        if value is not None and type(value) is not int and not isinstance(value, np.integer):
            raise ValueError(f"{name}: expected a whole number, got {value!r}")
    if not 1 <= config.num_queries <= len(pool):
        raise ValueError(
            f"num_queries: expected from 1 to the pool's {len(pool)}, got {config.num_queries}"
        )
    if config.representation is not None and strategy.infer is None:
        users = [name for name, each in STRATEGIES.items() if each.infer is not None]
        raise ValueError(
            f"representation: expected with strategy {' or '.join(users)} alone, got it with "
            f"{config.strategy}, which compares no inputs"
        )
    if config.representation is not None:
        from pate_tf.representations.catalogue import check_representation

        check_representation(config.representation, pool.dataset)


def ask_once(
    config: QueryConfig,
    pool: Pool,
    ask: Callable[[IntArray], ReleasedLabels],
    *,
    choosing: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
) -> Labels:
    """Chooses queries, has them answered, and infers what follows from the answers.

    Args:
        config: how many, and how they are chosen, as `check_queries` lets pass.
        pool: public inputs.
        ask: from positions in the pool, int64 `[num_queries]`, to their labels.
        choosing: entered for as long as something is learned about the pool.
    """
    strategy = STRATEGIES[config.strategy]
    features = {"representation": config.representation} if strategy.infer else {}
    with choosing():
        queries = strategy.choose(pool, config.num_queries, config.seed, **features)
    released = ask(queries)
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


def inputs_at(pool: Pool, queries: IntArray) -> npt.NDArray[Any]:
    """Returns the inputs of a pool at these positions, `[num_queries, *input_shape]`.

    Raises:
        ValueError: if a position is not in the pool.
    """
    if queries.size and not 0 <= queries.min() <= queries.max() < len(pool.inputs):
        raise ValueError(
            f"queries: expected positions in a pool of {len(pool)}, got {queries.min()} to "
            f"{queries.max()}"
        )
    return pool.inputs[queries]
