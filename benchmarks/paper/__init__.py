"""Reproduces every table and figure of the paper: `python -m benchmarks.paper`.

The data sets are public. The results therefore include values that would be sensitive for private
data: accuracies of teachers, mean votes, data-dependent epsilons.
"""
