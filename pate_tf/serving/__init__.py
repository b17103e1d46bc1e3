"""The student as TensorFlow Serving loads it."""
