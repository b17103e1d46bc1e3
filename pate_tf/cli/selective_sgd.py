"""Trains a model together: `pate dssgd --dataset=mnist --participants=30 --upload=0.1`.

Distributed selective SGD: each participant trains on its own records and uploads a share of its
parameters' changes to a server, which adds them. Without --privacy there is no privacy guarantee,
and the statement beside the model says so. A stopped run goes on where it stopped.

Across organisations, each on a machine of its own (`pate dssgd serve --help`):

    pate dssgd serve --roster=roster.toml --address=0.0.0.0:7000 --certificates=certificates
        --train_dir=runs/server
    pate dssgd join --roster=roster.toml --server=HOST:PORT --participant=clinic
        --data=records.npz --certificates=certificates --train_dir=runs/clinic

Read the roster first: it says what is trained, and what protects uploads. Records stay with the
participant, whose own ledger is charged before anything is uploaded; it dials and needs no open
port. The server ends when all took all turns: it exports the model with its statement. Both may be
killed and started again with the same flags.
"""

import sys
from typing import Any

from absl import flags

from pate_tf.cli import command_line
from pate_tf.cli import flags as own_flags
from pate_tf.core.reporting import RunReport
from pate_tf.selective_sgd.settings import (
    ParameterServerRun,
    ParticipantRun,
    Privacy,
    Settings,
    SharedRun,
)

FLAGS = flags.FLAGS


def define_data() -> None:
    """Defines the flags of data that are named."""
    flags.DEFINE_string(
        "dataset",
        "digits",
        "Name of the data set: digits (embedded), mnist, svhn, cifar10, adult, diabetes, another "
        "name of TensorFlow Datasets, or module:function. Its private records are dealt out.",
    )
    flags.DEFINE_string(
        "data_dir", None, "Folder with data prepared by TensorFlow Datasets. Default: TFDS' own."
    )
    for name in ("dataset", "data_dir"):
        command_line.shown_in_help(name, "data")


def define_report() -> None:
    """Defines the flag of the report."""
    flags.DEFINE_string("report_file", None, "Where to write what is printed, as JSON (sensitive).")


def define_flags() -> None:
    """Defines the flags of `pate dssgd`."""
    define_data()
    own_flags.define(Privacy, group="privacy")
    own_flags.define(Settings, group="training", rounds=15)
    own_flags.define(SharedRun, group="run")
    define_report()


def define_serve() -> None:
    """Defines the flags of `pate dssgd serve`."""
    own_flags.define(ParameterServerRun, group="server")
    define_report()


def define_join() -> None:
    """Defines the flags of `pate dssgd join`."""
    own_flags.define(
        ParticipantRun, group="participant", server=None, participant=None, records=None
    )


def chosen_privacy() -> Privacy:
    """Returns what the flags say of privacy.

    Raises:
        ValueError: if flags of privacy are given without --privacy: no protection is promised that
            there is not.
    """
    for name in own_flags.names_of(Privacy):
        if FLAGS.privacy == "none" and name != "privacy" and FLAGS[name].present:
            raise ValueError(f"{name}: expected with --privacy alone, got it without")
    return own_flags.read(Privacy)


def chosen_settings(privacy: Privacy) -> Settings:
    """Returns the settings that the flags give, and else those that suit the kind of privacy."""
    given = own_flags.values_of(Settings)
    flag_of = own_flags.flag_of_argument(Settings)
    return Settings.with_defaults_of(
        privacy,
        {
            name: value
            for name, value in given.items()
            if name == "rounds" or FLAGS[flag_of.get(name, name)].present
        },
    )


def _print(report: RunReport) -> None:
    command_line.print_table("Shared training", report.rows)
    command_line.write_report(FLAGS.report_file, report.values)


def train() -> None:
    """Trains all participants in this process."""
    command_line.check_report_file(FLAGS.report_file)
    privacy = chosen_privacy()
    asked = own_flags.read(SharedRun, privacy=privacy, settings=chosen_settings(privacy))
    runs = _runs()
    from pate_tf.data.data_source import DataSource

    data = DataSource(dataset=FLAGS.dataset, data_dir=command_line.path(FLAGS.data_dir))
    _print(runs.run(asked, data, command_line.reporting()))


def serve() -> None:
    """Serves the parameters of participants elsewhere."""
    command_line.check_report_file(FLAGS.report_file)
    asked = own_flags.read(ParameterServerRun)
    _print(_runs().serve(asked, command_line.reporting(), on_event=command_line.note))


def join() -> None:
    """Takes all turns of a participant."""
    for name in ("server", "participant", "data"):
        if not FLAGS[name].value:
            raise ValueError(f"{name}: expected it to take part, got none")
    path = _runs().take_part(own_flags.read(ParticipantRun), on_event=command_line.note)
    command_line.note(f"done; the parameters of all are in {path}")


def _runs() -> Any:
    """Returns the module that trains, which imports TensorFlow."""
    with command_line.quiet_start(FLAGS):
        from pate_tf.selective_sgd import shared_training
    return shared_training


COMMANDS = {"serve": (serve, define_serve), "join": (join, define_join)}


def run() -> None:
    """Runs the command with the flags of this process, or the one that the first argument names."""
    main, define = train, define_flags
    if len(sys.argv) > 1 and sys.argv[1] in COMMANDS:
        main, define = COMMANDS[sys.argv.pop(1)]
    renamed = own_flags.flag_of_argument(
        Settings, Privacy, SharedRun, ParticipantRun, ParameterServerRun
    )
    renamed["num_teachers"] = "participants"  # a partition calls them so
    command_line.run(command_line.guarded(main, FLAGS, renamed), define, __doc__)


if __name__ == "__main__":
    run()
