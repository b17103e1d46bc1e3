"""Five silos, four parties and a coordinator as ten processes on this machine, over TLS.

    pate demo-silos [FOLDER] [--method=pate]

The digits that scikit-learn ships are dealt out among five silos, each of which keeps its own
account. Each sums its records' features by class and adds a share of the noise; parties open the
total, under secret sharing, and nothing else. Every record of every silo has epsilon 1; what each
silo had to trust for that is printed at the end. Everything lands in FOLDER, by default
`runs/demo-silos`; `report.json` there says what came of it.

With --method=pate each silo trains a teacher instead, and votes are added up. Five votes are few:
an epsilon of such a size protects no record.
"""

import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence

from pate_tf.api.silo import share_out
from pate_tf.cli.demo import folder_argument
from pate_tf.core import artifacts
from pate_tf.ledger.rollback_guard import STATE_VARIABLE
from pate_tf.silos.roster import Member, Roster
from pate_tf.statement.check import JSON_FILE

NUM_SILOS, NUM_PARTIES = 5, 4
EPSILON, LEAST_SILOS = 1.0, 4
SIGMA, QUERIES, VOTES_EPSILON = 1.0, 120, 300.0
FOLDER = "runs/demo-silos"


def command(name: str, *arguments: str) -> list[str]:
    """Returns how a command of this package is started."""
    return [sys.executable, "-m", f"pate_tf.cli.{name}", *arguments]


def typed(name: str, *arguments: str) -> str:
    """Runs a command to its end and returns what it printed; exits with its code if it fails."""
    print("$", "pate", name, *arguments, flush=True)
    ended = subprocess.run(command(name, *arguments), stdout=subprocess.PIPE, text=True)
    if ended.returncode:
        raise SystemExit(ended.returncode)
    return ended.stdout


def free_port() -> int:
    """Returns a free port."""
    with socket.socket() as found:
        found.bind(("localhost", 0))
        return int(found.getsockname()[1])


@contextlib.contextmanager
def running(commands: Sequence[Sequence[str]], folder: pathlib.Path) -> Iterator[None]:
    """Keeps processes running, and ends those that it started."""
    children = []
    # The demonstration begins anew each time; outside of it a silo's account is permanent.
    environment = {**os.environ, STATE_VARIABLE: str(folder / "state")}
    with contextlib.ExitStack() as logs:
        try:
            for place, each in enumerate(commands):
                log = logs.enter_context(open(folder / f"process-{place + 1}.log", "w"))
                children.append(
                    subprocess.Popen(each, stdout=log, stderr=subprocess.STDOUT, env=environment)
                )
            yield
        finally:
            for child in children:
                child.terminate()
            for child in children:
                try:
                    child.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()


def demonstrate(folder: pathlib.Path, method: str = "feature_sums") -> int:
    """Runs the demonstration in a folder of its own; returns its exit code.

    Args:
        folder: empty, or of this demonstration.
        method: "feature_sums" or "pate".
    """
    are_sums = method == "feature_sums"
    budget, delta = (EPSILON, 1e-5) if are_sums else (VOTES_EPSILON, 1e-6)
    of_silo = ["--mechanisms=secure_histogram", f"--least_sigma={SIGMA:g}"]
    of_coordinator = [f"--queries={QUERIES}", "--query_strategy=random", f"--sigma={SIGMA:g}"]
    of_coordinator.append("--aggregation=secure")
    representation = []
    if are_sums:
        representation = [f"--method={method}", "--representation=raw"]
        of_silo = [f"--method={method}", f"--least_silos={LEAST_SILOS}"]
        of_coordinator = [f"--epsilon={EPSILON:g}", f"--least_silos={LEAST_SILOS}", *representation]
    if folder.exists():
        if not (folder / "demo-silos").exists() and any(folder.iterdir()):
            print(f"error: expected an empty folder or one of this demo, got {folder}")
            return 1
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / "demo-silos").touch()
    silos = [f"silo-{number}" for number in range(1, NUM_SILOS + 1)]
    parties = [f"party-{number}" for number in range(1, NUM_PARTIES + 1)]
    address, certificates = f"localhost:{free_port()}", f"--certificates={folder / 'certificates'}"
    typed("silo", "certificates", "--demo", f"--names={','.join([*silos, *parties])}", certificates)
    listed = folder / "parties.toml"
    entries = [typed("party", f"--name={one}", f"--party_dir={folder / one}") for one in parties]
    share_out(folder, silos)
    for name in silos:
        typed(
            "silo",
            "init",
            f"--name={name}",
            f"--silo_dir={folder / name}",
            f"--coordinator={address}",
            f"--epsilon_budget={budget:g}",
            f"--delta={delta:g}",
            *of_silo,
        )
        if are_sums:
            entries.append(typed("silo", "keys", f"--silo_dir={folder / name}"))
    listed.write_text("\n".join(entries))
    members = tuple(Member(name=name, epsilon=1.0, queries=10 * QUERIES) for name in silos)
    Roster(run_id="demo-silos", delta=delta, members=members).write(folder / "roster.toml")
    others = [
        command(
            "party",
            f"--index={place}",
            f"--parties={listed}",
            f"--party_dir={folder / name}",
            f"--coordinator={address}",
            certificates,
        )
        for place, name in enumerate(parties, 1)
    ] + [
        command(
            "silo",
            "serve",
            f"--silo_dir={folder / name}",
            f"--data={folder / name / 'sensitive' / 'records.npz'}",
            f"--parties={listed}",
            certificates,
            *representation,
        )
        for name in silos
    ]
    flags = (
        *(f"--roster={folder / 'roster.toml'}", f"--address={address}", certificates),
        *(f"--train_dir={folder}", f"--parties={listed}", "--max_steps=600"),
        *(*of_coordinator, "--gather_seconds=300"),
    )
    print(f"$ pate coordinator {' '.join(flags)}", flush=True)
    with running(others, folder):
        code = subprocess.run(command("coordinator", *flags)).returncode
    if code == 0:
        report = json.loads((folder / "report.json").read_text())
        statement = json.loads((folder / artifacts.RELEASED / JSON_FILE).read_text())
        epsilon = max(report["epsilon_per_silo"].values())
        print(f"\n{folder / 'report.json'}: epsilon {epsilon:.3f} for each {report['unit']}")
        print(statement["sections"]["What it depends on"][0].removeprefix("- "))
        if not are_sums:
            print(
                "Votes protect a silo from some 250 silos on; with five use feature_sums "
                "(docs/explanation/silos.md)."
            )
    return code


def run() -> None:
    """Runs the demonstration and exits with its code."""
    methods = [one for one in sys.argv if one in ("--method=pate", "--method=feature_sums")]
    sys.argv[:] = [one for one in sys.argv if one not in methods]
    method = (methods or ["--method=feature_sums"])[-1].removeprefix("--method=")
    raise SystemExit(demonstrate(pathlib.Path(folder_argument(__doc__, FOLDER)), method))


if __name__ == "__main__":
    run()
