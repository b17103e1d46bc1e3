"""Trains a student; the same as the command `pate student`."""

from pate_tf.cli import main

if __name__ == "__main__":
    main.run_command("student")
