"""Pipelines: feature sums.

Integer sums do not depend on bundles, workers or retries, so a result is to the last bit that of
one process. What becomes of a record follows from that record and the schema alone. One that does
not fit is counted as bad; it never changes what another record becomes.
"""

from pate_tf.beam.summing import sums
from pate_tf.data.data_source import DataSource, FileSource

__all__ = ["DataSource", "FileSource", "sums"]
