"""Shared training without sharing records: distributed selective SGD.

    import pate_tf
    from pate_tf import selective_sgd

    data = pate_tf.datasets.load("digits")
    settings = selective_sgd.Settings(num_participants=6, rounds=5, upload=0.1)
    shared = selective_sgd.train(data.private, settings, model="mlp")
    model = shared.global_model()

Names are imported when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pate_tf.selective_sgd.privacy import Payment, Privacy
    from pate_tf.selective_sgd.server import Parameters, Server
    from pate_tf.selective_sgd.settings import Settings
    from pate_tf.selective_sgd.simulation import train
    from pate_tf.selective_sgd.training import RoundStatistics, SharedTraining
    from pate_tf.selective_sgd.upload import RefusedUploadError, Upload

_HOMES = {
    "Parameters": "server",
    "Payment": "privacy",
    "Privacy": "privacy",
    "RefusedUploadError": "upload",
    "RoundStatistics": "training",
    "Server": "server",
    "Settings": "settings",
    "SharedTraining": "training",
    "Upload": "upload",
    "train": "simulation",
}

__all__ = [
    "Parameters",
    "Payment",
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
    if name not in _HOMES:
        raise AttributeError(f"module 'pate_tf.selective_sgd' has no attribute {name!r}")
    module = importlib.import_module(f"pate_tf.selective_sgd.{_HOMES[name]}")
    globals()[name] = getattr(module, name)
    return globals()[name]
