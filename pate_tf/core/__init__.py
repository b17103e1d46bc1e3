"""Types for sensitive and public values, base classes of settings, and the files of a run."""
