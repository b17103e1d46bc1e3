"""The privacy cost of noisy votes: charges, mechanisms, outcomes, moments and calibration.

This package uses only NumPy and SciPy. Start with `charge`, `mechanisms` and `moments`.
"""
