"""A budget by the front door is planned as `train_student.py --target_epsilon` plans it."""

import numpy as np
import pytest

import pate_tf
from pate_tf.accounting.mechanisms import ClassSums, GaussianHistogram
from pate_tf.aggregation.noise import SystemNoise
from pate_tf.api.planned_labels import TargetRequest
from pate_tf.representations import contrastive
from pate_tf.representations.catalogue import CACHE_VARIABLE

DATA = pate_tf.datasets.load("digits")


@pytest.fixture(scope="module", autouse=True)
def quick(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contrastive, "STEPS", 30)
        patch.setattr(contrastive, "STUDENT_STEPS", 30)
        patch.setenv(CACHE_VARIABLE, str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def ridge(tmp_path_factory):
    teachers = pate_tf.Teachers(
        "ridge", num_teachers=60, directory=tmp_path_factory.mktemp("ridge") / "run"
    )
    return teachers.fit(DATA.private, DATA.pool)


def planned(teachers, epsilon, mechanism=None):
    asked = TargetRequest(target_epsilon=epsilon, noise=SystemNoise(), mechanism=mechanism)
    plan = asked.plan_for(teachers.known.voter(DATA.pool), DATA.pool, delta=1e-5)
    return plan, asked.planned(plan)


@pytest.mark.parametrize(
    ("target", "named", "kind", "strategy"),
    [
        (20.0, GaussianHistogram, GaussianHistogram, "diverse"),
        (8.0, None, ClassSums, "first"),
        (0.3, ClassSums, ClassSums, "first"),
    ],
)
def test_ridge_teachers_sell_what_is_learnt_from_together(ridge, target, named, kind, strategy):
    plan, asked = planned(ridge, target, named)
    with pate_tf.Labeller.for_target(
        ridge, DATA.pool, target_epsilon=target, delta=1e-5, mechanism=named
    ) as labeller:
        assert labeller.plan == plan and isinstance(labeller.mechanism, kind)
        labels = labeller.label(DATA.pool)
        assert labels.queried.strategy == asked.queries.strategy == strategy
        assert len(labels.query_indices) == plan.num_queries
        assert labels.cost.epsilon <= target


def test_what_are_no_teachers_and_no_pool_is_one_line(ridge):
    for teachers, pool, said in (
        (3, DATA.pool, "teachers: expected pate_tf.Teachers, got int"),
        (ridge, DATA.pool.inputs, "pool: expected data.pool, got ndarray"),
    ):
        with pytest.raises(ValueError, match=said):
            pate_tf.Labeller.for_target(teachers, pool, target_epsilon=8.0, delta=1e-5)


def test_others_answer_typical_queries(tmp_path):
    teachers = pate_tf.Teachers.from_votes(np.full((300, 400), 3), directory=tmp_path)
    plan, asked = planned(teachers, 1.0)
    with pate_tf.Labeller.for_target(
        teachers, DATA.pool, target_epsilon=1.0, delta=1e-5
    ) as labeller:
        assert labeller.plan == plan
        labels = labeller.label(DATA.pool)
        assert labels.queried.strategy == asked.queries.strategy == "medoids"
        first = labeller.label(DATA.pool, strategy="first")
        assert first.queried.strategy == "first"
