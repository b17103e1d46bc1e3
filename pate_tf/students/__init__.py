"""Students, which learn from released labels and a public pool, never from teachers or votes."""
