"""One silo: it keeps its data, answers public queries by its policy, and keeps its own account.

    pate silo init --name=clinic --silo_dir=clinic --coordinator=HOST:PORT --epsilon_budget=20
    pate silo serve --silo_dir=clinic --dataset=digits --data=records.npz

`init` writes policy.toml, which a privacy officer reads, changes and signs off. `serve` dials the
coordinator and works as long as it runs; it may be killed and started again at any time, and needs
no open port. What it sends is what the policy allows, charged before it is drawn. A silo has one
account (SILO_DIR/sensitive): never restore it from a copy.

With --method=feature_sums no teacher votes: features of the records are summed by class and shared
with noise. `pate silo keys --silo_dir=clinic >> parties.toml` puts the silo into the list of
parties for that.

    pate silo certificates --demo --names=clinic,school --certificates=certificates

makes a certificate authority for trying it out. Real ones come from an authority of your own.
"""

import dataclasses
import pathlib
import sys

from absl import flags

from pate_tf.accounting.local import SecureFeatureSums
from pate_tf.cli import command_line
from pate_tf.cli import flags as own_flags
from pate_tf.core import artifacts
from pate_tf.silos import serving as silo
from pate_tf.silos.policy import Policy

FLAGS = flags.FLAGS


def define_init() -> None:
    """Defines the flags of `pate silo init`."""
    command_line.shown_in_help("silo_dir", "silo")
    flags.DEFINE_string("silo_dir", None, "Folder of the silo: policy, account, teacher.")
    own_flags.define(Policy, group="policy", coordinator=None, delta=1e-6)
    flags.DEFINE_enum(
        "method", "pate", silo.METHODS, "feature_sums for --mechanisms=secure_feature_sums."
    )


def define_serve() -> None:
    """Defines the flags of `pate silo serve`."""
    own_flags.define(silo.SiloRun, group="silo")
    own_flags.define(silo.TeacherRun, group="teacher")


def define_certificates() -> None:
    """Defines the flags of `pate silo certificates`."""
    flags.DEFINE_string("certificates", "certificates", "Folder that the certificates go to.")
    flags.DEFINE_boolean("demo", False, "Must be given: the authority is one to try out alone.")
    flags.DEFINE_list("names", None, "Names of silos and parties, separated by commas.")


def define_keys() -> None:
    """Defines the flags of `pate silo keys`."""
    flags.DEFINE_string("silo_dir", None, "Folder of the silo: policy, account, keys.")


def require(what: str, *names: str) -> None:
    """Raises ValueError unless flags have values."""
    for name in names:
        if not FLAGS[name].value:
            raise ValueError(f"{name}: expected {what}, got none")


def init() -> None:
    """Makes a silo's folder."""
    require("it for a new silo", "name", "silo_dir", "coordinator", "epsilon_budget")
    policy = own_flags.read(Policy)
    if FLAGS.method == "feature_sums":
        policy = dataclasses.replace(policy, allowed=(SecureFeatureSums.name,))
    path = pathlib.Path(FLAGS.silo_dir) / silo.POLICY
    if path.exists():
        raise ValueError(f"folder: expected one without {silo.POLICY}, got {path}: edit it instead")
    artifacts.make_sensitive_folder(path.parent / artifacts.SENSITIVE)
    policy.write(path)
    print(f"read and sign off {path}; then: pate silo serve --silo_dir={FLAGS.silo_dir}")


def serve() -> None:
    """Works for a coordinator."""
    require("the folder of the silo", "silo_dir")
    run = own_flags.read(silo.SiloRun, teacher=own_flags.read(silo.TeacherRun))
    silo.serve(run, on_event=lambda event: print(event, flush=True))


def certificates() -> None:
    """Makes an authority for trying silos out."""
    from pate_tf.net.certificates import write_demo_certificates

    require("--demo, as these certificates are to try out alone", "demo")
    require("the silos and parties", "names")
    files = write_demo_certificates(pathlib.Path(FLAGS.certificates), FLAGS.names)
    print(f"{len(files)} certificates in {FLAGS.certificates}, for 30 days, to try out alone")


def keys() -> None:
    """Makes a silo's keys and prints its entry in the list of parties."""
    from pate_tf.silos.secure.keys import PartyKeys, party_entry

    require("the folder of the silo", "silo_dir")
    folder = pathlib.Path(FLAGS.silo_dir)
    name = Policy.read(folder / silo.POLICY).silo
    sensitive = artifacts.make_sensitive_folder(folder / artifacts.SENSITIVE)
    print(party_entry(PartyKeys.load_or_create(sensitive / silo.KEYS, name).identity, "silo"))


COMMANDS = {
    "init": (init, define_init),
    "keys": (keys, define_keys),
    "serve": (serve, define_serve),
    "certificates": (certificates, define_certificates),
}


def run() -> None:
    """Runs the command that the first argument names."""
    name = sys.argv[1] if len(sys.argv) > 1 else ""
    if name not in COMMANDS:
        is_help = name.lstrip("-") in ("help", "h", "helpfull", "helpshort")
        print(
            __doc__ if is_help else f"error: expected one of {', '.join(COMMANDS)}, got {name!r}",
            file=sys.stdout if is_help else sys.stderr,
        )
        raise SystemExit(0 if is_help else command_line.FLAG_ERROR)
    del sys.argv[1]
    main, define_flags = COMMANDS[name]
    renamed = own_flags.flag_of_argument(Policy, silo.SiloRun, silo.TeacherRun)
    command_line.run(command_line.guarded(main, FLAGS, renamed), define_flags, __doc__)


if __name__ == "__main__":
    run()
