"""Whole runs as functions: the API of `import pate_tf`, which every command calls."""
