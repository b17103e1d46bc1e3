"""Trains a student; the same as the command `pate student`."""

from pate_tf.cli import student

if __name__ == "__main__":
    student.run()
