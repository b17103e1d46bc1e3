"""Privacy cost of answered queries, by every bound, and releases of data-dependent costs.

`analyse` computes the cost of votes. TensorFlow is not imported.
"""

from pate_tf.accounting.charge import SanitisedEpsilon
from pate_tf.analysis.vote_sources import Analysis, analyse, read_ledgers, read_votes_file

__all__ = ["Analysis", "SanitisedEpsilon", "analyse", "read_ledgers", "read_votes_file"]
