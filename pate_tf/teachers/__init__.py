"""Teachers: models that learn from disjoint shards of the private records, and vote."""
