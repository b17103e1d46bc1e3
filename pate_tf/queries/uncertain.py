"""Asks where a student of the labels so far is least sure (Papernot et al. 2017, appendix B.2)."""

import scipy.special

from pate_tf.queries import between_rounds
from pate_tf.records import Pool, ReleasedLabels
from pate_tf.students.outputs import FloatArray, outputs
from pate_tf.students.supervised import train_supervised


def score(pool: Pool, released: ReleasedLabels, seed: int) -> FloatArray:
    """Returns the largest probability that a student gives any class, `[num_inputs]`.

    Args:
      pool: public inputs `[num_inputs, *input_shape]`.
      released: the labels so far.
      seed: of the student.
    """
    config = between_rounds.training_config(pool.dataset, seed)
    student = train_supervised(config, released, pool)
    return scipy.special.softmax(outputs(student, pool.inputs), axis=1).max(axis=1)
