"""A small training problem, and how to train it."""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from pate_tf.core.dataset import Dataset
from pate_tf.core.partition import Partition, assigned_partition
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.models import catalogue
from pate_tf.teachers.settings import TeacherConfig
from pate_tf.teachers.store import TeacherState
from pate_tf.teachers.training import DataParallelTrainer, EnsembleParallelTrainer, TeacherData

NUM_TEACHERS = 4
SMALL = "architectures_for_tests:small"  # no dropout, no moving averages
OWN_LOSSES = "architectures_for_tests:with_added_loss"  # of weights, and a mean over the batch
BLOBS = Dataset(
    name="blobs",
    kind="image",
    input_shape=(8, 8, 1),
    value_range=(0.0, 255.0),
    num_classes=3,
    augmentation="affine",
    pool_size=10,
)


def blob_images(num: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Three classes that differ in where the image is bright, under noise."""
    random = np.random.default_rng(seed)
    labels = np.arange(num) % 3
    images = random.uniform(0, 120, (num, 8, 8, 1))
    for index, label in enumerate(labels):
        images[index, 2:6, 2 * label : 2 * label + 3] += 120
    return images.astype(np.uint8), labels


def examples(num: int = 64) -> PrivateExamples:
    return PrivateExamples(BLOBS, *blob_images(num))


def uneven_partition(num: int = 64) -> Partition:
    """Shares of different size, the first smaller than a batch."""
    assignment = np.repeat(np.arange(NUM_TEACHERS), [5, 15, 20, num - 40])
    return assigned_partition(assignment, num_teachers=NUM_TEACHERS)


def config(**changes: object) -> TeacherConfig:
    fields = {
        "dataset": BLOBS,
        "num_teachers": NUM_TEACHERS,
        "model": "architectures_for_tests:with_buffers",
        "max_steps": 9,
        "batch_size": 8,
        "learning_rate": 0.01,
        "seed": 5,
    }
    return TeacherConfig(**{**fields, **changes})


def teacher_data(private: PrivateExamples | None = None, **changes: object) -> TeacherData:
    return TeacherData(config(**changes), private or examples(), uneven_partition())


def data_of_owners() -> TeacherData:
    """Shares of different numbers of steps; the last one of five is empty."""
    shares = Partition(uneven_partition().assignment, NUM_TEACHERS + 1, "owner")
    of_owners = config(num_teachers=NUM_TEACHERS + 1, unit="owner", max_steps=None, batch_size=2)
    return TeacherData(of_owners, examples(), shares)


def trainer(
    strategy: tf.distribute.Strategy | None = None,
    private: PrivateExamples | None = None,
    **changes: object,
) -> EnsembleParallelTrainer:
    strategy = strategy or tf.distribute.OneDeviceStrategy("/CPU:0")
    return EnsembleParallelTrainer(teacher_data(private, **changes), strategy)


def train_all(
    trainer: EnsembleParallelTrainer | DataParallelTrainer,
    teachers: Sequence[int],
    chunks: Sequence[int] = (10_000,),
) -> list[TeacherState]:
    """Trains teachers in groups, in calls of the given numbers of steps."""
    done: list[TeacherState] = []
    for start in range(0, len(teachers), trainer.group_size):
        group = teachers[start : start + trainer.group_size]
        states = [trainer.data.initial_state(teacher) for teacher in group]
        for num_steps in chunks:
            states = trainer.advance(group, states, num_steps)
        done += states
    return done


def arrays(state: TeacherState) -> list[np.ndarray]:
    return [
        *state.weights,
        *state.buffers,
        *state.first_moments,
        *state.second_moments,
        state.losses,
    ]


def same(one: TeacherState, other: TeacherState) -> bool:
    """Bit for bit."""
    pairs = list(zip(arrays(one), arrays(other), strict=True))
    return all(a.dtype == b.dtype and a.tobytes() == b.tobytes() for a, b in pairs)


def stacked_weights(config: TeacherConfig) -> list[np.ndarray]:
    """Random weights and buffers for an ensemble with random weights."""
    models = [
        catalogue.build(config.model, config.dataset, seed=teacher)
        for teacher in range(config.num_teachers)
    ]
    for teacher, model in enumerate(models):
        random = np.random.default_rng(teacher)
        for weight in model.trainable_variables:
            weight.assign_add(random.normal(0, 0.3, weight.shape))
    lists = [[w.numpy() for w in variables(model)] for model in models]
    return [np.stack(slot) for slot in zip(*lists, strict=True)]


def variables(model: keras.Model) -> list:
    return [*model.trainable_variables, *model.non_trainable_variables]


def slow_logits(config: TeacherConfig, stacked: Sequence[np.ndarray], inputs: np.ndarray):
    """Logits `[num_teachers, num_inputs, num_classes]` of one Keras model after another."""
    logits = []
    for teacher in range(config.num_teachers):
        model = catalogue.build(config.model, config.dataset)
        for variable, slot in zip(variables(model), stacked, strict=True):
            variable.assign(slot[teacher])
        logits.append(model.predict(inputs.astype(np.float32), verbose=0))
    return np.array(logits)


def slow_twin(config: TeacherConfig, stacked: Sequence[np.ndarray], inputs: np.ndarray):
    """Votes `[num_teachers, num_inputs]` of one Keras model after another."""
    return slow_logits(config, stacked, inputs).argmax(axis=2)
