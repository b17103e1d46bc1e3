"""A pool with known labels, and a labeller that answers with them."""

import dataclasses

import numpy as np
from labels_for_tests import released_labels

from pate_tf.accounting.charge import ReleasedLabels
from pate_tf.core.checks import IntArray
from pate_tf.core.public import Pool
from pate_tf.data import datasets as data

PUBLIC = data.load_public("digits")
POOL = PUBLIC.split(300).pool


class Answers:
    """Answers with the given labels of the pool, and remembers the queries of each round."""

    def __init__(self, labels: IntArray = PUBLIC.labels) -> None:
        self.labels = labels
        self.rounds: list[IntArray] = []

    def __call__(self, indices: IntArray) -> ReleasedLabels:
        self.rounds.append(indices)
        return released_labels(indices, self.labels[indices])


def islands(num: int, seed: int = 0) -> tuple[Pool, IntArray]:
    """Returns features around one center per class: easy to label and quick to train on."""
    random = np.random.default_rng(seed)
    dataset = dataclasses.replace(
        PUBLIC.dataset, kind="tabular", input_type="", input_shape=(16,), augmentation="none"
    )
    labels = random.integers(0, 10, num)
    centres = np.random.default_rng(1).integers(0, 2, (10, 16)) * 255
    features = np.clip(centres[labels] + random.normal(0, 20, (num, 16)), 0, 255)
    return Pool(dataset, features.astype(np.float32)), labels
