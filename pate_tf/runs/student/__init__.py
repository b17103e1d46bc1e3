"""Runs of a student.

`run` is what a command calls, from plain values to reports; `making` is what
it does: labels are bought (`labels`), a student learns from them, and is published.
"""
