"""Certificates, rosters and coordinators of made-up runs."""

import socket
import time

import numpy as np

from pate_tf.net.credentials import Limits
from pate_tf.silos.batch_queue import BatchQueue, Round
from pate_tf.silos.clients import SiloConnection
from pate_tf.silos.messages import RANDOMISED_RESPONSE, RandomisedVotes
from pate_tf.silos.server import serve_coordinator

SILOS = ("silo-1", "silo-2")
PARTIES = ("party-1", "party-2", "party-3", "party-4")
STRANGER = "stranger"
RUN = "run"
NUM_QUERIES = 5
LIMITS = Limits(calls_per_second=1000.0, calls_at_once=100)
QUERIES = np.arange(NUM_QUERIES * 4, dtype=np.uint8).reshape(NUM_QUERIES, 2, 2)


def made_up_round(number=1, seconds=60.0):
    return Round(
        number=number,
        queries=QUERIES,
        asked=np.ones((len(SILOS), NUM_QUERIES), bool),
        mechanisms={name: {"name": RANDOMISED_RESPONSE, "epsilon": 1.0} for name in SILOS},
        num_classes=3,
        deadline=time.time() + seconds,
    )


def made_up_core(folder=None):
    return BatchQueue(RUN, SILOS, folder)


def serve(core, files, *, address="localhost:0", limits=LIMITS, parties=None):
    return serve_coordinator(
        address, core, files=files, silos=SILOS, parties=parties, limits=limits
    )


def connect(server, files, **settings):
    port = server if isinstance(server, int) else server.port
    return SiloConnection(f"localhost:{port}", files=files, wait_seconds=0.0, **settings)


def votes_of(silo, *, first=0, batch_id="round-1", witness=None):
    labels = (np.arange(NUM_QUERIES) + first) % 3
    return RandomisedVotes(run_id=RUN, batch_id=batch_id, silo=silo, labels=labels, witness=witness)


def free_port():
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]
