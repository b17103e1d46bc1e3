"""Small participants, and uploads of a made-up run: good ones and others."""

import struct

import keras
import numpy as np

from pate_tf.core.dataset import Dataset
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.selective_sgd.run_state import LedgerFacts
from pate_tf.selective_sgd.settings import Settings
from pate_tf.selective_sgd.training import SharedTraining
from pate_tf.selective_sgd.upload import HEADER, Upload, encode

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


def changed(share: PrivateExamples, number: int, value: float) -> PrivateExamples:
    """The same records but one, all of whose inputs have a value."""
    inputs = share.inputs.copy()
    inputs[number] = value
    return PrivateExamples(share.dataset, inputs, share.labels)


def shares(num_participants: int, records_each: int) -> list[PrivateExamples]:
    return [records(records_each, seed) for seed in range(1, num_participants + 1)]


def model(*layers: keras.Layer, seed: int = 0) -> keras.Model:
    initializer = keras.initializers.GlorotUniform(seed=seed)
    hidden = keras.layers.Dense(5, activation="tanh", kernel_initializer=initializer)
    last = keras.layers.Dense(3, kernel_initializer=initializer)
    return keras.Sequential([keras.Input((6,)), hidden, *layers, last])


def training(
    *, num_participants: int = 4, records_each: int = 20, layers: tuple = (), **options: object
) -> SharedTraining:
    settings = Settings(num_participants=num_participants, **options)
    return SharedTraining(settings, model(*layers), shares(num_participants, records_each))


def accuracy(one: SharedTraining) -> float:
    samples = records(500, seed=99)
    logits = one.global_model().predict(samples.inputs, verbose=0)
    return float((logits.argmax(axis=1) == samples.labels).mean())


def facts_of(charge: object) -> LedgerFacts:
    """What a ledger says that nothing is written to."""
    head = (2, "a" * 64)
    return LedgerFacts(
        epsilon=1.0, delta=1e-5, ledger_head=head, secure_noise=True, was_reset=False
    )


RUN = b"a run of a test."
SIZE, PARTICIPANTS = 40, 3
INITIAL = np.arange(SIZE, dtype=np.float32)
SETTINGS = Settings(
    num_participants=PARTICIPANTS, rounds=50, upload=0.25, download=0.5, gamma=2.0, damping=0.5
)


def upload(
    participant: int = 0, turn: int = 0, version: int = 0, run: bytes = RUN, **parts: object
) -> Upload:
    given = {"indices": np.array([3, 7]), "values": np.array([0.5, -1.0], np.float32)}
    given |= {"num_parameters": SIZE, **parts}
    return Upload(run=run, participant=participant, round=turn, version=version, **given)


def content(*numbers: int, **parts: object) -> bytes:
    """The bytes of `upload`."""
    return encode(upload(*numbers, **parts))


def malformed(run: bytes = RUN) -> list[bytes]:
    """A hundred uploads and more of a run that must not be applied."""
    good = content(run=run)
    generator = np.random.default_rng(0)
    found = [good[:cut] for cut in range(len(good))]  # cut anywhere
    found += [good + b"x", b"", b"GET / HTTP/1.1\r\n\r\n" * 4]
    for place in range(4 + 1 + 16):  # magic, encoding, run
        found.append(good[:place] + bytes([good[place] ^ 0x41]) + good[place + 1 :])
    fields = list(HEADER.unpack_from(good))
    for place, values in {
        3: (PARTICIPANTS, 2**32 - 1),
        4: (SETTINGS.rounds, 2**32 - 1),
        5: (1, 2**63),
        6: (SIZE - 1, SIZE + 1, 0, 2**32 - 1),
        7: (0, 1, 3, 11, 2**32 - 1),
    }.items():
        for value in values:
            header = HEADER.pack(*fields[:place], value, *fields[place + 1 :])
            found.append(header + good[HEADER.size :])
    for value in (np.nan, np.inf, -np.inf, 2.1, -2.1, 3e38):
        found.append(content(run=run, values=np.array([0.5, value], np.float32)))
    header = HEADER.pack(*fields[:1], 3, *fields[2:])
    for pair in ((7, 3), (3, 3), (3, SIZE), (2**32 - 1, 3)):
        found.append(header + struct.pack("<IIff", *pair, 0.5, -1.0))
    # A bit set beyond the last parameter, and all indices left out of some changes.
    found += [HEADER.pack(*fields[:1], 1, *fields[2:]) + b"\x10\x10\x00\x00\x00" + good[-8:-4]]
    found += [generator.bytes(len(good)) for _ in range(20)]
    return found
