"""What teachers are asked together with a query: the inputs of the pool that look most like it.

A teacher that learnt from few records errs on single inputs. Asked about an input and those that
look like it, it votes once, for the class that it names most often among them: its errors on single
inputs are outvoted by itself, and teachers agree more. Whoever replaces a record still changes one
teacher and so one vote on each query, so that a query costs what it costs alone.

Which inputs look alike is public, and worked out from the pool: no label, true or noisy, plays a
part.
"""

import numpy as np

from pate_tf.core.public import Pool
from pate_tf.core.validation import IntArray
from pate_tf.data.named_function import Named
from pate_tf.representations.catalogue import pool_features
from pate_tf.students.consistency import learns_by_augmentation

# Chosen by votes of 2,000 ridge teachers on MNIST's pool: with 5, 10, 20 and 40 they agree the
# more; with 40 some groups reach into another class.
NEIGHBOURS = 20


def default_number(pool: Pool, num_queries: int) -> int:
    """Returns how many look-alikes go with each query where nobody says; a public rule.

    At most half of a query's share of the pool, since what lies farther away is rather like another
    query. 0 where likeness can't be learnt.

    Args:
      pool: public inputs.
      num_queries: how many are asked.
    """
    if not learns_by_augmentation(pool.dataset):
        return 0
    return min(NEIGHBOURS, len(pool) // (2 * num_queries))


def nearest(
    pool: Pool, queries: IntArray, number: int, seed: int, *, representation: Named | None = None
) -> IntArray:
    """Returns the inputs that look most like each query, the nearest first.

    Args:
      pool: public inputs.
      queries: positions in it, `[num_queries]`.
      number: how many, at most all but one of the pool.
      seed: of the features.
      representation: what says which inputs are alike; None for the data set's default.

    Returns:
      Positions in the pool, int64 `[num_queries, number]`; a query is not among its own.
    """
    features = np.concatenate(pool_features(pool, representation, seed), axis=1)
    squares = np.square(features).sum(axis=1)
    found = np.empty((len(queries), number), np.int64)
    # One after another: together they would be rounded by which others are asked, and a query with
    # another look-alike is another query, which is paid for.
    for place, query in enumerate(queries):
        distances = squares - 2.0 * (features @ features[query])
        distances[query] = np.inf
        found[place] = np.argsort(distances, kind="stable")[:number]
    return found
