"""Teachers that `benchmarks.silo_memory` gives to silos by name."""

import numpy as np

from pate_tf.core.dataset import Dataset


def votes(inputs: np.ndarray) -> np.ndarray:
    """A teacher that needs NumPy alone."""
    weights = np.arange(784.0)[:, None] * np.arange(10.0) % 7.0
    return np.asarray((inputs.reshape(len(inputs), -1) @ weights).argmax(axis=1))


def vote_function(dataset: Dataset) -> object:
    return votes


def classifier(dataset: Dataset) -> object:
    from sklearn.linear_model import LogisticRegression

    generator = np.random.default_rng(0)
    rows, labels = generator.random((300, 784)), generator.integers(0, 10, 300)
    return LogisticRegression(max_iter=2_000).fit(rows, labels)
