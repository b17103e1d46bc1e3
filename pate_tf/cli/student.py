"""Trains a student: `python train_student.py --dataset=mnist --nb_teachers=250 --queries=100`.

Queries of the public pool are put to the teachers. The ledger beside them is charged, then noisy
labels leave; the student learns from those alone. Labels, student and privacy statement land below
TRAIN_DIR/released.
"""

import sys

from absl import flags

from pate_tf.accounting.planning import DEFAULT_PROFILE, PlannedRelease
from pate_tf.api.reporting import Reporting
from pate_tf.cli import command_line
from pate_tf.cli import flags as data_flags
from pate_tf.queries import strategies

# The flags of `pate-student`.


def define() -> None:
    """Defines them."""
    flags.DEFINE_string(
        "dataset",
        "digits",
        "Name of the data set: digits (embedded), mnist, svhn, cifar10, adult, diabetes, another "
        "name of TensorFlow Datasets, or module:function.",
    )
    data_flags.define_data_flags(with_private=False)
    flags.DEFINE_integer("nb_teachers", 100, "Number of teachers of the ensemble.", lower_bound=1)
    flags.DEFINE_string(
        "teachers_dir",
        None,
        "Run folder of the teachers. Default: runs/DATASET-NB_TEACHERS in this folder.",
    )
    flags.DEFINE_string(
        "teachers",
        None,
        "Teachers from elsewhere instead: a folder of .keras files or SavedModels, or a .npy file "
        "of labels [num_teachers, num_queries] for the first queries of the pool. Their ledger "
        "lies in --teachers_dir, which must be given and always be the same.",
    )
    flags.DEFINE_string("train_dir", None, "Run folder of the student. Default: the teachers' one.")
    flags.DEFINE_string(
        "data_dir", None, "Folder with data prepared by TensorFlow Datasets. Default: TFDS' own."
    )
    flags.DEFINE_integer(
        "stdnt_share",
        None,
        "How many of the public samples, from the first, form the student's pool; the rest "
        "evaluates it. Default: the data set's own share.",
        lower_bound=1,
    )
    flags.DEFINE_integer(
        "queries",
        100,
        "How many of the pool are put to the teachers; the rest stays unlabelled. With "
        "--target_epsilon: planned unless it is given.",
        lower_bound=1,
    )
    flags.DEFINE_enum(
        "query_strategy",
        None,
        list(strategies.STRATEGIES),
        "Which of the pool are put to the teachers; true labels play no part. Default: the "
        f"mechanism's own, medoids for a stability_gate, else first. {strategies.choices_help()}",
    )
    flags.DEFINE_integer(
        "query_rounds",
        None,
        "In how many rounds a strategy that learns from earlier answers asks. Default: 5.",
        lower_bound=1,
    )
    flags.DEFINE_integer(
        "query_seed",
        0,
        "Seed of random choices of queries and of what is trained between rounds. Another seed "
        "asks other queries, which are charged.",
        lower_bound=0,
        upper_bound=2**31 - 1,
    )
    flags.DEFINE_integer(
        "query_neighbours",
        None,
        "With diverse and medoids: how many nearest neighbours of a query in the pool go with "
        "it; a teacher votes once, for the class that it names most often among them, so that "
        "teachers agree more. 0: each query alone. Default: up to 20 for a stability_gate on "
        "images, else 0.",
        lower_bound=0,
    )
    flags.DEFINE_string(
        "representation",
        None,
        "Features that diverse and medoids compare inputs by: contrastive or patches, learnt from "
        "the pool alone and kept in ~/.cache/pate_tf (or $PATE_TF_CACHE); raw; several of them joined by +; "
        "or module:function for a Keras model from raw inputs to features. Default: that of the "
        "teachers, if they have one; else contrastive for images, raw otherwise.",
    )
    data_flags.define_mechanism_flags(
        default="laplace_noisy_max",
        help_text="How the noisy winner is drawn from the votes. A parameter that it does not have "
        "is refused.",
    )
    flags.DEFINE_float("delta", 1e-5, "Delta of the guarantee; fixed for an ensemble at first use.")
    flags.DEFINE_float(
        "target_epsilon",
        None,
        "What these labels may cost, as data-independent epsilon at --delta. Mechanism, noise and "
        "number of queries are then chosen from a plan that reads no votes; with --mechanism the "
        "noise and the number alone.",
    )
    data_flags.define_plan_flags(needed="--target_epsilon")
    flags.DEFINE_float(
        "epsilon_budget",
        None,
        "The most that all labels of this ensemble may ever cost, as data-independent epsilon at "
        "--delta; fixed at first use. Default: no limit; everything is recorded all the same.",
    )
    flags.DEFINE_boolean(
        "new_budget_i_understand",
        False,
        "Replace the ensemble's budget by --epsilon_budget and --delta, both of which must be "
        "given. The ledger and every later statement say so for ever.",
    )
    flags.DEFINE_boolean(
        "reset_ledger_i_understand",
        False,
        "Go on although the ensemble's ledger, or rows of it, are gone. What is known of their "
        "cost is charged again. The ledger and every later statement say so for ever.",
    )
    flags.DEFINE_enum(
        "planned_release",
        None,
        ["sanitised", "smooth_sensitivity"],
        "How analysis.py will release the data-dependent cost, if ever; fixed at first use, before "
        "there are votes. Default: sanitised.",
    )
    flags.DEFINE_float(
        "planned_profile",
        None,
        "The hypothetical votes that this release is planned for: every query led by this share of "
        "the teachers; fixed at first use. Default: 0.8.",
    )
    flags.DEFINE_integer(
        "max_steps",
        None,
        "Training steps of the student. Default: the student's own, 1000 for supervised; 3000 "
        "for it on a table whose whole pool gets labels from noisy sums of records.",
        lower_bound=1,
    )
    flags.DEFINE_integer(
        "batch_size",
        None,
        "Labelled examples a training step. Default: the student's own, 64 for supervised; 256 "
        "where it takes 3000 steps.",
        lower_bound=1,
    )
    flags.DEFINE_float(
        "learning_rate",
        None,
        "Learning rate of Adam; it falls along a cosine, but for gan. Default: the student's own, "
        "0.002 for supervised; 0.005 where it takes 3000 steps.",
    )
    flags.DEFINE_string(
        "model",
        None,
        "Keras model of the student: cnn, wide_cnn, mlp, deeper, paper_mnist, paper_svhn or "
        "module:function. "
        "Default: cnn for images, mlp otherwise; gan brings its own networks.",
    )
    flags.DEFINE_boolean("deeper", False, "Short for --model=deeper.")
    flags.DEFINE_enum(
        "student",
        "supervised",
        ["supervised", "gan", "consistency", "random_forest", "distillation"],
        "How the student learns: a Keras model by cross-entropy on the noisy labels; PATE-G, an "
        "improved GAN on them and on all images of the pool; a Keras model that must agree with "
        "itself on changed inputs of the pool besides; or a random forest on the noisy labels "
        "(short for --model=random_forest). distillation is NOT PRIVATE: see "
        "--non_private_comparison.",
    )
    flags.DEFINE_boolean(
        "non_private_comparison",
        False,
        "With --student=distillation: compare a student of the teachers' averaged probabilities "
        "with one of labels by plurality, both without noise. NOTHING of it is private, nothing "
        "is exported and nothing is charged; the result goes to TRAIN_DIR/sensitive.",
    )
    flags.DEFINE_float(
        "temperature", 1.0, "What distillation divides logits by; the larger, the smoother."
    )
    flags.DEFINE_enum(
        "evaluate_on",
        "held_out",
        ["held_out", "all_unqueried"],
        "Public samples that the student's accuracy is measured on: those outside of the pool, or "
        "these and all of the pool that was not put to the teachers, which a student may have "
        "learnt from without labels or with inferred ones. The latter flatters strategies that "
        "ask about hard samples.",
    )
    flags.DEFINE_boolean(
        "save_labels", True, "Keep the noisy labels in TRAIN_DIR/released/labels.npz."
    )
    flags.DEFINE_list(
        "export_formats",
        [],
        "Formats to write a Keras student in besides the SavedModel: onnx (needs the package "
        "tf2onnx), litert, or both with a comma between; they lie in assets.extra of the exported "
        "version.",
    )
    flags.DEFINE_integer(
        "seed",
        0,
        "Seed of the student's initial weights, shuffling and augmentation. No privacy noise comes "
        "from it.",
        lower_bound=0,
        upper_bound=2**31 - 1,
    )
    flags.DEFINE_integer(
        "insecure_seed",
        None,
        "Draw the privacy noise from this seed, for tests and demonstrations. NOTHING is private "
        "then; ledger and statement say so for ever.",
        lower_bound=0,
    )
    flags.DEFINE_string("report_file", None, "Where to write what is printed, as JSON (sensitive).")
    for name in ("learning_rate", "epsilon_budget", "target_epsilon", "temperature"):
        flags.register_validator(
            name,
            lambda value: value is None or 0.0 < value < float("inf"),
            message="expected a finite number above 0",
        )
    flags.register_validator(
        "delta", lambda value: 0.0 < value < 1.0, message="expected a number between 0 and 1"
    )


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
    for name in (*NOT_COMPARED, *data_flags.names()):
        if FLAGS[name].present and FLAGS.student == "distillation":
            raise ValueError(f"{name}: expected without --student=distillation, got it with it")
    for name in ("non_private_comparison", "temperature"):
        if FLAGS[name].present and FLAGS.student != "distillation":
            raise ValueError(f"{name}: expected with --student=distillation alone, got it without")
    for name in ("margin", "exceptions"):
        if FLAGS[name].present and FLAGS.target_epsilon is None:
            raise ValueError(f"{name}: expected with --target_epsilon alone, got it without")
    if FLAGS.target_epsilon is not None and (said := data_flags.given()):
        raise ValueError(
            f"{said[0]}: expected without --target_epsilon, which finds it, got both; --mechanism "
            f"alone may be given with it"
        )
    if data_flags.chosen_kind().adds_records and FLAGS.target_epsilon is None:
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
        clock=command_line.clock,
        progress_bar=command_line.progress_bar,
        note=command_line.note,
        warn=command_line.warn,
        verbose=sys.stdout.isatty(),
    )
    command_line.check_report_file(FLAGS.report_file)
    check_flags()
    files = data_flags.own_files(with_private=False)
    mechanism, model = data_flags.chosen(), chosen_model()
    kind = data_flags.chosen_kind() if FLAGS["mechanism"].present else None
    with command_line.quiet_start(FLAGS):
        from pate_tf.aggregation import noise
        from pate_tf.api import sources
        from pate_tf.api import student_run as train_student
        from pate_tf.api.label_requests import Budget, LabelRequest
        from pate_tf.api.planned_labels import TargetRequest
        from pate_tf.queries.config import QueryConfig
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
    command_line.run(command_line.guarded(main, FLAGS, FLAG_OF_ARGUMENT), define, __doc__)


if __name__ == "__main__":
    run()
