"""Runs a silo, which answers public queries under a policy. Data and ledger stay local.

    pate silo init --name=clinic --silo_dir=clinic --coordinator=HOST:PORT --epsilon_budget=20
    pate silo serve --silo_dir=clinic --private=patients.csv --schema=schema.toml

`init` writes policy.toml, which a privacy officer reads, edits and approves. To change defaults,
put the changed lines into a file and pass it as --policy. `serve` connects to the coordinator and
needs no open port. It ends with exit code 0 when the coordinator ends the run, or with exit code 75
if it can't reach the coordinator for --give_up_after seconds. You can stop `serve` at any time and
start it again. The silo sends only what the policy allows, and each answer is charged before its
noise is drawn. A silo has one ledger (SILO_DIR/sensitive). Never restore the ledger from a copy.

`pate silo status --silo_dir=clinic` prints the spent budget and whether the process is running.
`pate silo report --silo_dir=clinic` writes the epsilon of each round to clinic/report.csv and
clinic/report.json, for an auditor.

With --method=feature_sums, no teachers vote. The silo adds up the features of its records for each
class, adds noise, and splits the sums into secret shares. The roster must contain the silo's keys:
`pate silo keys --silo_dir=clinic >> roster.toml` adds them.

    pate silo certificates --demo --names=clinic,school --certificates=certificates

creates a certificate authority for tests. For real runs, use your own certificate authority.
"""

import functools
import pathlib
import tomllib
from collections import Counter
from collections.abc import Callable
from typing import Any

from absl import flags

from pate_tf.accounting.composition import Charge, smallest_epsilon
from pate_tf.accounting.local import SecureFeatureSums
from pate_tf.cli import command_line
from pate_tf.core import artifacts
from pate_tf.core.settings import described
from pate_tf.ledger.journal import Store
from pate_tf.ledger.ledger_file import DATABASE, charges_of
from pate_tf.silos import silo_server
from pate_tf.silos.roster import METHODS, Member, Policy

FLAGS = flags.FLAGS
FLAG_OF_ARGUMENT = command_line.flag_of_argument(Policy, silo_server.SiloRun)
STATUS = (silo_server.SiloRun, silo_server.status)
INIT = ("silo", "coordinator", "epsilon_budget", "delta")  # fields of the policy that have a flag


OPTIONS: dict[str, tuple[Callable[..., Any], Any, str]] = {
    "silo_dir": (flags.DEFINE_string, None, "Folder with the silo's policy, ledger and teacher."),
    "certificates": (flags.DEFINE_string, "certificates", "Folder of the certificates."),
    "demo": (flags.DEFINE_boolean, None, "Confirms that the certificates are only for tests."),
    "names": (flags.DEFINE_list, None, "Names of all silos and aggregators, separated by commas."),
    "policy": (flags.DEFINE_string, None, "TOML file with additional lines of the policy."),
}


def define(name: str) -> None:
    """Defines the flags of one of the commands in `COMMANDS`."""
    if name == "serve":
        command_line.define(silo_server.SiloRun, group="silo", without=("owners_file",))
        command_line.define_data_flags(with_private=True)
        command_line.define_operation()
    if name == "init":
        command_line.define(Policy, group="policy", without=set(described(Policy)) - set(INIT))
        about = "Method of the run. With feature_sums, the policy allows only secure feature sums."
        flags.DEFINE_enum("method", "pate", METHODS, about)
    _, options = COMMANDS[name]
    for option in options:
        define_one, default, about = OPTIONS[option]
        define_one(option, default, about)


def init() -> None:
    """Creates the folder of a silo."""
    command_line.require("the folder of the new silo", "silo_dir")
    flag_of = {"silo": "name", **{name: name for name in INIT[1:]}}
    values = {name: FLAGS[flag].value for name, flag in flag_of.items() if FLAGS[flag].present}
    if FLAGS.method == "feature_sums":
        values["allowed"] = (SecureFeatureSums.name,)
    if FLAGS.policy:
        policy = Policy.read(pathlib.Path(FLAGS.policy), **values)
    else:
        command_line.require("or pass --policy=FILE", "name", "coordinator", "epsilon_budget")
        policy = Policy(**values)
    path = pathlib.Path(FLAGS.silo_dir) / silo_server.POLICY
    if path.exists():
        raise ValueError(f"folder: {path} already exists. Edit it instead.")
    artifacts.make_sensitive_folder(path.parent / artifacts.SENSITIVE)
    policy.write(path)
    of_sums = " --roster=FILE --method=feature_sums" if FLAGS.method == "feature_sums" else ""
    files = f"--silo_dir={FLAGS.silo_dir} --private=FILE --schema=FILE{of_sums}"
    command_line.write_report(None, {"policy": str(path)})
    print(f"Review and approve {path}. Then run: pate silo serve {files}")


def settings_of_silo() -> silo_server.SiloRun:
    """Returns the settings of `serve` from its flags."""
    command_line.require("the folder of the silo", "silo_dir")
    files = command_line.own_files(with_private=True)
    return command_line.read(silo_server.SiloRun, files=files)


def serve() -> None:
    """Runs the silo, which answers the queries of a coordinator."""
    settings = settings_of_silo()
    policy = Policy.read(settings.folder / silo_server.POLICY)  # before TensorFlow is imported
    with artifacts.only_writer(settings.folder):
        log, watch = command_line.start_operation("silo", policy.silo)
        silo_server.serve(settings, on_event=log, watch=watch, give_up_after=FLAGS.give_up_after)
    command_line.write_report(None, silo_server.status(settings.folder))


def report() -> None:
    """Writes the privacy cost of each round of queries to a CSV file and a JSON file."""
    command_line.require("the folder of the silo", "silo_dir")
    folder = pathlib.Path(FLAGS.silo_dir)
    policy = Policy.read(folder / silo_server.POLICY)
    charges: Counter[Charge] = Counter()
    rounds: list[dict[str, Any]] = []
    sensitive = folder / artifacts.SENSITIVE
    has_ledger = (sensitive / DATABASE).exists()
    with Store(sensitive if has_ledger else None, read_only=has_ledger) as account:
        rows = account.catch_up()
    for row in rows:
        if charged := charges_of([row]):
            charges += charged
            values = {
                "round": len(rounds) + 1,
                "time": row.time,
                "mechanism": next(iter(charged)).name,
                "queries": charged.total(),
                "epsilon": smallest_epsilon(charged, policy.delta)[0],
                "epsilon_so_far": smallest_epsilon(charges, policy.delta)[0],
            }
            rounds.append(values)
    terms = {name: getattr(policy, name) for name in ("silo", "epsilon_budget", "delta", "unit")}
    values = {**terms, "rounds": rounds}
    artifacts.write_json(folder / "report.json", values)
    command_line.write_report(None, values)
    table = [list(rounds[0]) if rounds else [], *(list(each.values()) for each in rounds)]
    lines = [",".join(map(str, cells)) + "\n" for cells in table]
    artifacts.write_text(folder / "report.csv", "".join(lines))
    print(f"{policy.silo}: {len(rounds)} rounds, written to {folder}/report.csv and report.json")


def keys() -> None:
    """Creates the keys of a silo and prints its roster entry."""
    from pate_tf.silos.protocol import Keys  # needs cryptography

    command_line.require("the folder of the silo", "silo_dir")
    folder = pathlib.Path(FLAGS.silo_dir)
    name = Policy.read(folder / silo_server.POLICY).silo
    sensitive = artifacts.make_sensitive_folder(folder / artifacts.SENSITIVE)
    identity = Keys.load_or_create(sensitive / silo_server.KEYS, name).identity
    entry = Member(name=name, identity=identity).entry()
    command_line.write_report(None, tomllib.loads(entry))
    print(entry)


def certificates() -> None:
    """Creates a certificate authority for tests."""
    from pate_tf.net.credentials import write_demo_certificates

    command_line.require("these certificates are only for tests", "demo")
    command_line.require("the names of all silos and aggregators", "names")
    files = write_demo_certificates(pathlib.Path(FLAGS.certificates), FLAGS.names)
    command_line.write_report(None, {"names": list(files)})
    print(f"{len(files)} certificates in {FLAGS.certificates}, valid for 30 days, only for tests")


# For each command: its function, and its flags from `OPTIONS`.
COMMANDS: dict[str, tuple[Callable[[], None], tuple[str, ...]]] = {
    "init": (init, ("silo_dir", "policy")),
    "keys": (keys, ("silo_dir",)),
    "serve": (serve, ()),
    "report": (report, ("silo_dir",)),
    "certificates": (certificates, ("certificates", "demo", "names")),
}


def run() -> None:
    """Runs the command in the first argument."""
    name = command_line.subcommand([*COMMANDS, "status"], __doc__)
    main, _ = COMMANDS[name]
    guarded = command_line.guarded(main, FLAGS, FLAG_OF_ARGUMENT)
    command_line.run(guarded, functools.partial(define, name), __doc__)
