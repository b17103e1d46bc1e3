"""The choice of the student is known before any labels, because it depends only on
public values.
"""

import dataclasses

import pytest
from data_sets_for_tests import table_dataset

from pate_tf.data import datasets
from pate_tf.students.student_kinds import fitting

DIGITS = datasets.load_public("digits").dataset
PLAIN = dataclasses.replace(DIGITS, augmentation="none")
TABLE = table_dataset(3, 0.0, 1.0, 2)


@pytest.mark.parametrize(
    ("dataset", "facts", "expected"),
    [
        (DIGITS, {}, "consistency"),
        (PLAIN, {}, "supervised"),
        (TABLE, {}, "supervised"),
        (TABLE, {"of_sums": True}, "linear_head"),
        (DIGITS, {"of_sums": True}, "consistency"),
        (DIGITS, {"of_sums": True, "num_rounds": 16}, "linear_head"),
        (DIGITS, {"of_sums": True, "label_accuracy": 0.4}, "linear_head"),
        (DIGITS, {"of_sums": True, "label_accuracy": 0.6}, "consistency"),
        (DIGITS, {"of_sums": True, "has_pool": False}, "linear_head"),
        (DIGITS, {"is_frozen": True}, "linear_head"),
    ],
)
def test_the_student_that_fits(dataset, facts, expected):
    kind, why = fitting(dataset, **facts)
    assert kind == expected and why
