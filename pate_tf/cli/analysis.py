"""What answered queries cost: `python analysis.py --counts_file=votes.npy --noise_eps=0.05`.

Reads votes of the first release, of a run or of ledgers, and accounts for them in every way there
is. What may be published and what may not are two tables and two files. TensorFlow is not imported.
"""

import pathlib

from absl import flags

from pate_tf.accounting import moments
from pate_tf.accounting.recommend import DEFAULT_DELTA
from pate_tf.analysis.guarantees import AnalysisConfig
from pate_tf.cli import analysis_flags, command_line, mechanism_flags, progress
from pate_tf.runs.analysis import calibration
from pate_tf.runs.analysis import run as analyse
from pate_tf.runs.reporting import Reporting

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
    reporting = Reporting(clock=progress.clock, progress_bar=progress.progress_bar)
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
    command_line.run(
        command_line.guarded(main, FLAGS, FLAG_OF_ARGUMENT), analysis_flags.define, __doc__
    )


if __name__ == "__main__":
    run()
