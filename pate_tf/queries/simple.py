"""Choices that no label plays a part in, and labels as they were released."""

import numpy as np
import scipy.special

from pate_tf.accounting.released_labels import ReleasedLabels
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.core.validation import IntArray
from pate_tf.models import catalogue
from pate_tf.students.batches import FloatArray, outputs
from pate_tf.students.config import StudentConfig
from pate_tf.students.supervised import train_supervised


def choose_first(pool: Pool, num_queries: int, seed: int) -> IntArray:
    """Returns the first positions of the pool, `[num_queries]`."""
    del pool, seed
    return np.arange(num_queries)


def random_order(pool: Pool, seed: int) -> IntArray:
    """Returns all positions of the pool in an order that the seed decides, `[num_inputs]`."""
    return np.random.default_rng(seed).permutation(len(pool))


def choose_random(pool: Pool, num_queries: int, seed: int) -> IntArray:
    """Returns positions drawn without replacement, `[num_queries]`.

    More queries of the same seed begin with the same ones, which are paid for already.
    """
    return random_order(pool, seed)[:num_queries]


def as_released(pool: Pool, released: ReleasedLabels, seed: int) -> PoolLabels:
    """Returns the released labels: nothing else follows from them."""
    del pool, seed
    return released


# What is trained between rounds, quickly, to find out what is worth asking next.
#
# None of it is the student that is released: these are plain Keras models of the data set's default
# architecture, trained for a few hundred steps on the labels so far.


STEPS = 300  # a few seconds on images of 28x28


def training_config(dataset: Dataset, seed: int) -> StudentConfig:
    """Returns how a model between rounds is trained."""
    return StudentConfig(
        model=catalogue.default_model(dataset),
        max_steps=STEPS,
        batch_size=64,
        learning_rate=0.002,
        seed=seed,
    )


def predictions(pool: Pool, released: PoolLabels, seed: int) -> FloatArray:
    """Returns the probabilities that a student of the labels so far gives, for each input.

    Args:
      pool: public inputs `[num_inputs, *input_shape]`.
      released: the labels so far, at least one.
      seed: of the student.

    Returns:
      float64 `[num_inputs, num_classes]`.
    """
    student = train_supervised(training_config(pool.dataset, seed), released, pool)
    return scipy.special.softmax(outputs(student, pool.inputs).astype("float64"), axis=1)


# Asks where a student of the labels so far is least sure (Papernot et al. 2017, appendix B.2).


def score(pool: Pool, released: ReleasedLabels, seed: int) -> FloatArray:
    """Returns the largest probability that a student gives any class, `[num_inputs]`.

    Args:
      pool: public inputs `[num_inputs, *input_shape]`.
      released: the labels so far.
      seed: of the student.
    """
    return predictions(pool, released, seed).max(axis=1)
