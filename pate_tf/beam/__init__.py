"""Computes feature sums with an Apache Beam pipeline.

Sums of integers do not depend on bundles, workers or retries, so the result is identical to the
result of a single process. How a record is read depends only on this record and the schema. A
record that does not fit the schema is left out and counted. It never affects other records.
"""

from pate_tf.beam.summing import sums
from pate_tf.data.data_source import DataSource, FileSource

__all__ = ["DataSource", "FileSource", "sums"]
