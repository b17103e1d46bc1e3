"""Asks where a student of the labels so far is least sure (Papernot et al. 2017, appendix B.2)."""

from pate_tf.accounting.released_labels import ReleasedLabels
from pate_tf.queries import round_models
from pate_tf.students.outputs import FloatArray
from pate_tf.values.public import Pool


def score(pool: Pool, released: ReleasedLabels, seed: int) -> FloatArray:
    """Returns the largest probability that a student gives any class, `[num_inputs]`.

    Args:
      pool: public inputs `[num_inputs, *input_shape]`.
      released: the labels so far.
      seed: of the student.
    """
    return round_models.predictions(pool, released, seed).max(axis=1)
