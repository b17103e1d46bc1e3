"""Strategies without features: the first inputs, random ones, those that a student is unsure of.

Also what is trained between rounds: plain Keras models of the data set's default architecture, a
few hundred steps on the labels so far. None of them is the student that is released.
"""

from typing import TYPE_CHECKING

import numpy as np

from pate_tf.accounting.charge import ReleasedLabels
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.core.validation import IntArray
from pate_tf.queries.strategies import FloatArray, Strategy, register

if TYPE_CHECKING:
    from pate_tf.students.kinds import StudentConfig

STEPS = 300  # a few seconds on images of 28x28


def choose_first(pool: Pool, num_queries: int, seed: int) -> IntArray:
    """Returns the first positions of the pool, `[num_queries]`."""
    del pool, seed
    return np.arange(num_queries)


def random_order(pool: Pool, seed: int) -> IntArray:
    """Returns all positions of the pool in random order, `[num_inputs]`."""
    return np.random.default_rng(seed).permutation(len(pool))


def choose_random(pool: Pool, num_queries: int, seed: int) -> IntArray:
    """Returns positions drawn without replacement, `[num_queries]`.

    More queries of the same seed begin with the same ones, which were charged already.
    """
    return random_order(pool, seed)[:num_queries]


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


def score(pool: Pool, released: ReleasedLabels, seed: int) -> FloatArray:
    """Returns a student's largest probability of any class (Papernot et al. 2017, appendix B.2)."""
    return predictions(pool, released, seed).max(axis=1)


register(
    Strategy(
        name="first",
        help="the first ones",
        words="the first of the public pool",
        choose=choose_first,
    ),
    Strategy(
        name="random",
        help="drawn at random",
        words="drawn at random from the public pool",
        choose=choose_random,
    ),
    Strategy(
        name="uncertain",
        help="where a student of them is least confident",
        words="in rounds, where a student of the earlier noisy labels was least confident",
        choose=choose_random,
        score=score,
        rounds=5,
    ),
)
