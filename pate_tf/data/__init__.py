"""Loads private records and public samples from named data sets, files, arrays and data frames."""
