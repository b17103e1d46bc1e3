"""Runs both methods on the digits that scikit-learn ships, side by side at the same epsilons.

    python tools/demo.py [FOLDER] [--silos]

Releases labels by feature sums and by teachers' votes, trains students on them, and compares their
accuracy with a model without privacy, in a table and in FOLDER/report.html. FOLDER is `runs/demo`
by default. The demonstration starts from scratch each time.

With --silos, five silos, four aggregators and a coordinator run as ten processes, over TLS. The
digits are partitioned among the silos, and each silo keeps its own ledger. Each silo sums its
records' features by class and adds a share of the noise. Under secret sharing, the aggregators open
the total and nothing else. Every record of every silo has epsilon 1.
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

BEST = ("feature_sums", 2.0)
# At epsilon 0.5 there are too few records for votes, and `pate` refuses them.
RUNS = (("feature_sums", 0.5), BEST, ("pate", 2.0))
METHODS = {"feature_sums": "feature sums", "pate": "teachers' votes"}
MARK = "demonstration"  # a file in its folder
NUM_SILOS = 5
NUM_AGGREGATORS = 4
EPSILON = 1.0
DELTA = 1e-5
LEAST_SILOS = 4


def make_empty(folder: pathlib.Path) -> None:
    """Makes an empty folder, and empties the folder of an earlier demonstration.

    The folder contains the ledgers and the registry of the demonstration. Outside of a
    demonstration a ledger is permanent.
    """
    from pate_tf.ledger.rollback_guard import STATE_VARIABLE

    if folder.exists():
        if not (folder / MARK).exists() and any(folder.iterdir()):
            print(f"error: {folder} has files of another program. Name an empty or new folder.")
            raise SystemExit(1)
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / MARK).touch()
    os.environ[STATE_VARIABLE] = str(folder.absolute() / "state")


def demonstrate(folder: pathlib.Path) -> None:
    """Runs both methods, prints the table and draws the picture.

    The best run has the default student. The others have random forests, which train in a second.
    """
    import jinja2
    from sklearn.linear_model import LogisticRegression

    import pate_tf
    from pate_tf.ledger.rollback_guard import STATE_VARIABLE

    data = pate_tf.Data.load("digits")
    rows = []
    for method, epsilon in RUNS:
        run = folder / f"{method}-{epsilon:g}"
        # Each run is shown as if it were the only one of these records.
        os.environ[STATE_VARIABLE] = str(run.absolute() / "state")
        fitted = pate_tf.fit(
            data,
            method=method,
            epsilon=epsilon,
            delta=DELTA,
            directory=run,
            mechanism=pate_tf.GaussianNoisyMax if method == "pate" else None,
            student=pate_tf.Student("auto" if (method, epsilon) == BEST else "random_forest"),
        )
        accuracy = fitted.evaluate(data.held_out)
        row = {"method": method, "epsilon": epsilon, "delta": DELTA, "student": fitted.student.kind}
        rows.append({**row, "labels": len(fitted.labels), "accuracy": accuracy})
        print(f"{METHODS[method]:<16}epsilon {epsilon:<5g}accuracy {accuracy:.1%}", flush=True)
    inputs = data.private.inputs.reshape(len(data.private), -1)
    model = LogisticRegression(max_iter=300).fit(inputs, data.private.labels)
    test = data.held_out
    top = model.score(test.inputs.reshape(len(test), -1), test.labels)
    print(f"{'without privacy':<16}{'':13}accuracy {top:.1%}")
    template = pathlib.Path(__file__).with_name("demo.html").read_text()
    page = jinja2.Template(template, trim_blocks=True).render(rows=rows, data=data, top=top)
    (folder / "report.html").write_text(page)
    print(f"\nnext: your own file: pate start\n{folder / 'report.html'}")


def command(name: str, /, *arguments: str, **flags: object) -> list[str]:
    """Returns the words that start a command of this package."""
    values = [f"--{flag}={value}" for flag, value in flags.items()]
    return [sys.executable, "-m", "pate_tf.cli.main", name, *arguments, *values]


def shown(arguments: list[str], on_host: Sequence[str] = (), **settings: object) -> str:
    """Prints and runs a command, and returns its output. Exits with its code if it fails."""
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
        folder: the main folder; each process has its own folder there, and `NAME.log`.
        on_host: prefix that starts a command on the host of a silo, aggregator or coordinator.
        address: `HOST:PORT` of the coordinator; by default a free port of this machine.
        epsilon: epsilon for each record.
    """
    import numpy as np

    from pate_tf.core import artifacts
    from pate_tf.data import datasets
    from pate_tf.net.credentials import write_demo_certificates

    make_empty(folder)
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
    with contextlib.ExitStack() as started:
        for name, arguments in processes.items():
            log = started.enter_context(open(folder / f"{name}.log", "w"))
            process = subprocess.Popen(
                [*on_host(name), *arguments], stdout=log, stderr=subprocess.STDOUT
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
        print(__doc__ if wants_help else f"error: name one folder, got {' '.join(arguments)}")
        raise SystemExit(0 if wants_help else 2)
    folder = (arguments or ["runs/demo-silos" if are_silos else "runs/demo"])[0]
    if are_silos:
        demonstrate_silos(pathlib.Path(folder))
        return
    make_empty(pathlib.Path(folder))
    demonstrate(pathlib.Path(folder))


if __name__ == "__main__":
    run()
