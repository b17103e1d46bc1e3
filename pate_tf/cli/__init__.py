"""The commands of `pate`: their flags, printed output and exit codes. `run/` does the work."""
