"""What is trained between rounds, quickly, to find out what is worth asking next.

None of it is the student that is released: these are plain Keras models of the data set's default
architecture, trained for a few hundred steps on the labels so far.
"""

import scipy.special

from pate_tf.models import catalogue
from pate_tf.students.config import StudentConfig
from pate_tf.students.outputs import FloatArray, outputs
from pate_tf.students.supervised import train_supervised
from pate_tf.values.dataset import Dataset
from pate_tf.values.public import Pool, PoolLabels

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
