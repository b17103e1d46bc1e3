"""Silos and batches for tests."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool
from pate_tf.release.noise import SystemNoise
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


def pool(number=200):
    """A pool of so many of those queries."""
    dataset = Dataset(
        name="lines",
        kind="tabular",
        input_shape=SHAPE,
        value_range=(0.0, 1_000.0),
        num_classes=NUM_CLASSES,
        pool_size=number,
    )
    return Pool(dataset, queries(0, number))


class Silent(SystemNoise):
    """Without noise a total shows exactly whose sums are in it."""

    def gaussian_integers(self, scale, size):
        return np.zeros(size, np.int64)


class Noted(SystemNoise):
    """Honest noise, and the last draw of it: for the referee alone."""

    def gaussian_integers(self, scale, size):
        self.drawn = super().gaussian_integers(scale, size)
        return self.drawn


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


def silo(
    folder,
    *,
    model=teacher,
    sealer=None,
    noise=None,
    clock=time.time,
    acknowledge_reset=False,
    **changes,
):
    """A silo with that teacher."""
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


FAULT_POINTS = (
    *("round_opened", "silo_debited", "silo_drawn", "silo_stored", "silo_answered"),
    *("reply_arrived", "reply_stored", "silo_submitted", "round_closed"),
)


def check_killed_at(point, script, *arguments):
    """Runs a script of this folder, which is killed at a point."""
    here = pathlib.Path(__file__).parent
    paths = os.pathsep.join([str(here), str(here.parents[1])])
    ended = subprocess.run(
        [sys.executable, here / script, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": paths, "PATE_TF_FAULT_POINT": point},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr


def answer_until(silo, batch, point):
    """A silo's answer; None where an error strikes at a point, in the place of a kill."""

    class KilledError(Exception):
        pass

    def strike(name):
        if name == point:
            raise KilledError

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KilledError):
        patch.setattr("pate_tf.silos.silo.fault_point", strike)
        return silo.answer(batch)
