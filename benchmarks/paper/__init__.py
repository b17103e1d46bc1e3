"""The paper, rerun: every table and figure by `python -m benchmarks.paper`.

The data sets are public ones, so results are shown that would be sensitive for private data:
accuracies of teachers, votes in the mean, data-dependent epsilons.
"""
