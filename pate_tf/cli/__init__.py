"""The commands: flags, printing, exit codes. All else is called from `runs/`."""
