"""A whole analysis, from plain values to tables.

What `pate_tf.cli.analysis` calls, and any program may. TensorFlow is not imported.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pate_tf import artifacts
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.planned_release import PlannedRelease
from pate_tf.analysis import ledger as ledgers
from pate_tf.analysis import ledger_report
from pate_tf.analysis import report as reports
from pate_tf.analysis import votes as analysed_votes
from pate_tf.analysis.accounting import Progress
from pate_tf.analysis.guarantees import AnalysisConfig
from pate_tf.analysis.ledger import LedgerSummary
from pate_tf.analysis.release_request import SANITISED, ReleaseRequest
from pate_tf.analysis.votes import VoteSource
from pate_tf.noise import NoiseSource, SystemNoise
from pate_tf.runs.analysis import accounting as analysis
from pate_tf.runs.analysis import tables as analysis_tables
from pate_tf.runs.reporting import QUIET, Reporting, Row, Table, TablesReport
from pate_tf.statement import check, released

DEFAULT_DELTA, DEFAULT_BETA = 1e-5, 0.09
DEFAULT_OUTPUT = pathlib.Path("runs/analysis")
LEFT = (
    "left as it was: another ledger, another delta, or queries chosen by noisy labels, which the "
    "release does not cover"
)
NOT_RELEASED = "`release=sanitised` draws one, once; the ledger is charged for it first"


@dataclasses.dataclass(frozen=True, kw_only=True)
class VotesFile:
    """Votes in a file; see `analysis.votes.read_votes_file`.

    Attributes:
      path: a `.npy` file.
      mechanism: how labels are drawn from them.
      input_is_counts: whether it holds counts, not labels.
      indices_file: indices of the queries to analyse; None for all.
      max_examples: how many queries, from the first; None for all.
      num_classes: None for as many as counts have, else 10.
    """

    path: pathlib.Path
    mechanism: Mechanism
    input_is_counts: bool = False
    indices_file: pathlib.Path | None = None
    max_examples: int | None = None
    num_classes: int | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaidVotes:
    """What ledgers paid for, and the votes beside them: of a run, or of ledgers.

    Attributes:
      run: a run folder with a ledger and all its votes; None for `ledgers`.
      ledgers: each one's file or folder; of ensembles trained on the same records.
      mechanism: what the user says of the ledgers' mechanism: name and fields; checked.
      statement: to be held against the one ledger of `ledgers`.
    """

    run: pathlib.Path | None = None
    ledgers: Sequence[pathlib.Path] = ()
    mechanism: Mapping[str, object] = dataclasses.field(default_factory=dict)
    statement: pathlib.Path | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class AskedRelease:
    """What is released of the data-dependent cost.

    Attributes:
      kinds: as of `ReleaseRequest`, or none for nothing; None to show again what a ledger keeps.
      plan: fields of the plan that differ from what the ledger fixed, else from `PlannedRelease()`.
      budget: of a gate; see `ReleaseRequest`.
      attempts: likewise.
      discard_earlier: whether an earlier draw under another plan was never published.
    """

    kinds: tuple[str, ...] | None = None
    plan: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    budget: float | None = None
    attempts: int | None = None
    discard_earlier: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnalysisRun:
    """An analysis, in plain values.

    Attributes:
      source: the votes that are accounted for.
      delta: None for the ledgers' own, `DEFAULT_DELTA` for a file.
      accounting: how costs become an epsilon, at that delta whatever its own is.
      release: what is released.
      adaptive: whether queries were chosen by looking at earlier noisy labels.
      beta: rate of the smooth sensitivity, per teacher.
      output: where results go; None for the run's folder, else `DEFAULT_OUTPUT`.
      plots: a folder for plots; None for none.
    """

    source: VotesFile | PaidVotes
    delta: float | None = None
    accounting: AnalysisConfig = dataclasses.field(default_factory=AnalysisConfig)
    release: AskedRelease = dataclasses.field(default_factory=AskedRelease)
    adaptive: bool = False
    beta: float = DEFAULT_BETA
    output: pathlib.Path | None = None
    plots: pathlib.Path | None = None


def run(
    asked: AnalysisRun, reporting: Reporting = QUIET, *, noise: NoiseSource | None = None
) -> TablesReport:
    """Accounts for votes, releases what was asked for, keeps and returns what was found out.

    Args:
      asked: what to do.
      reporting: how progress is shown.
      noise: of a release. Default: of the operating system.

    Raises:
      ValueError: if something does not fit; nothing was charged then.
      LedgerError: if a ledger can't be used, or can't be charged for the release.
      OSError: if a result can't be written.
    """
    tables = []
    if asked.plots is not None:
        artifacts.RunDirectory(asked.plots).check()
    folder = asked.source.run if isinstance(asked.source, PaidVotes) else None
    if isinstance(asked.source, PaidVotes) and asked.source.statement is not None:
        tables.append(_checked_statement(asked.source.statement, asked.source.ledgers))
    source, summaries, delta = _read(asked)
    request = _request(asked, source, delta)
    accounting = dataclasses.replace(asked.accounting, delta=delta)
    stated = None
    if folder is not None and request is not None:
        # A broken page is told before anything is charged.
        stated = released.read_statement(artifacts.RunDirectory(folder))
    with _exact_progress(reporting) as progress:
        report = analysis.run(
            source,
            analysis.RunConfig(
                accounting=accounting,
                release=request,
                release_is_optional=asked.release.kinds is None,
                discard_earlier=asked.release.discard_earlier,
                adaptive=asked.adaptive,
                beta=asked.beta,
            ),
            artifacts.RunDirectory(asked.output or folder or DEFAULT_OUTPUT),
            noise=noise or SystemNoise(),
            progress=progress,
        )
    tables += analysis_tables.ledger_tables(summaries, is_run=folder is not None)
    tables += analysis_tables.report_tables(report)
    if folder is not None and request is None and asked.release.kinds is None:
        tables.append(Table(title="Left out", rows=[("epsilon, sanitised", NOT_RELEASED)]))
    files = [
        ("publishable", str(report.publishable_file)),
        ("SENSITIVE", str(report.sensitive_file)),
    ]
    if folder is not None and stated is not None:
        files += _onto_the_statement(folder, report)
    if asked.plots is not None:
        from pate_tf.analysis import plots

        with reporting.clock("drawing plots"):
            drawn = plots.draw(artifacts.RunDirectory(asked.plots), source, accounting)
        files += [(f"plot, {path.parent.name}", str(path)) for path in drawn]
    tables.append(Table(title="Written to", rows=files))
    if folder is not None and (
        rows := reports.run_rows(artifacts.RunDirectory(folder), report.analysis)
    ):
        tables.append(Table(title="The run", rows=rows))
    values = {**report.publishable, **report.sensitive, "sensitive": list(report.sensitive)}
    if summaries:
        values["ledgers"] = [ledger_report.ledger_report(summary) for summary in summaries]
    return TablesReport(tables=tables, values=values)


def _checked_statement(path: pathlib.Path, paths: Sequence[pathlib.Path]) -> Table:
    if len(paths) != 1:
        raise ValueError(f"statement: expected one ledger to hold it against, got {len(paths)}")
    statement = artifacts.read_json(path)
    with ledgers.opened(paths) as (ledger,):
        check.check_statement(statement, ledger)
    return Table(title="Statement", rows=[(str(path), "agrees with the ledger")])


def _read(asked: AnalysisRun) -> tuple[VoteSource, tuple[LedgerSummary, ...], float]:
    """Returns the votes, the ledgers that paid for them, and delta."""
    votes = asked.source
    if isinstance(votes, VotesFile):
        source = analysed_votes.read_votes_file(
            votes.path,
            votes.mechanism,
            input_is_counts=votes.input_is_counts,
            indices_file=votes.indices_file,
            max_examples=votes.max_examples,
            num_classes=votes.num_classes,
        )
        return source, (), asked.delta or DEFAULT_DELTA
    if votes.run is None:
        paid = analysis.read_ledgers(votes.ledgers)
    else:
        paid = analysis.read_run(votes.run)
    analysed_votes.check_mechanisms(paid.source.num_paid, votes.mechanism)
    delta = asked.delta or paid.delta
    if delta is None:
        raise ValueError("delta: expected one, as the ledgers differ in theirs, got none")
    return paid.source, paid.summaries, delta


def _request(asked: AnalysisRun, source: VoteSource, delta: float) -> ReleaseRequest | None:
    """Returns what is to be released; None for nothing."""
    kinds = asked.release.kinds
    if kinds is None:
        kinds = (SANITISED,) if source.has_release and not asked.adaptive else ()
    if not kinds:
        return None
    # What a ledger fixed before there were votes stands unless something else is asked for.
    planned = source.planned_release or PlannedRelease()
    fields = ("profile", "moment", "smoothness", "sigma", "confidence")
    return ReleaseRequest(
        kinds=kinds,
        delta=delta,
        adaptive=asked.adaptive,
        **{**{field: getattr(planned, field) for field in fields}, **asked.release.plan},
        budget=asked.release.budget,
        attempts=asked.release.attempts,
    )


@contextlib.contextmanager
def _exact_progress(reporting: Reporting) -> Iterator[Progress]:
    """Shows a bar while the bound `exact` runs."""
    with contextlib.ExitStack() as stack:
        bars: list[Any] = []

        def show(done: int, total: int) -> None:
            if done == 1:
                bar = reporting.progress_bar("exact", total, "histogram")
                bars.append(stack.enter_context(bar))
            bars[-1](1)

        yield show


def _onto_the_statement(folder: pathlib.Path, report: analysis.AnalysisReport) -> list[Row]:
    """Puts a sanitised epsilon onto the page of the run's student; says so."""
    if report.released is None or report.released.sanitised is None:
        return []
    page = released.add_release(artifacts.RunDirectory(folder), report.released.sanitised)
    return [("privacy statement", f"{page}, now with the sanitised epsilon" if page else LEFT)]
