"""The nearest neighbours of a query, which teachers are asked about together with it.

A teacher that learnt from few records errs on single inputs. Asked about an input and its nearest
neighbours it votes once, for the class that it names most often among them: its own errors are
outvoted, and teachers agree more. Replacing a record still changes one teacher and so one vote on
each query, so that a query costs what it costs alone.

Neighbours follow from the public pool: no label, true or noisy, plays a part.
"""

import numpy as np

from pate_tf.core.public import Pool
from pate_tf.core.validation import IntArray
from pate_tf.data.named_function import Named
from pate_tf.representations.catalogue import pool_features

# Chosen by votes of 2,000 ridge teachers on MNIST's pool: with 5, 10, 20 and 40 they agree the
# more; with 40 some neighbours are of another class.
NEIGHBOURS = 20


def default_number(pool: Pool, num_queries: int) -> int:
    """Returns how many neighbours go with each query by default; a public rule.

    At most half of a query's share of the pool, since what lies farther away is rather like another
    query. 0 where no representation can be learnt.
    """
    if pool.dataset.augmentation == "none":
        return 0
    return min(NEIGHBOURS, len(pool) // (2 * num_queries))


def nearest(
    pool: Pool, queries: IntArray, number: int, seed: int, *, representation: Named | None = None
) -> IntArray:
    """Returns each query's nearest neighbours, the nearest first.

    Args:
        pool: public inputs.
        queries: positions in it, `[num_queries]`.
        number: how many, at most all but one of the pool.
        seed: of the features.
        representation: by its name; None for the data set's default.

    Returns:
        Positions in the pool, int64 `[num_queries, number]`; a query is not among its own.
    """
    features = np.concatenate(pool_features(pool, representation, seed), axis=1)
    squares = np.square(features).sum(axis=1)
    found = np.empty((len(queries), number), np.int64)
    # One after another: together they would be rounded by which others are asked, and a query with
    # another neighbour is another query, which is charged.
    for place, query in enumerate(queries):
        distances = squares - 2.0 * (features @ features[query])
        distances[query] = np.inf
        found[place] = np.argsort(distances, kind="stable")[:number]
    return found
