"""Strategies that choose queries from a public pool, with their settings and checks.

`STRATEGIES` contains the choices and the help of `--query_strategy`, and descriptions for the
privacy statement. No strategy has access to true labels: a `Pool` contains no labels, and
`ReleasedLabels` are noisy labels whose cost was charged. Strategies import TensorFlow inside their
functions, so that flags and statements do not need it.
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
from pate_tf.core.checks import GUIDE, IntArray
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.core.settings import setting
from pate_tf.data.named_function import Named, OnFeatures
from pate_tf.queries.labels import Labels


def choose_random(pool: Pool, num_queries: int, seed: int) -> IntArray:
    """Draws random positions in the pool without replacement, `[num_queries]`.

    With the same seed, a longer list begins with the shorter list. If you later request more
    queries, the earlier queries are therefore not charged again.
    """
    return np.random.default_rng(seed).permutation(len(pool))[:num_queries]


MAX_PASSES = 50  # k-means passes over the inputs; later passes move the centers very little
# Number of clusters per query. With fewer clusters, it is more likely that the teachers disagree on
# some query. With more clusters, whole groups of inputs are not queried and get wrong labels.
CLUSTERS_A_QUERY = 1.2


def choose_medoids(
    pool: Pool,
    num_queries: int,
    seed: int,
    *,
    representation: Named | None = None,
    clusters_a_query: float = 1.0,
) -> IntArray:
    """Returns the positions of the inputs that are most central in the densest clusters of a pool.

    The positions are distinct and ascending, int64 `[num_queries]`. The most central input is the
    medoid, the input closest to the cluster's center. Only the densest clusters are used. The
    density of a cluster is the number of its inputs divided by their mean distance from the center.
    A cluster of one input has density 0. If there are fewer clusters than queries, for example
    because identical inputs share a cluster, the result also contains the first inputs of the pool
    that are not medoids.

    Args:
        pool: public inputs.
        num_queries: number of queries.
        seed: seed of the clustering.
        representation: the representation in which inputs are compared; None for the default of the
            data set.
        clusters_a_query: number of clusters per query. If this number is above 1, unusual inputs
            are in sparse clusters, which are not queried. This helps if a mechanism's
            result for all queries depends on the query on which teachers agree least.
    """
    import sklearn.cluster

    from pate_tf.representations.catalogue import pool_features_by_name

    number = min(math.ceil(clusters_a_query * num_queries), len(pool))
    features = np.concatenate(
        [view for views in pool_features_by_name(pool, representation, seed) for view in views],
        axis=1,
    )
    kmeans = sklearn.cluster.KMeans(number, n_init=1, max_iter=MAX_PASSES, random_state=seed).fit(
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
    """A strategy for choosing which public inputs are queried.

    Attributes:
        help: description for `--help`; it is printed after the strategy's name.
        words: description of the chosen queries; the privacy statement prints it after "queries: ".
        choose: function that takes a pool, the number of queries and a seed, and returns distinct
            positions, int64 `[num_queries]`.
        infer: function that takes a pool, all released labels and a seed, and returns the labels
            that a student learns from, without further queries. None if a student learns only from
            released labels. If `infer` is not None, `choose` and `infer` also take the argument
            `representation`: the representation in which inputs are compared, or None for the
            default of the data set.
    """

    help: str
    words: str
    choose: Callable[..., IntArray]
    infer: Callable[..., PoolLabels] | None = None


def infer_from_labels(
    pool: Pool, released: ReleasedLabels, seed: int, *, representation: Named | None = None
) -> PoolLabels:
    """Infers labels of the pool's inputs from released labels; see `label_inference`."""
    from pate_tf.postprocessing import label_inference

    return label_inference.infer_from_labels(pool, released, seed, representation=representation)


AUTO: Final = "auto"
QUERIES_A_CLASS: Final = 5  # with this many queries per class, diverse likely covers every class
STRATEGIES = {
    "first": Strategy(
        help="the first inputs",
        words="the first of the public pool",
        choose=lambda pool, num_queries, seed: np.arange(num_queries),
    ),
    "random": Strategy(
        help="drawn at random", words="drawn at random from the public pool", choose=choose_random
    ),
    "diverse": Strategy(
        help="the central input of each cluster of features; labels propagate to neighbors",
        words="medoids of clusters of the public pool, by features computed without labels",
        choose=choose_medoids,
        infer=infer_from_labels,
    ),
    "medoids": Strategy(
        help="like diverse, but with a fifth more clusters; only the densest clusters are used, "
        "because teachers agree most there",
        words="medoids of dense clusters of the public pool, by features computed without labels",
        choose=functools.partial(choose_medoids, clusters_a_query=CLUSTERS_A_QUERY),
        infer=infer_from_labels,
    ),
}


def recommended(dataset: Dataset, num_queries: int, *, is_whole_pool: bool) -> str:
    """Returns the name of the strategy that `auto` selects, based only on public facts.

    Args:
        dataset: data set of the pool. Labels can be propagated only if the data set has an
            augmentation.
        num_queries: number of queries. A class without a query is never predicted.
        is_whole_pool: whether every input of the pool can be queried; False if only the first
            inputs can.
    """
    has_features = dataset.augmentation != "none" and is_whole_pool
    has_enough = num_queries >= QUERIES_A_CLASS * dataset.num_classes
    return "diverse" if has_features and has_enough else "first"


# The rest of this module contains the settings for choosing queries, checks of these settings, and
# the function that chooses queries.


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryWishes(OnFeatures):
    """The user's settings for choosing queries. The planner fills in settings that are None.

    Attributes:
        seed: seed of random choices. A different seed selects different queries, which are charged
            as new queries.
    """

    restated: ClassVar = {
        "representation": {
            "help": "Features for feature sums, and for comparing inputs in diverse and medoids: "
            f"a name from {GUIDE}/how-to/small_teachers.html, several names joined by +, "
            "encoder:PATH for a model on disk (.keras or SavedModel), or module:function for a "
            "Keras model from raw inputs to features. Default: the representation of the teachers, "
            "or the default of the data set if the teachers have none."
        }
    }
    strategy: str | None = setting(
        None,
        flag="query_strategy",
        choices=(AUTO, *STRATEGIES),
        help="Which public inputs are queried. True labels are not used. "
        + f"{AUTO}: medoids for planned runs; diverse for images with an augmentation and at "
        f"least {QUERIES_A_CLASS} queries per class; otherwise first. "
        + " ".join(f"{name}: {strategy.help}." for name, strategy in STRATEGIES.items()),
    )
    num_queries: int | None = setting(
        None, flag="queries", least=1, help="Number of public inputs to query."
    )
    seed: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class QueryConfig(QueryWishes):
    """The complete settings for choosing queries, which `check_queries` checks."""

    strategy: str = "first"
    num_queries: int


def check_queries(config: QueryConfig, pool: Pool) -> None:
    """Raises ValueError if the settings do not match the pool; call this before any charge.

    Args:
        config: the complete settings for choosing queries.
        pool: public inputs.
    """
    checks.one_of(STRATEGIES, strategy=config.strategy)
    strategy = STRATEGIES[config.strategy]
    for name in ("num_queries", "seed"):
        value = getattr(config, name)
        if value is not None and type(value) is not int and not isinstance(value, np.integer):
            raise ValueError(f"{name} must be a whole number, got {value!r}")
    if not 1 <= config.num_queries <= len(pool):
        raise ValueError(f"num_queries must be from 1 to {len(pool)}, got {config.num_queries}")
    if config.representation is not None and strategy.infer is None:
        users = [name for name, each in STRATEGIES.items() if each.infer is not None]
        raise ValueError(
            f"representation needs the strategy {' or '.join(users)}, because {config.strategy} "
            f"does not compare inputs"
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
    """Returns labels of queries that it chooses, and labels of other inputs inferred from these.

    Args:
        config: settings that passed `check_queries`.
        pool: public inputs.
        ask: function that takes positions in the pool, int64 `[num_queries]`, and returns the
            released labels of these inputs.
        choosing: function that returns a context manager, inside which queries are chosen and
            labels are inferred.
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
    """Returns the inputs at these positions of a pool, `[num_queries, *input_shape]`.

    Raises:
        ValueError: if a position is outside of the pool.
    """
    return pool.inputs[checks.whole_numbers(queries, "queries", below=len(pool))]
