"""Shared training without sharing records: distributed selective SGD.

    import pate_tf
    from pate_tf import selective_sgd

    data = pate_tf.Data.load("digits")
    settings = selective_sgd.Settings(num_participants=6, rounds=5, upload=0.1)
    shared = selective_sgd.train(data.private, settings, model="mlp")
    model = shared.global_model()

Names are imported when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pate_tf.selective_sgd.private_training import train
    from pate_tf.selective_sgd.run_state import LedgerFacts
    from pate_tf.selective_sgd.server import Parameters, Server
    from pate_tf.selective_sgd.settings import Privacy, Settings
    from pate_tf.selective_sgd.training import RoundStatistics, SharedTraining
    from pate_tf.selective_sgd.upload import RefusedUploadError, Upload

_NAMES = {
    "private_training": ("train",),
    "run_state": ("LedgerFacts",),
    "server": ("Parameters", "Server"),
    "settings": ("Privacy", "Settings"),
    "training": ("RoundStatistics", "SharedTraining"),
    "upload": ("RefusedUploadError", "Upload"),
}
__all__ = [
    "LedgerFacts",
    "Parameters",
    "Privacy",
    "RefusedUploadError",
    "RoundStatistics",
    "Server",
    "Settings",
    "SharedTraining",
    "Upload",
    "train",
]


def __getattr__(name: str) -> Any:
    for module, names in _NAMES.items():
        if name in names:
            return getattr(importlib.import_module(f"pate_tf.selective_sgd.{module}"), name)
    raise AttributeError(f"module 'pate_tf.selective_sgd' has no attribute {name!r}")
