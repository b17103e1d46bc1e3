"""Small participants, and uploads of a synthetic run."""

import types

import keras
import numpy as np
from data_sets_for_tests import table_dataset

from pate_tf.core.sensitive import PrivateExamples
from pate_tf.release.noise import SeededNoise, SystemNoise
from pate_tf.selective_sgd.local_training import NoisyParticipants, Participants, SharedTraining
from pate_tf.selective_sgd.server import ParameterServer, Upload
from pate_tf.selective_sgd.training_settings import TrainingSettings

DATASET = table_dataset(6, -8.0, 8.0, name="blobs")
CENTRES = np.random.default_rng(0).normal(scale=2.0, size=(3, 6))


def records(number: int, seed: int = 0) -> PrivateExamples:
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, 3, number)
    inputs = CENTRES[labels] + generator.normal(size=(number, 6))
    return PrivateExamples(DATASET, np.clip(inputs, -8, 8).astype(np.float32), labels)


def changed(shard: PrivateExamples, number: int, value: float) -> PrivateExamples:
    """Returns the same records except for one, whose inputs all have the same value."""
    inputs = shard.inputs.copy()
    inputs[number] = value
    return PrivateExamples(shard.dataset, inputs, shard.labels)


def shards(num_participants: int, records_each: int) -> dict[int, PrivateExamples]:
    return {number: records(records_each, number + 1) for number in range(num_participants)}


def model(*layers: keras.Layer, seed: int = 0) -> keras.Model:
    initializer = keras.initializers.GlorotUniform(seed=seed)
    hidden = keras.layers.Dense(5, activation="tanh", kernel_initializer=initializer)
    last = keras.layers.Dense(3, kernel_initializer=initializer)
    return keras.Sequential([keras.Input((6,)), hidden, *layers, last])


def linear(first: str = "zeros") -> keras.Model:
    return keras.Sequential([keras.Input((6,)), keras.layers.Dense(3, kernel_initializer=first)])


# Replaces a `DurableRun`; nothing is charged.
UNCHARGED = types.SimpleNamespace(charge=lambda charge, *, secure_noise: None)


class NoNoise(SystemNoise):
    """Draws zeros, so that two draws are equal."""

    def words(self, size):
        return np.zeros(size, np.uint64)

    def gaussian_integers(self, scale, size):
        return np.zeros(size, np.int64)


def training(network=None, parts=None, noise=None, **options) -> SharedTraining:
    settings = TrainingSettings(**{"num_participants": 4, **options})
    parts = parts or shards(settings.num_participants, 20)
    network = network or model()
    if settings.is_noisy:
        noise = noise or SeededNoise(0)
        participants = NoisyParticipants(settings, network, parts, run=UNCHARGED, noise=noise)
    else:
        participants = Participants(settings, network, parts)
    return SharedTraining(participants, ParameterServer(settings, participants.view.parameters()))


def accuracy(trained: SharedTraining) -> float:
    samples = records(500, seed=99)
    network = trained.participants.view.assign(trained.server.released())
    return float((network(samples.inputs).numpy().argmax(axis=1) == samples.labels).mean())


SIZE, PARTICIPANTS = 40, 3
INITIAL = np.arange(SIZE, dtype=np.float32)


def upload(participant: int = 0, turn: int = 0, version: int = 0, **parts: object) -> Upload:
    given = {"indices": np.array([3, 7]), "values": np.array([0.5, -1.0], np.float32), **parts}
    return Upload(participant=participant, round=turn, version=version, **given)
