"""Small participants: data, models, training."""

import keras
import numpy as np

from pate_tf.core.dataset import Dataset
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.selective_sgd.settings import Settings
from pate_tf.selective_sgd.training import SharedTraining

DATASET = Dataset(
    name="blobs",
    kind="tabular",
    input_shape=(6,),
    value_range=(-8.0, 8.0),
    num_classes=3,
    pool_size=10,
)
CENTRES = np.random.default_rng(0).normal(scale=2.0, size=(3, 6))


def records(number: int, seed: int = 0) -> PrivateExamples:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, number)
    inputs = CENTRES[labels] + generator.normal(size=(number, 6))
    return PrivateExamples(DATASET, np.clip(inputs, -8, 8).astype(np.float32), labels)


def shares(num_participants: int, records_each: int) -> list[PrivateExamples]:
    return [records(records_each, seed) for seed in range(1, num_participants + 1)]


def model(*layers: keras.Layer, seed: int = 0) -> keras.Model:
    initializer = keras.initializers.GlorotUniform(seed=seed)
    return keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(5, activation="tanh", kernel_initializer=initializer),
            *layers,
            keras.layers.Dense(3, kernel_initializer=initializer),
        ]
    )


def training(
    *, num_participants: int = 4, records_each: int = 20, layers: tuple = (), **options: object
) -> SharedTraining:
    settings = Settings(num_participants=num_participants, **options)
    return SharedTraining(settings, model(*layers), shares(num_participants, records_each))


def accuracy(one: SharedTraining) -> float:
    samples = records(500, seed=99)
    logits = one.global_model().predict(samples.inputs, verbose=0)
    return float((logits.argmax(axis=1) == samples.labels).mean())
