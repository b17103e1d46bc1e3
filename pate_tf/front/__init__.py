"""The front door: what `import pate_tf` shows, over the whole runs of `runs/`."""
