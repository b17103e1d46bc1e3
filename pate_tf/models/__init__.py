"""Keras architectures by name."""
