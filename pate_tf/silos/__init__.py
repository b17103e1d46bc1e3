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
    from pate_tf.silos.coordinator import Coordinator as Coordinator
    from pate_tf.silos.policy import Policy as Policy
    from pate_tf.silos.roster import Asking as Asking
    from pate_tf.silos.roster import Member as Member
    from pate_tf.silos.roster import Roster as Roster
    from pate_tf.silos.silo import Silo as Silo
    from pate_tf.silos.teachers import SiloSums as SiloSums

_PUBLIC = {  # by the module that defines them
    "coordinator": ("Coordinator",),
    "policy": ("Policy",),
    "roster": ("Asking", "Member", "Roster"),
    "silo": ("Silo",),
    "teachers": ("SiloSums",),
}
__all__ = sorted(name for names in _PUBLIC.values() for name in names)


def __getattr__(name: str) -> Any:
    for module, names in _PUBLIC.items():
        if name in names:
            return getattr(importlib.import_module(f"pate_tf.silos.{module}"), name)
    raise AttributeError(f"module 'pate_tf.silos' has no attribute {name!r}")
