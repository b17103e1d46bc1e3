"""Local randomisers: each owner of a vote randomises it before it leaves, and trusts no one."""

from pate_tf.accounting.local.base import (
    LOCAL_RANDOMISERS,
    SILO_CHARGES,
    LocalNoise,
    LocalRandomiser,
    SecureHistogram,
    WorstPair,
    silo_charge_from_dict,
)
from pate_tf.accounting.local.feature_sums import SecureFeatureSums
from pate_tf.accounting.local.randomised_response import RandomisedResponse
from pate_tf.accounting.local.truncated_geometric import TruncatedGeometric

__all__ = [
    "LOCAL_RANDOMISERS",
    "SILO_CHARGES",
    "LocalNoise",
    "LocalRandomiser",
    "RandomisedResponse",
    "SecureFeatureSums",
    "SecureHistogram",
    "TruncatedGeometric",
    "WorstPair",
    "silo_charge_from_dict",
]
