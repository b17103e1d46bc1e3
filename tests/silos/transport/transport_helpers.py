"""Certificates, rosters and coordinators of synthetic runs."""

import time

import numpy as np

from pate_tf.accounting.local import RandomisedResponse
from pate_tf.net.calls import TlsServer
from pate_tf.silos.messages import QueryBatch, RandomisedVotes
from pate_tf.silos.round_journal import CoordinatorJournal, Round
from pate_tf.silos.transport import TaskConnection, coordinator_services

SILOS = ("silo-1", "silo-2")
AGGREGATORS = ("aggregator-1", "aggregator-2", "aggregator-3", "aggregator-4")
STRANGER = "stranger"
NUM_QUERIES = 5
QUERIES = np.arange(NUM_QUERIES * 4, dtype=np.uint8).reshape(NUM_QUERIES, 2, 2)


def made_up_round(number=1, seconds=60.0):
    batch = QueryBatch(
        run_id="run",
        batch_id=f"round-{number}",
        queries=QUERIES,
        num_classes=3,
        mechanism=RandomisedResponse(num_classes=3, epsilon=1.0),
        deadline=time.time() + seconds,
    )
    return Round(number=number, batch=batch, mechanisms=dict.fromkeys(SILOS, batch.mechanism))


def made_up_journal(folder=None):
    return CoordinatorJournal("run", SILOS, folder)


def serve(journal, files, *, address="localhost:0", limits=None, aggregators=None):
    services = coordinator_services(journal, aggregators)
    return TlsServer(address, files=files, services=services, limits=limits)


def connect(server, files, wait_seconds=0.0):
    port = server if isinstance(server, int) else server.port
    return TaskConnection(f"localhost:{port}", files=files, wait_seconds=wait_seconds)


def votes_of(silo, *, first=0, batch_id="round-1", commitment=None):
    labels = (np.arange(NUM_QUERIES) + first) % 3
    names = {"run_id": "run", "batch_id": batch_id, "silo": silo}
    return RandomisedVotes(**names, labels=labels, commitment=commitment)
