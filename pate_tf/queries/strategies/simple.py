"""Strategies without features: by position, at random, or by a model of the labels so far.

Models between rounds are plain Keras models of the data set's default architecture, a few hundred
steps on the labels so far. None of them is the student that is released. TensorFlow is imported
where one is trained.
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.charge import ReleasedLabels
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PoolLabels
from pate_tf.core.validation import IntArray

if TYPE_CHECKING:
    from pate_tf.students.kinds import StudentConfig

FloatArray = npt.NDArray[np.float64]

STEPS = 300  # a few seconds on images of 28x28
# One-against-all experts (Papernot et al. 2017, appendix B.2).
CONFIDENT = 0.9  # a candidate label with a lower score is uncertain
NOT_EXCLUDED = 0.1  # an expert with a higher score does not rule its class out
OTHER_EXPERTS = 4  # how many of them must not


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


def student_confidence(pool: Pool, released: ReleasedLabels, seed: int) -> FloatArray:
    """Returns a student's largest probability of any class (Papernot et al. 2017, appendix B.2)."""
    return predictions(pool, released, seed).max(axis=1)


def expert_scores(pool: Pool, released: ReleasedLabels, seed: int) -> FloatArray:
    """Returns `expert_order` of one-against-all experts of the labels, `[num_inputs]`.

    The experts of all classes are the outputs of one network with a sigmoid each, where the paper
    trained a network for each class.
    """
    import keras
    import scipy.special

    from pate_tf.models import catalogue
    from pate_tf.students.batches import outputs
    from pate_tf.students.training import fit_to_targets

    released.check_pool(pool)
    config = training_config(pool.dataset, seed)
    experts = catalogue.build(config.model, pool.dataset, seed=seed)
    fit_to_targets(
        experts,
        config,
        pool.dataset,
        inputs=pool.inputs[released.query_indices],
        targets=np.eye(released.num_classes, dtype=np.float32)[released.labels],
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
    )
    return expert_order(scipy.special.expit(outputs(experts, pool.inputs)))


def expert_order(scores: FloatArray) -> FloatArray:
    """Puts the inputs that the paper's rule selects before all others, by scores of the experts.

    Selected is an input whose candidate label, that of the highest score, scores below 0.9, while
    at least 4 other experts score above 0.1. The paper asks all of these and nothing else; a fixed
    number of queries may be more or fewer, so both groups are sorted by the candidate's score. With
    fewer than 5 classes nothing is selected, and the score alone decides.
    """
    candidate = scores.max(axis=1)
    num_others = (scores > NOT_EXCLUDED).sum(axis=1) - (candidate > NOT_EXCLUDED)
    selected = (candidate < CONFIDENT) & (num_others >= OTHER_EXPERTS)
    return np.where(selected, candidate, 1.0 + candidate)
