"""Silos: records that never leave their owners, and a coordinator that need not be trusted.

    silo = Silo("policy.toml", SiloTeacher(model, num_classes=10), folder="silo/sensitive")
    coordinator = Coordinator("roster.toml", silos=[silo], folder="runs/mine")
    labels = coordinator.label(data.pool, num_queries=100)

Each silo shares sums of its records' features, or trains a teacher and answers public queries with
a vote that protects it, and keeps its own privacy ledger of what that cost. Nothing here imports
TensorFlow before a teacher or a strategy needs it.
"""

from pate_tf.silos.coordinator import Coordinator
from pate_tf.silos.roster import Asking, Member, Policy, SiloRoster
from pate_tf.silos.silo import Silo, SiloSums, SiloTeacher

__all__ = [
    "Asking",
    "Coordinator",
    "Member",
    "Policy",
    "Silo",
    "SiloRoster",
    "SiloSums",
    "SiloTeacher",
]
