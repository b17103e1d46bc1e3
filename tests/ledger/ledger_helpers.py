"""Helpers for the tests of ledger and labeller. Imports neither TensorFlow nor OpenDP."""

import functools

import numpy as np

from pate_tf.accounting.charge import CostRelease
from pate_tf.accounting.mechanisms import (
    ConfidentGaussianNoisyMax,
    GaussianNoisyMax,
    LaplaceNoisyMax,
)
from pate_tf.core.sensitive import VoteCounts
from pate_tf.ledger import Ledger
from pate_tf.release.noise import SystemNoise
from pate_tf.release.votes import release_votes

ENSEMBLE = "ab" * 32
DELTA = 1e-5
NUM_CLASSES = 3
MECHANISM = LaplaceNoisyMax(gamma=0.05)
MECHANISMS = [
    MECHANISM,
    GaussianNoisyMax(sigma=40.0),
    ConfidentGaussianNoisyMax(threshold=90.0, sigma_threshold=20.0, sigma=40.0),
]
PLAN = CostRelease(
    release="log_cost",
    bound="two_sided",
    moment=20.0,
    smoothness=0.06,
    sigma=8.0,
    failure=0.01,
    num_queries=20,
)


def votes_of(inputs):
    """Returns votes of undecided teachers, for which two draws often give different answers."""
    return VoteCounts(np.tile([90, 85, 75], (len(inputs), 1)))


def pool(start, stop):
    return np.arange(2 * start, 2 * stop, dtype=np.float32).reshape(-1, 2)


def open_ledger(folder, **changes):
    return Ledger.open(
        folder, **({"ensemble_digest": ENSEMBLE, "delta": DELTA, "epsilon_budget": None} | changes)
    )


def labeller_on(ledger, *, noise=None, voter=votes_of):
    return functools.partial(
        release_votes,
        voter=voter,
        ledger=ledger,
        noise=SystemNoise() if noise is None else noise,
        num_classes=NUM_CLASSES,
    )


def label(ledger, start, stop, *, mechanism=MECHANISM, **labeller):
    released = labeller_on(ledger, **labeller)(
        pool(start, stop), mechanism=mechanism, query_indices=np.arange(start, stop)
    )
    return released


def answers_of(released):
    return dict(zip(released.query_indices.tolist(), released.labels.tolist(), strict=True))
