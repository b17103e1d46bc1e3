"""The scoreboard: this library and its competitors on the same data: `python -m benchmarks.board`."""
