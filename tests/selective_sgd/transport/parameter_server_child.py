"""A parameter server in a process of its own, without TensorFlow.

`parameter_server_child.py CERTIFICATES JOURNAL PORT DIES`: kills itself at its third upload, where
DIES says; "never" if it does not.
"""

import os
import pathlib
import signal
import sys
import time

from pate_tf.net.credentials import TlsFiles
from pate_tf.selective_sgd.server import Journal
from pate_tf.selective_sgd.turn_server import TurnServer

PLACES = {
    "before it is written": (Journal, "append", True),
    "before it is applied": (TurnServer, "_apply", True),
    "before it is answered": (TurnServer, "_apply", False),
    "before the journal is begun anew": (Journal, "begin", True),
    "after the journal was begun anew": (Journal, "begin", False),
}


def die_at(place: str) -> None:
    kind, name, before = PLACES[place]
    original = getattr(kind, name)
    calls = iter(range(10**6))
    # The third upload is the last of the round, after which the journal is begun anew.
    number = 0 if name == "begin" else 2

    def dies(*arguments):
        is_now = next(calls) == number
        if is_now and before:
            os.kill(os.getpid(), signal.SIGKILL)
        found = original(*arguments)
        if is_now:
            os.kill(os.getpid(), signal.SIGKILL)
        return found

    setattr(kind, name, dies)


if __name__ == "__main__":
    sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[1])]
    from parameter_helpers import made_up_server, serve

    certificates, journal, port, dies = sys.argv[1:]
    server = made_up_server(pathlib.Path(journal))
    if dies != "never":
        die_at(dies)
    files = TlsFiles.of(pathlib.Path(certificates), "coordinator")
    with serve(server, files, address=f"localhost:{port}"):
        print("ready", flush=True)
        time.sleep(600.0)
