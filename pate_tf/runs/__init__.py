"""Whole runs as functions of plain values; the command line and programs call the same ones.

What a command calls: `train_teachers`, `train_student`, `analyse`, `calibration`, `drafting`,
`silo`, `party`, `coordinator`, `selective_sgd`. The steps of these: `teachers*`, `labels`,
`target`, `student`, `publishing`, `analysis`, `silos` and the others.
"""
