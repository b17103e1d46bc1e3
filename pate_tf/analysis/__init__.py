"""Computes the privacy cost of answered queries, and releases this cost with noise.

`analyse` computes the cost of given votes. This package does not import TensorFlow.
"""

from pate_tf.accounting.charge import SanitisedEpsilon
from pate_tf.analysis.vote_sources import Analysis, analyse, read_ledgers, read_votes_file

__all__ = ["Analysis", "SanitisedEpsilon", "analyse", "read_ledgers", "read_votes_file"]
