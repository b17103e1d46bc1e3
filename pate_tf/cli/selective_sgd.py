"""Trains a model together: `pate dssgd --dataset=mnist --participants=30 --upload=0.1`.

Distributed selective SGD: each participant trains on its own records and uploads a share of its
parameters' changes to a server, which adds them. Without --privacy there is no privacy guarantee,
and the statement beside the model says so. A stopped run goes on where it stopped.

Across organisations, each on a machine of its own: `pate dssgd serve` and `pate dssgd join`, which
have flags of their own (`pate dssgd serve --help`).
"""

import sys

from absl import flags

from pate_tf.api.reporting import Reporting
from pate_tf.cli import command_line, parameter_server, participant

FLAGS = flags.FLAGS

# What the library calls what a flag is for, where the two differ.
FLAG_OF_ARGUMENT = {
    "num_participants": "participants",
    "num_teachers": "participants",
    "selection": "selection",
}

OF_PRIVACY = ("target_epsilon", "delta", "clip", "sampling_rate", "momentum", "choice")
LEARNING_RATES = {"none": 0.05, "sparse_vector": 0.05, "participant": 0.05, "record": 1.0}


def define_flags() -> None:
    """Defines the flags of this command."""
    flags.DEFINE_string(
        "dataset",
        "digits",
        "Name of the data set: digits (embedded), mnist, svhn, cifar10, adult, diabetes, another "
        "name of TensorFlow Datasets, or module:function. Its private records are dealt out.",
    )
    flags.DEFINE_string(
        "data_dir", None, "Folder with data prepared by TensorFlow Datasets. Default: TFDS' own."
    )
    flags.DEFINE_integer("participants", 30, "How many train together.", lower_bound=1)
    flags.DEFINE_integer(
        "records_each",
        None,
        "Records of each participant, 600 in the paper. Default: all records, dealt out evenly.",
        lower_bound=1,
    )
    flags.DEFINE_integer("rounds", 15, "Turns of each participant.", lower_bound=1)
    flags.DEFINE_float(
        "upload",
        0.1,
        "theta_u: share of its parameters' changes that a participant uploads; 1 by default where "
        "noise is Gaussian.",
    )
    flags.DEFINE_float("download", 1.0, "theta_d: share of the parameters that it downloads.")
    flags.DEFINE_float(
        "gamma", float("inf"), "Uploaded changes are clipped to this absolute value."
    )
    flags.DEFINE_enum(
        "selection",
        "largest",
        ["largest", "random"],
        "What is uploaded: the largest changes, or random ones above --tau. Either looks at "
        "private records; noise other than sparse_vector's needs --choice instead.",
    )
    flags.DEFINE_float("tau", 0.0, "Threshold of --selection=random.", lower_bound=0.0)
    flags.DEFINE_enum(
        "protocol",
        None,
        ["round_robin", "random", "asynchronous", "synchronous"],
        "Order of turns: one after another; the same in random order; each on parameters that the "
        "others have changed since, damped by how many; or all on the same parameters, averaged. "
        "Default: round_robin; synchronous where noise is Gaussian.",
    )
    flags.DEFINE_float(
        "damping",
        1.0,
        "An upload that is s uploads stale is multiplied by (1 + s)^-damping.",
        lower_bound=0.0,
    )
    flags.DEFINE_float(
        "server_rate", None, "The server multiplies uploads by it. Default: 1; 1/N if synchronous."
    )
    flags.DEFINE_float("stat_decay", 0.9, "beta: decay of the counts that --download goes by.")
    flags.DEFINE_string("optimizer", "sgd", "Each participant's own, by Keras' name.")
    flags.DEFINE_float(
        "learning_rate",
        None,
        "In the first round; it falls linearly. Default: 0.05; 1 with --privacy=record.",
    )
    flags.DEFINE_integer("batch_size", 10, "Records of a local step.", lower_bound=1)
    flags.DEFINE_integer("local_epochs", 1, "Local passes a turn.", lower_bound=1)
    flags.DEFINE_string(
        "model",
        None,
        "cnn or mlp for the paper's networks, linear, another name that train_teachers.py takes, "
        "or module:function. Default: cnn for images, mlp otherwise.",
    )
    flags.DEFINE_enum(
        "representation",
        None,
        ["whitened", "contrastive", "raw"],
        "Train on features that are learnt from the public pool without labels, whose directions "
        "weigh more alike or not, or on inputs of length 1. With --model=linear whitened is the "
        "best that noise leaves.",
    )
    flags.DEFINE_enum(
        "privacy",
        "none",
        ["none", "record", "participant", "sparse_vector"],
        "What is protected, and how: nothing; single records, by noisy sums of clipped gradients; "
        "whole participants, by noisy clipped uploads; or the paper's sparse vector technique, for "
        "reproduction, with what all of it costs.",
    )
    flags.DEFINE_float(
        "target_epsilon",
        None,
        "Of the whole run, against replacement, over all participants that hold a record; the "
        "noise follows. Needed with --privacy.",
    )
    flags.DEFINE_float("delta", 1e-5, "Delta of the guarantee.")
    flags.DEFINE_float("clip", 1.0, "Length that a record's gradient, or an upload, is clipped to.")
    flags.DEFINE_float(
        "sampling_rate", 0.2, "Probability of a record to be in a round, with --privacy=record."
    )
    flags.DEFINE_float("momentum", 0.9, "Of noisy gradients, with --privacy=record.")
    flags.DEFINE_enum(
        "choice",
        "shared_seed",
        ["shared_seed", "history"],
        "Which parameters are uploaded with Gaussian noise: at random, the same for all, or those "
        "that noisy uploads changed most so far.",
    )
    flags.DEFINE_string(
        "train_dir", None, "Folder of the run. Default: runs/selective_sgd-DATASET-PARTICIPANTS."
    )
    flags.DEFINE_integer(
        "seed",
        0,
        "Seed of shares, first parameters, orders and choices. No privacy noise comes from it.",
        lower_bound=0,
        upper_bound=2**31 - 1,
    )
    flags.DEFINE_integer(
        "insecure_seed", None, "For tests alone: predictable noise, so that nothing is private."
    )
    flags.DEFINE_string("report_file", None, "Where to write what is printed, as JSON (sensitive).")


def check_flags() -> None:
    """Refuses what goes without effect, so that nobody believes in a protection that isn't there.

    Raises:
      ValueError: if the flags don't stand together.
    """
    if FLAGS.privacy == "none":
        for name in OF_PRIVACY:
            if FLAGS[name].present:
                raise ValueError(f"{name}: expected with --privacy alone, got it without")
    elif FLAGS.target_epsilon is None:
        raise ValueError("target_epsilon: expected one with --privacy, got none")
    if FLAGS.privacy in ("record", "participant"):
        for name in ("selection", "tau", "gamma"):
            if FLAGS[name].present:
                raise ValueError(
                    f"{name}: expected without --privacy={FLAGS.privacy}, whose choice may not "
                    f"look at private records, got it with it"
                )


def main() -> None:
    """Reads the flags, trains, prints."""
    reporting = Reporting(clock=command_line.clock, progress_bar=command_line.progress_bar)
    command_line.check_report_file(FLAGS.report_file)
    check_flags()
    with command_line.quiet_start(FLAGS):
        from pate_tf.aggregation import noise
        from pate_tf.api import shared_training as runs
        from pate_tf.api.run_folder import DataSource
        from pate_tf.selective_sgd.privacy import Privacy
        from pate_tf.selective_sgd.settings import Settings

    is_gaussian = FLAGS.privacy in ("record", "participant")
    upload = FLAGS.upload if FLAGS["upload"].present or not is_gaussian else 1.0
    report = runs.run(
        runs.SharedRun(
            data=DataSource(dataset=FLAGS.dataset, data_dir=command_line.path(FLAGS.data_dir)),
            settings=Settings(
                num_participants=FLAGS.participants,
                rounds=FLAGS.rounds,
                upload=upload,
                download=FLAGS.download,
                gamma=FLAGS.gamma,
                selection=FLAGS.selection,
                tau=FLAGS.tau,
                protocol=FLAGS.protocol or ("synchronous" if is_gaussian else "round_robin"),
                damping=FLAGS.damping,
                server_rate=FLAGS.server_rate,
                stat_decay=FLAGS.stat_decay,
                optimizer=FLAGS.optimizer,
                learning_rate=FLAGS.learning_rate or LEARNING_RATES[FLAGS.privacy],
                batch_size=FLAGS.batch_size,
                local_epochs=FLAGS.local_epochs,
                seed=FLAGS.seed,
            ),
            privacy=Privacy(
                kind=FLAGS.privacy,
                target_epsilon=FLAGS.target_epsilon,
                delta=FLAGS.delta,
                clip=FLAGS.clip,
                sampling_rate=FLAGS.sampling_rate,
                momentum=FLAGS.momentum,
                choice=FLAGS.choice,
            ),
            model=FLAGS.model,
            representation=FLAGS.representation,
            records_each=FLAGS.records_each,
            folder=command_line.path(FLAGS.train_dir),
            noise=noise.SystemNoise()
            if FLAGS.insecure_seed is None
            else noise.SeededNoise(FLAGS.insecure_seed),
        ),
        reporting,
    )
    command_line.print_table("Shared training", report.rows)
    command_line.write_report(FLAGS.report_file, report.values)


COMMANDS = {"serve": parameter_server.run, "join": participant.run}


def run() -> None:
    """Runs the command with the flags of this process, or the one that the first argument names."""
    if len(sys.argv) > 1 and sys.argv[1] in COMMANDS:
        COMMANDS[sys.argv.pop(1)]()
        return
    command_line.run(command_line.guarded(main, FLAGS, FLAG_OF_ARGUMENT), define_flags, __doc__)


if __name__ == "__main__":
    run()
