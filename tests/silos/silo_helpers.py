"""Silos and batches for tests."""

import time

import numpy as np

from pate_tf.silos import Policy, Silo
from pate_tf.silos.messages import QueryBatch

NUM_CLASSES = 5
SHAPE = (4,)
RANDOMISED = {"name": "randomised_response", "epsilon": 1.0}
SECURE = {"name": "secure_histogram", "sigma": 40.0, "num_parties": 4, "threshold": 1}


def queries(first, last):
    """Public queries, each different: `[last - first, 4]`."""
    numbers = np.arange(first, last, dtype=np.float32)
    return np.stack([numbers, numbers % 7, numbers * 0.5, numbers * 0 + 1], axis=1)


def batch(first, last, *, batch_id="b", run_id="r", mechanism=None, deadline=None, **fields):
    """A batch of those queries."""
    return QueryBatch(
        queries=fields.pop("inputs", queries(first, last)),
        run_id=run_id,
        batch_id=batch_id,
        num_classes=fields.pop("num_classes", NUM_CLASSES),
        mechanism=RANDOMISED if mechanism is None else mechanism,
        deadline=time.time() + 600 if deadline is None else deadline,
        **fields,
    )


def teacher(inputs):
    """Votes by the first feature."""
    return inputs[:, 0].astype(np.int64) % NUM_CLASSES


class FakeSealer:
    """Seals nothing: what it returns tells a fresh sealing from an earlier one."""

    def __init__(self):
        self.number = 0

    def fits(self, batch):
        return True

    def seal(self, votes, batch, *, silo):
        self.number += 1
        return [f"{silo} {batch.batch_id} {self.number} {party}".encode() for party in range(4)]


def policy(**changes):
    """A policy that allows everything below."""
    fields = {
        "silo": "clinic",
        "epsilon_budget": 1_000.0,
        "delta": 1e-6,
        "allowed": ("randomised_response", "secure_histogram"),
        **changes,
    }
    return Policy(**fields)


def silo(folder, *, model=teacher, sealer=None, noise=None, clock=time.time, **changes):
    """A silo with that teacher."""
    acknowledge_reset = changes.pop("acknowledge_reset", False)
    return Silo(
        policy(**changes),
        model,
        folder=folder,
        num_classes=NUM_CLASSES,
        input_shape=SHAPE,
        sealer=sealer,
        noise=noise,
        clock=clock,
        acknowledge_reset=acknowledge_reset,
    )
