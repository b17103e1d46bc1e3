"""Mechanisms that release labels or sums with noise. `register` adds a custom mechanism."""

from pate_tf.accounting.conversions import LATTICE as LATTICE
from pate_tf.accounting.mechanisms.base import Mechanism as Mechanism
from pate_tf.accounting.mechanisms.base import register as register
from pate_tf.accounting.mechanisms.charged_once import GaussianFeatureSums as GaussianFeatureSums
from pate_tf.accounting.mechanisms.charged_once import GaussianMoments as GaussianMoments
from pate_tf.accounting.mechanisms.charged_once import GaussianResidualSums as GaussianResidualSums
from pate_tf.accounting.mechanisms.charged_once import LaplaceClusterCounts as LaplaceClusterCounts
from pate_tf.accounting.mechanisms.noisy_max import AdditiveNoisyMax as AdditiveNoisyMax
from pate_tf.accounting.mechanisms.noisy_max import (
    ConfidentGaussianNoisyMax as ConfidentGaussianNoisyMax,
)
from pate_tf.accounting.mechanisms.noisy_max import GaussianHistogram as GaussianHistogram
from pate_tf.accounting.mechanisms.noisy_max import GaussianNoisyMax as GaussianNoisyMax
from pate_tf.accounting.mechanisms.noisy_max import LaplaceNoisyMax as LaplaceNoisyMax
