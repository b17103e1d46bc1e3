"""What released labels, noisy counts or feature sums say of a whole pool: post-processing, free.

First by features that were learned without labels, then by those of a network that learned from
the labels so found. Under heavy noise the network fits noise, so the mean of both is taken. Of
sums, the first alone is enough where it is confident and the network's features do not make the
sums clearly likelier.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.optimize
import scipy.special

from pate_tf.accounting.charge import ReleasedLabels
from pate_tf.accounting.conversions import LATTICE
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.core.validation import IntArray
from pate_tf.data.named_function import Named
from pate_tf.queries.strategies import clusters
from pate_tf.representations import Progress, hidden
from pate_tf.representations.catalogue import pool_features, pool_features_by_name
from pate_tf.representations.contrastive import student_features
from pate_tf.representations.label_propagation import (
    neighbour_graph,
    propagate_counts,
    propagate_labels,
)
from pate_tf.representations.regression import (
    MOST_QUERIES,
    Averages,
    NoisySums,
    Regression,
    averaged,
    labels_of,
    neighbourhood_averages,
    regress_counts,
    regress_sums,
    standardisation,
)
from pate_tf.students.training import TrainingDivergedError

# Standard deviation that a label without noise, 1 of its class and 0 of others, is taken to have:
# teachers may agree on a wrong one.
LABEL_DEVIATION = 0.1
PASS_WEIGHTS = np.array([0.5, 0.5])
LOW_CONFIDENCE = 0.75  # mean confidence of labels, below which those of a network count as well
# How much likelier the sums are made, as a logarithm for each effective degree of freedom.
CLEARLY_BETTER = 0.25
MEDOIDS_OF_CLASS = 50  # whose labels name clusters; of ten, a wrong one weighs too much
LEAST_CLEAR = 0.9  # of the pool, that must be clearly in a named cluster
# By how much cluster labels may make the sums less likely, as a logarithm: noise alone moves it by
# up to 22, a coherent error in one input in fifty by 50 and more.
MOST_MISFIT = 30.0
GROUP_WEIGHTS = (1.0, 0.3, 0.0)  # of features of later groups, beside 1
LOG_FACTORS = (-3.0, 7.0)  # of logits, over what a regression expects

Views = Sequence[Sequence[npt.NDArray[np.floating]]]


def infer_from_labels(
    pool: Pool, released: ReleasedLabels, seed: int, *, representation: Named | None = None
) -> PoolLabels:
    """Returns labels of the pool that follow from released ones, where these are clear.

    Labels propagate to neighbors; those that their neighborhood clearly contradicts are left out.
    Labels with noisy counts of the Gaussian histogram, and at first labels without noise, are
    learned from together by regression instead: each input gets weights of the classes. Where no
    representation can be learned the released labels are returned.

    A class that no released label names is never predicted. No network is trained then: it would
    learn the missing class's inputs as other classes, with confidence.

    Args:
        pool: public inputs.
        released: the labels.
        seed: of the features, and of the network that learns from labels.
        representation: by its name; None for the data set's default.

    Raises:
        ValueError: if no query was answered, or the labels do not belong to this pool.
    """
    released.check_pool(pool)
    if pool.dataset.augmentation == "none":
        return released
    views = pool_features_by_name(pool, representation, seed)
    regression = _regression(views, released)
    first = _propagated(views, released) if regression is None else labels_of(regression)
    if len(np.unique(first.labels)) < released.num_classes:
        return first if len(first.labels) else released
    try:
        _, features = student_features(pool, first, seed)
    except TrainingDivergedError:  # of an auxiliary network: the first labels suffice
        return first
    retrained = None if released.have_no_noise else _regression([[features]], released)
    if regression is not None and retrained is not None:
        return labels_of(averaged([regression, retrained], PASS_WEIGHTS))
    second = _propagated([[features]], released)
    return second if len(second.labels) else first


def _regression(views: Views, released: ReleasedLabels) -> Regression | None:
    """Regression on counts with Gaussian noise, or on labels without any; None of others."""
    charge, queries = released.cost.charge, released.query_indices
    if released.num_answered > MOST_QUERIES:
        return None
    if released.have_no_noise:
        counts: Any = np.eye(released.num_classes)[released.labels]
        deviation = LABEL_DEVIATION
    elif released.noisy_counts is not None and charge.releases_counts:
        counts, deviation = released.noisy_counts, charge.noise_scales["sigma"] * LATTICE
    else:
        return None
    return regress_counts(neighbourhood_averages(views), queries, counts, deviation)


def _propagated(views: Views, released: ReleasedLabels) -> PoolLabels:
    graph = neighbour_graph([view for group in views for view in group])
    if released.noisy_counts is None:
        return propagate_labels(graph, released)
    return propagate_counts(graph, released, released.noisy_counts)


@dataclasses.dataclass(frozen=True)
class Inferred:
    """Public: what feature sums say of a pool.

    Attributes:
        first: a label of every input, by the features that the sums are of.
        training_labels: what a student learns from: of a table how probable each class is of every
            input, of images how probable each is to be the likeliest one, or labels of clear
            clusters.
        network: that learned from the first labels, which a student can start from; None if there
            was none.
        network_is_better: whether its features make the sums clearly likelier than the first ones.
        weights: of a table, from what inputs would add to sums to logits, `[width, num_classes]`;
            None of images.
    """

    first: PoolLabels
    training_labels: PoolLabels
    network: Any = None
    network_is_better: bool = False
    weights: npt.NDArray[np.float64] | None = None


def linear_answers(sums: NoisySums) -> tuple[Regression, npt.NDArray[np.float64]]:
    """Returns what sums say of inputs of a table, and weights that say it of any input.

    Neighbors in a table need not be of one class: no averages. How much classes depend on later
    groups of features is what makes the sums likeliest, of `GROUP_WEIGHTS`.

    Args:
        sums: of features, with a constant last.

    Returns:
        The regression, and weights `[width, num_classes]` from vectors to logits: those of the
        regression, by a factor at which probabilities of the pool are most like its own.
    """
    features, constant = sums.vectors[:, :-1], float(sums.vectors[:, -1].max()) or 1.0
    mean, factors = standardisation(features)
    is_later = np.arange(features.shape[1]) >= (sums.groups or features.shape[1:])[0]
    candidates = []
    for weight in GROUP_WEIGHTS if is_later.any() else GROUP_WEIGHTS[:1]:
        weighed = factors * np.where(is_later, weight, 1.0)
        some = ((features - mean) * weighed).astype(np.float32)
        candidates.append((regress_sums([Averages(features=some, of_first=some)], sums), weighed))
    regression, factors = max(candidates, key=lambda candidate: candidate[0].evidence)
    assumed = sums.num_of_class / sums.num_records
    weights = factors[:, None] * np.asarray(regression.weights)
    weights = np.vstack([weights, (assumed - mean @ weights) / constant])
    shares = class_shares(regression)

    def cross_entropy(logarithm: float) -> float:
        logits = np.exp(logarithm) * regression.means
        return -float((shares * scipy.special.log_softmax(logits, axis=1)).sum(axis=1).mean())

    factor = scipy.optimize.minimize_scalar(cross_entropy, bounds=LOG_FACTORS, method="bounded").x
    return regression, np.exp(factor) * weights


def class_shares(regression: Regression) -> npt.NDArray[np.float64]:
    """Returns how probable each class is, as the means say, `[num_inputs, num_classes]`."""
    shares = np.clip(regression.means, np.finfo(np.float32).eps, 1.0)
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def infer_from_sums(
    pool: Pool,
    sums: NoisySums,
    seed: int,
    *,
    representation: Named | None = None,
    weights: npt.NDArray[np.float64] | None = None,
    progress: Progress = hidden,
) -> Inferred:
    """Returns labels of a pool; of a table, or where a class is never the likeliest, in one pass.

    If clusters of the network's features are clear, and the labels of their medoids fit the sums
    nearly as well as those of the regression, the cluster labels are taken: they are less noisy.

    Args:
        pool: public inputs.
        sums: of records, with noise.
        seed: of the features, and of the network that learns from labels.
        representation: of images, by its name; None for the data set's default. Tables are compared
            by what they would add to the sums.
        weights: of the linear model of several rounds, `[width, num_classes]`; its probabilities
            are the labels, unless clusters are clear. None for one round.
        progress: how the training of that network is shown.
    """
    is_table = pool.dataset.augmentation == "none"
    if weights is not None:
        shares = scipy.special.softmax(sums.vectors @ weights, axis=1).astype(np.float32)
        first = PoolLabels(
            query_indices=np.arange(len(pool)),
            labels=shares.argmax(axis=1),
            num_classes=shares.shape[1],
            weights=shares,
        )
        if is_table:
            return Inferred(first, first)
    elif is_table:
        regression, linear = linear_answers(sums)
        first = labels_of(regression)
        shares = class_shares(regression).astype(np.float32)
        return Inferred(first, dataclasses.replace(first, weights=shares), weights=linear)
    views = pool_features_by_name(pool, representation, seed)
    regression = regress_sums(neighbourhood_averages(views), sums)
    if weights is None:
        first = labels_of(regression)
    if len(np.unique(first.labels)) < first.num_classes:
        return Inferred(first, first)
    try:
        network, features = student_features(pool, first, seed, progress=progress)
    except TrainingDivergedError:  # of an auxiliary network: the first labels suffice
        return Inferred(first, first)
    retrained = regress_sums(neighbourhood_averages([[features]]), sums)
    # Noise that the network has learned makes its features look better, too.
    is_better = retrained.evidence - regression.evidence > CLEARLY_BETTER * retrained.freedom
    labels = first
    if weights is None and (is_better or (first.confidence or 0.0) < LOW_CONFIDENCE):
        labels = labels_of(averaged([regression, retrained], PASS_WEIGHTS))
    number = min(MEDOIDS_OF_CLASS * labels.num_classes, len(pool) // 2)
    medoids = clusters.choose(
        pool,
        number,
        seed,
        representation=representation,
        clusters_a_query=clusters.CLUSTERS_A_QUERY,
    )
    training_labels = _of_clusters(features, labels, medoids, sums) or labels
    return Inferred(first, training_labels, network, is_better)


def _of_clusters(
    features: npt.NDArray[np.floating], labels: PoolLabels, medoids: IntArray, sums: NoisySums
) -> PoolLabels | None:
    """Returns labels of clusters, named by those of medoids; None where they are no classes."""
    named = PoolLabels(
        query_indices=medoids, labels=labels.labels[medoids], num_classes=labels.num_classes
    )
    propagated = propagate_labels(neighbour_graph([features]), named)
    replaced = labels.labels.copy()
    replaced[propagated.query_indices] = propagated.labels
    are_classes = (
        len(propagated.labels) >= LEAST_CLEAR * len(features)
        and len(np.unique(propagated.labels)) == labels.num_classes
        and sums.misfit(replaced) - sums.misfit(labels.labels) <= MOST_MISFIT
    )
    return propagated if are_classes else None


# The nearest neighbours of a query, which teachers are asked about together with it.
#
# A teacher that learnt from few records errs on single inputs. Asked about an input and its nearest
# neighbours it votes once, for the class that it names most often among them: its own errors are
# outvoted, and teachers agree more. Replacing a record still changes one teacher and so one vote on
# each query, so that a query costs what it costs alone. Neighbours follow from the public pool: no
# label, true or noisy, plays a part.

NEIGHBOURS = 20


def default_number(pool: Pool, num_queries: int) -> int:
    """Returns how many neighbours go with each query by default; a public rule.

    At most half of a query's share of the pool: what lies farther away belongs to another query. 0
    where no representation can be learnt.
    """
    if pool.dataset.augmentation == "none":
        return 0
    return min(NEIGHBOURS, len(pool) // (2 * num_queries))


def nearest(
    pool: Pool, queries: IntArray, number: int, seed: int, *, representation: Named | None = None
) -> IntArray:
    """Returns each query's nearest neighbours, the nearest first and without itself.

    Args:
        pool: public inputs.
        queries: positions in it, `[num_queries]`.
        number: how many, at most all but one of the pool.
        seed: of the features.
        representation: by its name; None for the data set's default.

    Returns:
        Positions in the pool, int64 `[num_queries, number]`.
    """
    features = np.concatenate(pool_features(pool, representation, seed), axis=1)
    squares = np.square(features).sum(axis=1)
    neighbours = np.empty((len(queries), number), np.int64)
    # One after another: together they would be rounded by which others are asked, and a query with
    # another neighbour is another query, which is charged.
    for place, query in enumerate(queries):
        distances = squares - 2.0 * (features @ features[query])
        distances[query] = np.inf
        neighbours[place] = np.argsort(distances, kind="stable")[:number]
    return neighbours
