"""What released labels or noisy counts say of a whole pool: post-processing, free.

First by features that were learned without labels, then by those of a network that learned from
the labels so found. Under heavy noise the network fits noise, so the mean of both is taken.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.charge import ReleasedLabels
from pate_tf.accounting.conversions import LATTICE
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.core.validation import IntArray
from pate_tf.data.named_function import Named
from pate_tf.representations.catalogue import pool_features_by_name
from pate_tf.representations.contrastive import student_features
from pate_tf.representations.label_propagation import (
    neighbour_graph,
    propagate_counts,
    propagate_labels,
)
from pate_tf.representations.regression import (
    MOST_QUERIES,
    Regression,
    averaged,
    class_probabilities,
    labels_of,
    neighbourhood_averages,
    regress_counts,
)
from pate_tf.students.training import TrainingDivergedError

# Standard deviation that a label without noise, 1 of its class and 0 of others, is taken to have:
# teachers may agree on a wrong one.
LABEL_DEVIATION = 0.1
PASS_WEIGHTS = np.array([0.5, 0.5])
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
    first = (
        _propagated(views, released)
        if regression is None
        else labels_of(class_probabilities(regression))
    )
    if len(np.unique(first.labels)) < released.num_classes:
        return first if len(first.labels) else released
    try:
        _, features = student_features(pool, first, seed)
    except TrainingDivergedError:  # of an auxiliary network: the first labels suffice
        return first
    retrained = None if released.have_no_noise else _regression([[features]], released)
    if regression is not None and retrained is not None:
        return labels_of(class_probabilities(averaged([regression, retrained], PASS_WEIGHTS)))
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


# The nearest neighbors of a query, which teachers are asked about together with it.
#
# A teacher that learned from few records errs on single inputs. Asked about an input and its
# nearest neighbors, it votes once, for the class that it names most often among them: its own
# errors are outvoted, and teachers agree more. Replacing a record still changes one teacher and so
# one vote on each query: a query costs what it costs alone. Neighbors follow from the public pool:
# no label, true or noisy, plays a part.

NEIGHBOURS = 20


def default_number(pool: Pool, num_queries: int) -> int:
    """Returns how many neighbors go with each query by default; a public rule.

    At most half of a query's share of the pool: what lies farther away belongs to another query. 0
    where no representation can be learned.
    """
    if pool.dataset.augmentation == "none":
        return 0
    return min(NEIGHBOURS, len(pool) // (2 * num_queries))


def nearest(
    pool: Pool, queries: IntArray, number: int, seed: int, *, representation: Named | None = None
) -> IntArray:
    """Returns each query's nearest neighbors, the nearest first and without itself.

    Args:
        pool: public inputs.
        queries: positions in it, `[num_queries]`.
        number: how many, at most all but one of the pool.
        seed: of the features.
        representation: by its name; None for the data set's default.

    Returns:
        Positions in the pool, int64 `[num_queries, number]`.
    """
    features = np.concatenate(
        [view for views in pool_features_by_name(pool, representation, seed) for view in views],
        axis=1,
    )
    squares = np.square(features).sum(axis=1)
    neighbours = np.empty((len(queries), number), np.int64)
    # One after another: together they would be rounded by which others are asked, and a query with
    # another neighbor is another query, which is charged.
    for place, query in enumerate(queries):
        distances = squares - 2.0 * (features @ features[query])
        distances[query] = np.inf
        neighbours[place] = np.argsort(distances, kind="stable")[:number]
    return neighbours
