"""Do teachers pay that learn from the pool, too? `python -m benchmarks.semi_supervised`.

A semi-supervised teacher joins its few records to the inputs of the pool that look most like them,
and spreads their labels over the pool's graph of neighbours (Zhou et al. 2004). It is compared with
ridge teachers of the same records, asked about a query alone and together with its neighbours. It
reads votes without noise: SENSITIVE, for data sets that are public anyway.
"""

import argparse
import pathlib
import sys
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
import scipy.sparse
import sklearn.neighbors

from benchmarks.instead.problem import Problem, data_dir_of
from pate_tf.accounting.mechanisms.stability_gate import stability_distances
from pate_tf.api.run_folder import DataSource
from pate_tf.core.partition import random_partition
from pate_tf.core.sensitive import Votes
from pate_tf.core.validation import IntArray
from pate_tf.models import closed_form
from pate_tf.queries import propagation
from pate_tf.queries.strategies import clusters
from pate_tf.representations.label_propagation import (
    NEIGHBOURS,
    influence,
    neighbour_graph,
    weights_of,
)

Views = Sequence[npt.NDArray[np.floating]]


def joined_to_pool(records: Views, pool: Views) -> scipy.sparse.csr_array:
    """SENSITIVE: joins each record to the inputs nearest to it in each view.

    Args:
        records: features `[num_records, num_features]` of each view.
        pool: `[num_inputs, num_features]` of each.

    Returns:
        Weights `[num_records, num_inputs]`; those of a record sum to 1.
    """
    total = scipy.sparse.csr_array((len(records[0]), len(pool[0])), dtype=np.float32)
    for own, others in zip(records, pool, strict=True):
        number = min(NEIGHBOURS, len(others))
        search = sklearn.neighbors.NearestNeighbors(n_neighbors=number).fit(others)
        distances, near = search.kneighbors(own)
        weights = weights_of(distances)
        weights /= weights.sum(axis=1, keepdims=True) * len(pool)
        rows = np.repeat(np.arange(len(own)), number)
        total += scipy.sparse.csr_array((weights.ravel(), (rows, near.ravel())), shape=total.shape)
    return total


def votes_by_spreading(
    reach: npt.NDArray[np.floating], labels: IntArray, shares: Sequence[IntArray], num_classes: int
) -> IntArray:
    """SENSITIVE: returns what teachers vote that spread the labels of their records.

    A class of many records does not win by their number alone: it counts over the root of it.

    Args:
        reach: how much of each record arrives at each query, `[num_records, num_queries]`.
        labels: of the records.
        shares: records of each teacher.
        num_classes: number of classes.

    Returns:
        `[num_teachers, num_queries]`.
    """
    votes = np.zeros((len(shares), reach.shape[1]), np.int64)
    for vote, records in zip(votes, shares, strict=True):
        one_hot = np.eye(num_classes)[labels[records]]
        sizes = np.sqrt(np.maximum(one_hot.sum(axis=0), 1.0))
        vote[:] = (reach[records].T @ one_hot / sizes).argmax(axis=1)
    return votes


def ridge_votes(problem: Problem, shares: Sequence[IntArray], groups: IntArray) -> IntArray:
    """Votes on groups of the pool's inputs, `[num_groups, group_size]`, one for each group."""
    encoder, num_classes = problem.encoder, problem.dataset.num_classes
    asked, place = np.unique(groups, return_inverse=True)
    features = encoder.features(problem.pool.inputs[asked])
    records = encoder.features(problem.private.inputs)
    votes = np.zeros((len(shares), len(groups)), np.int64)
    for vote, share in zip(votes, shares, strict=True):
        weights, offsets = closed_form.fit(
            closed_form.RIDGE,
            records[share],
            problem.private.labels[share],
            num_classes=num_classes,
            num_views=encoder.num_views,
            scale=encoder.scale,
        )
        found = (features @ weights.astype(np.float32) + offsets).argmax(axis=1)
        named = np.eye(num_classes, dtype=np.int64)[found[place.reshape(groups.shape)]]
        vote[:] = named.sum(axis=1).argmax(axis=1)
    return votes


def rows(problem: Problem, *, num_teachers: int, num_queries: int, num_seeds: int) -> Iterator[str]:
    """Yields a line of a table for each kind of teacher.

    Args:
        problem: data whose two sides are public.
        num_teachers: of each kind.
        num_queries: of each batch.
        num_seeds: how many batches of typical queries; one of diverse queries goes before them.

    Raises:
        ValueError: if the pool's labels are not known.
    """
    truth, pool = problem.public.pool_labels, problem.pool
    if truth is None:
        raise ValueError("dataset: expected one with labels of its public side")
    partition = random_partition(
        num_records=len(problem.private), num_teachers=num_teachers, seed=problem.seed
    )
    shares, encoder = partition.all_records(), problem.encoder
    batches = [clusters.choose(pool, num_queries, problem.seed)]
    batches += [
        clusters.choose_of_dense_clusters(pool, num_queries, seed) for seed in range(num_seeds)
    ]
    asked = np.unique(np.concatenate(batches))
    number = propagation.default_number(pool, num_queries)
    neighbours = propagation.nearest(pool, asked, number, problem.seed)
    views = encoder.views(encoder.features(pool.inputs))
    joined = joined_to_pool(encoder.views(encoder.features(problem.private.inputs)), views)
    reach = joined @ influence(neighbour_graph(views), asked)
    kinds = {
        "ridge": ridge_votes(problem, shares, asked[:, None]),
        f"ridge, {number} neighbours": ridge_votes(
            problem, shares, np.column_stack([asked, neighbours])
        ),
        "label spreading": votes_by_spreading(
            reach, problem.private.labels, shares, problem.dataset.num_classes
        ),
    }
    yield "| teachers | one is right | most are right, diverse | fewest to change, typical |"
    yield "|---|---|---|---|"
    for name, labels in kinds.items():
        counts = Votes(labels, problem.dataset.num_classes).counts().values
        distances = stability_distances(counts)
        is_right = counts.argmax(axis=1) == truth[asked]
        first, *others = (np.searchsorted(asked, batch) for batch in batches)
        least = ", ".join(str(distances[batch].min()) for batch in others)
        one, most = (labels == truth[asked]).mean(), is_right[first].mean()
        yield f"| {name} | {one:.1%} | {most:.1%} | {least} |"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--dataset", default="mnist")
    parser.add_argument("--data_dir", type=pathlib.Path)
    parser.add_argument("--nb_teachers", type=int, default=2_000)
    parser.add_argument("--queries", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=4)
    flags = parser.parse_args(arguments)
    source = DataSource(dataset=flags.dataset, data_dir=data_dir_of(flags.dataset, flags.data_dir))
    print(f"SENSITIVE: {flags.nb_teachers} teachers of {flags.dataset}", flush=True)
    for line in rows(
        Problem(source=source),
        num_teachers=flags.nb_teachers,
        num_queries=flags.queries,
        num_seeds=flags.seeds,
    ):
        print(line, flush=True)


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(f"error: {error}")
