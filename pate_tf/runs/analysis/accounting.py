"""A whole analysis: account for votes, release once, write what may and what may not be published.

A roof room, without TensorFlow: `analysis.py` reads flags, calls this, and prints.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from pate_tf import artifacts
from pate_tf.accounting.charge import Charge
from pate_tf.analysis import ledger as analysis_ledger
from pate_tf.analysis import report as analysis_report
from pate_tf.analysis import votes as analysis_votes
from pate_tf.analysis.accounting import (
    Progress,
    analyse,
    data_independent_guarantees,
    with_smooth_sensitivity,
)
from pate_tf.analysis.guarantees import Analysis, AnalysisConfig
from pate_tf.analysis.release import ReleaseStore
from pate_tf.analysis.release_request import SMOOTH_SENSITIVITY, Released, ReleaseRequest
from pate_tf.analysis.votes import VoteSource
from pate_tf.ledger import BudgetExceeded, BudgetMismatch, Ledger, LedgerError
from pate_tf.noise import NoiseSource

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
    return _read([folder], votes_needed=True)


def read_ledgers(paths: Sequence[pathlib.Path]) -> PaidQueries:
    """Reads ledgers of ensembles trained on the same records, and their votes if they are there.

    Args:
      paths: each ledger's file or folder.

    Raises:
      LedgerError: if a ledger is missing or damaged, or votes are damaged.
      ValueError: if an ensemble is named twice.
    """
    return _read(paths, votes_needed=False)


def _read(paths: Sequence[pathlib.Path], *, votes_needed: bool) -> PaidQueries:
    with analysis_ledger.opened(paths) as ledgers:
        deltas = {ledger.delta for ledger in ledgers}
        return PaidQueries(
            source=analysis_votes.read_ledgers(ledgers, votes_needed=votes_needed),
            summaries=tuple(analysis_ledger.summarise(ledger) for ledger in ledgers),
            delta=deltas.pop() if len(deltas) == 1 else None,
        )


def run(
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
        return {charge: number for charge, number in ledger.paid().items() if not charge.answers}


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
