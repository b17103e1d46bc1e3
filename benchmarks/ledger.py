"""Labels a million queries through the ledger and prints time, memory and size on disk.

python benchmarks/ledger.py [--queries=1000000] [--batch=1000] [--mechanism=laplace_noisy_max]
"""

import argparse
import json
import os
import pathlib
import resource
import tempfile
import time

import numpy as np

from pate_tf.accounting.mechanisms import LATTICE, mechanism_from_dict
from pate_tf.aggregation.labeller import Labeller
from pate_tf.aggregation.noise import SystemNoise
from pate_tf.core.sensitive import VoteCounts
from pate_tf.ledger import Ledger
from pate_tf.ledger.rollback_guard import STATE_VARIABLE

NUM_CLASSES = 10
NUM_TEACHERS = 250


def peak_mebibytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def vote(inputs: np.ndarray) -> VoteCounts:
    counts = np.full((len(inputs), NUM_CLASSES), 10)
    counts[np.arange(len(inputs)), inputs[:, 0].astype(int) % NUM_CLASSES] += (
        NUM_TEACHERS - 10 * NUM_CLASSES
    )
    return VoteCounts(counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=1_000_000)
    parser.add_argument("--batch", type=int, default=1_000)
    parser.add_argument("--mechanism", default="laplace_noisy_max")
    parser.add_argument("--output_dir", type=pathlib.Path, default="runs/benchmarks")
    flags = parser.parse_args()
    fields = {"sigma": 40.0} if "gaussian" in flags.mechanism else {"gamma": 0.05}
    mechanism = mechanism_from_dict({"name": flags.mechanism, **fields})
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ledger-")) / "sensitive"
    os.environ[STATE_VARIABLE] = str(folder.parent / "state")  # not the registry of the user
    with Ledger.open(folder, ensemble_digest="00" * 32, delta=1e-5) as ledger:
        labeller = Labeller(
            voter=vote,
            ledger=ledger,
            noise=SystemNoise(),
            noisy_winners=lambda counts, noise: np.argmax(counts * LATTICE + noise, axis=1),
            num_classes=NUM_CLASSES,
        )
        begin = time.perf_counter()
        for start in range(0, flags.queries, flags.batch):
            numbers = np.arange(start, min(start + flags.batch, flags.queries), dtype=np.float64)
            inputs = np.repeat(numbers[:, np.newaxis], 64, axis=1)
            labeller.label(inputs, mechanism=mechanism)
            done = start + len(numbers)
            if done % max(flags.batch, flags.queries // 10) == 0:
                seconds = time.perf_counter() - begin
                print(f"{done:>9} queries {seconds:7.1f} s  peak {peak_mebibytes():6.0f} MiB")
        labelled = time.perf_counter() - begin
    begin = time.perf_counter()
    with Ledger.read(folder) as ledger:
        opened = time.perf_counter() - begin
        answered = ledger.num_answered
    size = sum(path.stat().st_size for path in folder.glob("ledger.*")) / 1e6
    votes = sum(path.stat().st_size for path in (folder / "votes").iterdir()) / 1e6
    print(f"labelled {answered} queries of {mechanism} in {labelled:.1f} s")
    print(f"verified on opening in {opened:.1f} s; peak memory {peak_mebibytes():.0f} MiB")
    print(f"ledger {size:.1f} MB, counts {votes:.1f} MB, in {folder}")
    results = {
        "queries": answered,
        "mechanism": str(mechanism),
        "seconds to label": labelled,
        "seconds to verify on opening": opened,
        "peak memory, MiB": peak_mebibytes(),
        "ledger, MB": size,
        "counts, MB": votes,
    }
    flags.output_dir.mkdir(parents=True, exist_ok=True)
    (flags.output_dir / "ledger.json").write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
