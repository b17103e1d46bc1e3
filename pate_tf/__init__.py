"""PATE for TensorFlow and Keras: learn a public classifier from private data.

    data = pate_tf.datasets.load("digits")
    teachers = pate_tf.Teachers(num_teachers=20, directory="runs/mine").fit(data.private)
    mechanism = pate_tf.LaplaceNoisyMax.of_scale(5.0)
    with pate_tf.Labeller(teachers, mechanism, epsilon_budget=30.0, delta=1e-5) as labeller:
        labels = labeller.label(data.pool, num_queries=100)
    student = pate_tf.Student("consistency").fit(data.pool, labels)
    pate_tf.publish(student, labels, labeller, "released")

Data flows one way: private data, disjoint partition, teachers, votes, paid and noisy labels,
student, served model. See `CONTRIBUTING.md` for the rooms of the house and its laws. Nothing is
imported before a name needs it: `import pate_tf` is quick, and the accounting never needs
TensorFlow.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pate_tf import accounting
    from pate_tf.accounting.charge import Cost
    from pate_tf.accounting.mechanisms import (
        ClassSums,
        ConfidentGaussianNoisyMax,
        ExponentialMechanism,
        GaussianHistogram,
        GaussianNoisyMax,
        InteractiveGaussianNoisyMax,
        LaplaceNoisyMax,
        PermuteAndFlip,
        StabilityGate,
    )
    from pate_tf.accounting.planning import PlannedRelease, Recommendation, recommend
    from pate_tf.api import datasets
    from pate_tf.api.data import Data
    from pate_tf.api.labeller import Labeller
    from pate_tf.api.labels import Labels, load_labels
    from pate_tf.api.publishing import publish
    from pate_tf.api.student import Student
    from pate_tf.api.student_publishing import Published
    from pate_tf.api.teachers import Teachers
    from pate_tf.core.dataset import Dataset
    from pate_tf.ledger import BudgetExceeded, LedgerError, Spending
    from pate_tf.statement.privacy_statement import PrivacyStatement

__version__ = "0.1.0"

# Where each public name is defined.
_HOMES = {
    "BudgetExceeded": "ledger",
    "ClassSums": "accounting.mechanisms",
    "ConfidentGaussianNoisyMax": "accounting.mechanisms",
    "Cost": "accounting.charge",
    "Data": "api.data",
    "ExponentialMechanism": "accounting.mechanisms",
    "Dataset": "core.dataset",
    "GaussianHistogram": "accounting.mechanisms",
    "GaussianNoisyMax": "accounting.mechanisms",
    "Labeller": "api.labeller",
    "Labels": "api.labels",
    "InteractiveGaussianNoisyMax": "accounting.mechanisms",
    "LaplaceNoisyMax": "accounting.mechanisms",
    "LedgerError": "ledger",
    "PermuteAndFlip": "accounting.mechanisms",
    "PlannedRelease": "accounting.planning",
    "PrivacyStatement": "statement.privacy_statement",
    "Published": "api.student_publishing",
    "Recommendation": "accounting.planning",
    "Spending": "ledger",
    "StabilityGate": "accounting.mechanisms",
    "Student": "api.student",
    "Teachers": "api.teachers",
    "load_labels": "api.labels",
    "publish": "api.publishing",
    "recommend": "accounting.planning",
}
_MODULES = {"accounting": "accounting", "datasets": "api.datasets"}

__all__ = [
    "BudgetExceeded",
    "ClassSums",
    "ConfidentGaussianNoisyMax",
    "Cost",
    "Data",
    "Dataset",
    "ExponentialMechanism",
    "GaussianHistogram",
    "GaussianNoisyMax",
    "InteractiveGaussianNoisyMax",
    "Labeller",
    "Labels",
    "LaplaceNoisyMax",
    "LedgerError",
    "PermuteAndFlip",
    "PlannedRelease",
    "PrivacyStatement",
    "Published",
    "Recommendation",
    "Spending",
    "StabilityGate",
    "Student",
    "Teachers",
    "accounting",
    "datasets",
    "load_labels",
    "publish",
    "recommend",
]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        found: Any = importlib.import_module(f"pate_tf.{_MODULES[name]}")
    elif name in _HOMES:
        found = getattr(importlib.import_module(f"pate_tf.{_HOMES[name]}"), name)
    else:
        raise AttributeError(f"module 'pate_tf' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
