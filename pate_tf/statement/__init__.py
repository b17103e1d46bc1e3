"""The privacy statement. A statement of each system is known once this package is imported."""

from pate_tf.statement import labels, shared_training, silos

__all__ = ["labels", "shared_training", "silos"]
