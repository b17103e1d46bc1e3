"""Runs all steps from data to a published student: the API of `import pate_tf`."""
