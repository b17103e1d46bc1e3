"""Trains a student: `python train_student.py --dataset=mnist --nb_teachers=250 --queries=100`.

Queries of the public pool are put to the teachers. The ledger beside them is charged, then noisy
labels leave; the student learns from those alone. Labels, student and privacy statement land below
TRAIN_DIR/released.
"""

import pathlib
import sys
import time

from absl import app, flags

from pate_tf import artifacts, command_line
from pate_tf.accounting import mechanisms, statement_words

FLAGS = flags.FLAGS

flags.DEFINE_string(
    "dataset",
    "digits",
    "Name of the data set: digits (embedded), mnist, svhn, cifar10, adult, diabetes, another name "
    "of TensorFlow Datasets, or module:function.",
)
flags.DEFINE_integer("nb_teachers", 100, "Number of teachers of the ensemble.", lower_bound=1)
flags.DEFINE_string(
    "teachers_dir",
    None,
    "Run folder of the teachers. Default: runs/DATASET-NB_TEACHERS in this folder.",
)
flags.DEFINE_string(
    "teachers",
    None,
    "Teachers from elsewhere instead: a folder of .keras files or SavedModels, or a .npy file of "
    "labels [num_teachers, num_queries] for the first queries of the pool. Their ledger lies in "
    "--teachers_dir, which must be given and always be the same.",
)
flags.DEFINE_string("train_dir", None, "Run folder of the student. Default: the teachers' one.")
flags.DEFINE_string(
    "data_dir", None, "Folder with data prepared by TensorFlow Datasets. Default: TFDS' own."
)
flags.DEFINE_integer(
    "stdnt_share",
    None,
    "How many of the public samples, from the first, form the student's pool; the rest evaluates "
    "it. Default: the data set's own share.",
    lower_bound=1,
)
flags.DEFINE_integer(
    "queries",
    100,
    "How many of the pool are put to the teachers; the rest stays unlabelled.",
    lower_bound=1,
)
flags.DEFINE_enum(
    "query_strategy",
    "first",
    list(statement_words.QUERY_STRATEGIES),
    "Which of the pool are put to the teachers; true labels play no part. first: the first ones; "
    "random: drawn at random; diverse: one of each group of look-alikes, whose answers are spread "
    "to inputs that look the same. In rounds, from the noisy labels so far: uncertain: where a "
    "student of them is least sure; binary_experts: where one-against-all experts contradict each "
    "other; siamese: at random, but what matches a labelled input takes its label without a query.",
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
    "Seed of random choices of queries and of what is trained between rounds. Another seed asks "
    "other queries, which are paid for.",
    lower_bound=0,
    upper_bound=2**31 - 1,
)
flags.DEFINE_enum(
    "mechanism",
    "laplace_noisy_max",
    ["laplace_noisy_max", "permute_and_flip", "exponential_mechanism", "gaussian_noisy_max"],
    "How the noisy winner is drawn from the votes.",
)
flags.DEFINE_float(
    "lap_scale",
    20.0,
    "Scale b of the noise, in votes: Lap(b), or gamma = 1/b for the other mechanisms with a gamma.",
)
flags.DEFINE_float("sigma", 40.0, "Standard deviation of the Gaussian noise, in votes.")
flags.DEFINE_float("delta", 1e-5, "Delta of the guarantee; fixed for an ensemble at first use.")
flags.DEFINE_float(
    "epsilon_budget",
    None,
    "The most that all labels of this ensemble may ever cost, as data-independent epsilon at "
    "--delta; fixed at first use. Default: no limit; everything is recorded all the same.",
)
flags.DEFINE_boolean(
    "new_budget_i_understand",
    False,
    "Replace the ensemble's budget by --epsilon_budget and --delta, both of which must be given. "
    "The ledger and every later statement say so for ever.",
)
flags.DEFINE_integer(
    "max_steps",
    None,
    "Training steps of the student. Default: the student's own, 1000 for supervised.",
    lower_bound=1,
)
flags.DEFINE_integer(
    "batch_size",
    None,
    "Labelled examples a training step. Default: the student's own, 64 for supervised.",
    lower_bound=1,
)
flags.DEFINE_float(
    "learning_rate",
    None,
    "Learning rate of Adam; it falls along a cosine, but for gan. Default: the student's own, "
    "0.002 for supervised.",
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
    "improved GAN on them and on all images of the pool; a Keras model that must agree with itself "
    "on changed inputs of the pool besides; or a random forest on the noisy labels (short for "
    "--model=random_forest). distillation is NOT PRIVATE: see --non_private_comparison.",
)
flags.DEFINE_boolean(
    "non_private_comparison",
    False,
    "With --student=distillation: compare a student of the teachers' averaged probabilities with "
    "one of labels by plurality, both without noise. NOTHING of it is private, nothing is exported "
    "and nothing is charged; the result goes to TRAIN_DIR/sensitive.",
)
flags.DEFINE_float(
    "temperature", 1.0, "What distillation divides logits by; the larger, the smoother."
)
flags.DEFINE_enum(
    "evaluate_on",
    "held_out",
    ["held_out", "all_unqueried"],
    "Public samples that the student's accuracy is measured on: those outside of the pool, or "
    "these and all of the pool that was not put to the teachers, which a student may have learnt "
    "from without labels or with inferred ones. The latter flatters strategies that ask about hard "
    "samples.",
)
flags.DEFINE_boolean("save_labels", True, "Keep the noisy labels in TRAIN_DIR/released/labels.npz.")
flags.DEFINE_list(
    "export_formats",
    [],
    "Formats to write a Keras student in besides the SavedModel: onnx (needs the package tf2onnx), "
    "litert, or both with a comma between; they lie in assets.extra of the exported version.",
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
    "Draw the privacy noise from this seed, for tests and demonstrations. NOTHING is private then; "
    "ledger and statement say so for ever.",
    lower_bound=0,
)
flags.DEFINE_string("report_file", None, "Where to write what is printed, as JSON (sensitive).")

for name in ("lap_scale", "sigma", "learning_rate", "epsilon_budget", "temperature"):
    flags.register_validator(
        name,
        lambda value: value is None or 0.0 < value < float("inf"),
        message="expected a finite number above 0",
    )
flags.register_validator(
    "delta", lambda value: 0.0 < value < 1.0, message="expected a number between 0 and 1"
)


# What a comparison, which has neither noise nor ledger nor anything to release, can't heed.
NOT_COMPARED = (
    *("query_strategy", "query_rounds", "query_seed", "mechanism", "lap_scale", "sigma"),
    *("delta", "epsilon_budget", "new_budget_i_understand", "insecure_seed"),
    *("save_labels", "export_formats"),
)


def chosen_mechanism() -> mechanisms.Mechanism:
    """The one value that draws the noise and accounts for it."""
    if FLAGS.mechanism == "gaussian_noisy_max":
        return mechanisms.GaussianNoisyMax(FLAGS.sigma)
    return mechanisms.mechanism_from_dict({"name": FLAGS.mechanism, "gamma": 1.0 / FLAGS.lap_scale})


def chosen_model() -> str | None:
    """The model that `--model` names, or one of the flags that are short for it."""
    forest = "random_forest" if FLAGS.student == "random_forest" else None
    named = {model for model in (FLAGS.model, "deeper" if FLAGS.deeper else None, forest) if model}
    if len(named) > 1:
        raise ValueError(f"model: expected one model, got {' and '.join(sorted(named))}")
    return next(iter(named), None)


def check_comparison() -> None:
    """Sees to it that nobody gets a student without privacy who did not ask for one.

    Raises:
      ValueError: if the flags of the comparison don't stand together.
    """
    if FLAGS.student == "distillation" and not FLAGS.non_private_comparison:
        raise ValueError(
            "student distillation: expected --non_private_comparison as well, got none: the "
            "teachers' averaged probabilities are not covered by what a label costs, so nothing "
            "of it is private and no student is exported"
        )
    for name in NOT_COMPARED:
        if FLAGS[name].present and FLAGS.student == "distillation":
            raise ValueError(f"{name}: expected without --student=distillation, got it with it")
    for name in ("non_private_comparison", "temperature"):
        if FLAGS[name].present and FLAGS.student != "distillation":
            raise ValueError(f"{name}: expected with --student=distillation alone, got it without")


def main() -> None:
    """Reads the flags, labels, trains, prints."""
    began = time.monotonic()
    command_line.check_report_file(FLAGS.report_file)
    check_comparison()
    if FLAGS.new_budget_i_understand and not FLAGS["delta"].present:
        raise ValueError(
            "new_budget_i_understand: expected --epsilon_budget and --delta, got no --delta; both "
            "are replaced"
        )
    mechanism = chosen_mechanism()
    with command_line.quiet_start(FLAGS):
        from pate_tf import distillation_run, student_report, student_run
        from pate_tf.aggregation import noise
        from pate_tf.data import catalogue as data
        from pate_tf.queries.config import QueryConfig
        from pate_tf.students import catalogue as students
        from pate_tf.students.config import StudentConfig
        from pate_tf.teachers.run import ensemble_folder, load_ensemble
        from pate_tf.teachers.voters import load_voter

    data_dir = pathlib.Path(FLAGS.data_dir) if FLAGS.data_dir else None
    with command_line.clock(f"reading {FLAGS.dataset}"):
        public = data.load_public(FLAGS.dataset, data_dir=data_dir)
    dataset = public.dataset
    teachers_dir = artifacts.RunDirectory(
        pathlib.Path(FLAGS.teachers_dir or f"runs/{dataset.name}-{FLAGS.nb_teachers}")
    )
    run_directory = artifacts.RunDirectory(
        pathlib.Path(FLAGS.train_dir) if FLAGS.train_dir else teachers_dir.root
    )
    is_comparison = FLAGS.student == "distillation"
    student = students.STUDENTS["supervised" if is_comparison else FLAGS.student]
    config = StudentConfig(
        student=FLAGS.student,
        model=chosen_model() or student.default_model(dataset),
        max_steps=FLAGS.max_steps or student.max_steps,
        batch_size=FLAGS.batch_size or student.batch_size,
        learning_rate=FLAGS.learning_rate or student.learning_rate,
        seed=FLAGS.seed,
    )
    pool_size = FLAGS.stdnt_share or dataset.pool_size
    if FLAGS.teachers:
        if not FLAGS.teachers_dir:
            raise ValueError(
                "teachers: expected --teachers_dir as well, the folder of the one ledger that "
                "these teachers ever have"
            )
        teachers = load_voter(pathlib.Path(FLAGS.teachers), public.split(pool_size)[0].pool())
    else:
        teachers = load_ensemble(ensemble_folder(teachers_dir))
    if teachers.num_teachers != FLAGS.nb_teachers and FLAGS["nb_teachers"].present:
        raise ValueError(
            f"nb_teachers: expected {teachers.num_teachers}, as the ensemble has, "
            f"got {FLAGS.nb_teachers}"
        )
    if is_comparison:
        with command_line.progress_bar("asking teachers", 2 * FLAGS.queries, "query") as progress:
            comparison = distillation_run.compare_distillation(
                config=config,
                public=public,
                pool_size=pool_size,
                num_queries=FLAGS.queries,
                teachers=teachers,
                temperature=FLAGS.temperature,
                evaluate_on=FLAGS.evaluate_on,
                voting_progress=progress,
                show_progress=sys.stdout.isatty(),
            )
        values = student_report.comparison_values(
            comparison,
            teachers,
            num_queries=FLAGS.queries,
            temperature=FLAGS.temperature,
            evaluate_on=FLAGS.evaluate_on,
            seconds=time.monotonic() - began,
        )
        file = run_directory.sensitive / "distillation_comparison.json"
        artifacts.write_json(file, values, private=True)
        command_line.print_sensitive_table(
            "NOT PRIVATE: comparison of students, for your eyes alone",
            student_report.comparison_rows(comparison, values, file),
        )
        command_line.write_report(FLAGS.report_file, values)
        return
    source = (
        noise.SystemNoise()
        if FLAGS.insecure_seed is None
        else noise.SeededNoise(FLAGS.insecure_seed)
    )
    with (
        student_run.open_ledger(
            teachers_dir.sensitive,
            teachers=teachers,
            delta=FLAGS.delta,
            epsilon_budget=FLAGS.epsilon_budget,
            replace_budget=FLAGS.new_budget_i_understand,
        ) as ledger,
        command_line.progress_bar("asking teachers", FLAGS.queries, "query") as progress,
    ):
        result = student_run.run_student(
            config=config,
            public=public,
            pool_size=pool_size,
            queries=QueryConfig(
                strategy=FLAGS.query_strategy,
                num_queries=FLAGS.queries,
                rounds=FLAGS.query_rounds,
                seed=FLAGS.query_seed,
            ),
            teachers=teachers,
            ledger=ledger,
            mechanism=mechanism,
            noise=source,
            run_directory=run_directory,
            save_labels=FLAGS.save_labels,
            export_formats=FLAGS.export_formats,
            evaluate_on=FLAGS.evaluate_on,
            choosing=lambda: command_line.clock("choosing queries"),
            voting_progress=progress,
            show_progress=sys.stdout.isatty(),
        )
    seconds = time.monotonic() - began
    values = student_report.student_values(result, evaluate_on=FLAGS.evaluate_on, seconds=seconds)
    artifacts.write_json(run_directory.sensitive / "student_report.json", values, private=True)
    command_line.print_table(
        "Student",
        student_report.student_rows(result, evaluate_on=FLAGS.evaluate_on, seconds=seconds),
    )
    command_line.write_report(FLAGS.report_file, values)


if __name__ == "__main__":
    app.run(
        command_line.guarded(main, FLAGS),
        flags_parser=command_line.parse_flags(FLAGS, flags.Error),
    )
