"""Serves the parameters of shared training across organisations: `pate dssgd serve`.

    pate dssgd serve --roster=roster.toml --address=0.0.0.0:7000 --certificates=certificates
        --train_dir=runs/server

Participants dial in by `pate dssgd join`. It may be killed and started again with the same flags.
When everybody took all turns it exports the global model with its statement, gives participants
some time to fetch the parameters of all, and ends.
"""

import pathlib

from absl import flags

from pate_tf.api.reporting import Reporting
from pate_tf.cli import command_line

FLAGS = flags.FLAGS
FLAG_OF_ARGUMENT = {"folder": "train_dir", "name": "server_name"}


def define_common() -> None:
    """Defines what both ends have."""
    flags.DEFINE_string(
        "roster", "roster.toml", "The terms of the run, the same file for everybody."
    )
    flags.DEFINE_string(
        "certificates", "certificates", "Folder with authority.pem, and NAME.pem and NAME.key."
    )
    flags.DEFINE_string("data_dir", None, "Where the data set lies. Default: TFDS' own.")
    flags.DEFINE_string("server_name", "coordinator", "Name in the server's certificate.")


def define_flags() -> None:
    """Defines the flags of `pate dssgd serve`."""
    define_common()
    flags.DEFINE_string("address", "localhost:7000", "To listen on, HOST:PORT.")
    flags.DEFINE_string("train_dir", "runs/shared-server", "Journal, model and report.")
    flags.DEFINE_float(
        "linger_seconds",
        60.0,
        "How long participants have at the end to fetch the parameters of all.",
        lower_bound=0.0,
    )
    flags.DEFINE_string("report_file", None, "Where to write what is printed, as JSON (sensitive).")


def main() -> None:
    """Reads the flags, serves, prints."""
    reporting = Reporting(clock=command_line.clock, progress_bar=command_line.progress_bar)
    command_line.check_report_file(FLAGS.report_file)
    with command_line.quiet_start(FLAGS):
        from pate_tf.api import parameter_server as runs
    report = runs.serve(
        runs.ParameterServerRun(
            roster=pathlib.Path(FLAGS.roster),
            address=FLAGS.address,
            certificates=pathlib.Path(FLAGS.certificates),
            folder=pathlib.Path(FLAGS.train_dir),
            data_dir=command_line.path(FLAGS.data_dir),
            name=FLAGS.server_name,
            linger_seconds=FLAGS.linger_seconds,
        ),
        reporting,
        on_event=command_line.note,
    )
    command_line.print_table("Shared training", report.rows)
    command_line.write_report(FLAGS.report_file, report.values)


def run() -> None:
    """Runs the command with the flags of this process."""
    command_line.run(command_line.guarded(main, FLAGS, FLAG_OF_ARGUMENT), define_flags, __doc__)
