"""What is trained between rounds, quickly, to find out what is worth asking next.

None of it is the student that is released: these are plain Keras models of the data set's default
architecture, trained for a few hundred steps on the labels so far.
"""

from pate_tf.models import catalogue
from pate_tf.records import Dataset
from pate_tf.students.config import StudentConfig

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
