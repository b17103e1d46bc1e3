"""PATE for TensorFlow and Keras: learn a public classifier from private data.

In one call, at epsilon 0.5 and delta 1e-6::

    import pate_tf

    data = pate_tf.Data.from_arrays(x_private, y_private, x_public, num_classes=10)
    fitted = pate_tf.fit(
        data, method="feature_sums", epsilon=0.5, delta=1e-6, directory="runs/mine"
    )
    fitted.predict(x)
    fitted.cost.epsilon
    fitted.publish("released")

Step by step; you can use `Teachers(num_teachers=250, directory=...)` instead of `FeatureSums`::

    sums = pate_tf.FeatureSums(directory="runs/mine").fit(data.private, data.pool)
    with pate_tf.Labeller(sums, epsilon=0.5, delta=1e-6) as labeller:
        labels = labeller.label(data.pool)
    student = pate_tf.Student().fit(data.pool, labels)
    student.publish("released")

`plan` recommends a method and a mechanism for an epsilon, from public values only.
`PateClassifier` and, for numbers, `PateRegressor` are estimators for scikit-learn.

Data flow in one direction. The private records are partitioned among teachers. The teachers vote on
public inputs. Noise is added to the votes, and the resulting labels are released. The student
learns from these labels. Instead of training teachers, `FeatureSums` adds up the feature vectors of
each class. The cost of every release is recorded in a ledger before the noise is drawn. Modules are
imported when a name is first used, so `import pate_tf` is fast, and the accounting never needs
TensorFlow.
"""

import importlib
import os
from typing import TYPE_CHECKING, Any

from pate_tf.core import environment as _environment

# TensorFlow reads this variable when it is imported. By default, it uses the oneDNN library only on
# the newest processors. Without oneDNN, computing the features of images took four times as long,
# and training was a third slower.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")

# This variable takes precedence over the backend in keras.json.
os.environ.setdefault("KERAS_BACKEND", "tensorflow")

if TYPE_CHECKING:
    from pate_tf import accounting as accounting
    from pate_tf import analysis as analysis
    from pate_tf import audit as audit
    from pate_tf.accounting import mechanisms as mechanisms
    from pate_tf.accounting.charge import Cost as Cost
    from pate_tf.accounting.mechanisms import ConfidentGaussianNoisyMax as ConfidentGaussianNoisyMax
    from pate_tf.accounting.mechanisms import GaussianNoisyMax as GaussianNoisyMax
    from pate_tf.accounting.mechanisms import LaplaceNoisyMax as LaplaceNoisyMax
    from pate_tf.core.dataset import Dataset as Dataset
    from pate_tf.data.loaded_data import Data as Data
    from pate_tf.ledger import BudgetExceeded as BudgetExceeded
    from pate_tf.ledger import LedgerError as LedgerError
    from pate_tf.ledger import Spending as Spending
    from pate_tf.planning.comparison import Plan as Plan
    from pate_tf.planning.comparison import plan as plan
    from pate_tf.planning.forecast import ForecastError as ForecastError
    from pate_tf.queries.labels import Labels as Labels
    from pate_tf.release.feature_sums import FeatureSums as FeatureSums
    from pate_tf.representations.catalogue import Representation as Representation
    from pate_tf.run.classifier import PateClassifier as PateClassifier
    from pate_tf.run.classifier import PateRegressor as PateRegressor
    from pate_tf.run.classifier import fit as fit
    from pate_tf.run.labeller import Labeller as Labeller
    from pate_tf.run.pipeline import Fitted as Fitted
    from pate_tf.run.student import Student as Student
    from pate_tf.statement.privacy_statement import PrivacyStatement as PrivacyStatement
    from pate_tf.statement.publishing import Published as Published
    from pate_tf.teachers.teacher_set import Teachers as Teachers

__version__ = "0.1.0"

# Hides the log messages of TensorFlow's libraries, and gRPC's message about each failed handshake.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("GRPC_VERBOSITY", "ERROR")

_NEED_TENSORFLOW = ("data", "release", "representations", "run", "teachers")  # packages

# The public names of each module. `_MODULES` has the public modules.
_NAMES = {
    "accounting.charge": ["Cost"],
    "accounting.mechanisms": ["ConfidentGaussianNoisyMax", "GaussianNoisyMax", "LaplaceNoisyMax"],
    "planning.comparison": ["Plan", "plan"],
    "planning.forecast": ["ForecastError"],
    "data.loaded_data": ["Data"],
    "release.feature_sums": ["FeatureSums"],
    "run.classifier": ["PateClassifier", "PateRegressor", "fit"],
    "run.pipeline": ["Fitted"],
    "run.labeller": ["Labeller"],
    "statement.publishing": ["Published"],
    "run.student": ["Student"],
    "teachers.teacher_set": ["Teachers"],
    "core.dataset": ["Dataset"],
    "ledger": ["BudgetExceeded", "LedgerError", "Spending"],
    "queries.labels": ["Labels"],
    "representations.catalogue": ["Representation"],
    "statement.privacy_statement": ["PrivacyStatement"],
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}
_MODULES = {name: name for name in ("accounting", "analysis", "audit")}
_MODULES |= {"mechanisms": "accounting.mechanisms"}


__all__ = sorted([*_HOMES, *_MODULES])


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'pate_tf' has no attribute {name!r}")
    if _HOMES.get(name, "").partition(".")[0] in _NEED_TENSORFLOW:
        _environment.check_environment()
        _environment.prepare_start_of_tensorflow(is_shown=os.environ["TF_CPP_MIN_LOG_LEVEL"] != "3")
    module = importlib.import_module(f"pate_tf.{_MODULES.get(name) or _HOMES[name]}")
    globals()[name] = value = module if name in _MODULES else getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
