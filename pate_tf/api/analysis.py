"""A whole analysis: account for votes, release once, write what may and what may not be published.

A roof room, without TensorFlow: `analysis.py` reads flags, calls this, and prints.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.planning import PlannedRelease
from pate_tf.aggregation.noise import NoiseSource, SystemNoise
from pate_tf.analysis import ledger as analysis_ledger
from pate_tf.analysis import ledger as ledgers
from pate_tf.analysis import report as analysis_report
from pate_tf.analysis import report as ledger_report
from pate_tf.analysis import votes as analysed_votes
from pate_tf.analysis import votes as analysis_votes
from pate_tf.analysis.accounting import (
    Progress,
    analyse,
    data_independent_guarantees,
    with_smooth_sensitivity,
)
from pate_tf.analysis.guarantees import Analysis, AnalysisConfig
from pate_tf.analysis.ledger import LedgerSummary
from pate_tf.analysis.release import ReleaseStore
from pate_tf.analysis.release_planning import (
    SANITISED,
    SMOOTH_SENSITIVITY,
    Released,
    ReleaseRequest,
)
from pate_tf.analysis.votes import VoteSource
from pate_tf.api.reporting import QUIET, Reporting, Row, Table, TablesReport
from pate_tf.core import artifacts
from pate_tf.ledger import BudgetExceeded, BudgetMismatch, Ledger, LedgerError
from pate_tf.statement import check

FILE = "analysis.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """What an analysis does. Public.

    Attributes:
      accounting: how costs become an epsilon.
      release: what is released of the data-dependent cost; None for nothing.
      release_is_optional: whether a release that is not possible is left out, with the reason told,
        rather than an error.
      discard_earlier: whether an earlier draw under another plan was never published.
      adaptive: whether queries were chosen by looking at earlier noisy labels: then only
        data-independent accounting holds.
      beta: rate of the smooth sensitivity, per teacher.
    """

    accounting: AnalysisConfig
    release: ReleaseRequest | None
    release_is_optional: bool = False
    discard_earlier: bool = False
    adaptive: bool = False
    beta: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnalysisReport:
    """What an analysis found out.

    Attributes:
      analysis: every guarantee; its bounds are SENSITIVE.
      released: publishable; None if nothing was released.
      refusal: why an optional release was left out; None if it was not.
      publishable: what `released/analysis.json` holds.
      sensitive: SENSITIVE; what `sensitive/analysis.json` holds.
      publishable_file: where.
      sensitive_file: where.
    """

    analysis: Analysis
    released: Released | None
    refusal: str | None
    publishable: dict[str, Any]
    sensitive: dict[str, Any] = dataclasses.field(repr=False)
    publishable_file: pathlib.Path
    sensitive_file: pathlib.Path


@dataclasses.dataclass(frozen=True, kw_only=True)
class PaidQueries:
    """What ledgers and the votes beside them hold.

    Attributes:
      source: SENSITIVE; the votes.
      summaries: a summary of each ledger.
      delta: of all ledgers; None where they differ.
    """

    source: VoteSource
    summaries: tuple[analysis_ledger.LedgerSummary, ...]
    delta: float | None


def read_run(run: pathlib.Path) -> PaidQueries:
    """Reads the ledger of a run folder and the votes of everything that was paid for.

    Raises:
      LedgerError: if the ledger or its votes are missing or damaged.
      ValueError: if votes are not of one ensemble.
    """
    folder = run / artifacts.SENSITIVE
    if not (folder / analysis_votes.LEDGER_FILE).exists():
        raise LedgerError(
            f"run: expected a ledger in {folder}, got none; it lies in the run folder of the "
            f"teachers"
        )
    return _read_votes([folder], votes_needed=True)


def read_ledgers(paths: Sequence[pathlib.Path]) -> PaidQueries:
    """Reads ledgers of ensembles trained on the same records, and their votes if they are there.

    Args:
      paths: each ledger's file or folder.

    Raises:
      LedgerError: if a ledger is missing or damaged, or votes are damaged.
      ValueError: if an ensemble is named twice.
    """
    return _read_votes(paths, votes_needed=False)


def _read_votes(paths: Sequence[pathlib.Path], *, votes_needed: bool) -> PaidQueries:
    with analysis_ledger.opened(paths) as ledgers:
        deltas = {ledger.delta for ledger in ledgers}
        return PaidQueries(
            source=analysis_votes.read_ledgers(ledgers, votes_needed=votes_needed),
            summaries=tuple(analysis_ledger.summarise(ledger) for ledger in ledgers),
            delta=deltas.pop() if len(deltas) == 1 else None,
        )


def account(
    source: VoteSource,
    config: RunConfig,
    output: artifacts.RunDirectory,
    *,
    noise: NoiseSource,
    progress: Progress | None = None,
) -> AnalysisReport:
    """Accounts for votes, releases what was asked for, and writes both halves of the result.

    Args:
      source: the votes.
      config: what to do.
      output: where `sensitive/analysis.json`, `released/analysis.json` and the draws from files
        of votes go. Nothing is written there before the accounting succeeded. Draws from a
        ledger's votes are paid for and kept in the ledger.
      noise: of a release; not drawn from if there is a draw already.
      progress: called with (histograms done, histograms in all) while the bound `exact` runs.

    Raises:
      ValueError: if the mechanism lacks a bound, adaptive queries are to have a data-dependent
        cost, or a release is not possible.
      LedgerError: if a ledger can't be charged for the release.
      OSError: if a result can't be written.
    """
    output.check(
        files=[f"{half}/{FILE}" for half in (artifacts.SENSITIVE, artifacts.RELEASED)],
        folders=[artifacts.SENSITIVE, artifacts.RELEASED, f"{artifacts.SENSITIVE}/releases"],
    )
    if config.adaptive and config.release is None:
        if config.accounting.bounds is not None:
            raise ValueError("bound: expected none for adaptive queries: no such bound holds")
        source = dataclasses.replace(source, groups=None)
    analysis = analyse(source, config.accounting, progress=progress)
    if config.release is not None and SMOOTH_SENSITIVITY in config.release.kinds:
        analysis = with_smooth_sensitivity(analysis, source, beta=config.beta)
    released, refusal = _release(source, config, output, noise)
    if released is not None:
        found = data_independent_guarantees(
            source.num_paid, config.accounting, _releases(source, released)
        )
        analysis = dataclasses.replace(analysis, data_independent=found)
    publishable = analysis_report.publishable_report(
        analysis,
        released,
        is_secure=source.is_secure and (released is None or released.secure_noise),
    )
    sensitive = analysis_report.sensitive_report(analysis)
    sensitive_file, publishable_file = output.sensitive / FILE, output.released / FILE
    artifacts.write_json(sensitive_file, sensitive, private=True)
    artifacts.write_json(publishable_file, publishable)
    return AnalysisReport(
        analysis=analysis,
        released=released,
        refusal=refusal,
        publishable=publishable,
        sensitive=sensitive,
        publishable_file=publishable_file,
        sensitive_file=sensitive_file,
    )


def _releases(source: VoteSource, released: Released) -> Mapping[Charge, int]:
    """Returns every draw from the votes that is known once `released` is published."""
    if source.folder is None:
        return {released.plan: 1}
    with Ledger.read(source.folder) as ledger:
        return {charge: number for charge, number in ledger.charges.items() if not charge.answers}


def _release(
    source: VoteSource,
    config: RunConfig,
    output: artifacts.RunDirectory,
    noise: NoiseSource,
) -> tuple[Released | None, str | None]:
    if config.release is None:
        return None, None
    try:
        if source.labels_left and source.folder is None:
            raise ValueError("release: expected one ledger, got several: release from each alone")
        store = ReleaseStore(output.root / artifacts.SENSITIVE)
        return (
            store.release(source, config.release, noise, discard_earlier=config.discard_earlier),
            None,
        )
    except (ValueError, BudgetExceeded, BudgetMismatch) as error:
        if not config.release_is_optional:
            raise
        return None, str(error)


# The tables of a whole analysis. TensorFlow is not imported.


def ledger_tables(summaries: Sequence[LedgerSummary], *, is_run: bool) -> Iterator[Table]:
    """Yields history and balance of ledgers; of a run's what its own tables do not say."""
    for summary in summaries:
        if is_run:
            rows = [*ledger_report.together_rows(summary), *ledger_report.unpaid_rows(summary)]
            yield Table(title="Ledger", rows=rows)
        else:
            yield Table(title=f"History of {summary.folder}", lines=summary.history)
            yield Table(title="Ledger, publishable", rows=ledger_report.ledger_rows(summary))


def report_tables(report: AnalysisReport) -> Iterator[Table]:
    """Yields what may be published, what may not, and what was left out."""
    rows = ledger_report.publishable_rows(
        report.analysis, report.released, is_secure=report.publishable["secure_noise"]
    )
    yield Table(title="Publishable", rows=rows)
    if rows := ledger_report.sensitive_rows(report.analysis):
        yield Table(title="SENSITIVE, do not publish", rows=rows, is_sensitive=True)
    if report.refusal is not None:
        yield Table(title="Left out", rows=[("epsilon, sanitised", report.refusal)])


# A whole analysis, from plain values to tables.
#
# What `pate_tf.cli.analysis` calls, and any program may. TensorFlow is not imported.


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
    source, summaries, delta = _read_run(asked)
    request = _request(asked, source, delta)
    accounting = dataclasses.replace(asked.accounting, delta=delta)
    stated, of_run, drawn = None, [], []
    # Everything that may fail without a draw comes before a ledger is charged for one.
    if folder is not None:
        of_run = analysis_report.run_rows(artifacts.RunDirectory(folder))
        if request is not None:
            stated = check.read_statement(artifacts.RunDirectory(folder))
    if asked.plots is not None:
        from pate_tf.analysis import plots

        with reporting.clock("drawing plots"):
            drawn = plots.draw(artifacts.RunDirectory(asked.plots), source, accounting)
    with _exact_progress(reporting) as progress:
        report = account(
            source,
            RunConfig(
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
    tables += ledger_tables(summaries, is_run=folder is not None)
    tables += report_tables(report)
    if folder is not None and request is None and asked.release.kinds is None:
        tables.append(Table(title="Left out", rows=[("epsilon, sanitised", NOT_RELEASED)]))
    files = [
        ("publishable", str(report.publishable_file)),
        ("SENSITIVE", str(report.sensitive_file)),
    ]
    if folder is not None and stated is not None:
        files += _onto_the_statement(folder, report)
    files += [(f"plot, {path.parent.name}", str(path)) for path in drawn]
    tables.append(Table(title="Written to", rows=files))
    if folder is not None and of_run:
        of_run += analysis_report.cost_rows(artifacts.RunDirectory(folder), report.analysis)
        tables.append(Table(title="The run", rows=of_run))
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


def _read_run(asked: AnalysisRun) -> tuple[VoteSource, tuple[LedgerSummary, ...], float]:
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
    paid = read_ledgers(votes.ledgers) if votes.run is None else read_run(votes.run)
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


def _onto_the_statement(folder: pathlib.Path, report: AnalysisReport) -> list[Row]:
    """Puts a sanitised epsilon onto the page of the run's student; says so."""
    if report.released is None or report.released.sanitised is None:
        return []
    page = check.add_release(artifacts.RunDirectory(folder), report.released.sanitised)
    return [("privacy statement", f"{page}, now with the sanitised epsilon" if page else LEFT)]
