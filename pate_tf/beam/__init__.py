"""Apache Beam: sums and predictions of records that outgrow one machine (docs/how-to/beam.md).

`apache_beam` is imported where a pipeline runs, and comes with `pip install 'pate_tf[beam]'`.
"""
