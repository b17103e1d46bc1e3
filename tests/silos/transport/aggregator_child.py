"""An aggregator in a process of its own: `aggregator_child.py CERTIFICATES FOLDER PORT ROSTER`."""

import pathlib
import sys

from pate_tf.silos.serving import AggregatorRun, serve_aggregator

if __name__ == "__main__":
    certificates, folder, port, roster = sys.argv[1:]
    run = AggregatorRun(
        folder=pathlib.Path(folder),
        roster=pathlib.Path(roster),
        coordinator=f"localhost:{port}",
        certificates=pathlib.Path(certificates),
    )
    serve_aggregator(run, on_event=lambda event: print("ready", flush=True))
