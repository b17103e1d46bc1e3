"""Aggregation mechanisms as frozen values: one file each, registered by name."""

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
