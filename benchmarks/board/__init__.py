"""The scoreboard: `python -m benchmarks.board` compares this library with other methods."""
