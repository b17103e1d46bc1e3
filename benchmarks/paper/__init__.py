"""The paper, run again: every table and figure by `python -m benchmarks.paper`.

The data sets are public, so results are shown that would be sensitive for private data: accuracies
of teachers, mean votes, data-dependent epsilons.
"""
