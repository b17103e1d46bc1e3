"""Audits: lower bounds on the epsilon of mechanisms, and verification of run folders.

`audit_mechanism` samples a mechanism for neighboring data sets. `audit_run` compares a run folder
with an allow-list and its ledger. `report_page` returns the page for the person who signs. None of
them spends any budget.
"""

from pate_tf.audit.mechanism import MechanismAudit, audit_mechanism
from pate_tf.audit.run_audit import RunAudit, audit_run
from pate_tf.statement.report import report_page

__all__ = ["MechanismAudit", "RunAudit", "audit_mechanism", "audit_run", "report_page"]
