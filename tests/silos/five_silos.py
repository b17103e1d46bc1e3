"""Five silos that vote or compute feature sums, for tests, and a process that queries them."""

import itertools
import json
import types

import numpy as np
import silo_helpers

from pate_tf.accounting.local import SecureFeatureSums
from pate_tf.silos import (
    Asking,
    Coordinator,
    Member,
    Policy,
    Silo,
    SiloRoster,
    SiloSums,
    SiloTeacher,
)
from pate_tf.silos.aggregator import Aggregator
from pate_tf.silos.messages import QueryBatch, sums_query
from pate_tf.silos.protocol import Keys

NAMES = ("a", "b", "c", "d", "e")
AGGREGATORS = ("aggregator-1", "aggregator-2", "aggregator-3", "aggregator-4")
ENCODER = types.SimpleNamespace(digest="encoder", num_features=3)
POOL = silo_helpers.pool(1)
OTHERS = {"num_features": 3, "least_silos": 4, "colluding": 1, "num_parties": 4, "threshold": 1}
RELEASE = SecureFeatureSums.for_epsilon(0.5, delta=1e-6, **OTHERS)
MECHANISMS = {"votes": None, "secret votes": silo_helpers.SECURE, "sums": RELEASE}
VOTING = {"epsilon_budget": 1e9, "allowed": ("randomised_response", "secure_histogram")}


def sums_of(name):
    """Returns synthetic sums of a silo, int64 [4, 5]."""
    return np.arange(20).reshape(4, 5) * 10 ** NAMES.index(name)


def policy(name, **changes):
    fields = {"epsilon_budget": 1.0, "delta": 1e-6, "allowed": ("secure_feature_sums",), **changes}
    return Policy(silo=name, **fields)


def keys_of(folder, name):
    return Keys.load_or_create(folder / "keys" / f"{name}.json", name)


def roster(folder):
    """Returns the roster of five silos and four aggregators, whose keys are in a folder."""
    members = tuple(Member(name=name, identity=keys_of(folder, name).identity) for name in NAMES)
    identities = tuple(keys_of(folder, name).identity for name in AGGREGATORS)
    return SiloRoster(run="r", delta=1e-6, members=members, aggregators=identities)


def aggregators(folder):
    """Returns a connection to each aggregator."""
    opened = [Aggregator(keys_of(folder, name), folder / "of" / name) for name in AGGREGATORS]
    return [each.answer for each in opened]


def open_silo(folder, name, *, sums=None, **changes):
    """Opens a silo in its folder below the common folder."""
    content = sums or SiloSums(
        values=sums_of(name), encoder_digest=ENCODER.digest, num_records=1_000
    )
    given = {"roster": roster(folder), "keys": keys_of(folder, name)}
    given |= {field: changes.pop(field) for field in ("roster", "keys") if field in changes}
    return Silo(policy(name, **changes), content, folder=folder / name, **given)


def batch(number=1, *, query=None, mechanism=None, **fields):
    """Returns the coordinator's request to a silo."""
    return QueryBatch(
        queries=sums_query(ENCODER.digest, "record") if query is None else query,
        run_id="r",
        batch_id=f"round-{number}",
        num_classes=fields.pop("num_classes", silo_helpers.NUM_CLASSES),
        mechanism=RELEASE if mechanism is None else mechanism,
        deadline=4e9,
        **fields,
    )


def coordinator(folder, silos=..., *, kind="sums", **asking):
    """Opens a coordinator with its silos, all in their folders."""
    if silos is ...:
        voter = SiloTeacher(silo_helpers.teacher, num_classes=silo_helpers.NUM_CLASSES)
        content = {} if kind == "sums" else {"sums": voter, **VOTING}
        silos = [open_silo(folder, name, **content) for name in NAMES]
    running = Coordinator(
        roster(folder),
        folder=folder / "coordinator",
        silos=silos,
        asking=Asking(mechanism=MECHANISMS[kind], **asking),
        aggregators=aggregators(folder),
    )
    return running, silos


def total(running):
    """Returns the opened total, int64 [4, 5]."""
    return running.open_total(POOL, ENCODER).result[0]


def released(running, kind, number):
    """Returns the releases after this many queries, by query. For sums there is only one."""
    if kind == "sums":
        return {"total": total(running).tolist()}
    labels = running.ask(silo_helpers.pool(number), np.arange(number))
    values = labels.labels if labels.noisy_counts is None else labels.noisy_counts
    return dict(zip(map(str, labels.query_indices), values.tolist(), strict=True))


def ask(folder, kind):
    """Sends requests forever. Each line of the file `released` is the result of a round."""
    folder.mkdir(exist_ok=True)
    running, _ = coordinator(folder, kind=kind)
    with running, open(folder / "released", "a") as out:
        print("asking", flush=True)
        for number in itertools.count(3, 3):
            print(json.dumps(released(running, kind, number)), file=out, flush=True)
