"""What released labels, noisy counts or feature sums say of a whole pool: post-processing, free.

In two passes: by features that were learnt without labels, and by those of a network that learnt
from the labels of the first pass. Under heavy noise the network fits noise, so of counts the mean
of both passes is taken. Of sums, how certain the first leaves labels and how likely the network's
features make the sums decide between the first, the mean, and the network in further passes.
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
from pate_tf.queries.strategies import find_strategy
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
    Regression,
    averaged,
    labels_of,
    neighbourhood_averages,
    regress_counts,
    regress_sums,
    standardisation,
)
from pate_tf.representations.regression import (
    NoisySums as NoisySums,
)
from pate_tf.students.training import TrainingDivergedError

# Standard deviation that a label without noise, 1 of its class and 0 of others, is taken to have:
# teachers may agree on a wrong one. Chosen by labels of MNIST's pool.
LABEL_DEVIATION = 0.1
# Weights of the two passes. Equal ones lost nothing on average on MNIST's pool and gained a point
# on Fashion-MNIST's, at epsilons of .1 and .25, over the second alone.
PASS_WEIGHTS = np.array([0.5, 0.5])
# Certainty of the first pass. Where it is higher, and the network's features are not clearly
# better, the first alone has more labels right, as on Fashion-MNIST at an epsilon of .1; where it
# is lower, and they are, they alone have, as on coloured digits at .1 and .25. Chosen on the pools
# of these (docs/notes/small_teachers.md).
LITTLE_CERTAINTY = 0.75
# How much likelier the sums are made, as a logarithm for each effective degree of freedom: more on
# coloured digits at epsilons of .07 to 1, less on Fashion-MNIST and MNIST.
CLEARLY_BETTER = 0.25
FURTHER_PASSES = 2
MEDOIDS_OF_CLASS = 50  # whose labels name clusters; of ten, a wrong one weighs too much
# Of the pool, the share that must be clearly in a named cluster for clusters to be classes: 95 to
# 97 % of MNIST's pool were, 72 to 81 % of Fashion-MNIST's.
LEAST_CLEAR = 0.9
# By how much cluster labels may make the sums less likely, as a logarithm. Noise alone moved that
# from 3 to 10 on MNIST's pool; a coherent error in one input in fifty, at an epsilon of .1, would
# cost about 50.
MOST_MISFIT = 20.0
# The same after several rounds, whose model fits what noise the first one has. Right labels were
# less likely by 10 to 22 at epsilons of .5 and 1 on MNIST's pool, and ones with an error in one
# input in fifty by 80 and 270.
MOST_MISFIT_OF_ROUNDS = 50.0
# Of features of later groups, beside 1. Where these told little, as bins of three tables of
# benchmarks/own_data.py at an epsilon of .25, more labels were right than with 1 alone.
GROUP_WEIGHTS = (1.0, 0.3, 0.0)
LOG_FACTORS = (-3.0, 7.0)  # of logits, over what a regression expects

Views = Sequence[Sequence[npt.NDArray[np.floating]]]


def infer_from_labels(
    pool: Pool, released: ReleasedLabels, seed: int, *, representation: Named | None = None
) -> PoolLabels:
    """Returns labels of the pool that follow from released ones, where these are clear.

    Labels propagate to neighbours; those that their neighbourhood clearly contradicts are left out.
    Labels with noisy counts of the Gaussian histogram, and in the first pass labels without noise,
    are learnt from together by regression instead: each input gets weights of the classes. Where no
    representation can be learnt the released labels are returned.

    A class that no released label names is never predicted. There is one pass then: the network
    would learn the missing class's inputs as other classes, with confidence.

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
        _, learnt = student_features(pool, first, seed)
    except TrainingDivergedError:  # of an auxiliary network: the first pass suffices
        return first
    retrained = None if released.have_no_noise else _regression([[learnt]], released)
    if regression is not None and retrained is not None:
        return labels_of(averaged([regression, retrained], PASS_WEIGHTS))
    second = _propagated([[learnt]], released)
    return second if len(second.labels) else first


def _regression(views: Views, released: ReleasedLabels) -> Regression | None:
    """Regression on counts with Gaussian noise, or on labels without any; None of others."""
    counts, charge = released.noisy_counts, released.cost.charge
    sigma = charge.noise_scales["sigma"] if charge.releases_counts else None
    queries = released.query_indices
    if released.num_answered > MOST_QUERIES:
        return None
    if released.have_no_noise:
        one_hot = np.eye(released.num_classes)[released.labels]
        return regress_counts(neighbourhood_averages(views), queries, one_hot, LABEL_DEVIATION)
    if counts is None or sigma is None:
        return None
    return regress_counts(neighbourhood_averages(views), queries, counts, sigma * LATTICE)


def _propagated(views: Views, released: ReleasedLabels) -> PoolLabels:
    graph = neighbour_graph([view for group in views for view in group])
    if released.noisy_counts is None:
        return propagate_labels(graph, released)
    return propagate_counts(graph, released, released.noisy_counts)


@dataclasses.dataclass(frozen=True)
class Inferred:
    """Public: what feature sums say of a pool.

    Attributes:
        first: a label of every input, after the first pass.
        learnt: what a student learns from: of a table how probable each class is of every input, of
            images how probable each is to be the likeliest one, or labels of clear clusters.
        certainty: the mean probability that the label is the likeliest class; None of clusters.
        network: of the second pass, which a student can go on from; None if there was none.
        network_is_better: whether its features make the sums clearly likelier than the first ones.
        weights: of a table, from what inputs would add to sums to logits, `[width, num_classes]`;
            None of images.
    """

    first: PoolLabels
    learnt: PoolLabels
    certainty: float | None
    network: Any = None
    network_is_better: bool = False
    weights: npt.NDArray[np.float64] | None = None


def linear_answers(sums: NoisySums) -> tuple[Regression, npt.NDArray[np.float64]]:
    """Returns what sums say of inputs of a table, and weights that say it of any input.

    Neighbours in a table need not be of one class: no averages. How much classes depend on later
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
    views: Views | None = None,
    weights: npt.NDArray[np.float64] | None = None,
    of_rounds: NoisySums | None = None,
    self_training: bool = True,
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
        views: features of the pool by this representation, where they are known.
        weights: of the linear model of several rounds, `[width, num_classes]`; its probabilities
            are the labels, unless clusters are clear or the network's features clearly better.
            None for one round.
        of_rounds: the sums as all rounds tell them, where `sums` are those of the first of several.
        self_training: whether a network learns from the labels and gives better ones.
    """
    modelled = None
    if weights is not None:
        shares = scipy.special.softmax(sums.vectors @ weights, axis=1).astype(np.float32)
        modelled = PoolLabels(
            query_indices=np.arange(len(pool)),
            labels=shares.argmax(axis=1),
            num_classes=shares.shape[1],
            weights=shares,
        )
        if pool.dataset.augmentation == "none":
            return Inferred(modelled, modelled, modelled.certainty)
    if pool.dataset.augmentation == "none":
        regression, linear = linear_answers(sums)
        first = labels_of(regression)
        learnt = dataclasses.replace(first, weights=class_shares(regression).astype(np.float32))
        return Inferred(first, learnt, first.certainty, weights=linear)

    def by_views(noisy: NoisySums) -> Regression:
        features = views or pool_features_by_name(pool, representation, seed)
        return regress_sums(neighbourhood_averages(features), noisy)

    regression = by_views(sums)
    first = modelled or labels_of(regression)
    if not self_training or len(np.unique(first.labels)) < first.num_classes:
        return Inferred(first, first, first.certainty)
    try:
        network, features = student_features(pool, first, seed)
    except TrainingDivergedError:  # of an auxiliary network: the first pass suffices
        return Inferred(first, first, first.certainty)
    retrained = regress_sums(neighbourhood_averages([[features]]), sums)
    # Noise that the network has learnt makes its features look better, too.
    is_better = retrained.evidence - regression.evidence > CLEARLY_BETTER * retrained.freedom
    is_unsure = modelled is None and (first.certainty or 1.0) < LITTLE_CERTAINTY
    goes_on = is_better and is_unsure
    if is_better and of_rounds is not None:
        regression = by_views(of_rounds)
        retrained = regress_sums(neighbourhood_averages([[features]]), of_rounds)
    second = first
    if goes_on:
        second = labels_of(retrained)
    elif is_better or is_unsure:
        second = labels_of(averaged([regression, retrained], PASS_WEIGHTS))
    medoids = find_strategy("medoids").choose(
        pool,
        min(MEDOIDS_OF_CLASS * second.num_classes, len(pool) // 2),
        seed,
        representation=representation,
    )
    most = MOST_MISFIT if modelled is None else MOST_MISFIT_OF_ROUNDS
    clear = _of_clusters(features, second, medoids, sums, most)
    for number in range(FURTHER_PASSES if goes_on and clear is None else 0):
        try:
            network, features = student_features(pool, second, seed + number, network=network)
        except TrainingDivergedError:
            break
        second = labels_of(regress_sums(neighbourhood_averages([[features]]), sums))
        clear = _of_clusters(features, second, medoids, sums, most)
    learnt = second if clear is None else clear
    return Inferred(first, learnt, learnt.certainty, network=network, network_is_better=is_better)


def _of_clusters(
    features: npt.NDArray[np.floating],
    labels: PoolLabels,
    medoids: IntArray,
    sums: NoisySums,
    most_misfit: float,
) -> PoolLabels | None:
    """Returns labels of clusters, named by those of medoids; None where they are no classes."""
    num_inputs, num_classes = len(features), labels.num_classes
    named = PoolLabels(
        query_indices=medoids, labels=labels.labels[medoids], num_classes=num_classes
    )
    propagated = propagate_labels(neighbour_graph([features]), named)
    replaced = labels.labels.copy()
    replaced[propagated.query_indices] = propagated.labels
    are_classes = (
        len(propagated.labels) >= LEAST_CLEAR * num_inputs
        and len(np.unique(propagated.labels)) == num_classes
        and sums.misfit(replaced) - sums.misfit(labels.labels) <= most_misfit
    )
    return propagated if are_classes else None


# The nearest neighbours of a query, which teachers are asked about together with it.
#
# A teacher that learnt from few records errs on single inputs. Asked about an input and its nearest
# neighbours it votes once, for the class that it names most often among them: its own errors are
# outvoted, and teachers agree more. Replacing a record still changes one teacher and so one vote on
# each query, so that a query costs what it costs alone. Neighbours follow from the public pool: no
# label, true or noisy, plays a part.

# Chosen by votes of 2,000 ridge teachers on MNIST's pool: with 5, 10, 20 and 40 they agree the
# more; with 40 some neighbours are of another class.
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
