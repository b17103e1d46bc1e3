"""Trains one model with several participants: `pate dssgd --dataset=mnist --participants=30`.

This is distributed selective SGD: each participant trains on its own records and uploads the
changes of a fraction of the model parameters to a server. The server adds the changes to the shared
parameters. Without --privacy there is no privacy guarantee, and the statement of the model says so.
If the command is stopped, the same command resumes it.

The command above trains all participants in one process. Several organizations can also take part,
each on its own machine (`pate dssgd serve --help`):

    pate dssgd serve --roster=roster.toml --address=0.0.0.0:7000 --certificates=certificates
        --train_dir=runs/server
    pate dssgd join --roster=roster.toml --address=HOST:PORT --participant=clinic
        --data=records.npz --certificates=certificates --train_dir=runs/clinic

Read the roster before you join: it defines the model, the training and the protection of uploads.
Records stay with the participant. The participant's own ledger is charged before each upload. A
participant connects to the server and needs no open port. After the last turn of the last
participant, the server exports the model with its statement and ends. You can stop either command
and start it again with the same flags.
"""

import dataclasses
import functools
import pathlib
import sys

from absl import flags

from pate_tf.cli import command_line
from pate_tf.core import artifacts
from pate_tf.data.data_source import DataSource
from pate_tf.data.loaded_data import Data, read_records
from pate_tf.net.credentials import COORDINATOR, TlsFiles
from pate_tf.selective_sgd.training_settings import Terms, TrainingSettings

FLAGS = flags.FLAGS
NO_FLAG = ("seed", "owners_file")
NETWORK = ("roster", "certificates", "address")
TEXTS = {  # default and help text of each flag
    "train_dir": ("runs/selective_sgd", "Run folder. It contains sensitive state and the ledger."),
    "model": (
        None,
        "linear, a --model of `pate teachers`, or module:function. Default: cnn (images) or mlp.",
    ),
    "representation": (
        None,
        "Representation to learn from the pool: a --representation of `pate teachers`.",
    ),
    "roster": ("roster.toml", "File with the terms of the run, identical for all participants."),
    "certificates": ("certificates", "Folder with authority.pem, NAME.pem and NAME.key."),
    "address": ("localhost:7000", "HOST:PORT of the server."),
    "participant": (None, "Your name on the roster and in your certificate."),
    "data": (None, "A .npz file with your private inputs and labels. Use it or --private."),
}


def _define(*names: str, without: tuple[str, ...] = ()) -> None:
    """Defines the flags for data and the flags `names` of `TEXTS`, except those in `without`."""
    command_line.define(DataSource, group="data", without=(*NO_FLAG, *without))
    for name in ("train_dir", *names):
        default, text = TEXTS[name]
        flags.DEFINE_string(name, default, text)
        command_line.shown_in_help(name, "run")
    command_line.define_data_flags(with_private="source_name" not in without)
    if "source_name" not in without:
        flags.DEFINE_boolean(
            "reset_ledger_i_understand",
            False,
            "Resume even if the ledger or some of its rows are missing. The reset is recorded. The "
            "known cost and the whole run are charged again, so the run exceeds its target.",
        )
    if "address" in names:
        command_line.define_operation()


def define_flags() -> None:
    """Defines the flags of `pate dssgd`."""
    _define("model", "representation")
    command_line.define(TrainingSettings, group="training", without=NO_FLAG, rounds=15)


def train() -> None:
    """Trains all participants in this process."""
    settings = command_line.read(TrainingSettings)
    files = command_line.own_files(with_private=True)
    source = command_line.read(DataSource, files=files)
    reporting = command_line.reporting()
    from pate_tf.selective_sgd import shared_training

    data = Data.of(source, None, reporting)
    encoder = None
    if FLAGS.representation:
        encoder = shared_training.learn_encoder(
            FLAGS.representation, data.pool, seed=settings.seed, reporting=reporting
        )
    with reporting.progress_bar(desc="shared training", total=settings.rounds, unit="round") as bar:
        shared = shared_training.train(
            data.private,
            settings,
            model=FLAGS.model,
            encoder=encoder,
            directory=FLAGS.train_dir,
            acknowledge_reset=FLAGS.reset_ledger_i_understand,
            on_round=lambda round_number, loss: bar.update(),
        )
    report = shared.publish(FLAGS.train_dir, evaluate_on=data.held_out, reporting=reporting)
    command_line.write_report(None, report.values)
    command_line.print_table("Shared training", report.rows)


def serve() -> None:
    """Runs the server until all participants have finished."""
    terms = Terms.read(pathlib.Path(FLAGS.roster))
    TlsFiles.of(pathlib.Path(FLAGS.certificates), COORDINATOR)  # before TensorFlow is imported
    files = command_line.own_files(with_private=False)
    reporting = command_line.reporting()
    source = command_line.read(DataSource, dataset=terms.dataset, files=files)
    public = source.load_public(reporting)
    from pate_tf.selective_sgd import shared_training

    _, watch = command_line.start_operation("server", terms.run)
    report = shared_training.serve(
        terms,
        address=FLAGS.address,
        certificates=pathlib.Path(FLAGS.certificates),
        directory=pathlib.Path(FLAGS.train_dir),
        public=public,
        reporting=reporting,
        watch=watch,
        give_up_after=FLAGS.give_up_after,
    )
    command_line.write_report(None, report.values)
    command_line.print_table("Shared training", report.rows)


def join() -> None:
    """Takes part in the training as one participant, until its last turn."""
    files = command_line.own_files(with_private=True)
    for name in ("participant", *(["data"] if files is None else [])):
        if not FLAGS[name].value:
            raise ValueError(f"{name} is required to take part in the training")
    terms = Terms.read(pathlib.Path(FLAGS.roster))
    terms.number(FLAGS.participant)  # raises ValueError if the name is not on the roster
    TlsFiles.of(pathlib.Path(FLAGS.certificates), FLAGS.participant)
    source = command_line.read(DataSource, dataset=terms.dataset, files=files)
    from pate_tf.selective_sgd import shared_training

    log, watch = command_line.start_operation("participant", FLAGS.participant)
    if files is not None:
        shard = files.load_private()
    else:
        shard = read_records(pathlib.Path(FLAGS.data), source.load_dataset())
    shared_training.join(
        terms,
        FLAGS.participant,
        dataclasses.replace(shard, source=source.named_source or shard.source),
        address=FLAGS.address,
        certificates=pathlib.Path(FLAGS.certificates),
        directory=pathlib.Path(FLAGS.train_dir),
        acknowledge_reset=FLAGS.reset_ledger_i_understand,
        watch=watch,
        give_up_after=FLAGS.give_up_after,
    )
    command_line.write_report(None, {"train_dir": FLAGS.train_dir})
    log(f"done; the shared parameters are in {FLAGS.train_dir}")


# For each command: its function, its flags from `TEXTS`, and the data settings without a flag.
COMMANDS = {
    "serve": (serve, NETWORK, ("dataset", "source_name")),
    "join": (join, (*NETWORK, "participant", "data"), ("dataset",)),
}


def run() -> None:
    """Runs `serve` or `join` if the first argument names it. Otherwise, trains in this process."""
    main = train
    define = define_flags
    if len(sys.argv) > 1 and sys.argv[1] in COMMANDS:
        main, names, without = COMMANDS[sys.argv.pop(1)]
        define = functools.partial(_define, *names, without=without)

    def locked() -> None:
        with artifacts.only_writer(pathlib.Path(FLAGS.train_dir)):  # before TensorFlow starts
            main()

    renamed = command_line.flag_of_argument(TrainingSettings)
    renamed["acknowledge_reset"] = "reset_ledger_i_understand"
    command_line.run(command_line.guarded(locked, FLAGS, renamed), define, __doc__)
