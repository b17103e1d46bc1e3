"""What `import pate_tf` shows and what every command calls: whole runs as functions of values."""
