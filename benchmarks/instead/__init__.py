"""What else could protect the same records: `python -m benchmarks.instead --dataset=mnist`."""
