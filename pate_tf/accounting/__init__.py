"""The privacy cost of noisy votes: charges, mechanisms, outcomes, moments and calibration.

NumPy and SciPy only. Start with `charge`, `mechanisms` and `moments`.
"""
