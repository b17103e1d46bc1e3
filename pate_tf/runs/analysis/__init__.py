"""Analyses.

`run` is what a command calls, from plain values to tables; `accounting` is what it
does; `calibration` plans before there are votes.
"""
