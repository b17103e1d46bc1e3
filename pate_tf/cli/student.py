"""Trains a student from private data, and states what that cost.

With teachers, after train_teachers.py --dataset=mnist --nb_teachers=250:
  train_student.py --dataset=mnist --nb_teachers=250 --epsilon=1
With feature sums, without any teacher:
  train_student.py --dataset=mnist --method=feature_sums --epsilon=0.1

A ledger is charged, then noisy labels are released, and the student learns from those alone.
Labels, student and privacy statement are written below TRAIN_DIR/released.
"""

import dataclasses
import pathlib
import sys
from typing import Any

from absl import flags

from pate_tf.cli import command_line
from pate_tf.cli import flags as own_flags
from pate_tf.core import artifacts
from pate_tf.core.validation import PublicationSettings, setting
from pate_tf.data.data_source import DataSource
from pate_tf.queries.labels import QueryConfig
from pate_tf.release.plan import Budget, LabelSettings
from pate_tf.students.kinds import StudentSettings
from pate_tf.teachers.run_folder import (
    DEFAULT_NUM_TEACHERS,
    RunDescription,
    described_run,
    load_teachers,
)

FLAGS = flags.FLAGS
# Flags of one method alone.
OF_PATE = ("nb_teachers", "teachers_dir", "teachers", "mechanism", "queries", "query_strategy")
OF_SUMS = ("private", "owner", "owners_file")
ADVANCED = ("deeper", "teachers_dir", "save_labels", "export_formats", "batch_size")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Places(DataSource):
    """Where data, teachers and feature sums come from, and what is written where."""

    num_teachers: int | None = setting(
        None,
        group="data",
        flag="nb_teachers",
        least=1,
        help=f"Number of teachers of the ensemble. Default: {DEFAULT_NUM_TEACHERS}.",
    )
    teachers_dir: pathlib.Path | None = setting(
        None,
        group="data",
        help="Run folder of the teachers. Default: runs/DATASET-NB_TEACHERS in this folder.",
    )
    teachers: pathlib.Path | None = setting(
        None,
        group="data",
        advanced=True,
        help="Teachers from elsewhere instead: a folder of .keras files or SavedModels, or a .npy "
        "or .csv file of labels [num_teachers, num_queries] for the first queries of the pool. "
        "Their ledger lies in --teachers_dir, which must be given and always be the same.",
    )
    pool_size: int | None = setting(
        None,
        group="data",
        flag="stdnt_share",
        least=1,
        advanced=True,
        help="How many of the public samples, from the first, form the student's pool; the others "
        "evaluate it. Default: the data set's own number.",
    )
    folder: pathlib.Path | None = setting(
        None,
        group="output",
        flag="train_dir",
        help="Run folder; enough alone where it holds teachers or feature sums. Default: the "
        "teachers' one; runs/DATASET-feature_sums with --method=feature_sums.",
    )
    save_labels: bool = setting(
        True, group="output", help="Keep the noisy labels in TRAIN_DIR/released/labels.npz."
    )
    export_formats: tuple[str, ...] = setting(
        (),
        group="output",
        choices=("onnx", "litert"),
        help="Formats to write a Keras student in as well as a SavedModel: onnx (needs the package "
        "tf2onnx), litert, or both with a comma between; they lie in assets.extra of the exported "
        "version.",
    )
    report_file: str | None = setting(
        None, group="output", help="Where to write what is printed, as JSON."
    )


FLAG_OF_ARGUMENT = own_flags.flag_of_argument(
    Places, StudentSettings, QueryConfig, LabelSettings, Budget
)


def define() -> None:
    """Defines the flags of this command, in the order of their help."""
    own_flags.define(Places, group="data", advanced=ADVANCED, without=("svhn_extra",))
    own_flags.define_data_flags(with_private=True)
    of_notebooks = ("margin", "num_exceptions", "num_rounds")
    own_flags.define(LabelSettings, group="privacy", without=of_notebooks)
    own_flags.define(Budget, group="privacy")
    flags.DEFINE_alias("target_epsilon", "epsilon")
    command_line.shown_in_help("target_epsilon", "privacy", advanced=True)
    own_flags.define_mechanism_flags(
        default="laplace_noisy_max",
        help_text="How the noisy winner is drawn from the votes. A parameter that it does not have "
        "is refused.",
    )
    own_flags.define(QueryConfig, group="queries", strategy="auto", num_queries=None)
    own_flags.define(StudentSettings, group="student", advanced=ADVANCED)
    flags.DEFINE_boolean("deeper", False, "Short for --model=deeper.")
    command_line.shown_in_help("deeper", "student", advanced=True)
    own_flags.define(PublicationSettings, group="output", without=("run_name",))


def chosen_method(run: RunDescription | None) -> str:
    """Returns the method that the run folder or `--method` names.

    Raises:
        ValueError: if they differ, or flags were given that belong to the other method.
    """
    method: str = FLAGS.method if run is None or FLAGS["method"].present else run.method
    if run is not None and method != run.method:
        raise ValueError(
            f"method: expected {run.method}, as the run folder says, got {method}; take another "
            f"--train_dir for it"
        )
    for name in (*OF_PATE, *own_flags.given()) if method == "feature_sums" else OF_SUMS:
        if FLAGS[name].present:
            other = "pate" if method == "feature_sums" else "feature_sums; of pate, pate teachers"
            raise ValueError(
                f"{name}: expected none with method {method}, got one; method {other} takes it"
            )
    return method


def label_settings(method: str) -> LabelSettings:
    """Returns which labels are released; ValueError if flags do not fit each other."""
    choices = {**own_flags.values_of(QueryConfig), "method": method, "seed": FLAGS.seed}
    if method == "feature_sums":
        return own_flags.read(LabelSettings, **choices)
    kind = own_flags.chosen_kind() if FLAGS["mechanism"].present else None
    parameters = own_flags.given()
    has_epsilon = kind is not None and "epsilon" in own_flags.parameters(kind)
    if FLAGS.epsilon is None or (has_epsilon and parameters):
        mechanism = own_flags.chosen()
        return own_flags.read(LabelSettings, mechanism=mechanism, **{**choices, "epsilon": None})
    if parameters:
        raise ValueError(
            f"{parameters[0]}: expected without --epsilon, which finds it, got both; --mechanism "
            f"alone may be given with it"
        )
    return own_flags.read(LabelSettings, mechanism=kind, **choices)


def data_source(places: Places, run: RunDescription | None, *, reads_private: bool) -> DataSource:
    """Returns the data that the flags name, completed and checked by what the run folder says."""
    files = own_flags.own_files(with_private=reads_private)
    if run is None:
        return dataclasses.replace(places, files=files)
    run.check(num_teachers=places.num_teachers)
    dataset = places.dataset if FLAGS["dataset"].present else None
    data = run.data(dataset=dataset, data_dir=places.data_dir, files=files)
    return dataclasses.replace(data, owners_file=places.owners_file, source_name=places.source_name)


def main() -> None:
    """Reads the flags, has a student made, prints."""
    reporting = command_line.reporting(verbose=sys.stdout.isatty())
    command_line.check_report_file(FLAGS.report_file)
    places, settings = own_flags.read(Places), own_flags.read(StudentSettings)
    if FLAGS.deeper:
        if settings.model not in (None, "deeper"):
            raise ValueError("model: expected --deeper or --model, got both")
        settings = dataclasses.replace(settings, model="deeper")
    if FLAGS.new_budget_i_understand and not FLAGS["delta"].present:
        raise ValueError("new_budget_i_understand: expected --delta with it, got no --delta")
    run = described_run(places.teachers_dir or places.folder)
    method = chosen_method(run)
    # Sums that are stored are taken as they are, unless the private records are named again.
    is_renewed = run is None or any(FLAGS[name].present for name in ("dataset", *OF_SUMS))
    reads_private = method == "feature_sums" and (run is None or FLAGS["private"].present)
    data = data_source(places, run, reads_private=reads_private)
    labels_settings, budget = label_settings(method), own_flags.read(Budget)
    # Files are read first: what is wrong with them is said before TensorFlow starts.
    examples, private = None, None
    if data.files is not None:
        examples = data.load_public(reporting)
        private = data.load_private(reporting, examples) if reads_private else None
    from pate_tf.release.feature_sums import FeatureSums, default_folder
    from pate_tf.release.labeller import Labeller
    from pate_tf.run.student import REPORT, Student, student_report

    examples = data.load_public(reporting) if examples is None else examples
    pool_size = places.pool_size or (None if run is None else run.pool_size)
    public = examples.split(pool_size or examples.dataset.pool_size)
    source: Any
    if method == "feature_sums":
        origin = places.folder or default_folder(public.dataset.name)
        source = FeatureSums(
            directory=origin,
            representation=labels_settings.representation,
            seed=settings.seed,
            verbose=reporting,
        )
        if is_renewed:
            private = data.load_private(reporting) if private is None else private
            epsilon, rounds = labels_settings.epsilon, labels_settings.num_rounds
            if epsilon is not None:
                number = private.public_size
                source.choose_representation(public.pool, number, epsilon, budget.delta, rounds)
            source.fit(private, public.pool, flags=data.flags)
        else:
            source = FeatureSums.load(origin)
            if labels_settings.representation not in (None, source.representation):
                raise ValueError(
                    f"representation: expected {source.representation}, of the sums in {origin}, "
                    f"got {labels_settings.representation}"
                )
    else:
        source, origin = load_teachers(
            public,
            num_teachers=places.num_teachers,
            folder=places.teachers_dir or places.folder if run else places.teachers_dir,
            elsewhere=places.teachers,
        )
    directory = artifacts.RunDirectory(places.folder or origin)
    labeller = Labeller.from_settings(
        source,
        labels_settings,
        budget,
        directory=origin,
        charged_to=data.named_source,
        student_runs=[directory.root],
        reporting=reporting,
    )
    plan = labeller.plan(public.pool)
    reporting.note(str(plan))
    released = directory.root / artifacts.RELEASED
    student = Student.from_settings(
        settings, directory=released, reporting=reporting, is_locked=True
    )
    formats, are_sums = places.export_formats, method == "feature_sums"
    student.check(public.pool, released, export_formats=formats, labels_whole_pool=are_sums)
    with artifacts.only_writer(released):  # a second command is refused before it is charged
        with labeller:
            labels = labeller.release(plan, public.pool)
        if places.save_labels:
            labels.save(released)
        student.fit(public.pool, labels, held_out=public.held_out)
        published = student.publish(
            released,
            evaluate_on=public,
            export_formats=formats,
            holder=FLAGS.holder,
            purpose=FLAGS.purpose,
        )
    report = student_report(published, student)
    artifacts.write_json(directory.sensitive / REPORT, report.values, private=True)
    command_line.print_table("Student", report.rows)
    command_line.write_report(places.report_file, report.values)
