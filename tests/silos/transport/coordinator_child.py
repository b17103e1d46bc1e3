"""A coordinator in a process of its own: `coordinator_child.py CERTIFICATES JOURNAL PORT`.

Opens another round whenever it is started.
"""

import pathlib
import sys
import time

from transport_helpers import made_up_core, made_up_round, serve

from pate_tf.net.credentials import TlsFiles

if __name__ == "__main__":
    certificates, journal, port = sys.argv[1:]
    core = made_up_core(pathlib.Path(journal))
    core.open_round(made_up_round(1 + len(core.rounds())))
    files = TlsFiles.of(pathlib.Path(certificates), "coordinator")
    with serve(core, files, address=f"localhost:{port}"):
        print("ready", flush=True)
        time.sleep(600.0)
