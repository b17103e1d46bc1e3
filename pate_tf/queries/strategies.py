"""Query strategies by name.

A strategy's entry says all that others need: `--query_strategy` takes its choices and help from
here, and the privacy statement its words. No strategy sees a true label: a `Pool` has none, and
`ReleasedLabels` were charged to the ledger. Flags and statements read the entries without
TensorFlow: strategies import it inside of their functions.

Models between rounds are plain Keras models of the data set's default architecture, a few hundred
steps on the labels so far. None of them is the student that is released.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.charge import ReleasedLabels
from pate_tf.core import validation
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.core.validation import IntArray
from pate_tf.data.named_function import Named

if TYPE_CHECKING:
    from pate_tf.students.kinds import StudentConfig

FloatArray = npt.NDArray[np.float64]

STEPS = 300  # a few seconds on images of 28x28
# One-against-all experts (Papernot et al. 2017, appendix B.2).
CONFIDENT = 0.9  # a candidate label with a lower score is uncertain
NOT_EXCLUDED = 0.1  # an expert with a higher score does not rule its class out
OTHER_EXPERTS = 4  # how many of them must not


def choose_random(pool: Pool, num_queries: int, seed: int) -> IntArray:
    """Returns positions drawn without replacement, `[num_queries]`.

    More queries of the same seed begin with the same ones, which were charged already.
    """
    return np.random.default_rng(seed).permutation(len(pool))[:num_queries]


def training_config(dataset: Dataset, seed: int) -> "StudentConfig":
    """Returns how a model between rounds is trained."""
    from pate_tf.models.catalogue import default_model
    from pate_tf.students.kinds import StudentConfig

    return StudentConfig(
        model=default_model(dataset), max_steps=STEPS, batch_size=64, learning_rate=0.002, seed=seed
    )


def predictions(pool: Pool, released: PoolLabels, seed: int) -> FloatArray:
    """Returns the probabilities of a student of at least one label, `[num_inputs, num_classes]`."""
    import scipy.special

    from pate_tf.students.batches import outputs
    from pate_tf.students.kinds import kind_of

    student = kind_of("supervised").train(training_config(pool.dataset, seed), released, pool)
    return scipy.special.softmax(outputs(student, pool.inputs).astype("float64"), axis=1)


def expert_scores(pool: Pool, released: ReleasedLabels, seed: int) -> FloatArray:
    """Returns `expert_order` of one-against-all experts of the labels, `[num_inputs]`.

    The experts of all classes are the outputs of one network with a sigmoid each, where the paper
    trained a network for each class.
    """
    import keras
    import scipy.special

    from pate_tf.models import catalogue
    from pate_tf.students.batches import outputs
    from pate_tf.students.training import fit_to_targets

    released.check_pool(pool)
    config = training_config(pool.dataset, seed)
    experts = catalogue.build(config.model, pool.dataset, seed=seed)
    fit_to_targets(
        experts,
        config,
        pool.dataset,
        inputs=pool.inputs[released.query_indices],
        targets=np.eye(released.num_classes, dtype=np.float32)[released.labels],
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
    )
    return expert_order(scipy.special.expit(outputs(experts, pool.inputs)))


def expert_order(scores: FloatArray) -> FloatArray:
    """Puts the inputs that the paper's rule selects before all others, by scores of the experts.

    Selected is an input whose candidate label, that of the highest score, scores below 0.9, while
    at least 4 other experts score above 0.1. The paper asks all of these and nothing else; a fixed
    number of queries may be more or fewer, so both groups are sorted by the candidate's score. With
    fewer than 5 classes nothing is selected, and the score alone decides.
    """
    candidate = scores.max(axis=1)
    num_others = (scores > NOT_EXCLUDED).sum(axis=1) - (candidate > NOT_EXCLUDED)
    selected = (candidate < CONFIDENT) & (num_others >= OTHER_EXPERTS)
    return np.where(selected, candidate, 1.0 + candidate)


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


MATCH_CONFIDENCE = 0.99  # probability of one class from which a pair counts as a match
FIRST_OFFSET = 5.0  # at which inputs in one place match, and the twins push others apart


def matches(pool: Pool, released: ReleasedLabels, seed: int) -> PoolLabels:
    """Returns labels of other inputs: those of their best matches among the labeled ones.

    Only inputs whose best match is confident get one. Post-processing of the released labels. Two
    inputs match with probability sigmoid(offset - |distance of their places|^2); the offset is
    learned, as are the places, by networks with the same weights (Bromley et al. 1993; Koch 2015):
    the second variant of Papernot et al. 2017, appendix B.2.
    """
    import keras

    from pate_tf.models import catalogue
    from pate_tf.students.batches import outputs
    from pate_tf.students.training import fit_to_targets

    ops = keras.ops

    class Twins(keras.Model):
        """From raw inputs to places `[batch, num_dimensions]`."""

        def __init__(self, twin: keras.Model) -> None:
            super().__init__()
            self.twin = twin
            self.offset = self.add_weight(
                name="offset", initializer=keras.initializers.Constant(FIRST_OFFSET)
            )
            self.built = True

        def call(self, inputs: Any, training: bool = False) -> Any:
            return self.twin(inputs, training=training)

        def match(self, places: Any, others: Any) -> Any:
            squares = ops.sum(places**2, axis=1)[:, None] + ops.sum(others**2, axis=1)
            return self.offset - (squares - 2.0 * ops.matmul(places, ops.transpose(others)))

        def compute_loss(self, x: Any, y: Any, y_pred: Any, *_: Any, **named: Any) -> Any:
            """Mean cross-entropy of pairs of one class, plus that of other pairs."""
            del x, named
            same = ops.cast(y[:, None] == y, "float32")
            losses = ops.binary_crossentropy(same, self.match(y_pred, y_pred), from_logits=True)
            kinds = (same * (1.0 - ops.eye(ops.shape(y)[0])), 1.0 - same)
            means = [ops.sum(kind * losses) / ops.maximum(ops.sum(kind), 1.0) for kind in kinds]
            return means[0] + means[1]

    released.check_pool(pool)
    queries, dataset, inputs = released.query_indices, pool.dataset, pool.inputs
    config = training_config(dataset, seed)
    twins = Twins(catalogue.build(config.model, dataset, seed=seed))
    fit_to_targets(twins, config, dataset, inputs=inputs[queries], targets=released.labels)
    places = outputs(twins, inputs).astype(np.float32)
    logits = np.asarray(twins.match(places, places[queries]))
    is_match = logits.max(axis=1) >= np.log(MATCH_CONFIDENCE / (1.0 - MATCH_CONFIDENCE))
    is_match[queries] = False
    matched = np.flatnonzero(is_match)
    return PoolLabels(
        query_indices=matched,
        labels=released.labels[logits.argmax(axis=1)[matched]],
        num_classes=released.num_classes,
    )


def infer_from_matches(pool: Pool, released: ReleasedLabels, seed: int) -> PoolLabels:
    """Returns the released labels, and after them those of all inputs that match."""
    parts = (released, matches(pool, released, seed))
    return PoolLabels(
        query_indices=np.concatenate([part.query_indices for part in parts]),
        labels=np.concatenate([part.labels for part in parts]),
        num_classes=released.num_classes,
    )


def matches_last(pool: Pool, released: ReleasedLabels, seed: int) -> FloatArray:
    """Returns the order of asking, `[num_inputs]`: a random one, what matches last."""
    places = np.empty(len(pool))
    places[choose_random(pool, len(pool), seed)] = np.arange(len(pool))
    places[matches(pool, released, seed).query_indices] += len(pool)
    return places


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
        help="the first ones",
        words="the first of the public pool",
        choose=lambda pool, num_queries, seed: np.arange(num_queries),
    ),
    "random": Strategy(
        help="drawn at random", words="drawn at random from the public pool", choose=choose_random
    ),
    "uncertain": Strategy(
        help="in rounds, where a student of the labels so far is least confident",
        words="in rounds, where a student of the earlier noisy labels was least confident",
        choose=choose_random,
        # Papernot et al. 2017, appendix B.2.
        score=lambda pool, released, seed: predictions(pool, released, seed).max(axis=1),
        rounds=5,
    ),
    "binary_experts": Strategy(
        help="in rounds, where one-against-all experts contradict each other",
        words="in rounds, where experts taught by the earlier noisy labels disagreed",
        choose=choose_random,
        score=expert_scores,
        rounds=5,
    ),
    "diverse": Strategy(
        help="the medoid of each cluster of features; labels propagate to neighbors",
        words="medoids of clusters of the public pool, by features computed without labels",
        choose=choose_medoids,
        infer=infer_from_labels,
        uses_representation=True,
    ),
    "medoids": Strategy(
        help="the same for the denser ones of a fifth more clusters, on which teachers agree most",
        words="medoids of dense clusters of the public pool, by features computed without labels",
        choose=functools.partial(choose_medoids, clusters_a_query=CLUSTERS_A_QUERY),
        infer=infer_from_labels,
        uses_representation=True,
    ),
    "siamese": Strategy(
        help="in rounds, at random; what matches a labeled input takes its label without a query",
        words="in rounds, where no input with an earlier noisy label matched",
        choose=choose_random,
        score=matches_last,
        infer=infer_from_matches,
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
    """Returns what every strategy chooses, for `--help`."""
    auto = (
        f"{AUTO}: the mechanism's own, such as medoids for a stability_gate or a plan; else "
        f"diverse for images whose data set names an augmentation and at least {QUERIES_A_CLASS} "
        "queries a class; else first."
    )
    others = (f"{name}: {strategy.help}." for name, strategy in STRATEGIES.items())
    return " ".join([auto, *others])
