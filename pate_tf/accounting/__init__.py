"""The privacy cost of noisy votes: mechanisms, outcomes, moments, calibration and release.

NumPy and SciPy only. Start with `mechanisms` and `moments`.
"""
