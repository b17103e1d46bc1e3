"""A process with five silos that add up feature sums, for tests that kill it.

Usage: sums_child.py FOLDER. FOLDER/total gets what opened.
"""

import pathlib
import sys
import types

import numpy as np
import silo_helpers

from pate_tf.accounting.local import SecureFeatureSums
from pate_tf.silos import Asking, Coordinator, Member, Policy, Silo, SiloRoster, SiloSums
from pate_tf.silos.aggregator import Aggregator
from pate_tf.silos.messages import QueryBatch, sums_query
from pate_tf.silos.protocol import Keys

NAMES = ("a", "b", "c", "d", "e")
AGGREGATORS = ("aggregator-1", "aggregator-2", "aggregator-3", "aggregator-4")
ENCODER = types.SimpleNamespace(digest="encoder", num_features=3)
POOL = types.SimpleNamespace(dataset=types.SimpleNamespace(num_classes=silo_helpers.NUM_CLASSES))
OTHERS = {"num_features": 3, "least_silos": 4, "colluding": 1, "num_parties": 4, "threshold": 1}
RELEASE = SecureFeatureSums.for_epsilon(0.5, delta=1e-6, **OTHERS)


def sums_of(name):
    """Made-up sums of a silo, int64 [4, 5]."""
    return np.arange(20).reshape(4, 5) * 10 ** NAMES.index(name)


def policy(name, **changes):
    fields = {"epsilon_budget": 1.0, "delta": 1e-6, "allowed": ("secure_feature_sums",), **changes}
    return Policy(silo=name, **fields)


def keys_of(folder, name):
    return Keys.load_or_create(folder / "keys" / f"{name}.json", name)


def roster(folder):
    """The roster of five silos and four aggregators, whose keys lie in a folder."""
    members = tuple(Member(name=name, identity=keys_of(folder, name).identity) for name in NAMES)
    identities = tuple(keys_of(folder, name).identity for name in AGGREGATORS)
    return SiloRoster(run="r", delta=1e-6, members=members, aggregators=identities)


def aggregators(folder):
    """How to ask each aggregator."""
    opened = [Aggregator(keys_of(folder, name), folder / "of" / name) for name in AGGREGATORS]
    return [each.answer for each in opened]


def open_silo(folder, name, *, sums=None, **changes):
    """A silo on its folder below the one of all."""
    content = sums or SiloSums(values=sums_of(name), representation=ENCODER.digest)
    given = {"roster": roster(folder), "keys": keys_of(folder, name)}
    given |= {field: changes.pop(field) for field in ("roster", "keys") if field in changes}
    return Silo(policy(name, **changes), content, folder=folder / name, **given)


def batch(number=1, *, query=None, mechanism=None, **fields):
    """What the coordinator asks a silo."""
    return QueryBatch(
        queries=sums_query(ENCODER.digest, "record") if query is None else query,
        run_id="r",
        batch_id=f"round-{number}",
        num_classes=fields.pop("num_classes", silo_helpers.NUM_CLASSES),
        mechanism=RELEASE if mechanism is None else mechanism,
        deadline=4e9,
        **fields,
    )


def coordinator(folder, silos=..., **asking):
    """A coordinator with its silos, all on their folders."""
    silos = [open_silo(folder, name) for name in NAMES] if silos is ... else silos
    running = Coordinator(
        roster(folder),
        folder=folder / "coordinator",
        silos=silos,
        asking=Asking(mechanism=RELEASE, **asking),
        aggregators=aggregators(folder),
    )
    return running, silos


def total(running):
    """What opens, int64 [4, 5]."""
    return running.result_of_sums(running.open_total(POOL, ENCODER))


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    running, _ = coordinator(folder)
    with running:
        np.save(folder / "total.npy", total(running))
