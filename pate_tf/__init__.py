"""PATE for TensorFlow and Keras: learn a public classifier from private data.

Data flows one way: private data, disjoint partition, teachers, votes, paid and noisy labels,
student, served model. See `CONTRIBUTING.md` for the rooms of the house and its laws.
"""

__version__ = "0.1.0"
