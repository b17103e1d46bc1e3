"""Students: learn from released labels and a public pool; know neither teachers nor votes."""
