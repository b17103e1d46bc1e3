"""Aggregation mechanisms as frozen values: one file each, registered by name."""

from pate_tf.accounting.lattice import LATTICE
from pate_tf.accounting.mechanisms.additive import AdditiveNoisyMax
from pate_tf.accounting.mechanisms.base import Mechanism
from pate_tf.accounting.mechanisms.class_sums import ClassSums
from pate_tf.accounting.mechanisms.confident_gaussian_noisy_max import ConfidentGaussianNoisyMax
from pate_tf.accounting.mechanisms.drawing import (
    Answers,
    NoiseSource,
    NoisyWinners,
    largest_sums,
)
from pate_tf.accounting.mechanisms.exponential import ExponentialMechanism
from pate_tf.accounting.mechanisms.gaussian_histogram import GaussianHistogram
from pate_tf.accounting.mechanisms.gaussian_noisy_max import GaussianNoisyMax
from pate_tf.accounting.mechanisms.interactive_gaussian_noisy_max import (
    InteractiveGaussianNoisyMax,
)
from pate_tf.accounting.mechanisms.laplace_noisy_max import LaplaceNoisyMax
from pate_tf.accounting.mechanisms.parameters import Flag, Parameter
from pate_tf.accounting.mechanisms.permute_and_flip import PermuteAndFlip
from pate_tf.accounting.mechanisms.plurality import Plurality
from pate_tf.accounting.mechanisms.pure import PureNoisyMax
from pate_tf.accounting.mechanisms.registry import mechanism_from_dict, register
from pate_tf.accounting.mechanisms.stability_gate import StabilityGate
from pate_tf.accounting.mechanisms.stability_gate_or_histogram import StabilityGateOrHistogram

__all__ = [
    "LATTICE",
    "AdditiveNoisyMax",
    "Answers",
    "ClassSums",
    "ConfidentGaussianNoisyMax",
    "ExponentialMechanism",
    "Flag",
    "GaussianHistogram",
    "GaussianNoisyMax",
    "InteractiveGaussianNoisyMax",
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
