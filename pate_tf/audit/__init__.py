"""Audits: lower bounds on what releases give away, and checks of a run folder, beside the claims.

`audit_mechanism` draws for neighbouring data sets, `audit_run` recomputes and compares what a run
folder holds, `audit_canaries` puts records of the worst kind among private data. Each returns what
was claimed and what was found; none of them spends any budget.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pate_tf.audit.canaries import CanaryAudit as CanaryAudit
    from pate_tf.audit.canaries import audit_canaries as audit_canaries
    from pate_tf.audit.mechanism import MechanismAudit as MechanismAudit
    from pate_tf.audit.mechanism import audit_mechanism as audit_mechanism
    from pate_tf.audit.page import audit_page as audit_page
    from pate_tf.audit.report import report_page as report_page
    from pate_tf.audit.run import RunAudit as RunAudit
    from pate_tf.audit.run import audit_run as audit_run

_HOMES = {
    "CanaryAudit": "canaries",
    "audit_canaries": "canaries",
    "MechanismAudit": "mechanism",
    "audit_mechanism": "mechanism",
    "audit_page": "page",
    "report_page": "report",
    "RunAudit": "run",
    "audit_run": "run",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pate_tf.audit' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"pate_tf.audit.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
