"""A process with three silos and their coordinator, for tests that kill it.

Usage: silos_child.py FOLDER NUM_ROUNDS. Each line of FOLDER/released names a round's labels.
"""

import json
import os
import pathlib
import sys

import numpy as np
import silo_helpers

from pate_tf.silos import Coordinator

NAMES = ("a", "b", "c")
PER_ROUND = 20


def coordinator(folder):
    silos = [silo_helpers.silo(folder / name, silo=name) for name in NAMES]
    return Coordinator(
        silo_helpers.roster(*NAMES),
        folder=folder / "coordinator",
        silos=silos,
    ), silos


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    running, _ = coordinator(folder)
    with running, open(folder / "released", "a") as out:
        print("asking", flush=True)
        for number in range(int(sys.argv[2])):
            labels = running.ask(silo_helpers.pool(), np.arange(PER_ROUND * (number + 1)))
            line = dict(zip(labels.query_indices.tolist(), labels.labels.tolist(), strict=True))
            out.write(json.dumps(line) + "\n")
            out.flush()
            os.fsync(out.fileno())
