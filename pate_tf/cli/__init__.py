"""The commands: flags, printing and exit codes. The rest is in `run/`."""
