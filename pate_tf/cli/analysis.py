"""What answered queries cost: `python analysis.py --counts_file=votes.npy --noise_eps=0.05`.

Reads votes of the first release, of a run or of ledgers, and accounts for them in every way there
is. What may be published and what may not are two tables and two files. TensorFlow is not imported.
"""

import pathlib

from absl import flags

from pate_tf.accounting import moments
from pate_tf.accounting.planning import DEFAULT_DELTA
from pate_tf.analysis.guarantees import AnalysisConfig
from pate_tf.api import analysis as analyse
from pate_tf.api import calibration
from pate_tf.api.reporting import Reporting
from pate_tf.cli import command_line
from pate_tf.cli import flags as mechanism_flags

# The flags of `pate-analysis`.


POSITIVE = (
    *("target_epsilon", "beta"),
    *("release_moment", "release_smoothness", "release_sigma", "gate_budget"),
)


def define() -> None:
    """Defines them."""
    flags.DEFINE_string(
        "counts_file",
        None,
        "A .npy file of votes: labels [num_teachers, num_queries], or with --input_is_counts "
        "counts [num_queries, num_classes]. Whole numbers, of integer or float type.",
    )
    flags.DEFINE_string(
        "train_dir",
        None,
        "A run folder whose sensitive/ holds a ledger and its votes: everything that was paid for.",
    )
    flags.DEFINE_list(
        "ledger",
        None,
        "Ledgers, by file or folder, separated by commas: prints history, spending and what "
        "remains, and composes them. Several must be of ensembles trained on the same records.",
    )
    flags.DEFINE_string(
        "statement",
        None,
        "With one --ledger: a privacy_statement.json to hold against it; an error if the ledger "
        "says otherwise.",
    )
    flags.DEFINE_boolean(
        "check_with_dp_accounting",
        False,
        "Also compute the data-independent epsilon with the package dp-accounting, by privacy-loss "
        "distributions.",
    )
    flags.DEFINE_boolean(
        "calibrate",
        False,
        "Find the least noise for --target_epsilon and --queries, or the most queries for "
        "--target_epsilon and a noise such as --noise_eps or --sigma. With --nb_teachers: compare "
        "all mechanisms by how many labels are right, and recommend one. Reads no votes.",
    )
    flags.DEFINE_float("target_epsilon", None, "With --calibrate: data-independent, at --delta.")
    flags.DEFINE_integer(
        "queries",
        None,
        "With --calibrate: number of labels. Default with --nb_teachers: planned.",
        lower_bound=1,
    )
    flags.DEFINE_integer(
        "nb_teachers",
        None,
        "With --calibrate: number of teachers. Mechanisms are compared for so many.",
        lower_bound=1,
    )
    mechanism_flags.define_plan_flags(needed="--nb_teachers")
    flags.DEFINE_boolean(
        "input_is_counts", False, "Whether --counts_file holds counts, not labels."
    )
    flags.DEFINE_string(
        "indices_file",
        None,
        "A .npy file with the indices of the queries to analyse. Default: all.",
    )
    flags.DEFINE_integer(
        "max_examples", None, "How many queries, from the first. Default: all.", lower_bound=1
    )
    flags.DEFINE_integer(
        "nb_labels",
        None,
        "Number of classes, public. Default: as many as --counts_file has counts; 10 for labels. A "
        "class without votes only makes the bounds larger, never too small.",
        lower_bound=1,
    )
    mechanism_flags.define_mechanism_flags(
        default=None,
        help_text="How labels are drawn from votes. Default: laplace_noisy_max, or what the ledger "
        "says.",
        in_analysis=True,
    )
    flags.DEFINE_integer(
        "moments",
        None,
        "N: the moments are 1, 2, ..., N, as in the paper (its N is 8). Default: real moments, "
        "log-spaced from 0.05 to 1024. A moment is the Renyi order less one.",
        lower_bound=1,
    )
    flags.DEFINE_float(
        "delta",
        None,
        f"Delta of every epsilon. Default: the ledger's, else {DEFAULT_DELTA:g}.",
    )
    flags.DEFINE_enum(
        "conversion",
        "improved",
        ["improved", "classic"],
        "From moments to epsilon, natural logarithm: improved (Balle et al. 2020) or classic "
        "(Abadi et al. 2016).",
    )
    flags.DEFINE_list(
        "bound",
        None,
        "Data-dependent bounds, separated by commas, of paper (forward), tight (forward), "
        "two_sided, class_aware and exact (slow). Default: those of paper, two_sided and "
        "class_aware that the mechanism has. SENSITIVE.",
    )
    flags.DEFINE_list(
        "release",
        None,
        "What is published about the data-dependent cost: sanitised (an epsilon with noise), gate "
        "(whether the labels may leave, to be asked before they do), both from one draw; or "
        "smooth_sensitivity (noise by smooth sensitivity, and its table); or none. A draw happens "
        "once for the same votes; their ledger is charged for it first, and keeps it. For "
        "--counts_file no ledger is charged. Default: none, but what one --train_dir or --ledger "
        "keeps is shown again.",
    )
    flags.DEFINE_float(
        "profile",
        0.8,
        "Releases are planned for hypothetical votes: every query led by this share of the "
        "teachers. A ledger fixed its own before there were votes, this and the rest of the plan, "
        "and refuses another.",
    )
    flags.DEFINE_float("release_moment", None, "Moment of the release. Default: planned.")
    flags.DEFINE_float(
        "release_smoothness",
        None,
        "eta: by how much one teacher may change the logarithm of the smooth cost; beta for "
        "smooth_sensitivity. Default: planned.",
    )
    flags.DEFINE_float(
        "release_sigma",
        None,
        "Standard deviation of the release's noise, in sensitivities. Default: planned.",
    )
    flags.DEFINE_float(
        "gate_budget",
        None,
        "Largest cost at the moment, natural logarithm, that the gate lets pass. Default: planned.",
    )
    flags.DEFINE_float(
        "confidence", None, "Probability that the sanitised epsilon is not too low. Default: 0.99."
    )
    flags.DEFINE_integer(
        "attempts",
        None,
        "With --release=gate: how often the gate is tried on these votes in all, in whatever "
        "folder; its epsilon covers so many. Without it, it covers one and is no worst case.",
        lower_bound=1,
    )
    flags.DEFINE_boolean(
        "discard_release",
        False,
        "Put the release asked for in the place of an earlier one from the same votes, which WAS "
        "NEVER PUBLISHED. How often that was said is reported.",
    )
    flags.DEFINE_boolean(
        "adaptive",
        False,
        "Queries were chosen by looking at earlier noisy labels: only data-independent accounting "
        "holds, and releases are refused.",
    )
    flags.DEFINE_float(
        "beta",
        analyse.DEFAULT_BETA,
        "Rate, per teacher, of the smooth sensitivity that --release=smooth_sensitivity tabulates.",
    )
    flags.DEFINE_string(
        "plots",
        None,
        "Folder for plots, as PNG files and for TensorBoard: below its sensitive/ and released/. "
        "The gap against the number of teachers needs a file of labels.",
    )
    flags.DEFINE_string(
        "output_dir",
        None,
        "Where sensitive/analysis.json, released/analysis.json and sensitive/releases/ go. "
        "Default: the run folder of --train_dir, else runs/analysis.",
    )
    flags.DEFINE_string("report_file", None, "Where to write what is printed, as JSON (sensitive).")
    for name in POSITIVE:
        flags.register_validator(
            name,
            lambda value: value is None or 0.0 < value < float("inf"),
            message="expected a finite number above 0",
        )
    for name in ("delta", "confidence"):
        flags.register_validator(
            name,
            lambda value: value is None or 0.0 < value < 1.0,
            message="expected a number between 0 and 1",
        )
    flags.register_validator(
        "profile", lambda value: 0.0 < value <= 1.0, message="expected a share of the teachers"
    )
    flags.register_multi_flags_validator(
        ["counts_file", "train_dir", "ledger", "calibrate"],
        lambda values: sum(bool(value) for value in values.values()) == 1,
        message="expected exactly one of --counts_file, --train_dir, --ledger and --calibrate",
    )
    parameters = mechanism_flags.names(in_analysis=True)
    flags.register_multi_flags_validator(
        ["calibrate", "target_epsilon", "queries", "nb_teachers", *parameters],
        lambda values: (
            not values["calibrate"]
            or values["nb_teachers"] is not None
            or (
                values["target_epsilon"] is not None
                and (values["queries"] is None)
                == any(values[name] is not None for name in parameters)
            )
        ),
        message="expected with --calibrate a --target_epsilon, and either --nb_teachers, --queries "
        "or the noise: " + ", ".join(f"--{name}" for name in parameters),
    )
    flags.register_multi_flags_validator(
        ["calibrate", "target_epsilon", "nb_teachers", *parameters],
        lambda values: (
            values["nb_teachers"] is None
            or (
                values["calibrate"]
                and values["target_epsilon"] is not None
                and all(values[name] is None for name in parameters)
            )
        ),
        message="expected with --nb_teachers a --calibrate and a --target_epsilon, and no noise, "
        "which is what is looked for",
    )


FLAGS = flags.FLAGS

# What the library calls what a flag is for, where the two differ.
FLAG_OF_ARGUMENT = {
    "budget": "gate_budget",
    "discard_earlier": "discard_release",
    "num_classes": "nb_labels",
    "num_exceptions": "exceptions",
    "num_queries": "queries",
    "num_teachers": "nb_teachers",
    "run": "train_dir",
}
FLAG_OF_PLAN = {
    "profile": "profile",
    "moment": "release_moment",
    "smoothness": "release_smoothness",
    "sigma": "release_sigma",
    "confidence": "confidence",
}
RELEASE_FLAGS = (
    *("profile", "release_moment", "release_smoothness", "release_sigma"),
    *("gate_budget", "confidence", "discard_release", "attempts"),
)


def votes() -> analyse.VotesFile | analyse.PaidVotes:
    """Returns the one source of votes that the flags name.

    Raises:
      ValueError: if a flag is for another source.
    """
    if FLAGS.statement and len(FLAGS.ledger or ()) != 1:
        raise ValueError("statement: expected one --ledger to hold it against")
    if FLAGS.counts_file:
        return analyse.VotesFile(
            path=pathlib.Path(FLAGS.counts_file),
            mechanism=mechanism_flags.chosen(in_analysis=True),
            input_is_counts=FLAGS.input_is_counts,
            indices_file=command_line.path(FLAGS.indices_file),
            max_examples=FLAGS.max_examples,
            num_classes=FLAGS.nb_labels,
        )
    for name in ("input_is_counts", "indices_file", "max_examples", "nb_labels"):
        if FLAGS[name].present:
            raise ValueError(f"{name}: expected with --counts_file alone, got it without")
    return analyse.PaidVotes(
        run=command_line.path(FLAGS.train_dir),
        ledgers=[pathlib.Path(path) for path in FLAGS.ledger or ()],
        mechanism=mechanism_flags.said_fields(),
        statement=command_line.path(FLAGS.statement),
    )


def release() -> analyse.AskedRelease:
    """Returns what the flags say of a release."""
    kinds = None if FLAGS.release is None else tuple(FLAGS.release)
    if kinds == ():
        raise ValueError("release: expected what is to be released, or none, got nothing")
    return analyse.AskedRelease(
        kinds=() if kinds == ("none",) else kinds,
        plan={
            field: FLAGS[name].value for field, name in FLAG_OF_PLAN.items() if FLAGS[name].present
        },
        budget=FLAGS.gate_budget,
        attempts=FLAGS.attempts,
        discard_earlier=FLAGS.discard_release,
    )


def analysis_run() -> analyse.AnalysisRun:
    """Returns the analysis that the flags ask for."""
    return analyse.AnalysisRun(
        source=votes(),
        delta=FLAGS.delta,
        accounting=AnalysisConfig(
            num_moments=FLAGS.moments,
            conversion=FLAGS.conversion,
            bounds=None if FLAGS.bound is None else tuple(FLAGS.bound),
            check_with_dp_accounting=FLAGS.check_with_dp_accounting,
        ),
        release=release(),
        adaptive=FLAGS.adaptive,
        beta=FLAGS.beta,
        output=command_line.path(FLAGS.output_dir),
        plots=command_line.path(FLAGS.plots),
    )


def calibration_run() -> calibration.CalibrationRun:
    """Returns the calibration that the flags ask for."""
    find = mechanism_flags.chosen if FLAGS.queries is None else mechanism_flags.chosen_kind
    return calibration.CalibrationRun(
        mechanism=find(in_analysis=True),
        num_queries=FLAGS.queries,
        target_epsilon=FLAGS.target_epsilon,
        delta=FLAGS.delta or DEFAULT_DELTA,
    )


def recommendation_run() -> calibration.RecommendationRun:
    """Returns the comparison of mechanisms that the flags ask for."""
    return calibration.RecommendationRun(
        target_epsilon=FLAGS.target_epsilon,
        num_teachers=FLAGS.nb_teachers,
        num_classes=FLAGS.nb_labels or calibration.DEFAULT_NUM_CLASSES,
        num_queries=FLAGS.queries,
        delta=FLAGS.delta or DEFAULT_DELTA,
        mechanism=mechanism_flags.chosen_kind(in_analysis=True) if FLAGS.mechanism else None,
        margin=FLAGS.margin,
        num_exceptions=FLAGS.exceptions,
    )


def main() -> None:
    """Reads the flags, has votes accounted for or noise found, prints."""
    reporting = Reporting(clock=command_line.clock, progress_bar=command_line.progress_bar)
    command_line.check_report_file(FLAGS.report_file)
    if FLAGS.bound is not None and not FLAGS.bound:
        raise ValueError(f"bound: expected some of {list(moments.BOUNDS)}, got none")
    for name in RELEASE_FLAGS:
        if FLAGS[name].present and not FLAGS.release:
            raise ValueError(f"{name}: expected --release with it")
    for name in ("target_epsilon", "queries"):
        if FLAGS[name].present and not FLAGS.calibrate and FLAGS.nb_teachers is None:
            raise ValueError(f"{name}: expected with --calibrate alone, got it without")
    for name in ("margin", "exceptions"):
        if FLAGS[name].present and FLAGS.nb_teachers is None:
            raise ValueError(f"{name}: expected --nb_teachers with it")
    if FLAGS.nb_teachers is not None:
        report = calibration.compare(recommendation_run())
    elif FLAGS.calibrate:
        report = calibration.calibrate(calibration_run())
    else:
        report = analyse.run(analysis_run(), reporting)
    for table in report.tables:
        command_line.print_titled(table)
    command_line.write_report(FLAGS.report_file, report.values)


def run() -> None:
    """Runs the command with the flags of this process."""
    command_line.run(command_line.guarded(main, FLAGS, FLAG_OF_ARGUMENT), define, __doc__)


if __name__ == "__main__":
    run()
