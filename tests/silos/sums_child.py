"""A process with five silos that add up feature sums, for tests that kill it.

Usage: sums_child.py FOLDER. FOLDER/total gets what opened.
"""

import pathlib
import sys
import types

import numpy as np
import silo_helpers

from pate_tf.accounting.local import SecureFeatureSums
from pate_tf.core.sensitive import SumsByClass
from pate_tf.silos import Asking, Coordinator, Member, Policy, Roster, Silo
from pate_tf.silos.messages import QueryBatch, sums_query
from pate_tf.silos.secure.keys import PartyKeys
from pate_tf.silos.secure.opening import simulated_parties
from pate_tf.silos.teachers import SiloSums

NAMES = ("a", "b", "c", "d", "e")
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


def silo_keys(folder):
    return {name: PartyKeys.load_or_create(folder / f"{name}.keys", name) for name in NAMES}


def open_silo(folder, name, sealer, *, sums=None, **changes):
    """A silo on its folder; None for a folder that it forgets."""
    found = sums or SiloSums(sums=SumsByClass(sums_of(name)), representation=ENCODER.digest)
    return Silo(policy(name, **changes), found, folder=folder, sealer=sealer)


def parties(folder):
    """Sealers of the silos by name, and the parties' sums."""
    keys = silo_keys(folder)
    identities = [one.identity for one in keys.values()]
    sealer, sums = simulated_parties(folder / "parties", silos=identities)
    return {name: sealer.with_keys(one) for name, one in keys.items()}, sums


def roster():
    members = tuple(Member(name=name, epsilon=1.0, queries=5) for name in NAMES)
    return Roster(run_id="r", delta=1e-6, members=members)


def batch(number=1, *, query=None, mechanism=None, **fields):
    """What the coordinator asks a silo."""
    return QueryBatch(
        queries=sums_query(ENCODER.digest, "record") if query is None else query,
        run_id="r",
        batch_id=f"round-{number}",
        num_classes=fields.pop("num_classes", silo_helpers.NUM_CLASSES),
        mechanism=RELEASE.to_dict() if mechanism is None else mechanism,
        deadline=4e9,
        **fields,
    )


def coordinator(folder):
    """A coordinator with its silos, all on their folders."""
    sealers, sums = parties(folder)
    silos = [open_silo(folder / name, name, sealers[name]) for name in NAMES]
    asking = Asking(mechanism=RELEASE.to_dict())
    running = Coordinator(
        roster(), folder=folder / "coordinator", silos=silos, asking=asking, secure=sums
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
