"""Rounds of queries put to silos and parties that are processes of their own on this machine.

`python -m benchmarks.silo_rounds [--silos=5] [--queries=1000]`

Teachers are a matrix product, so nearly all of the time is the system's. Compares with the same
silos in this process, without a network.
"""

import argparse
import hashlib
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time

import numpy as np

from pate_tf.api.party import party_keys
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool
from pate_tf.ledger.rollback_guard import STATE_VARIABLE
from pate_tf.net.certificates import write_demo_certificates
from pate_tf.net.credentials import TlsFiles
from pate_tf.silos import Asking, Coordinator, Member, Policy, Roster, Silo
from pate_tf.silos.clients import SiloConnection
from pate_tf.silos.secure.keys import read_parties
from pate_tf.silos.secure.opening import PartySealer, simulated_parties
from pate_tf.silos.server import PartyService, serve_coordinator

NUM_CLASSES = 10
SHAPE = (28, 28, 1)
PARTIES = ("party-1", "party-2", "party-3", "party-4")
MECHANISMS = (
    {"name": "randomised_response", "epsilon": 2.0},
    {"name": "secure_histogram", "sigma": 2.0, "num_parties": 4, "threshold": 1},
)


def teacher(inputs: np.ndarray) -> np.ndarray:
    """Votes by a fixed matrix."""
    seed = int.from_bytes(hashlib.sha256(b"teacher").digest()[:8], "big")
    weights = np.random.default_rng(seed).normal(size=(784, NUM_CLASSES))
    return np.asarray((inputs.reshape(len(inputs), -1) @ weights).argmax(axis=1))


def silo(name: str, folder: pathlib.Path, sealer: PartySealer) -> Silo:
    """A silo that allows all of this."""
    policy = Policy(
        silo=name,
        epsilon_budget=1e9,
        delta=1e-6,
        queries_per_day=10**9,
        allowed=("randomised_response", "secure_histogram"),
        most_epsilon_per_query=40.0,
        least_sigma=0.1,
    )
    return Silo(policy, teacher, folder=folder, num_classes=NUM_CLASSES, sealer=sealer)


def work_as_silo(name: str, folder: pathlib.Path, port: int) -> None:
    """Serves until it is stopped; says how much memory it took."""
    sealer = PartySealer(read_parties(folder / "parties.toml"))
    files = TlsFiles.of(folder / "certificates", name)
    with (
        silo(name, folder / name, sealer) as one,
        SiloConnection(f"localhost:{port}", files=files) as connection,
    ):
        told = folder / f"{name}.memory"

        def on_event(event: str) -> None:
            told.write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024))

        one.serve(connection, on_event=on_event)


def made_up_roster(names: list[str]) -> Roster:
    members = tuple(Member(name=name, epsilon=2.0, queries=10**6) for name in names)
    return Roster(run_id="benchmark", delta=1e-6, members=members)


def pool(num_queries: int) -> Pool:
    """Images of noise, enough for all rounds."""
    size = 4 * num_queries
    images = np.random.default_rng(0).integers(0, 256, (size, *SHAPE), np.uint8)
    dataset = Dataset(
        name="noise",
        kind="image",
        input_shape=SHAPE,
        value_range=(0, 255),
        num_classes=NUM_CLASSES,
        pool_size=size,
    )
    return Pool(inputs=images, dataset=dataset)


def timed_rounds(coordinator: Coordinator, queries: Pool, number: int, first: int) -> list[float]:
    """Seconds of two rounds; the first one connects."""
    seconds = []
    for place in (first, first + 1):
        begin = time.perf_counter()
        coordinator.ask(queries, np.arange(place * number, (place + 1) * number))
        seconds.append(time.perf_counter() - begin)
    return seconds


def start(folder: pathlib.Path, names: list[str], port: int) -> list[subprocess.Popen[bytes]]:
    """Starts silos and parties."""
    own = [sys.executable, "-m", "benchmarks.silo_rounds", f"--folder={folder}", f"--port={port}"]
    commands = [[*own, f"--as_silo={name}"] for name in names]
    for index, name in enumerate(PARTIES, start=1):
        commands.append(
            [
                *(sys.executable, "-m", "pate_tf.cli.party", f"--index={index}"),
                *(f"--parties={folder / 'parties.toml'}", f"--party_dir={folder / name}"),
                *(f"--coordinator=localhost:{port}", f"--certificates={folder / 'certificates'}"),
            ]
        )
    environment = {**os.environ, STATE_VARIABLE: str(folder / "state")}
    return [subprocess.Popen(one, stdout=subprocess.DEVNULL, env=environment) for one in commands]


def main() -> None:
    """Prints the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--silos", type=int, default=5)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--as_silo", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.as_silo:
        work_as_silo(flags.as_silo, flags.folder, flags.port)
        return
    names = [f"silo-{number}" for number in range(flags.silos)]
    queries = pool(flags.queries)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        certificates = write_demo_certificates(folder / "certificates", [*names, *PARTIES])
        entries = [party_keys(party, folder / party) for party in PARTIES]
        (folder / "parties.toml").write_text("\n".join(entries))
        for place, mechanism in enumerate(MECHANISMS):
            # A silo has one account in the registry of a user.
            os.environ[STATE_VARIABLE] = str(folder / f"state-{place}")
            sealer, sums = simulated_parties(folder / f"simulated-{place}")
            silos = [silo(one, folder / f"simulated-{place}" / one, sealer) for one in names]
            with Coordinator(
                made_up_roster(names),
                silos=silos,
                folder=folder / f"simulated-{place}" / "coordinator",
                asking=Asking(mechanism=mechanism),
                secure=sums,
            ) as coordinator:
                _, alone = timed_rounds(coordinator, queries, flags.queries, 2 * place)
            line = PartyService(read_parties(folder / "parties.toml"))
            with (
                Coordinator(
                    made_up_roster(names),
                    folder=folder / f"coordinator-{place}",
                    asking=Asking(mechanism=mechanism, seconds=120.0),
                    secure=line.sums,
                ) as coordinator,
                serve_coordinator(
                    "localhost:0",
                    coordinator.queue,
                    files=certificates["coordinator"],
                    silos=names,
                    parties=line,
                ) as server,
            ):
                children = start(folder, names, server.port)
                try:
                    first, second = timed_rounds(coordinator, queries, flags.queries, 2 * place)
                finally:
                    for child in children:
                        child.kill()
                        child.wait()
            memory = max(float(path.read_text()) for path in folder.glob("*.memory"))
            print(
                f"{mechanism['name']}: {flags.silos} silos, {flags.queries} queries: "
                f"{second:.2f} s a round over the network, {alone:.2f} s in one process "
                f"(ratio {second / alone:.1f}); {first:.1f} s the first, with the start of all "
                f"processes; {memory:.0f} MiB a silo"
            )


if __name__ == "__main__":
    main()
