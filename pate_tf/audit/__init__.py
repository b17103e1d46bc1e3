"""Audits: lower bounds on what mechanisms give away, and verification of run folders.

`audit_mechanism` draws for neighboring data sets, `audit_run` compares what a run folder holds with
an allow-list and its ledger, and `report_page` is the page for the person who signs. None spends
any budget.
"""

from pate_tf.audit.mechanism import MechanismAudit, audit_mechanism
from pate_tf.audit.run_audit import RunAudit, audit_run
from pate_tf.statement.report import report_page

__all__ = ["MechanismAudit", "RunAudit", "audit_mechanism", "audit_run", "report_page"]
