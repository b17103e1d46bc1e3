"""Whole runs as functions of plain values; the command line and programs call the same ones.

A folder for each kind of run. What they share: where data comes from (`sources`, `files`), drafts
of schemas (`drafting`), and how a run tells how far it is (`reporting`).
"""
