"""Silos: records that never leave their owners, and a coordinator that need not be trusted.

    silo = pate_tf.silos.Silo("policy.toml", classifier, num_classes=10, folder="silo/sensitive")
    coordinator = pate_tf.silos.Coordinator("roster.toml", silos=[silo], folder="runs/mine")
    labels = coordinator.label(data.pool, num_queries=100)

Each silo shares sums of its records' features, or trains a teacher and answers public queries with
a vote that protects it, and keeps its own account of what that cost. Nothing here imports
TensorFlow before a teacher or a strategy needs it.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pate_tf.silos.coordinator import Coordinator
    from pate_tf.silos.policy import Policy
    from pate_tf.silos.roster import Asking, Member, Roster
    from pate_tf.silos.silo import Silo
    from pate_tf.silos.teachers import SiloSums, simulated_total

# Where each public name is defined.
_MODULES = {
    "Asking": "roster",
    "Coordinator": "coordinator",
    "Member": "roster",
    "Policy": "policy",
    "Roster": "roster",
    "Silo": "silo",
    "SiloSums": "teachers",
    "simulated_total": "teachers",
}

__all__ = [
    "Asking",
    "Coordinator",
    "Member",
    "Policy",
    "Roster",
    "Silo",
    "SiloSums",
    "simulated_total",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'pate_tf.silos' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"pate_tf.silos.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
