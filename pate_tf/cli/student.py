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

from absl import flags

from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.cli import command_line
from pate_tf.cli import flags as own_flags
from pate_tf.core.settings import setting
from pate_tf.data.data_source import DataSource
from pate_tf.queries.rounds import QueryConfig
from pate_tf.release.plan import Budget, LabelSettings
from pate_tf.students.config import OutputSettings, StudentSettings
from pate_tf.teachers.run_folder import (
    DEFAULT_NUM_TEACHERS,
    RunDescription,
    TeacherSource,
    described_run,
)

FLAGS = flags.FLAGS


@dataclasses.dataclass(frozen=True, kw_only=True)
class Places(DataSource):
    """Where data, teachers and feature sums come from, and where the student goes."""

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
        "file of labels [num_teachers, num_queries] for the first queries of the pool. Their "
        "ledger lies in --teachers_dir, which must be given and always be the same.",
    )
    pool_size: int | None = setting(
        None,
        group="data",
        flag="stdnt_share",
        least=1,
        advanced=True,
        help="How many of the public samples, from the first, form the student's pool; the rest "
        "evaluates it. Default: the data set's own share.",
    )
    folder: pathlib.Path | None = setting(
        None,
        group="output",
        flag="train_dir",
        help="Run folder; enough alone where it holds teachers or feature sums. Default: the "
        "teachers' one; runs/DATASET-feature_sums with --method=feature_sums.",
    )
    report_file: str | None = setting(
        None, group="output", help="Where to write what is printed, as JSON (sensitive)."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.teachers and not self.teachers_dir:
            raise ValueError(
                "teachers: expected --teachers_dir as well, the folder of the one ledger that "
                "these teachers ever have"
            )


OF_LABELS = (QueryConfig, LabelSettings, Budget)
# Flags of one method alone, and what takes them.
OF_PATE = (
    *("nb_teachers", "teachers_dir", "teachers", "mechanism", "queries", "query_strategy"),
    *("query_rounds", "query_neighbours", "margin", "exceptions"),
    *("planned_release", "planned_profile"),
)
OF_SUMS = ("private", "owner", "owners_file", "svhn_extra")
FLAG_OF_ARGUMENT = own_flags.flag_of_argument(Places, StudentSettings, *OF_LABELS)


# Stand in `--helpfull` alone, besides those that are advanced wherever they are.
ADVANCED = (
    *("deeper", "target_epsilon", "teachers_dir", "save_labels", "export_formats", "evaluate_on"),
    *("batch_size", "learning_rate"),
    *("query_rounds", "query_seed", "query_neighbours"),
)


def define() -> None:
    """Defines the flags of this command, in the order of their help."""
    own_flags.define(Places, group="data", advanced=ADVANCED)
    own_flags.define_data_flags(with_private=True)
    own_flags.define(LabelSettings, group="privacy", advanced=ADVANCED)
    own_flags.define(Budget, group="privacy")
    flags.DEFINE_alias("target_epsilon", "epsilon")
    own_flags.define_mechanism_flags(
        default="laplace_noisy_max",
        help_text="How the noisy winner is drawn from the votes. A parameter that it does not have "
        "is refused.",
    )
    own_flags.define(
        QueryConfig, group="queries", advanced=ADVANCED, strategy="auto", num_queries=None
    )
    own_flags.define(StudentSettings, group="student", advanced=ADVANCED)
    flags.DEFINE_boolean("deeper", False, "Short for --model=deeper.")
    for flag, group in (("deeper", "student"), ("target_epsilon", "privacy")):
        command_line.shown_in_help(flag, group, advanced=True)
    own_flags.define(OutputSettings, group="output", advanced=ADVANCED)


def chosen_model() -> str | None:
    """The model that `--model` names, or one of the flags that are short for it."""
    forest = "random_forest" if FLAGS.student == "random_forest" else None
    named = {model for model in (FLAGS.model, "deeper" if FLAGS.deeper else None, forest) if model}
    if len(named) > 1:
        raise ValueError(f"model: expected one model, got {' and '.join(sorted(named))}")
    return next(iter(named), None)


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
    others = (*OF_PATE, *own_flags.given()) if method == "feature_sums" else OF_SUMS
    for name in others:
        if FLAGS[name].present and method == "pate":
            raise ValueError(
                f"{name}: expected none with method pate, whose teachers read the private records: "
                f"train_teachers.py --{name}={FLAGS[name].value}; or take --method=feature_sums"
            )
        if FLAGS[name].present:
            raise ValueError(
                f"{name}: expected none with method feature_sums, which labels all of the pool and "
                f"asks no teacher; this takes it: train_student.py --method=pate "
                f"--{name}={FLAGS[name].value}"
            )
    return method


def label_settings(method: str) -> LabelSettings:
    """Returns which labels the flags ask for.

    Raises:
        ValueError: if flags don't stand together.
    """
    queries = own_flags.values_of(QueryConfig)
    if method == "feature_sums":
        return own_flags.read(LabelSettings, method=method, **queries)
    kind = own_flags.chosen_kind() if FLAGS["mechanism"].present else None
    mechanism: Mechanism | type[Mechanism] | None = kind
    parameters = own_flags.given()
    has_epsilon = kind is not None and "epsilon" in own_flags.parameters(kind)
    epsilon = FLAGS.epsilon
    if epsilon is None or (has_epsilon and parameters):
        if FLAGS["margin"].present:
            raise ValueError("margin: expected with --epsilon alone, got it without")
        mechanism, epsilon = own_flags.chosen(), None
    elif parameters:
        raise ValueError(
            f"{parameters[0]}: expected without --epsilon, which finds it, got both; --mechanism "
            f"alone may be given with it"
        )
    return own_flags.read(LabelSettings, mechanism=mechanism, epsilon=epsilon, **queries)


def budget() -> Budget:
    """Returns the budget that the flags give.

    Raises:
        ValueError: if it is to be replaced, and no delta is given.
    """
    if FLAGS.new_budget_i_understand and not FLAGS["delta"].present:
        raise ValueError(
            "new_budget_i_understand: expected --epsilon_budget and --delta, got no --delta; both "
            "are replaced"
        )
    return own_flags.read(Budget)


def data_source(places: Places, run: RunDescription | None, method: str) -> DataSource:
    """Returns the data that the flags name, completed and checked by what the run folder says.

    Raises:
        ValueError: if flags are missing that belong together, or contradict the run folder.
    """
    reads_private = method == "feature_sums" and (run is None or FLAGS["private"].present)
    files = own_flags.own_files(with_private=reads_private)
    if run is None:
        return dataclasses.replace(places, files=files)
    run.check(num_teachers=places.num_teachers)
    dataset = places.dataset if FLAGS["dataset"].present else None
    data = run.data(dataset=dataset, data_dir=places.data_dir, files=files)
    changes = {
        name: getattr(places, name) for name in ("owners_file", "svhn_extra") if FLAGS[name].present
    }
    return dataclasses.replace(data, **changes)


def main() -> None:
    """Reads the flags, has a student made, prints."""
    reporting = command_line.reporting(verbose=sys.stdout.isatty())
    command_line.check_report_file(FLAGS.report_file)
    places, output = own_flags.read(Places), own_flags.read(OutputSettings)
    settings = own_flags.read(StudentSettings, model=chosen_model())
    folder = places.teachers_dir or places.folder
    run = described_run(folder)
    method = chosen_method(run)
    data = data_source(places, run, method)
    labels = label_settings(method)
    limits = budget()
    with command_line.quiet_start(FLAGS):
        from pate_tf.release import feature_sums
        from pate_tf.run import student_run

    labels_from: TeacherSource | feature_sums.SumsSource
    if method == "feature_sums":
        # Sums that are stored are taken as they are, unless the private records are named again.
        named = any(FLAGS[name].present for name in ("dataset", *OF_SUMS))
        labels_from = feature_sums.SumsSource(
            representation=FLAGS.representation,
            seed=FLAGS.query_seed,
            data=data if run is None or named else None,
            folder=folder,
        )
    else:
        labels_from = TeacherSource(
            num_teachers=places.num_teachers,
            folder=places.teachers_dir if run is None else folder,
            elsewhere=places.teachers,
        )
    report = student_run.run(
        student_run.StudentRun(
            sources=student_run.Sources(
                data=data,
                pool_size=places.pool_size or (None if run is None else run.pool_size),
                labels_from=labels_from,
                folder=places.folder,
            ),
            settings=settings,
            labels=labels,
            budget=limits,
            output=output,
        ),
        reporting,
    )
    command_line.print_table("Student", report.rows)
    command_line.write_report(places.report_file, report.values)
    if report.failure:
        raise ValueError(report.failure)


def run() -> None:
    """Runs the command with the flags of this process."""
    command_line.run(command_line.guarded(main, FLAGS, FLAG_OF_ARGUMENT), define, __doc__)


if __name__ == "__main__":
    run()
