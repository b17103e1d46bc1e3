"""Takes part in shared training across organisations: `pate dssgd join`. Records stay here.

    pate dssgd join --roster=roster.toml --server=HOST:PORT --participant=clinic
        --data=records.npz --certificates=certificates --train_dir=runs/clinic

Read the roster first: it says what is trained, and what protects uploads; without privacy in it
there is no privacy guarantee. This end's own ledger is charged before anything leaves. It dials,
needs no open port, and may be killed and started again with the same flags.
"""

import pathlib

from absl import flags

from pate_tf.cli import command_line, parameter_server

FLAGS = flags.FLAGS
FLAG_OF_ARGUMENT = {"folder": "train_dir", "records": "data"}


def define_flags() -> None:
    """Defines the flags of `pate dssgd join`."""
    parameter_server.define_common()
    flags.DEFINE_string("server", None, "Address of the parameter server, HOST:PORT.")
    flags.DEFINE_string(
        "participant", None, "Who this is: the name on the roster and in the certificate."
    )
    flags.DEFINE_string(
        "data",
        None,
        "A .npz file of inputs and labels; or dealt, to try things out, for the share of the data "
        "set that pate dssgd in one process would deal out.",
    )
    flags.DEFINE_string(
        "train_dir", None, "State and ledger, sensitive. Default: runs/shared-PARTICIPANT."
    )
    flags.DEFINE_integer(
        "insecure_seed", None, "For tests alone: predictable noise, so that nothing is private."
    )


def main() -> None:
    """Reads the flags, takes all turns."""
    for name in ("server", "participant", "data"):
        if not FLAGS[name].value:
            raise ValueError(f"{name}: expected it to take part, got none")
    with command_line.quiet_start(FLAGS):
        from pate_tf.aggregation import noise
        from pate_tf.api import participant as runs
    path = runs.take_part(
        runs.ParticipantRun(
            roster=pathlib.Path(FLAGS.roster),
            participant=FLAGS.participant,
            server=FLAGS.server,
            records=FLAGS.data,
            certificates=pathlib.Path(FLAGS.certificates),
            folder=pathlib.Path(FLAGS.train_dir or f"runs/shared-{FLAGS.participant}"),
            data_dir=command_line.path(FLAGS.data_dir),
            server_name=FLAGS.server_name,
            noise=noise.SystemNoise()
            if FLAGS.insecure_seed is None
            else noise.SeededNoise(FLAGS.insecure_seed),
        ),
        on_event=command_line.note,
    )
    command_line.note(f"done; the parameters of all are in {path}")


def run() -> None:
    """Runs the command with the flags of this process."""
    command_line.run(command_line.guarded(main, FLAGS, FLAG_OF_ARGUMENT), define_flags, __doc__)
