"""Verification of run folders, and the page for the person who signs.

`audit_run` compares a run folder with an allow-list and its ledger. `report_page` returns the page.
Neither spends any budget.
"""

from pate_tf.audit.run_audit import RunAudit, audit_run
from pate_tf.statement.report import report_page

__all__ = ["RunAudit", "audit_run", "report_page"]
