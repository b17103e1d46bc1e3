"""Alternative ways to protect the same records: `python -m benchmarks.instead --dataset=mnist`."""
