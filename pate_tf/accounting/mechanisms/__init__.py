"""Aggregation mechanisms as frozen values: each file of this package registers its own."""

import importlib
import pkgutil

from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.mechanisms.base import (
    Answers,
    Flag,
    Mechanism,
    NoiseSource,
    NoisyWinners,
    Parameter,
    largest_sums,
    mechanism_from_dict,
    register,
)
from pate_tf.accounting.mechanisms.confident_gaussian_noisy_max import (
    ConfidentGaussianNoisyMax,
    InteractiveGaussianNoisyMax,
)
from pate_tf.accounting.mechanisms.feature_sums import (
    GaussianFeatureSums,
    GaussianResidualSums,
    LaplaceClusterCounts,
)
from pate_tf.accounting.mechanisms.noisy_max import (
    AdditiveNoisyMax,
    ExponentialMechanism,
    GaussianHistogram,
    GaussianNoisyMax,
    LaplaceNoisyMax,
    PermuteAndFlip,
    Plurality,
    PureNoisyMax,
)
from pate_tf.accounting.mechanisms.stability_gate import StabilityGate, StabilityGateOrHistogram

__all__ = [
    "LATTICE",
    "AdditiveNoisyMax",
    "Answers",
    "ConfidentGaussianNoisyMax",
    "ExponentialMechanism",
    "Flag",
    "GaussianFeatureSums",
    "GaussianHistogram",
    "GaussianNoisyMax",
    "GaussianResidualSums",
    "InteractiveGaussianNoisyMax",
    "LaplaceClusterCounts",
    "LaplaceNoisyMax",
    "Mechanism",
    "NoiseSource",
    "NoisyWinners",
    "Parameter",
    "PermuteAndFlip",
    "Plurality",
    "PureNoisyMax",
    "StabilityGate",
    "StabilityGateOrHistogram",
    "largest_sums",
    "mechanism_from_dict",
    "register",
]


def discover() -> None:
    """Imports every file of this package, each of which registers its mechanisms."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")


discover()
