"""Computes the cost of answered queries; the same as the command `pate analysis`."""

from pate_tf.cli import main

if __name__ == "__main__":
    main.run_command("analysis")
