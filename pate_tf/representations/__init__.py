"""Representations: maps from raw inputs to features that depend only on public values."""
