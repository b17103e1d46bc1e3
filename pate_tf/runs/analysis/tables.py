"""The tables of a whole analysis. TensorFlow is not imported."""

from collections.abc import Iterator, Sequence

from pate_tf.analysis import ledger_report
from pate_tf.analysis import report as reports
from pate_tf.analysis.ledger import LedgerSummary
from pate_tf.runs.analysis import accounting as analysis
from pate_tf.runs.reporting import Table


def ledger_tables(summaries: Sequence[LedgerSummary], *, is_run: bool) -> Iterator[Table]:
    """Yields history and balance of ledgers; of a run's what its own tables do not say."""
    for summary in summaries:
        if is_run:
            rows = [*ledger_report.together_rows(summary), *ledger_report.unpaid_rows(summary)]
            yield Table(title="Ledger", rows=rows)
        else:
            yield Table(title=f"History of {summary.folder}", lines=summary.history)
            yield Table(title="Ledger, publishable", rows=ledger_report.ledger_rows(summary))


def report_tables(report: analysis.AnalysisReport) -> Iterator[Table]:
    """Yields what may be published, what may not, and what was left out."""
    rows = reports.publishable_rows(
        report.analysis, report.released, is_secure=report.publishable["secure_noise"]
    )
    yield Table(title="Publishable", rows=rows)
    if rows := reports.sensitive_rows(report.analysis):
        yield Table(title="SENSITIVE, do not publish", rows=rows, is_sensitive=True)
    if report.refusal is not None:
        yield Table(title="Left out", rows=[("epsilon, sanitised", report.refusal)])
