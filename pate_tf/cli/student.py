"""Trains a student: `python train_student.py --dataset=mnist --nb_teachers=250 --queries=100`.

Queries of the public pool are put to the teachers. The ledger beside them is charged, then noisy
labels leave; the student learns from those alone. Labels, student and privacy statement land below
TRAIN_DIR/released.
"""

import sys

from absl import flags

from pate_tf.accounting.planned_release import DEFAULT_PROFILE, PlannedRelease
from pate_tf.cli import command_line, data_flags, mechanism_flags, progress, student_flags
from pate_tf.runs.reporting import Reporting

FLAGS = flags.FLAGS

# What the library calls what a flag is for, where the two differ.
FLAG_OF_ARGUMENT = {
    "num_teachers": "nb_teachers",
    "pool_size": "stdnt_share",
    "num_queries": "queries",
    "strategy": "query_strategy",
    "num_neighbours": "query_neighbours",
    "rounds": "query_rounds",
    "replace_budget": "new_budget_i_understand",
    "acknowledge_reset": "reset_ledger_i_understand",
    "profile": "planned_profile",
    "num_exceptions": "exceptions",
}

# What a comparison, which has neither noise nor ledger nor anything to release, can't heed.
NOT_COMPARED = (
    *("query_strategy", "query_rounds", "query_seed", "query_neighbours"),
    *("representation", "mechanism"),
    *("delta", "epsilon_budget", "new_budget_i_understand", "insecure_seed"),
    *("reset_ledger_i_understand", "planned_release", "planned_profile"),
    *("save_labels", "export_formats", "target_epsilon", "margin", "exceptions"),
)


def chosen_model() -> str | None:
    """The model that `--model` names, or one of the flags that are short for it."""
    forest = "random_forest" if FLAGS.student == "random_forest" else None
    named = {model for model in (FLAGS.model, "deeper" if FLAGS.deeper else None, forest) if model}
    if len(named) > 1:
        raise ValueError(f"model: expected one model, got {' and '.join(sorted(named))}")
    return next(iter(named), None)


def check_flags() -> None:
    """Sees to it that nobody gets a student without privacy who did not ask for one.

    Raises:
      ValueError: if the flags don't stand together.
    """
    if FLAGS.teachers and not FLAGS.teachers_dir:
        raise ValueError(
            "teachers: expected --teachers_dir as well, the folder of the one ledger that these "
            "teachers ever have"
        )
    if FLAGS.student == "distillation" and not FLAGS.non_private_comparison:
        raise ValueError(
            "student distillation: expected --non_private_comparison as well, got none: the "
            "teachers' averaged probabilities are not covered by what a label costs, so nothing "
            "of it is private and no student is exported"
        )
    for name in (*NOT_COMPARED, *mechanism_flags.names()):
        if FLAGS[name].present and FLAGS.student == "distillation":
            raise ValueError(f"{name}: expected without --student=distillation, got it with it")
    for name in ("non_private_comparison", "temperature"):
        if FLAGS[name].present and FLAGS.student != "distillation":
            raise ValueError(f"{name}: expected with --student=distillation alone, got it without")
    for name in ("margin", "exceptions"):
        if FLAGS[name].present and FLAGS.target_epsilon is None:
            raise ValueError(f"{name}: expected with --target_epsilon alone, got it without")
    if FLAGS.target_epsilon is not None and (said := mechanism_flags.given()):
        raise ValueError(
            f"{said[0]}: expected without --target_epsilon, which finds it, got both; --mechanism "
            f"alone may be given with it"
        )
    if mechanism_flags.chosen_kind().adds_records and FLAGS.target_epsilon is None:
        raise ValueError(
            f"mechanism: expected --target_epsilon with {FLAGS.mechanism}, which its noise follows "
            f"from, got none"
        )
    if FLAGS.new_budget_i_understand and not FLAGS["delta"].present:
        raise ValueError(
            "new_budget_i_understand: expected --epsilon_budget and --delta, got no --delta; both "
            "are replaced"
        )


def planned_release() -> PlannedRelease | None:
    """What the flags say of a later release; None if nothing."""
    if FLAGS.planned_release is None and FLAGS.planned_profile is None:
        return None
    is_smooth = FLAGS.planned_release == "smooth_sensitivity"
    return PlannedRelease(
        release="smooth_sensitivity" if is_smooth else "log_cost",
        profile=DEFAULT_PROFILE if FLAGS.planned_profile is None else FLAGS.planned_profile,
    )


def evaluated_on() -> str | None:
    """What `--evaluate_on` says, if anything."""
    return FLAGS.evaluate_on if FLAGS["evaluate_on"].present else None


def main() -> None:
    """Reads the flags, has a student made or compared, prints."""
    reporting = Reporting(
        clock=progress.clock,
        progress_bar=progress.progress_bar,
        note=command_line.note,
        warn=command_line.warn,
        verbose=sys.stdout.isatty(),
    )
    command_line.check_report_file(FLAGS.report_file)
    check_flags()
    files = data_flags.own_files(with_private=False)
    mechanism, model = mechanism_flags.chosen(), chosen_model()
    kind = mechanism_flags.chosen_kind() if FLAGS["mechanism"].present else None
    with command_line.quiet_start(FLAGS):
        from pate_tf import noise
        from pate_tf.queries.config import QueryConfig
        from pate_tf.runs import sources
        from pate_tf.runs.student import run as train_student
        from pate_tf.runs.student.labels import Budget, LabelRequest
        from pate_tf.runs.student.target import TargetRequest
        from pate_tf.students.config import StudentSettings

    asked = train_student.Sources(
        data=sources.DataSource(
            files=files,
            dataset=FLAGS.dataset,
            data_dir=command_line.path(FLAGS.data_dir),
        ),
        pool_size=FLAGS.stdnt_share,
        teachers=sources.TeacherSource(
            num_teachers=FLAGS.nb_teachers if FLAGS["nb_teachers"].present else None,
            folder=command_line.path(FLAGS.teachers_dir),
            elsewhere=command_line.path(FLAGS.teachers),
        ),
        folder=command_line.path(FLAGS.train_dir),
    )
    settings = StudentSettings(
        student=FLAGS.student,
        model=model,
        max_steps=FLAGS.max_steps,
        batch_size=FLAGS.batch_size,
        learning_rate=FLAGS.learning_rate,
        seed=FLAGS.seed,
    )
    if FLAGS.student == "distillation":
        comparison = train_student.compare(
            train_student.ComparisonRun(
                sources=asked,
                settings=settings,
                num_queries=FLAGS.queries,
                temperature=FLAGS.temperature,
                evaluate_on=evaluated_on(),
            ),
            reporting,
        )
        command_line.print_sensitive_table(
            "NOT PRIVATE: comparison of students, for your eyes alone", comparison.rows
        )
        command_line.write_report(FLAGS.report_file, comparison.values)
        return
    drawn_from = (
        noise.SystemNoise()
        if FLAGS.insecure_seed is None
        else noise.SeededNoise(FLAGS.insecure_seed)
    )
    request: LabelRequest | TargetRequest
    if FLAGS.target_epsilon is None:
        request = LabelRequest(
            queries=QueryConfig(
                strategy=FLAGS.query_strategy or mechanism.query_strategy,
                num_queries=FLAGS.queries,
                rounds=FLAGS.query_rounds,
                seed=FLAGS.query_seed,
                representation=FLAGS.representation,
                num_neighbours=FLAGS.query_neighbours,
            ),
            mechanism=mechanism,
            noise=drawn_from,
        )
    else:
        request = TargetRequest(
            target_epsilon=FLAGS.target_epsilon,
            noise=drawn_from,
            mechanism=kind,
            num_queries=FLAGS.queries if FLAGS["queries"].present else None,
            strategy=FLAGS.query_strategy,
            rounds=FLAGS.query_rounds,
            seed=FLAGS.query_seed,
            representation=FLAGS.representation,
            num_neighbours=FLAGS.query_neighbours,
            margin=FLAGS.margin,
            num_exceptions=FLAGS.exceptions,
        )
    report = train_student.run(
        train_student.StudentRun(
            sources=asked,
            settings=settings,
            request=request,
            budget=Budget(
                delta=FLAGS.delta,
                epsilon_budget=FLAGS.epsilon_budget,
                replace_budget=FLAGS.new_budget_i_understand,
                acknowledge_reset=FLAGS.reset_ledger_i_understand,
                planned_release=planned_release(),
            ),
            save_labels=FLAGS.save_labels,
            export_formats=tuple(FLAGS.export_formats),
            evaluate_on=evaluated_on(),
        ),
        reporting,
    )
    command_line.print_table("Student", report.rows)
    command_line.write_report(FLAGS.report_file, report.values)
    if report.failure:
        raise ValueError(report.failure)


def run() -> None:
    """Runs the command with the flags of this process."""
    command_line.run(
        command_line.guarded(main, FLAGS, FLAG_OF_ARGUMENT), student_flags.define, __doc__
    )


if __name__ == "__main__":
    run()
