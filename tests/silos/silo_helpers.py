"""Silos and batches for tests."""

import contextlib
import time

import numpy as np
import pytest
from data_sets_for_tests import table_dataset

from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.local import RandomisedResponse, SecureFeatureSums, SecureHistogram
from pate_tf.core.public import Pool
from pate_tf.release.noise import SystemNoise
from pate_tf.silos import Member, Policy, Silo, SiloRoster, SiloSums, SiloTeacher
from pate_tf.silos.messages import QueryBatch
from pate_tf.silos.protocol import Keys

NUM_CLASSES = 5
SHAPE = (4,)
RANDOMISED = RandomisedResponse(num_classes=NUM_CLASSES, epsilon=1.0)
SECURE = SecureHistogram(sigma=40.0, num_parties=4, threshold=1)
AGGREGATORS = tuple(Keys(f"aggregator-{number}").identity for number in range(1, 5))


def secure_sums(**changes):
    """Returns a release of secure sums with four aggregators, one of which may collude."""
    facts = {"sigma": 5.0, "num_features": 3, "least_silos": 3, "colluding": 1}
    return SecureFeatureSums(**{**facts, "num_parties": 4, "threshold": 1, **changes})


def queries(first, last):
    """Returns public queries, each different: `[last - first, 4]`."""
    numbers = np.arange(first, last, dtype=np.float32)
    return np.stack([numbers, numbers % 7, numbers * 0.5, numbers * 0 + 1], axis=1)


def batch(first, last, *, batch_id="b", run_id="r", mechanism=None, deadline=None, **fields):
    """Returns a batch of those queries."""
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


def roster(*names, **fields):
    """Returns a roster of those silos and four aggregators."""
    members = tuple(Member(name=name, epsilon=1.0) for name in names or ("clinic",))
    fields = {"run": "r", "delta": 1e-6, "aggregators": AGGREGATORS, **fields}
    return SiloRoster(members=members, **fields)


def pool(number=200):
    """Returns a pool of this many of those queries."""
    dataset = table_dataset(4, 0.0, 1_000.0, NUM_CLASSES, name="lines", pool_size=number)
    return Pool(dataset, queries(0, number))


class Silent(SystemNoise):
    """Draws no noise, so a total shows exactly whose sums it contains."""

    def gaussian_integers(self, scale, size):
        return np.zeros(size, np.int64)


class Noted(SystemNoise):
    """Draws honest noise and keeps the last draw, for the referee only."""

    def gaussian_integers(self, scale, size):
        self.drawn = super().gaussian_integers(scale, size)
        return self.drawn


def policy(**changes):
    """Returns a policy that allows everything below."""
    fields = {
        "silo": "clinic",
        "epsilon_budget": 1_000.0,
        "delta": 1e-6,
        "allowed": ("randomised_response", "secure_histogram"),
        **changes,
    }
    return Policy(**fields)


def silo(folder, *, model=teacher, noise=None, clock=time.time, acknowledge_reset=False, **changes):
    """Returns a silo with that teacher, or with other content; it knows the four aggregators."""
    if not isinstance(model, SiloSums):
        model = SiloTeacher(model, num_classes=NUM_CLASSES, input_shape=SHAPE)
    own = {name: changes.pop(name) for name in ("roster", "keys") if name in changes}
    return Silo(
        policy(**changes),
        model,
        folder=folder,
        **{"roster": roster(), **own},
        noise=noise,
        clock=clock,
        acknowledge_reset=acknowledge_reset,
    )


def spent(silo):
    """Returns epsilon of all charges of a silo."""
    return smallest_epsilon(silo.account.charges, silo.policy.delta)[0]


def answer_until(silo, batch, point):
    """Returns a silo's answer, or None if an error occurs at a point, in place of a kill."""

    def strike(name):
        if name == point:
            raise SystemExit  # no error handler stops it

    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(SystemExit):
        patch.setattr("pate_tf.silos.silo.fault_point", strike)
        return silo.answer(batch)
