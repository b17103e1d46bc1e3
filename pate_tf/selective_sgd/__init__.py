"""Shared training: participants train one model together without sharing their records.

    import pate_tf
    from pate_tf import selective_sgd

    data = pate_tf.Data.load("digits")
    settings = selective_sgd.TrainingSettings(num_participants=6, rounds=5, upload=0.1)
    shared = selective_sgd.train(data.private, settings)
    shared.accuracy(data.held_out)

`train` and `SharedModel` import TensorFlow when they are first used.
"""

from typing import TYPE_CHECKING, Any

from pate_tf.selective_sgd.training_settings import Terms, TrainingSettings

if TYPE_CHECKING:
    from pate_tf.selective_sgd.shared_training import SharedModel, train

__all__ = ["SharedModel", "Terms", "TrainingSettings", "train"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'pate_tf.selective_sgd' has no attribute {name!r}")
    from pate_tf.selective_sgd import shared_training

    return getattr(shared_training, name)
