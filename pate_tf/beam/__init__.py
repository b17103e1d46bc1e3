"""Feature sums computed by a Beam pipeline.

Integer sums do not depend on bundles, workers or retries, so the result is identical to the result
of a single process. The treatment of a record depends only on that record and the schema. A record
that does not fit the schema is counted as bad, and never affects other records.
"""

from pate_tf.beam.summing import sums
from pate_tf.data.data_source import DataSource, FileSource

__all__ = ["DataSource", "FileSource", "sums"]
