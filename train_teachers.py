"""Trains the teachers; the same as the command `pate teachers`."""

from pate_tf.cli import main

if __name__ == "__main__":
    main.run_command("teachers")
