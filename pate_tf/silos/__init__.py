"""Learning from silos with an untrusted coordinator; records never leave their silo.

    silo = Silo("policy.toml", SiloTeacher(model, num_classes=10), folder="silo/sensitive")
    coordinator = Coordinator("roster.toml", silos=[silo], folder="runs/mine")
    labels = coordinator.label(data.pool, num_queries=100)

A silo is one of several data holders. Each silo either trains a teacher that votes on public
queries, or computes noisy sums of its records' features and secret-shares them. The votes are
either randomized, or secret-shared and added up with noise. Each silo records the privacy cost in
its own ledger. TensorFlow is imported only when a teacher or a strategy needs it.
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
