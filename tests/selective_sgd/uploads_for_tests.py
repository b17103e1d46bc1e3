"""Uploads of a made-up run, good ones and others."""

import struct

import numpy as np

from pate_tf.selective_sgd.settings import Settings
from pate_tf.selective_sgd.upload import HEADER, Upload, encode

RUN = b"a run of a test."
SIZE, PARTICIPANTS = 40, 3
SETTINGS = Settings(
    num_participants=PARTICIPANTS, rounds=50, upload=0.25, download=0.5, gamma=2.0, damping=0.5
)


def upload(
    participant: int = 0, turn: int = 0, version: int = 0, run: bytes = RUN, **parts: object
) -> Upload:
    given = {"indices": np.array([3, 7]), "values": np.array([0.5, -1.0], np.float32), **parts}
    return Upload(
        run=run,
        participant=participant,
        round=turn,
        version=version,
        num_parameters=SIZE,
        **given,
    )


def malformed(run: bytes = RUN) -> list[bytes]:
    """A hundred uploads and more of a run that nobody may apply."""
    good = encode(upload(run=run))
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
            changed = fields.copy()
            changed[place] = value
            found.append(HEADER.pack(*changed) + good[HEADER.size :])
    for value in (np.nan, np.inf, -np.inf, 2.1, -2.1, 3e38):
        found.append(encode(upload(run=run, values=np.array([0.5, value], np.float32))))
    indices = HEADER.pack(*fields[:1], 3, *fields[2:])
    for pair in ((7, 3), (3, 3), (3, SIZE), (2**32 - 1, 3)):
        found.append(indices + struct.pack("<IIff", *pair, 0.5, -1.0))
    found += [generator.bytes(len(good)) for _ in range(20)]
    return found
