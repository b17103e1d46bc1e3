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

from pate_tf.cli.demo import folder_argument
from pate_tf.core import artifacts
from pate_tf.ledger.rollback_guard import STATE_VARIABLE
from pate_tf.silos.roster import Member, Roster
from pate_tf.silos.serving import share_out
from pate_tf.statement.check import JSON_FILE

NUM_SILOS, NUM_PARTIES = 5, 4
EPSILON, LEAST_SILOS = 1.0, 4
SIGMA, QUERIES, VOTES_EPSILON = 1.0, 120, 300.0
FOLDER = "runs/demo-silos"


def command(name: str, /, *words: str, **flags: object) -> list[str]:
    """Returns how a command of this package is started."""
    given = [f"--{flag}={value}" for flag, value in flags.items()]
    return [sys.executable, "-m", f"pate_tf.cli.{name}", *words, *given]


def typed(name: str, /, *words: str, **flags: object) -> str:
    """Runs a command to its end and returns what it printed; exits with its code if it fails."""
    arguments = command(name, *words, **flags)
    print("$", "pate", name, *arguments[3:], flush=True)
    ended = subprocess.run(arguments, stdout=subprocess.PIPE, text=True)
    if ended.returncode:
        raise SystemExit(ended.returncode)
    return ended.stdout


@contextlib.contextmanager
def running(commands: Sequence[Sequence[str]], folder: pathlib.Path) -> Iterator[None]:
    """Keeps processes running, and ends those that it started."""
    # The demonstration begins anew each time; outside of it a silo's account is permanent.
    environment = {**os.environ, STATE_VARIABLE: str(folder / "state")}
    with contextlib.ExitStack() as started:
        for place, arguments in enumerate(commands, 1):
            log = started.enter_context(open(folder / f"process-{place}.log", "w"))
            child = started.enter_context(
                subprocess.Popen(arguments, stdout=log, stderr=subprocess.STDOUT, env=environment)
            )
            started.callback(child.kill)
        yield


def demonstrate(folder: pathlib.Path, method: str = "feature_sums") -> int:
    """Runs the demonstration in a folder of its own; returns its exit code.

    Args:
        folder: empty, or of this demonstration.
        method: "feature_sums" or "pate".
    """
    are_sums = method == "feature_sums"
    representation: dict[str, object] = {}
    if are_sums:
        budget, delta = EPSILON, 1e-5
        representation = {"method": method, "representation": "raw"}
        of_silo: dict[str, object] = {"method": method, "least_silos": LEAST_SILOS}
        of_coordinator = {"epsilon": EPSILON, "least_silos": LEAST_SILOS, **representation}
    else:
        budget, delta = VOTES_EPSILON, 1e-6
        of_silo = {"mechanisms": "secure_histogram", "least_sigma": SIGMA}
        of_coordinator = {"queries": QUERIES, "query_strategy": "random", "sigma": SIGMA}
        of_coordinator["aggregation"] = "secure"
    if folder.exists():
        if not (folder / "demo-silos").exists() and any(folder.iterdir()):
            print(f"error: expected an empty folder or one of this demo, got {folder}")
            return 1
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / "demo-silos").touch()
    silos = [f"silo-{number}" for number in range(1, NUM_SILOS + 1)]
    parties = [f"party-{number}" for number in range(1, NUM_PARTIES + 1)]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    certificates, listed = folder / "certificates", folder / "parties.toml"
    names = ",".join([*silos, *parties])
    typed("silo", "certificates", "--demo", names=names, certificates=certificates)
    entries = [typed("party", name=name, party_dir=folder / name) for name in parties]
    share_out(folder, silos)
    for name in silos:
        typed(
            "silo",
            "init",
            **{"name": name, "silo_dir": folder / name, "coordinator": address},
            **{"epsilon_budget": budget, "delta": delta, **of_silo},
        )
        if are_sums:
            entries.append(typed("silo", "keys", silo_dir=folder / name))
    listed.write_text("\n".join(entries))
    members = tuple(Member(name=name, epsilon=1.0, queries=10 * QUERIES) for name in silos)
    Roster(run_id="demo-silos", delta=delta, members=members).write(folder / "roster.toml")
    tls = {"parties": listed, "certificates": certificates}
    others = [
        command("party", index=place, party_dir=folder / name, coordinator=address, **tls)
        for place, name in enumerate(parties, 1)
    ]
    for name in silos:
        data = folder / name / "sensitive" / "records.npz"
        others.append(
            command("silo", "serve", silo_dir=folder / name, data=data, **tls, **representation)
        )
    of_coordinator |= {"roster": folder / "roster.toml", "address": address, "train_dir": folder}
    of_coordinator |= {"max_steps": 600, "gather_seconds": 300}
    arguments = command("coordinator", **tls, **of_coordinator)
    print("$", "pate", "coordinator", *arguments[3:], flush=True)
    with running(others, folder):
        code = subprocess.run(arguments).returncode
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
