"""Computes feature sums with an Apache Beam pipeline.

Sums of integers are exact. They do not depend on the number of workers or on retries, so the result
is identical to the result of a single process. Each record is read independently of other records.
A record that does not fit the schema is left out and counted.
"""

from pate_tf.beam.summing import sums
from pate_tf.data.data_source import DataSource, FileSource

__all__ = ["DataSource", "FileSource", "sums"]
