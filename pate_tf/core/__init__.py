"""Checked types for sensitive and for public values, their settings, and the files of a run."""
