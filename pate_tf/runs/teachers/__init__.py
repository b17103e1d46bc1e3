"""Runs of the teachers.

`run` is what a command calls, from plain values to a report; `training` is
what it does: partition, train what is missing, export, evaluate.
"""
