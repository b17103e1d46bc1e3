"""A coordinator in a process of its own: `coordinator_child.py CERTIFICATES JOURNAL PORT`.

Opens another round whenever it is started.
"""

import pathlib
import sys
import time

from transport_helpers import made_up_journal, made_up_round, serve

from pate_tf.net.credentials import TlsFiles

if __name__ == "__main__":
    certificates, journal, port = sys.argv[1:]
    started = made_up_journal(pathlib.Path(journal))
    started.open_round(made_up_round(1 + len(started.rounds())))
    files = TlsFiles.of(pathlib.Path(certificates), "coordinator")
    with serve(started, files, address=f"localhost:{port}"):
        print("ready", flush=True)
        time.sleep(600.0)
