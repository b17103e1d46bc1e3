"""Trains the teachers; the same as the command `pate teachers`."""

from pate_tf.cli import teachers

if __name__ == "__main__":
    teachers.run()
