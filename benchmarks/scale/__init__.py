"""What grows with what, and how far it goes: `python -m benchmarks.scale`."""
