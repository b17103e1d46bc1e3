"""A small training problem, and code to train it."""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf
from data_sets_for_tests import image_dataset

from pate_tf.core.sensitive import Partition, PrivateExamples
from pate_tf.models import architectures
from pate_tf.teachers.teacher_kinds import TrainedTeacher, TrainingJob
from pate_tf.teachers.teacher_kinds.networks import train_on_devices
from pate_tf.teachers.teacher_settings import TeacherConfig

NUM_TEACHERS = 4
SMALL = "architectures_for_tests:small"  # no dropout, no moving averages
BLOBS = image_dataset(8, name="blobs", augmentation="affine")


def blob_images(num: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns three classes that differ in the bright part of the image, under noise."""
    random = np.random.default_rng(seed)
    labels = np.arange(num) % 3
    images = random.uniform(0, 120, (num, 8, 8, 1))
    for index, label in enumerate(labels):
        images[index, 2:6, 2 * label : 2 * label + 3] += 120
    return images.astype(np.uint8), labels


def examples(num: int = 64) -> PrivateExamples:
    return PrivateExamples(BLOBS, *blob_images(num))


def uneven_partition(num: int = 64) -> Partition:
    """Returns shards of different size, the first smaller than a batch."""
    assignment = np.repeat(np.arange(NUM_TEACHERS), [5, 15, 20, num - 40])
    return Partition(assignment, num_teachers=NUM_TEACHERS)


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


def training_job(private: PrivateExamples | None = None, **changes: object) -> TrainingJob:
    return TrainingJob(
        config=config(**changes), examples=private or examples(), partition=uneven_partition()
    )


def job_of_owners() -> TrainingJob:
    """Returns shards with different numbers of steps; the last one of five is empty."""
    shards = Partition(uneven_partition().assignment, num_teachers=NUM_TEACHERS + 1, unit="owner")
    of_owners = config(num_teachers=NUM_TEACHERS + 1, unit="owner", max_steps=None, batch_size=2)
    return TrainingJob(config=of_owners, examples=examples(), partition=shards)


def train_all(
    job: TrainingJob, teachers: Sequence[int], strategy: tf.distribute.Strategy | None = None
) -> list[TrainedTeacher]:
    strategy = strategy or tf.distribute.OneDeviceStrategy("/CPU:0")
    return [trained for _, trained in train_on_devices(job, teachers, strategy)]


def bits(trained: TrainedTeacher) -> list[tuple[object, ...]]:
    arrays = (*trained.arrays, trained.curves)
    return [(array.dtype, array.shape, array.tobytes()) for array in arrays]


def random_teachers(config: TeacherConfig) -> list[TrainedTeacher]:
    """Returns networks with random weights."""
    teachers = []
    for teacher in range(config.num_teachers):
        model = architectures.build(config.model, config.dataset, seed=teacher)
        random = np.random.default_rng(teacher)
        for weight in model.trainable_variables:
            weight.assign_add(random.normal(0, 0.3, weight.shape))
        teachers.append(TrainedTeacher([variable.numpy() for variable in variables(model)]))
    return teachers


def variables(model: keras.Model) -> list:
    return [*model.trainable_variables, *model.non_trainable_variables]


def slow_twin(config: TeacherConfig, teachers: Sequence[TrainedTeacher], inputs: np.ndarray):
    """Returns votes `[num_teachers, num_inputs]` of one Keras model after another."""
    votes = []
    for teacher in teachers:
        model = architectures.build(config.model, config.dataset)
        for variable, array in zip(variables(model), teacher.arrays, strict=True):
            variable.assign(array)
        votes.append(model.predict(inputs.astype(np.float32), verbose=0).argmax(axis=1))
    return np.array(votes)
