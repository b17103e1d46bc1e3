"""Teachers, a student and the analysis on data that needs no download, in about a minute.

    python tools/demo.py [FOLDER] [--silos]

Trains 100 teachers on the digits that scikit-learn ships, asks them for 100 noisy labels, trains a
student on those and prints what it cost. Everything lands in FOLDER, by default `runs/demo`.

With --silos five silos, four aggregators and a coordinator do so as ten processes, over TLS. The
digits are dealt out among the silos, each of which keeps its own ledger. Each sums its records'
features by class and adds a share of the noise; aggregators open the total, under secret sharing,
and nothing else. Every record of every silo has epsilon 1.
"""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence

from pate_tf.cli import main

DATA = ("--dataset=digits", "--nb_teachers=100")
NUM_SILOS = 5
NUM_AGGREGATORS = 4
EPSILON = 1.0
DELTA = 1e-5
LEAST_SILOS = 4


def commands(folder: str) -> list[tuple[str, list[str]]]:
    """Returns the steps of one holder: a command and its flags."""
    teachers = [*DATA, f"--train_dir={folder}"]
    student = [*DATA, f"--teachers_dir={folder}", f"--train_dir={folder}"]
    student += ["--queries=100", "--lap_scale=10"]
    return [("teachers", teachers), ("student", student), ("analysis", [f"--train_dir={folder}"])]


def command(name: str, /, *arguments: str, **flags: object) -> list[str]:
    """Returns how a command of this package is started."""
    values = [f"--{flag}={value}" for flag, value in flags.items()]
    return [sys.executable, "-m", "pate_tf.cli.main", name, *arguments, *values]


def shown(arguments: list[str], on_host: Sequence[str] = (), **settings: object) -> str:
    """Prints a command, runs it to its end, returns its output; exits with its code if it fails."""
    print(f"\n$ pate {' '.join(arguments[3:])}", flush=True)
    ended = subprocess.run([*on_host, *arguments], text=True, **settings)  # type: ignore[call-overload]
    if ended.returncode:
        raise SystemExit(ended.returncode)
    return str(ended.stdout)


def demonstrate_silos(
    folder: pathlib.Path,
    *,
    on_host: Callable[[str], Sequence[str]] = lambda name: (),
    address: str = "",
    epsilon: float = EPSILON,
) -> None:
    """Runs the demonstration of silos in a folder, which is empty or of this demonstration.

    Args:
        folder: of all of it; each process has one of its own there, and `NAME.log`.
        on_host: what starts a command on the host of a silo, an aggregator or the coordinator.
        address: `HOST:PORT` of the coordinator; by default a free port of this machine.
        epsilon: for each record.
    """
    import numpy as np

    from pate_tf.core import artifacts
    from pate_tf.data import datasets
    from pate_tf.ledger.rollback_guard import STATE_VARIABLE
    from pate_tf.net.credentials import write_demo_certificates

    if folder.exists():
        if not (folder / "demo-silos").exists() and any(folder.iterdir()):
            print(f"error: expected an empty folder or one of this demo, got {folder}")
            raise SystemExit(1)
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / "demo-silos").touch()
    silos = [f"silo-{number}" for number in range(1, NUM_SILOS + 1)]
    aggregators = [f"aggregator-{number}" for number in range(1, NUM_AGGREGATORS + 1)]
    write_demo_certificates(folder / "certificates", [*silos, *aggregators])
    if not address:
        with socket.socket() as free:
            free.bind(("localhost", 0))
            address = f"localhost:{free.getsockname()[1]}"
    sums: dict[str, object] = {"method": "feature_sums"}
    roster = {"roster": folder / "roster.toml", "certificates": folder / "certificates"}
    entries = [f'run = "demo-silos"\ndelta = {DELTA!r}\n']
    processes = {}
    private = datasets.load_private("digits")
    parts = np.array_split(np.arange(len(private)), NUM_SILOS)
    for name, rows in zip(silos, parts, strict=True):
        data = artifacts.make_sensitive_folder(folder / name / artifacts.SENSITIVE) / "records.npz"
        records = {"inputs": private.inputs[rows], "labels": private.labels[rows]}
        artifacts.write_arrays(data, records, private=True)
        policy: dict[str, object] = {"name": name, "coordinator": address, "delta": DELTA, **sums}
        shown(command("silo", "init", silo_dir=folder / name, epsilon_budget=epsilon, **policy))
        made = command("silo", "keys", silo_dir=folder / name)
        entries.append(shown(made, stdout=subprocess.PIPE))
        options = {**sums, **roster, "data": data, "representation": "raw"}
        processes[name] = command("silo", "serve", silo_dir=folder / name, **options)
    for name in aggregators:
        made = command("aggregator", name=name, aggregator_dir=folder / name)
        entries.append(shown(made, stdout=subprocess.PIPE))
        options = {**roster, "aggregator_dir": folder / name}
        processes[name] = command("aggregator", coordinator=address, **options)
    (folder / "roster.toml").write_text("\n".join(entries))
    # The demonstration begins anew each time; outside of it a silo's ledger is permanent.
    environment = {**os.environ, STATE_VARIABLE: str(folder / "state")}
    with contextlib.ExitStack() as started:
        for name, arguments in processes.items():
            log = started.enter_context(open(folder / f"{name}.log", "w"))
            process = subprocess.Popen(
                [*on_host(name), *arguments], stdout=log, stderr=subprocess.STDOUT, env=environment
            )
            child = started.enter_context(process)
            started.callback(child.kill)
        options = {**sums, **roster, "representation": "raw", "epsilon": epsilon}
        options |= {"least_silos": LEAST_SILOS, "address": address, "train_dir": folder}
        options["give_up_after"] = 30  # a host may be cut off for good
        shown(command("coordinator", max_steps=600, **options), on_host("coordinator"))
    report = json.loads((folder / "report.json").read_text())
    epsilon = max(report["epsilon_per_silo"].values())
    print(f"\n{folder / 'report.json'}: epsilon {epsilon:.3f} for each {report['unit']}")


def run() -> None:
    """Runs the steps until one fails, and exits with its code."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--silos"]
    are_silos = len(arguments) < len(sys.argv) - 1
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        wants_help = arguments in (["--help"], ["-h"], ["-help"])
        print(__doc__ if wants_help else f"error: expected a folder, got {' '.join(arguments)}")
        raise SystemExit(0 if wants_help else 2)
    folder = (arguments or ["runs/demo-silos" if are_silos else "runs/demo"])[0]
    if are_silos:
        demonstrate_silos(pathlib.Path(folder))
        return
    for name, arguments in commands(folder):  # in one process: TensorFlow starts once
        print(f"\n$ pate {name} {' '.join(arguments)}", flush=True)
        sys.argv = [f"pate {name}", *arguments]
        try:
            main.run_command(name)
        except SystemExit as ended:
            if ended.code:
                raise


if __name__ == "__main__":
    run()
