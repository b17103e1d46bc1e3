"""A labeller with an epsilon plans as `train_student.py --epsilon` does."""

import numpy as np
import pytest

import pate_tf
from pate_tf.accounting.mechanisms import GaussianHistogram, LaplaceNoisyMax
from pate_tf.representations import contrastive
from pate_tf.representations.catalogue import CACHE_VARIABLE

DATA = pate_tf.Data.load("digits")


@pytest.fixture(scope="module", autouse=True)
def quick(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contrastive, "STEPS", 5)
        patch.setattr(contrastive, "STUDENT_STEPS", 5)
        patch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def ridge(tmp_path_factory):
    teachers = pate_tf.Teachers(
        "ridge", num_teachers=60, directory=tmp_path_factory.mktemp("ridge") / "run"
    )
    return teachers.fit(DATA.private, DATA.pool)


def test_ridge_teachers_release_counts_that_are_learnt_from_together(ridge):
    with pate_tf.Labeller(ridge, GaussianHistogram, epsilon=20.0, delta=1e-5) as labeller:
        plan = labeller.plan(DATA.pool)
        labels = labeller.release(plan, DATA.pool)
    assert isinstance(plan.mechanism, GaussianHistogram)
    assert labels.strategy == plan.queries.strategy == "diverse"
    assert len(labels.query_indices) == plan.queries.num_queries
    assert labels.cost.epsilon <= 20.0


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, "epsilon: expected a number, or a mechanism with its noise, got neither"),
        (
            {"epsilon": 1.0, "mechanism": LaplaceNoisyMax(gamma=0.1)},
            "epsilon: expected a number, or a mechanism with its noise, got both",
        ),
    ],
)
def test_settings_that_do_not_fit_are_refused_before_a_ledger_is_opened(tmp_path, asked, message):
    teachers = pate_tf.Teachers.from_votes(np.zeros((30, 400), int), directory=tmp_path / "run")
    with pytest.raises(ValueError, match=message):
        pate_tf.Labeller(teachers, delta=1e-5, **asked)
    assert not (tmp_path / "run").exists()


def test_others_answer_medoids(tmp_path):
    teachers = pate_tf.Teachers.from_votes(np.full((300, 400), 3), directory=tmp_path)
    with pate_tf.Labeller(teachers, epsilon=1.0, delta=1e-5) as labeller:
        assert labeller.label(DATA.pool).strategy == "medoids"
        first = labeller.label(DATA.pool, strategy="first")
        assert first.strategy == "first"
