"""Features of a pool that are learnt from labels of some of it.

They tell apart what features learnt without labels do not: a seven with a bar from a two.
"""

import keras
import numpy as np
import numpy.typing as npt

from pate_tf.representations.contrastive import NETWORKS
from pate_tf.representations.raw import of_length_one
from pate_tf.students.batches import derived_seeds
from pate_tf.students.catalogue import STUDENTS
from pate_tf.students.config import StudentConfig
from pate_tf.students.outputs import outputs
from pate_tf.values.public import Pool, PoolLabels

STUDENT = "consistency"
STEPS = 1_500
PART = 5_000  # inputs whose features are in memory in double precision


def student_features(pool: Pool, labels: PoolLabels, seed: int) -> npt.NDArray[np.float32]:
    """Returns the last hidden layer of a consistency student, `[num_inputs, num_features]`.

    Args:
      pool: public images.
      labels: what the student learns from; partly wrong.
      seed: of its training.

    Raises:
      TrainingDivergedError: if a loss or weight became NaN or infinite.
    """
    defaults = STUDENTS[STUDENT]
    config = StudentConfig(
        student=STUDENT,
        model=defaults.default_model(pool.dataset),
        max_steps=STEPS,
        batch_size=defaults.batch_size,
        learning_rate=defaults.learning_rate,
        # Another one than those that the features without labels come from.
        seed=derived_seeds(seed, NETWORKS + 1)[-1],
    )
    student = defaults.train(config, labels, pool)
    hidden = keras.Model(student.inputs, student.layers[-2].output)  # before the logits
    parts = range(0, len(pool), PART)
    return np.concatenate(
        [of_length_one(outputs(hidden, pool.inputs[at : at + PART])) for at in parts]
    )
