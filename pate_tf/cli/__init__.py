"""The commands of `pate`: flags, printed output and exit codes."""
