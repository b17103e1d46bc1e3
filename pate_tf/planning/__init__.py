"""Plans a release from public values only, before privacy budget is spent."""
