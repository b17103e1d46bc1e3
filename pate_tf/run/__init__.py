"""Runs all steps from private data to a published student: the API of `import pate_tf`."""
