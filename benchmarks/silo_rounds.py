"""Rounds of silos and parties that are processes of their own on this machine.

`python -m benchmarks.silo_rounds [--silos=5] [--queries=1000] [--json=FILE]`

Votes: teachers are a matrix product, so nearly all of the time is the system's. Feature sums: one
total of tables that are known, of 1,152 features, opens at epsilon .1; what it takes to add up
12,000 vectors by class stands beside it. Compares with the same silos in this process, without a
network. `--json` writes the rows of feature sums for the page of results, beside those of
`benchmarks/secure_sums_elsewhere.py`.
"""

import argparse
import hashlib
import json
import os
import pathlib
import resource
import subprocess
import sys
import tempfile
import time
import types
from typing import Any

import numpy as np

from pate_tf.accounting.local import SecureFeatureSums
from pate_tf.aggregation.feature_sums import sums_by_class
from pate_tf.api.party import party_keys
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool
from pate_tf.core.sensitive import FeatureSums
from pate_tf.ledger.rollback_guard import STATE_VARIABLE
from pate_tf.net.certificates import write_demo_certificates
from pate_tf.net.credentials import TlsFiles
from pate_tf.silos import Asking, Coordinator, Member, Policy, Roster, Silo, SiloSums
from pate_tf.silos.clients import SiloConnection
from pate_tf.silos.secure.keys import PartyIdentity, PartyKeys, party_entry, read_list
from pate_tf.silos.secure.opening import PartySealer, simulated_parties
from pate_tf.silos.server import PartyService, serve_coordinator
from pate_tf.silos.wire import reply_to_wire

NUM_CLASSES = 10
SHAPE = (28, 28, 1)
PARTIES = ("party-1", "party-2", "party-3", "party-4")
NUM_FEATURES, NUM_RECORDS = 1_152, 12_000
ENCODER = types.SimpleNamespace(digest="made up", num_features=NUM_FEATURES)


def mechanisms(num_silos: int) -> tuple[dict[str, Any], ...]:
    """What silos are asked with; the last one is of feature sums."""
    release = SecureFeatureSums.for_epsilon(
        0.1,
        delta=1e-5,
        num_features=NUM_FEATURES,
        least_silos=num_silos - 1,
        colluding=1,
        num_parties=len(PARTIES),
        threshold=1,
    )
    return (
        {"name": "randomised_response", "epsilon": 2.0},
        {"name": "secure_histogram", "sigma": 2.0, "num_parties": 4, "threshold": 1},
        release.to_dict(),
    )


def teacher(inputs: np.ndarray) -> np.ndarray:
    """Votes by a fixed matrix."""
    seed = int.from_bytes(hashlib.sha256(b"teacher").digest()[:8], "big")
    weights = np.random.default_rng(seed).normal(size=(784, NUM_CLASSES))
    return np.asarray((inputs.reshape(len(inputs), -1) @ weights).argmax(axis=1))


def silo(name: str, folder: pathlib.Path, sealer: PartySealer, mechanism: str) -> Silo:
    """A silo that allows all of this, with a teacher or sums."""
    policy = Policy(
        silo=name,
        epsilon_budget=1e9,
        delta=1e-6,
        queries_per_day=10**9,
        allowed=(mechanism,),
        most_epsilon_per_query=40.0,
        least_sigma=0.1,
    )
    own: Any = teacher
    if mechanism == SecureFeatureSums.name:
        made_up = FeatureSums(np.full((NUM_FEATURES + 1, NUM_CLASSES), 10**9))
        own = SiloSums(sums=made_up, representation=ENCODER.digest)
    return Silo(policy, own, folder=folder, num_classes=NUM_CLASSES, sealer=sealer)


def sealer_of(folder: pathlib.Path, name: str) -> PartySealer:
    """What a silo of the list in a folder seals with."""
    parties, silos = read_list(folder / "parties.toml")
    keys = PartyKeys.load_or_create(folder / f"{name}.keys", name)
    return PartySealer(parties, silos=silos).with_keys(keys)


def work_as_silo(name: str, folder: pathlib.Path, port: int, mechanism: str) -> None:
    """Serves until it is stopped; says how much memory it took."""
    files = TlsFiles.of(folder / "certificates", name)
    with (
        silo(name, folder / mechanism / name, sealer_of(folder, name), mechanism) as one,
        SiloConnection(f"localhost:{port}", files=files) as connection,
    ):
        told = folder / mechanism / f"{name}.memory"

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
    """Seconds of two rounds; the first one connects. Of feature sums there is one."""
    if coordinator.asking.mechanism["name"] == SecureFeatureSums.name:
        begin = time.perf_counter()
        coordinator.open_total(queries, ENCODER)
        return [time.perf_counter() - begin]
    seconds = []
    for place in (first, first + 1):
        begin = time.perf_counter()
        coordinator.ask(queries, np.arange(place * number, (place + 1) * number))
        seconds.append(time.perf_counter() - begin)
    return seconds


def start(
    folder: pathlib.Path, names: list[str], port: int, mechanism: str
) -> list[subprocess.Popen[bytes]]:
    """Starts silos and parties."""
    module = (sys.executable, "-m")
    of_silo = [f"--folder={folder}", f"--port={port}", f"--mechanism={mechanism}"]
    commands = [
        [*module, "benchmarks.silo_rounds", *of_silo, f"--as_silo={name}"] for name in names
    ]
    commands += [
        [
            *(*module, "pate_tf.cli.party", f"--index={index}"),
            *(f"--parties={folder / 'parties.toml'}", f"--party_dir={folder / name}"),
            *(f"--coordinator=localhost:{port}", f"--certificates={folder / 'certificates'}"),
        ]
        for index, name in enumerate(PARTIES, start=1)
    ]
    # A silo has one account in the registry of a user, a party one journal.
    states = [folder / mechanism / "state"] * len(names) + [folder / "state"] * len(PARTIES)
    return [
        subprocess.Popen(
            each, stdout=subprocess.DEVNULL, env={**os.environ, STATE_VARIABLE: str(state)}
        )
        for each, state in zip(commands, states, strict=True)
    ]


def in_one_process(
    folder: pathlib.Path, names: list[str], mechanism: dict[str, Any], *rounds: Any
) -> dict[str, Any]:
    """Seconds of a round, and bytes of a silo's reply to it."""
    keys = {name: PartyKeys.load_or_create(folder / f"{name}.keys", name) for name in names}
    listed = [each.identity for each in keys.values()]
    sealer, sums = simulated_parties(folder / "parties", silos=listed)
    silos = [
        silo(one, folder / one, sealer.with_keys(keys[one]), mechanism["name"]) for one in names
    ]
    with Coordinator(
        made_up_roster(names),
        silos=silos,
        folder=folder / "coordinator",
        asking=Asking(mechanism=mechanism),
        secure=sums,
    ) as coordinator:
        processor = time.process_time()
        seconds = timed_rounds(coordinator, *rounds)
        processor = time.process_time() - processor
        last = coordinator.queue.rounds()[-1]
        size = reply_to_wire(coordinator.queue.replies(last)[names[0]]).ByteSize()
    return {
        "seconds": f"{seconds[-1]:.2f}",
        "of a processor": f"{processor / len(seconds):.2f}",
        "bytes from a silo": f"{size:,}",
    }


def over_the_network(
    folder: pathlib.Path,
    certificates: dict[str, TlsFiles],
    names: list[str],
    mechanism: dict[str, Any],
    *rounds: Any,
) -> dict[str, Any]:
    """Seconds of a round, and MiB of a silo, all of them processes with mutual TLS."""
    (folder / mechanism["name"]).mkdir()
    parties, silos = read_list(folder / "parties.toml")
    line = PartyService(parties, silos=silos)
    with (
        Coordinator(
            made_up_roster(names),
            folder=folder / mechanism["name"] / "coordinator",
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
        children = start(folder, names, server.port, mechanism["name"])
        try:
            coordinator.queue.gather(300.0, lambda called, missing: None)
            time.sleep(5.0)  # parties call, too
            seconds = timed_rounds(coordinator, *rounds)[-1]
            time.sleep(1.0)
        finally:
            for child in children:
                child.kill()
                child.wait()
    told = (folder / mechanism["name"]).glob("*.memory")
    memory = max(float(path.read_text()) for path in told)
    return {"seconds": f"{seconds:.2f}", "MiB a silo": f"{memory:.0f}"}


def seconds_to_add_up() -> float:
    """Seconds in which a silo adds up the vectors of its records by class."""
    random = np.random.default_rng(0)
    vectors = random.normal(size=(NUM_RECORDS, NUM_FEATURES + 1))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    labels = random.integers(0, NUM_CLASSES, NUM_RECORDS)
    began = time.perf_counter()
    sums_by_class(vectors, labels, num_classes=NUM_CLASSES)
    return time.perf_counter() - began


def entries(folder: pathlib.Path, names: list[str]) -> str:
    """Makes keys of parties and silos, and returns their list."""
    of_parties = [party_keys(party, folder / party) for party in PARTIES]
    identities: list[PartyIdentity] = [
        PartyKeys.load_or_create(folder / f"{name}.keys", name).identity for name in names
    ]
    return "\n".join([*of_parties, *(party_entry(each, "silo") for each in identities)])


def main() -> None:
    """Prints the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--silos", type=int, default=5)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--as_silo", help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=pathlib.Path, help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--mechanism", help=argparse.SUPPRESS)
    flags = parser.parse_args()
    if flags.as_silo:
        work_as_silo(flags.as_silo, flags.folder, flags.port, flags.mechanism)
        return
    names = [f"silo-{number}" for number in range(flags.silos)]
    queries, rows = pool(flags.queries), {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        certificates = write_demo_certificates(folder / "certificates", [*names, *PARTIES])
        (folder / "parties.toml").write_text(entries(folder, names))
        for place, mechanism in enumerate(mechanisms(flags.silos)):
            # A silo has one account in the registry of a user.
            os.environ[STATE_VARIABLE] = str(folder / f"state-{place}")
            rounds = (queries, flags.queries, 2 * place if place < 2 else 0)
            own = folder / f"simulated-{place}"
            alone = in_one_process(own, names, mechanism, *rounds)
            apart = over_the_network(folder, certificates, names, mechanism, *rounds)
            rows = {"pate_tf, in one process": alone, "pate_tf, processes over TLS": apart}
            print(f"{mechanism['name']}: {rows}", flush=True)
    adding = f"{seconds_to_add_up():.2f}"
    print(f"a silo adds up {NUM_RECORDS:,} vectors in {adding} s")
    if flags.json is not None:
        flags.json.parent.mkdir(parents=True, exist_ok=True)
        of_others = json.loads(flags.json.read_text()) if flags.json.exists() else {}
        rows[f"pate_tf, adding up {NUM_RECORDS:,} vectors"] = {"seconds": adding}
        flags.json.write_text(json.dumps({**rows, **of_others, **rows}))


if __name__ == "__main__":
    main()
