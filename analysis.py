"""What answered queries cost: `python analysis.py --counts_file=votes.npy --noise_eps=0.05`.

Reads votes of the first release, of a run or of ledgers, and accounts for them in every way there
is. What may be published and what may not are two tables and two files. TensorFlow is not imported.
"""

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

from absl import app, flags

from pate_tf import artifacts, command_line
from pate_tf.accounting import mechanisms
from pate_tf.aggregation import noise
from pate_tf.analysis import calibration as analysis_calibration
from pate_tf.analysis import ledger as analysis_ledger
from pate_tf.analysis import release as analysis_release
from pate_tf.analysis import report as analysis_report
from pate_tf.analysis import run as analysis_run
from pate_tf.analysis import statement as analysis_statement
from pate_tf.analysis import votes as analysis_votes
from pate_tf.analysis.accounting import AnalysisConfig, Progress
from pate_tf.analysis.ledger import LedgerSummary

FLAGS = flags.FLAGS

DEFAULT_NOISE_EPS, DEFAULT_SIGMA, DEFAULT_DELTA = 0.1, 40.0, 1e-5
DEFAULT_BETA, DEFAULT_OUTPUT = 0.09, "runs/analysis"
LEFT = (
    "left as it was: another ledger, another delta, or queries chosen by noisy labels, which the "
    "release does not cover"
)

flags.DEFINE_string(
    "counts_file",
    None,
    "A .npy file of votes: labels [num_teachers, num_queries], or with --input_is_counts counts "
    "[num_queries, num_classes]. Whole numbers, of integer or float type.",
)
flags.DEFINE_string(
    "train_dir",
    None,
    "A run folder whose sensitive/ holds a ledger and its votes: everything that was paid for.",
)
flags.DEFINE_list(
    "ledger",
    None,
    "Ledgers, by file or folder, separated by commas: prints history, spending and what remains, "
    "and composes them. Several must be of ensembles trained on the same records.",
)
flags.DEFINE_string(
    "statement",
    None,
    "With one --ledger: a privacy_statement.json to hold against it; an error if the ledger says "
    "otherwise.",
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
    "--target_epsilon and --noise_eps or --sigma. Reads no votes.",
)
flags.DEFINE_float("target_epsilon", None, "With --calibrate: data-independent, at --delta.")
flags.DEFINE_integer("queries", None, "With --calibrate: number of labels.", lower_bound=1)
flags.DEFINE_boolean("input_is_counts", False, "Whether --counts_file holds counts, not labels.")
flags.DEFINE_string(
    "indices_file", None, "A .npy file with the indices of the queries to analyse. Default: all."
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
flags.DEFINE_enum(
    "mechanism",
    None,
    sorted(analysis_calibration.CALIBRATED),
    "How labels are drawn from votes. Default: laplace_noisy_max, or what the ledger says.",
)
flags.DEFINE_float(
    "noise_eps",
    None,
    f"gamma of the mechanism, the inverse scale of its noise, per vote: Lap(1/gamma). Default: "
    f"{DEFAULT_NOISE_EPS}, or what the ledger says.",
)
flags.DEFINE_float(
    "sigma",
    None,
    f"Standard deviation of the noise of gaussian_noisy_max, in votes. Default: {DEFAULT_SIGMA:g}, "
    f"or what the ledger says.",
)
flags.DEFINE_integer(
    "moments",
    None,
    "N: the moments are 1, 2, ..., N, as in the paper (its N is 8). Default: real moments, "
    "log-spaced from 0.05 to 1024. A moment is the Renyi order less one.",
    lower_bound=1,
)
flags.DEFINE_float(
    "delta", None, f"Delta of every epsilon. Default: the ledger's, else {DEFAULT_DELTA:g}."
)
flags.DEFINE_enum(
    "conversion",
    "improved",
    ["improved", "classic"],
    "From moments to epsilon, natural logarithm: improved (Balle et al. 2020) or classic (Abadi et "
    "al. 2016).",
)
flags.DEFINE_list(
    "bound",
    None,
    "Data-dependent bounds, separated by commas, of paper (forward), tight (forward), two_sided, "
    "class_aware and exact (slow). Default: those of paper, two_sided and class_aware that the "
    "mechanism has. SENSITIVE.",
)
flags.DEFINE_list(
    "release",
    None,
    "What is published about the data-dependent cost: sanitised (an epsilon with noise), gate "
    "(whether the labels may leave, to be asked before they do), both from one draw; or "
    "smooth_sensitivity (noise by smooth sensitivity, and its table); or none. A draw happens once "
    "for the same votes; their ledger is charged for it first, and keeps it. For --counts_file no "
    "ledger is charged. Default: none, but what one --train_dir or --ledger keeps is shown again.",
)
flags.DEFINE_float(
    "profile",
    0.8,
    "Releases are planned for hypothetical votes: every query led by this share of the teachers.",
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
flags.DEFINE_boolean(
    "discard_release",
    False,
    "Put the release asked for in the place of an earlier one from the same votes, which WAS NEVER "
    "PUBLISHED. How often that was said is reported.",
)
flags.DEFINE_boolean(
    "adaptive",
    False,
    "Queries were chosen by looking at earlier noisy labels: only data-independent accounting "
    "holds, and releases are refused.",
)
flags.DEFINE_float(
    "beta",
    DEFAULT_BETA,
    "Rate, per teacher, of the smooth sensitivity that --release=smooth_sensitivity tabulates.",
)
flags.DEFINE_string(
    "plots",
    None,
    "Folder for plots, as PNG files and for TensorBoard: below its sensitive/ and released/. The "
    "gap against the number of teachers needs a file of labels.",
)
flags.DEFINE_string(
    "output_dir",
    None,
    "Where sensitive/analysis.json, released/analysis.json and sensitive/releases/ go. Default: "
    "the run folder of --train_dir, else runs/analysis.",
)
flags.DEFINE_string("report_file", None, "Where to write what is printed, as JSON (sensitive).")

RELEASE_FLAGS = (
    *("profile", "release_moment", "release_smoothness", "release_sigma"),
    *("gate_budget", "confidence", "discard_release"),
)
POSITIVE = (
    *("noise_eps", "sigma", "target_epsilon", "beta"),
    *("release_moment", "release_smoothness", "release_sigma", "gate_budget"),
)
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
flags.register_multi_flags_validator(
    ["calibrate", "target_epsilon", "queries", "noise_eps", "sigma"],
    lambda values: (
        not values["calibrate"]
        or (
            values["target_epsilon"] is not None
            and [values[name] for name in ("queries", "noise_eps", "sigma")].count(None) == 2
        )
    ),
    message="expected with --calibrate a --target_epsilon, and one of --queries, --noise_eps and "
    "--sigma",
)


def chosen_mechanism() -> mechanisms.Mechanism:
    """Returns the mechanism that the flags describe."""
    name = FLAGS.mechanism or (
        "gaussian_noisy_max" if FLAGS.sigma is not None else "laplace_noisy_max"
    )
    if name == "gaussian_noisy_max":
        if FLAGS.noise_eps is not None:
            raise ValueError(f"noise_eps: expected --sigma for {name}, got --noise_eps")
        return mechanisms.GaussianNoisyMax(FLAGS.sigma or DEFAULT_SIGMA)
    if FLAGS.sigma is not None:
        raise ValueError(f"sigma: expected --noise_eps for {name}, got --sigma")
    gamma = FLAGS.noise_eps or DEFAULT_NOISE_EPS
    return mechanisms.mechanism_from_dict({"name": name, "gamma": gamma})


def read_votes() -> tuple[analysis_votes.VoteSource, tuple[LedgerSummary, ...], float]:
    """Returns the votes of the one source that the flags name, its ledgers, and delta."""
    if FLAGS.counts_file:
        source = analysis_votes.read_votes_file(
            pathlib.Path(FLAGS.counts_file),
            chosen_mechanism(),
            input_is_counts=FLAGS.input_is_counts,
            indices_file=pathlib.Path(FLAGS.indices_file) if FLAGS.indices_file else None,
            max_examples=FLAGS.max_examples,
            num_classes=FLAGS.nb_labels,
        )
        return source, (), FLAGS.delta or DEFAULT_DELTA
    for name in ("input_is_counts", "indices_file", "max_examples", "nb_labels"):
        if FLAGS[name].present:
            raise ValueError(f"{name}: expected with --counts_file alone, got it without")
    if FLAGS.train_dir:
        paid = analysis_run.read_run(pathlib.Path(FLAGS.train_dir))
    else:
        paid = analysis_run.read_ledgers([pathlib.Path(path) for path in FLAGS.ledger])
    analysis_votes.check_mechanisms(
        paid.source.num_paid, name=FLAGS.mechanism, gamma=FLAGS.noise_eps, sigma=FLAGS.sigma
    )
    delta = FLAGS.delta or paid.delta
    if delta is None:
        raise ValueError("delta: expected --delta, as the ledgers differ in theirs")
    return paid.source, paid.summaries, delta


def release_request(
    source: analysis_votes.VoteSource, delta: float
) -> analysis_release.ReleaseRequest | None:
    """Returns what is to be released; None for nothing."""
    is_shown_again = source.has_release and not FLAGS.adaptive
    kinds = FLAGS.release or ([analysis_release.SANITISED] if is_shown_again else ["none"])
    if kinds == ["none"]:
        return None
    return analysis_release.ReleaseRequest(
        kinds=tuple(kinds),
        delta=delta,
        adaptive=FLAGS.adaptive,
        profile=FLAGS.profile,
        moment=FLAGS.release_moment,
        smoothness=FLAGS.release_smoothness,
        sigma=FLAGS.release_sigma,
        budget=FLAGS.gate_budget,
        confidence=FLAGS.confidence,
    )


@contextlib.contextmanager
def exact_progress() -> Iterator[Progress]:
    """Shows a bar while the bound `exact` runs."""
    with contextlib.ExitStack() as stack:
        bars: list[Any] = []

        def show(done: int, total: int) -> None:
            if done == 1:
                bar = command_line.progress_bar("exact", total, "histogram")
                bars.append(stack.enter_context(bar))
            bars[-1](1)

        yield show


def main() -> None:
    """Reads the flags and does what they ask for."""
    command_line.check_report_file(FLAGS.report_file)
    for name in RELEASE_FLAGS:
        if FLAGS[name].present and not FLAGS.release:
            raise ValueError(f"{name}: expected --release with it")
    if FLAGS.calibrate:
        calibrate()
    else:
        analyse()


def calibrate() -> None:
    """Finds noise or number of queries."""
    mechanism = chosen_mechanism()
    found = analysis_calibration.calibrate(
        mechanism if FLAGS.queries is None else type(mechanism),
        target_epsilon=FLAGS.target_epsilon,
        delta=FLAGS.delta or DEFAULT_DELTA,
        num_queries=FLAGS.queries,
    )
    rows = analysis_report.calibration_rows(found)
    command_line.print_table("Calibration, publishable", rows)
    command_line.write_report(FLAGS.report_file, analysis_report.calibration_report(found))


def analyse() -> None:
    """Accounts for votes."""
    if FLAGS.statement:
        check_statement()
    source, ledgers, delta = read_votes()
    config = analysis_run.RunConfig(
        accounting=AnalysisConfig(
            delta=delta,
            num_moments=FLAGS.moments,
            conversion=FLAGS.conversion,
            bounds=tuple(FLAGS.bound) if FLAGS.bound else None,
            check_with_dp_accounting=FLAGS.check_with_dp_accounting,
        ),
        release=release_request(source, delta),
        release_is_optional=not FLAGS.release,
        discard_earlier=FLAGS.discard_release,
        adaptive=FLAGS.adaptive,
        beta=FLAGS.beta,
    )
    output = pathlib.Path(FLAGS.output_dir or FLAGS.train_dir or DEFAULT_OUTPUT)
    stated = None
    if FLAGS.train_dir and config.release is not None:
        # A broken page is told before anything is charged.
        stated = analysis_statement.read_statement(
            artifacts.RunDirectory(pathlib.Path(FLAGS.train_dir))
        )
    with exact_progress() as progress:
        report = analysis_run.run(
            source,
            config,
            artifacts.RunDirectory(output),
            noise=noise.SystemNoise(),
            progress=progress,
        )
    if FLAGS.ledger:
        print_ledgers(ledgers)
    elif unpaid := [row for ledger in ledgers for row in analysis_report.unpaid_rows(ledger)]:
        command_line.print_table("Ledger", unpaid)
    print_report(report)
    if FLAGS.train_dir and config.release is None and not FLAGS.release:
        hint = "--release=sanitised draws one, once; the ledger is charged for it first"
        command_line.print_table("Left out", [("epsilon, sanitised", hint)])
    files = [
        ("publishable", str(report.publishable_file)),
        ("SENSITIVE", str(report.sensitive_file)),
    ]
    if stated is not None and report.released is not None and report.released.sanitised is not None:
        run = artifacts.RunDirectory(pathlib.Path(FLAGS.train_dir))
        page = analysis_statement.add_release(run, report.released.sanitised)
        files.append(
            ("privacy statement", f"{page}, now with the sanitised epsilon" if page else LEFT)
        )
    if FLAGS.plots:
        from pate_tf.analysis import plots as analysis_plots

        folder = artifacts.RunDirectory(pathlib.Path(FLAGS.plots))
        with command_line.clock("drawing plots"):
            plots = analysis_plots.draw(folder, source, config.accounting)
        files += [(f"plot, {path.parent.name}", str(path)) for path in plots]
    command_line.print_table("Written to", files)
    if FLAGS.train_dir:
        run = artifacts.RunDirectory(pathlib.Path(FLAGS.train_dir))
        if rows := analysis_report.run_rows(run, report.analysis):
            command_line.print_table("The run", rows)
    values = {**report.publishable, **report.sensitive, "sensitive": list(report.sensitive)}
    if ledgers:
        values["ledgers"] = [analysis_report.ledger_report(ledger) for ledger in ledgers]
    command_line.write_report(FLAGS.report_file, values)


def check_statement() -> None:
    """Holds `--statement` against the one `--ledger`."""
    if not FLAGS.ledger or len(FLAGS.ledger) != 1:
        raise ValueError("statement: expected one --ledger to hold it against")
    statement = artifacts.read_json(pathlib.Path(FLAGS.statement))
    with analysis_ledger.opened([pathlib.Path(FLAGS.ledger[0])]) as (ledger,):
        analysis_statement.check_statement(statement, ledger)
    command_line.print_table("Statement", [(FLAGS.statement, "agrees with the ledger")])


def print_ledgers(ledgers: tuple[LedgerSummary, ...]) -> None:
    """Prints history and balance of each ledger."""
    for summary in ledgers:
        print(f"\nHistory of {summary.folder}")
        print("\n".join(summary.history))
        command_line.print_table("Ledger, publishable", analysis_report.ledger_rows(summary))


def print_report(report: analysis_run.AnalysisReport) -> None:
    """Prints what may be published, what may not, and what was left out."""
    analysis = report.analysis
    rows = analysis_report.publishable_rows(
        analysis, report.released, is_secure=report.publishable["secure_noise"]
    )
    command_line.print_table("Publishable", rows)
    if rows := analysis_report.sensitive_rows(analysis):
        command_line.print_sensitive_table("SENSITIVE, do not publish", rows)
    if report.refusal is not None:
        command_line.print_table("Left out", [("epsilon, sanitised", report.refusal)])


if __name__ == "__main__":
    app.run(
        command_line.guarded(main, FLAGS),
        flags_parser=command_line.parse_flags(FLAGS, flags.Error),
    )
