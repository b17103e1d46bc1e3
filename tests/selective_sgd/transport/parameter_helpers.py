"""Rosters, servers and connections of made-up runs; processes that kill themselves."""

import dataclasses
import functools
import importlib
import itertools
import os
import pathlib
import signal
import socket

from shared_helpers import INITIAL, SETTINGS, SIZE

from pate_tf.selective_sgd.network import (
    ParameterConnection,
    ParameterService,
    ReceivedFacts,
    message_limits,
    serve_parameters,
)
from pate_tf.selective_sgd.roster import Roster
from pate_tf.selective_sgd.server import Server
from pate_tf.selective_sgd.settings import Privacy

NAMES = ("clinic", "hospital", "school")
STRANGER = "stranger"
LIMITS = dataclasses.replace(message_limits(SIZE), calls_per_second=10_000.0, calls_at_once=100)

# Where a process may die: method, and whether before or after it.
SERVER_DIES = {
    "before an upload is applied": ("server:Server._apply", True),
    "before it is durable": ("run_state:RunState.save", True),
    "before it is answered": ("run_state:RunState.save", False),
}
LINE = "network:ParameterConnection"
PARTICIPANT_DIES = {
    "before it pulls": (f"{LINE}.pull", True),
    "before it trains": (f"{LINE}.pull", False),
    "before its turn is saved": ("run_state:RunState.save", True),
    "before it uploads": (f"{LINE}.push", True),
    "after it uploaded": (f"{LINE}.push", False),
}


def made_up_roster(*, privacy: Privacy | None = None, **settings: object) -> Roster:
    return Roster(
        run="made-up",
        dataset="digits",
        names=NAMES,
        settings=dataclasses.replace(SETTINGS, **settings),
        privacy=privacy or Privacy(),
    )


ROSTER = made_up_roster()


def made_up_server(folder: pathlib.Path | None = None, roster: Roster = ROSTER) -> Server:
    return Server(
        roster.settings, INITIAL, run=roster.run_id, privacy=roster.privacy, folder=folder
    )


def serve(server, files, *, roster=ROSTER, address="localhost:0", ledgers=None, service=None):
    received = None if ledgers is None else ReceivedFacts(ledgers)
    service = service or ParameterService(server, roster, ledgers=received, limits=LIMITS)
    return serve_parameters(address, service, files=files, roster=roster, limits=LIMITS)


def connect(server, files, **settings):
    port = server if isinstance(server, int) else server.port
    given = {"run": ROSTER.run_id, "num_parameters": SIZE, "wait_seconds": 0.0, **settings}
    return ParameterConnection(f"localhost:{port}", files=files, **given)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


def die_at(place: str, before: bool, number: int) -> None:
    """Kills the process at a call of that number, from 0, of a method."""
    module, _, names = place.partition(":")
    kind_name, _, name = names.partition(".")
    kind = getattr(importlib.import_module(f"pate_tf.selective_sgd.{module}"), kind_name)
    original, calls = getattr(kind, name), itertools.count()

    def dies(*arguments, **options):
        call = next(calls)
        if before and call == number:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            return original(*arguments, **options)
        finally:  # also of a call that found the other end killed
            if call == number:
                os.kill(os.getpid(), signal.SIGKILL)

    setattr(kind, name, dies)


def dying(place: tuple[str, bool], number: int) -> functools.partial:
    return functools.partial(die_at, place[0], place[1], number)
