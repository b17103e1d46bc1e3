"""Trains the teachers: `python train_teachers.py --dataset=mnist --nb_teachers=250`.

The private data set is shared out among the teachers, each is trained on its own part, and all
are exported as one SavedModel below TRAIN_DIR/sensitive. A stopped run goes on where it stopped.
"""

import os
import pathlib
import sys
import time

from absl import app, flags

from pate_tf import artifacts, command_line, partition

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "dataset",
    "digits",
    "Name of the data set: digits (embedded), mnist, svhn, cifar10, adult, diabetes, another name "
    "of TensorFlow Datasets, or module:function.",
)
flags.DEFINE_boolean("svhn_extra", True, "Share out SVHN's extra split too, not train alone.")
flags.DEFINE_integer(
    "nb_teachers", 100, "Number of teachers that share the private data.", lower_bound=1
)
flags.DEFINE_string(
    "teacher_id",
    None,
    "Teacher to train in this process, from 0, or a range such as 0-49. Default: all. The process "
    "that finishes the last one exports the ensemble.",
)
flags.DEFINE_string(
    "data_dir",
    None,
    "Folder with data prepared by TensorFlow Datasets, or UCI's files in adult/ and diabetes/ "
    "below it. Default: TFDS' own; what is not there is downloaded.",
)
flags.DEFINE_string(
    "train_dir", None, "Folder of the run. Default: runs/DATASET-NB_TEACHERS in this folder."
)
flags.DEFINE_string(
    "owners_file",
    None,
    "A .npy file with the owner of each private record (numbers or strings): all records of one "
    "owner go to one teacher, and the guarantee is for whole owners.",
)
flags.DEFINE_string(
    "partition_file",
    None,
    "A .npy file that says who gets which record: the teacher of each record [num_records], or "
    "record and teacher in two columns [num_pairs, 2]. It must not depend on other records. "
    "Default: a seeded shuffle, dealt out evenly.",
)
flags.DEFINE_integer(
    "max_steps",
    None,
    "Training steps of each teacher. Default: 25 passes over a teacher's records, at least 150.",
    lower_bound=1,
)
flags.DEFINE_integer("batch_size", 40, "Examples a training step.", lower_bound=1)
flags.DEFINE_float(
    "learning_rate", 0.005, "Learning rate of Adam; halfway it begins to fall.", lower_bound=0.0
)
flags.DEFINE_string(
    "model",
    None,
    "Model of a teacher: cnn, wide_cnn, mlp, deeper, paper_mnist, paper_svhn, random_forest or "
    "module:function for your own, which takes the data set and returns a Keras model or any "
    "classifier of scikit-learn. Default: cnn for images, mlp otherwise.",
)
flags.DEFINE_boolean("deeper", False, "Short for --model=deeper.")
flags.DEFINE_integer(
    "nb_labels", None, "Number of classes, if you want it checked against the data set."
)
flags.DEFINE_integer(
    "seed",
    0,
    "Seed of partition, initial weights, shuffling and augmentation. No privacy noise comes from "
    "it.",
    lower_bound=0,
    upper_bound=2**31 - 1,
)
flags.DEFINE_list(
    "merge_from",
    [],
    "Run folders, comma-separated, of other jobs that trained other --teacher_id ranges of the "
    "same ensemble; their teachers are taken over. Without --teacher_id nothing is trained, and a "
    "missing teacher is an error.",
)
flags.DEFINE_boolean("export_each", False, "Also export every teacher as a SavedModel of its own.")
flags.DEFINE_enum(
    "parallelism",
    "ensemble",
    ["ensemble", "data"],
    "ensemble: each device trains teachers of its own; data: all devices train one teacher at a "
    "time, for models too large for one device.",
)
flags.DEFINE_boolean(
    "worker",
    False,
    "Serve as the worker that TF_CONFIG names, until ended, and do nothing else. The chief is the "
    "same command without --worker, with a TF_CONFIG whose task is the chief.",
)
flags.DEFINE_string("report_file", None, "Where to write what is printed, as JSON (sensitive).")


def teachers_asked_for(text: str | None, num_teachers: int, *, merging: bool) -> list[int]:
    """Reads `--teacher_id`: nothing, a number or a range `first-last`.

    Nothing means all teachers, but none where other jobs' teachers are merged.

    Raises:
      ValueError: if it is something else, or out of range.
    """
    if text is None:
        return [] if merging else list(range(num_teachers))
    first, dash, last = text.partition("-")
    if not first.isdecimal() or (dash and not last.isdecimal()):
        raise ValueError(f"teacher_id: expected a number or a range like 0-49, got {text!r}")
    start, stop = int(first), int(last if dash else first) + 1
    if not start < stop <= num_teachers:
        raise ValueError(f"teacher_id: expected teachers from 0 to {num_teachers - 1}, got {text}")
    return list(range(start, stop))


def chosen_partition(num_records: int) -> partition.Partition:
    """Shares the records out as `--owners_file` or `--partition_file` say, or at random.

    Raises:
      ValueError: if a file is broken or does not fit.
    """
    if FLAGS.owners_file and FLAGS.partition_file:
        raise ValueError("expected --owners_file or --partition_file, got both")
    if FLAGS.partition_file:
        given = artifacts.read_array(pathlib.Path(FLAGS.partition_file))
        shares = partition.assigned_partition(given, num_teachers=FLAGS.nb_teachers)
    elif FLAGS.owners_file:
        owners = artifacts.read_array(pathlib.Path(FLAGS.owners_file))
        shares = partition.owner_partition(owners, num_teachers=FLAGS.nb_teachers, seed=FLAGS.seed)
    else:
        return partition.random_partition(
            num_records=num_records, num_teachers=FLAGS.nb_teachers, seed=FLAGS.seed
        )
    if shares.num_records != num_records:
        raise ValueError(f"partition: expected {num_records} records, got {shares.num_records}")
    return shares


def main() -> None:
    """Reads the flags, trains, prints."""
    began = time.monotonic()
    num_teachers = FLAGS.nb_teachers
    command_line.check_report_file(FLAGS.report_file)
    teachers = teachers_asked_for(FLAGS.teacher_id, num_teachers, merging=bool(FLAGS.merge_from))
    with command_line.quiet_start(FLAGS):
        from pate_tf.data import catalogue as data
        from pate_tf.models import catalogue as models
        from pate_tf.models import classifier
        from pate_tf.teachers import cluster, devices, run
        from pate_tf.teachers import config as configs

    if FLAGS.worker:
        cluster.serve_worker()
        return
    cluster_config = cluster.read_tf_config()

    data_dir = pathlib.Path(FLAGS.data_dir) if FLAGS.data_dir else None
    with command_line.clock(f"reading {FLAGS.dataset}"):
        examples = data.load_private(FLAGS.dataset, data_dir=data_dir, svhn_extra=FLAGS.svhn_extra)
    dataset = examples.dataset
    if FLAGS.nb_labels not in (None, dataset.num_classes):
        raise ValueError(
            f"nb_labels: {dataset.name} has {dataset.num_classes} classes, got {FLAGS.nb_labels}"
        )
    shares = chosen_partition(len(examples))
    if FLAGS.deeper and FLAGS.model not in (None, "deeper"):
        raise ValueError(f"expected --deeper or --model, got --deeper and --model={FLAGS.model}")
    config = configs.TeacherConfig(
        dataset=dataset,
        num_teachers=num_teachers,
        model="deeper" if FLAGS.deeper else FLAGS.model or models.default_model(dataset),
        max_steps=FLAGS.max_steps
        or configs.default_steps(
            num_records=len(examples), num_teachers=num_teachers, batch_size=FLAGS.batch_size
        ),
        batch_size=FLAGS.batch_size,
        learning_rate=FLAGS.learning_rate,
        seed=FLAGS.seed,
        unit=shares.unit,
    )
    directory = artifacts.RunDirectory(
        pathlib.Path(FLAGS.train_dir or f"runs/{dataset.name}-{num_teachers}")
    )
    with command_line.progress_bar("training teachers", len(teachers), "teacher") as progress:
        complete = run.train(
            config=config,
            examples=examples,
            partition=shares,
            teachers=teachers,
            run_directory=directory,
            devices=cluster.Cluster(cluster_config)
            if cluster_config
            else devices.choose_strategy(),
            parallelism=FLAGS.parallelism,
            merge_from=[artifacts.RunDirectory(pathlib.Path(path)) for path in FLAGS.merge_from],
            progress=progress,
        )
    report = {
        "dataset": dataset.name,
        "nb_teachers": num_teachers,
        "teachers_trained": len(teachers),
        "teacher_accuracy_mean": None,
        "teacher_accuracy_lowest": None,
        "teacher_accuracy_highest": None,
        "ensemble": None,
    }
    rows = [("data set", f"{dataset.name}, {len(examples):,} private records")]
    if complete:
        folder = run.ensemble_folder(directory)
        with command_line.clock(f"reading {FLAGS.dataset}"):
            public = data.load_public(FLAGS.dataset, data_dir=data_dir)
        with command_line.progress_bar("asking teachers", len(public), "sample") as progress:
            accuracies = run.evaluate(run.load_ensemble(folder), public, directory, progress).values
        report["teacher_accuracy_mean"] = float(accuracies.mean())
        report["teacher_accuracy_lowest"] = float(accuracies.min())
        report["teacher_accuracy_highest"] = float(accuracies.max())
        report["ensemble"] = str(folder)
        if FLAGS.export_each:
            with command_line.clock("exporting each teacher"):
                report["each"] = str(run.export_each(directory, config))
            rows.append(("each teacher apart", f"{report['each']} (sensitive)"))
        are_classifiers = classifier.is_classifier(config.model, dataset)
        steps_each = "" if are_classifiers else f", {config.max_steps} steps each"
        report["constant_answer_accuracy"] = public.majority_share
        rows += [
            ("teachers", f"{num_teachers} of {config.model}{steps_each}"),
            (
                "mean teacher accuracy",
                f"{accuracies.mean():.2%} (lowest {accuracies.min():.2%}, highest "
                f"{accuracies.max():.2%}) on {len(public):,} public samples; sensitive",
            ),
            ("a constant answer", f"{public.majority_share:.2%}"),
            ("ensemble", f"{folder} (sensitive)"),
        ]
    else:
        rows += [
            ("teachers", f"{len(teachers)} of {num_teachers} trained; the rest is missing still"),
            ("kept in", f"{directory.sensitive / 'teachers'} (sensitive)"),
        ]
    report["seconds"] = time.monotonic() - began
    rows.append(("time", f"{report['seconds']:.1f} s"))
    artifacts.write_json(directory.sensitive / "teachers_report.json", report, private=True)
    command_line.print_table("Teachers", rows)
    command_line.write_report(FLAGS.report_file, report)


def run_and_leave(arguments: list[str]) -> None:
    """Runs; the chief of a cluster then leaves at once.

    Otherwise TensorFlow's coordinator would wait on leaving, for ever, for a worker that died.
    """
    guarded = command_line.guarded(main, FLAGS)
    if "TF_CONFIG" not in os.environ:
        guarded(arguments)
        return
    code: object = 0
    try:
        guarded(arguments)
    except SystemExit as leaving:
        code = leaving.code
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    app.run(
        run_and_leave,
        flags_parser=command_line.parse_flags(FLAGS, flags.Error),
    )
