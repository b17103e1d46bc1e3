"""Rosters, servers and lines of made-up runs."""

import dataclasses
import pathlib

import numpy as np
from uploads_for_tests import SETTINGS, SIZE, upload

from pate_tf.selective_sgd.network import (
    ParameterConnection,
    ParameterService,
    message_limits,
    serve_parameters,
)
from pate_tf.selective_sgd.privacy import Privacy
from pate_tf.selective_sgd.roster import Declarations, Roster
from pate_tf.selective_sgd.turn_server import TurnServer
from pate_tf.selective_sgd.upload import encode

NAMES = ("clinic", "hospital", "school")
STRANGER = "stranger"
INITIAL = np.arange(SIZE, dtype=np.float32)
LIMITS = dataclasses.replace(message_limits(SIZE), calls_per_second=10_000.0, calls_at_once=100)


def made_up_roster(*, privacy: Privacy | None = None, **settings: object) -> Roster:
    return Roster(
        run="made-up",
        dataset="digits",
        names=NAMES,
        settings=dataclasses.replace(SETTINGS, **settings),
        privacy=privacy or Privacy(),
    )


ROSTER = made_up_roster()


def made_up_server(folder: pathlib.Path | None = None, roster: Roster = ROSTER) -> TurnServer:
    return TurnServer(
        roster.settings, INITIAL, run=roster.run_id, privacy=roster.privacy, folder=folder
    )


def serve(server, files, *, roster=ROSTER, address="localhost:0", paid=None, limits=LIMITS):
    declarations = None if paid is None else Declarations(paid)
    service = ParameterService(server, roster, declarations=declarations, limits=limits)
    return serve_parameters(address, service, files=files, roster=roster, limits=limits)


def connect(server, files, **settings):
    port = server if isinstance(server, int) else server.port
    given = {"run": ROSTER.run_id, "num_parameters": SIZE, "wait_seconds": 0.0, **settings}
    return ParameterConnection(f"localhost:{port}", files=files, **given)


def content(number: int, turn: int, version: int, **parts: object) -> bytes:
    """An upload of the made-up run."""
    return encode(upload(number, turn, version, **{"run": ROSTER.run_id, **parts}))
