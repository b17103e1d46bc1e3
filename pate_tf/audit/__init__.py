"""Audits run folders, and creates a report for the person who approves a release.

`audit_run` compares a run folder with its ledger and with a list of allowed files. `report_page`
returns the report. Neither function spends any privacy budget.
"""

from pate_tf.audit.run_audit import RunAudit, audit_run
from pate_tf.statement.report import report_page

__all__ = ["RunAudit", "audit_run", "report_page"]
