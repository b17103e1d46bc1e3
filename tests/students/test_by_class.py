"""Balanced accuracy, recall and AUC, against their definitions."""

import numpy as np
import pytest

from pate_tf.students.evaluation import by_class


def test_the_constant_answer_is_right_often_and_good_for_nothing():
    truth = np.array([0] * 98 + [1] * 2)
    found = by_class(np.zeros(100, np.int64), truth, 2, np.tile([0.9, 0.1], (100, 1)))
    assert found.recall == (1.0, 0.0)
    assert found.balanced_accuracy == 0.5
    assert found.auc == 0.5
    assert found.is_constant


@pytest.mark.parametrize("num_classes", [2, 4])
def test_auc_is_the_share_of_pairs_in_the_right_order(num_classes):
    random = np.random.default_rng(num_classes)
    truth = random.integers(0, num_classes, 60)
    probabilities = random.dirichlet(np.ones(num_classes), 60).round(1)
    found = by_class(probabilities.argmax(axis=1), truth, num_classes, probabilities)
    shares = []
    for one in [1] if num_classes == 2 else range(num_classes):
        pairs = [
            (high > low) + 0.5 * (high == low)
            for high in probabilities[truth == one, one]
            for low in probabilities[truth != one, one]
        ]
        shares.append(np.mean(pairs))
    assert found.auc == pytest.approx(np.mean(shares))
    assert not found.is_constant


def test_a_class_without_samples_counts_for_nothing():
    found = by_class(np.array([0, 0, 2]), np.array([0, 2, 2]), 3, np.full((3, 3), 1 / 3))
    assert found.recall == (1.0, None, 0.5)
    assert found.balanced_accuracy == 0.75
    assert found.auc is None
