"""Labels of a table's pool from feature sums."""

import numpy as np
import pytest

import pate_tf
from pate_tf.accounting.mechanisms import ClassSums

COLUMNS = 4


@pytest.fixture(scope="module")
def data():
    random = np.random.default_rng(0)
    inputs = random.normal(size=(6_000, COLUMNS)).astype(np.float32)
    labels = (inputs[:, 0] + 0.5 * inputs[:, 1] > 1.0).astype(np.int64)  # a fifth is positive
    return pate_tf.Data.from_arrays(
        inputs[:4_000],
        labels[:4_000],
        inputs[4_000:],
        labels[4_000:],
        num_classes=2,
        kind="tabular",
        value_range=(-6.0, 6.0),
        held_out=0.25,
    )


def test_feature_sums_of_a_table(tmp_path, data):
    teachers = pate_tf.Teachers("ridge", num_teachers=100, directory=tmp_path / "run")
    teachers.fit(data.private, data.pool)
    with pate_tf.Labeller(teachers, epsilon=0.5, delta=1e-5, method="feature_sums") as found:
        assert isinstance(found.plan(data.pool).mechanism, ClassSums)
        labels = found.label(data.pool)
        assert found.spent().epsilon <= 0.5
    truth = (data.pool.inputs[:, 0] + 0.5 * data.pool.inputs[:, 1] > 1.0).astype(np.int64)
    right = labels.labels == truth[labels.query_indices]
    assert (
        len(right) == 1_500 and right.mean() > 0.86
    )  # .931 +- .011 over seeds of the noise; the constant answer has .81
    assert right[truth[labels.query_indices] == 1].mean() > 0.5  # which a constant answer has not
