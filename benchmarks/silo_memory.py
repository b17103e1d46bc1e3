"""How much memory a silo takes: `python -m benchmarks.silo_memory [--queries=1000]`.

Starts `pate silo serve` as its own process with teachers of several kinds, has it answer a round of
images over TLS, and reads what the kernel says: resident memory while it serves, and the most it
ever took. Above them stands what Python, NumPy and gRPC take alone.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy as np

from pate_tf.accounting.composition import closed_form_epsilon, moments_epsilon
from pate_tf.accounting.local import SecureHistogram
from pate_tf.api.party import party_keys
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool
from pate_tf.ledger.rollback_guard import STATE_VARIABLE
from pate_tf.net.certificates import write_demo_certificates
from pate_tf.silos import Asking, Coordinator, Member, Policy, Roster
from pate_tf.silos.secure.keys import read_list
from pate_tf.silos.server import PartyService, serve_coordinator

SILO = "silo-1"
PARTIES = ("party-1", "party-2", "party-3", "party-4")
IMAGES = Dataset(
    name="mnist",
    kind="image",
    input_shape=(28, 28, 1),
    value_range=(0.0, 255.0),
    num_classes=10,
    pool_size=9_000,
)
RANDOMISED = {"name": "randomised_response", "epsilon": 1.0}
SECURE = {"name": "secure_histogram", "sigma": 40.0, "num_parties": 4, "threshold": 1}
DELTA, AMPLE = 1e-6, 1e6
ALONE = {
    "Python": "",
    "and NumPy": "import numpy",
    "and gRPC": "import numpy, grpc",
}


def nearly_spent(num_queries: int) -> float:
    """A budget that a round fits into by the exact theorem of its noise, and not by moments."""
    charged = {SecureHistogram(40.0, 4, 1): num_queries}
    return (moments_epsilon(charged, DELTA)[0] + closed_form_epsilon(charged, DELTA)) / 2.0


def in_megabytes(status: str) -> tuple[float, float]:
    """Resident memory now and at most, in MB of 10^6 bytes, from the text of /proc/PID/status."""
    fields = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
    now, most = (int(fields[name].split()[0]) * 1024 / 1e6 for name in ("VmRSS", "VmHWM"))
    return now, most


def alone(program: str) -> tuple[float, float]:
    program += "\nprint(open('/proc/self/status').read())"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    return in_megabytes(ended.stdout)


def serving(
    folder: pathlib.Path,
    teacher: list[str],
    mechanism: dict[str, object],
    num_queries: int,
    epsilon_budget: float,
) -> tuple[float, float]:
    """Memory of a silo that has just answered a round."""
    folder.mkdir()
    certificates = write_demo_certificates(folder / "certificates", [SILO, *PARTIES])
    (folder / "parties.toml").write_text(
        "\n".join(party_keys(party, folder / party) for party in PARTIES)
    )
    roster = Roster(
        run_id="r", delta=1e-6, members=(Member(name=SILO, epsilon=1.0, queries=10**6),)
    )
    inputs = np.random.default_rng(0).integers(0, 256, (num_queries, 28, 28, 1), np.uint8)
    line = PartyService(read_list(folder / "parties.toml")[0])
    with (
        Coordinator(
            roster,
            folder=folder / "coordinator",
            asking=Asking(mechanism=mechanism),
            secure=line.sums,
        ) as coordinator,
        serve_coordinator(
            "localhost:0", coordinator.queue, files=certificates["coordinator"], silos=[SILO]
        ) as server,
    ):
        Policy(
            silo=SILO,
            coordinator=f"localhost:{server.port}",
            epsilon_budget=epsilon_budget,
            delta=DELTA,
            allowed=("randomised_response", "secure_histogram"),
        ).write(folder / "policy.toml")
        child = subprocess.Popen(
            [
                *(sys.executable, "-m", "pate_tf.cli.silo", "serve", f"--silo_dir={folder}"),
                *(f"--certificates={folder / 'certificates'}", "--dataset=mnist", *teacher),
                *([f"--parties={folder / 'parties.toml'}"] if mechanism is SECURE else []),
            ],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, STATE_VARIABLE: str(folder / "state")},
        )
        try:
            pool = Pool(IMAGES, inputs)
            coordinator.queue.gather(300.0, lambda called, missing: None)
            one = coordinator._open(pool.inputs, IMAGES.num_classes)
            coordinator.queue.wait(one, lambda replied, missing: None)
            time.sleep(1.0)
            return in_megabytes(pathlib.Path(f"/proc/{child.pid}/status").read_text())
        finally:
            child.terminate()
            child.communicate()


def main() -> None:
    """Prints the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=1000)
    flags = parser.parse_args()
    print(f"{'':52}     now    most")
    for name, program in ALONE.items():
        print(f"{name:52} {alone(program)[0]:4.0f} MB {alone(program)[1]:4.0f} MB", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        generator = np.random.default_rng(0)
        records = {
            "inputs": generator.integers(0, 256, (300, 28, 28, 1), np.uint8),
            "labels": generator.integers(0, 10, 300),
        }
        np.savez(folder / "records.npz", **records)
        function = "--teacher=benchmarks.silo_memory_teachers:vote_function"
        rows = {
            "a silo whose teacher is a function of NumPy": ([function], RANDOMISED, AMPLE),
            "the same, secure aggregation": ([function], SECURE, AMPLE),
            "the same, with a budget that is nearly spent": (
                [function],
                SECURE,
                nearly_spent(flags.queries),
            ),
            "random forest (100 trees), trained before it serves": (
                [f"--data={folder / 'records.npz'}"],
                RANDOMISED,
                AMPLE,
            ),
            "a classifier of scikit-learn": (
                ["--teacher=benchmarks.silo_memory_teachers:classifier"],
                RANDOMISED,
                AMPLE,
            ),
        }
        for place, (what, (teacher, mechanism, budget)) in enumerate(rows.items()):
            now, most = serving(folder / str(place), teacher, mechanism, flags.queries, budget)
            print(f"{what:52} {now:4.0f} MB {most:4.0f} MB", flush=True)


if __name__ == "__main__":
    main()
