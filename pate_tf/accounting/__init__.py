"""Computes the privacy cost of noisy votes and noisy sums.

This package uses only NumPy and SciPy. Start with `charge`, `mechanisms` and `moments`.
"""
