"""Students: models that learn only from released labels and a public pool."""
