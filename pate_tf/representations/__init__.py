"""Representations, which map inputs to features."""
