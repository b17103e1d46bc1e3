"""How sure labels are that noisy counts say together, and what a user is told of it."""

import dataclasses
import types

import numpy as np
import pytest
from labels_for_tests import released_labels

import pate_tf
from pate_tf.accounting.charge import Cost
from pate_tf.accounting.mechanisms import GaussianHistogram, LaplaceNoisyMax
from pate_tf.core.public import PoolLabels
from pate_tf.core.reporting import Reporting
from pate_tf.data import catalogue as data
from pate_tf.queries.labels import Labels
from pate_tf.representations.regression import MOST_QUERIES
from pate_tf.run import student_run
from pate_tf.run.student_run import certainty, warn_of_noise

ASKED = np.arange(4)
ANY_POOL = data.load_public("digits").split(10).pool


def queried(sure, *, charge=None, counts=True, weights=True, asked=ASKED):
    """Labels of a pool; its unqueried inputs have these certainties."""
    number = len(asked) + len(sure)
    shares = np.full((number, 3), 0.0, np.float32)
    shares[: len(asked), 0] = 1.0  # what was asked does not count
    shares[len(asked) :, 1] = sure
    shares[len(asked) :, 2] = 1.0 - np.asarray(sure)
    charge = charge or GaussianHistogram(sigma=40.0)
    released = dataclasses.replace(
        released_labels(asked, np.zeros(len(asked), np.int64), num_classes=3),
        cost=Cost(charge=charge, number=len(asked), epsilon=1.0, delta=1e-5),
        noisy_counts=np.zeros((len(asked), 3), np.int64) if counts else None,
    )
    return Labels(
        pool=ANY_POOL,
        queries=asked,
        released=released,
        training_labels=PoolLabels(
            query_indices=np.arange(number),
            labels=shares.argmax(axis=1),
            num_classes=3,
            weights=shares if weights else None,
        ),
        strategy="diverse",
    )


def told(labels):
    warnings = []
    warn_of_noise(labels, Reporting(warn=warnings.append))
    return warnings


def test_it_is_the_mean_of_unqueried_inputs():
    assert certainty(queried([0.9, 0.6])) == pytest.approx(0.75)


def test_labels_that_noise_leaves_unsure_are_warned_of_and_others_are_not():
    (line,) = told(queried([0.9, 0.6]))
    assert "75% sure" in line and "more teachers or a larger epsilon" in line
    assert told(queried([0.9, 0.8])) == []


@pytest.mark.parametrize(
    "changes",
    [
        {"counts": False},
        {"weights": False},
        {"charge": LaplaceNoisyMax(gamma=0.1)},
        {"asked": np.arange(MOST_QUERIES + 1)},
    ],
    ids=["no counts", "no weights", "other noise", "too many"],
)
def test_nothing_is_said_where_counts_were_not_learnt_from_together(changes):
    labels = queried([0.5, 0.6], **changes)
    assert certainty(labels) is None and told(labels) == []


def test_of_sums_it_is_what_was_kept_with_them_whatever_a_student_learns():
    labels = queried([0.99, 0.99], counts=False)
    sums = dataclasses.replace(labels.released, noisy_sums=np.zeros((5, 3), np.int64))
    for certain, said in ((0.7, 1), (0.81, 0), (None, 0)):
        by_sums = dataclasses.replace(labels, released=sums, certainty=certain)
        assert certainty(by_sums) == certain
        assert len(told(by_sums)) == said
    (line,) = told(dataclasses.replace(labels, released=sums, certainty=0.7))
    assert "70% sure" in line and "so few records" in line


def test_a_student_in_a_notebook_warns_as_the_command_does(monkeypatch):
    untrained = types.SimpleNamespace(train=lambda *_args, **_more: "model")
    monkeypatch.setattr(student_run, "find_student", lambda *_args: untrained)
    with pytest.warns(UserWarning, match="75% sure on average"):
        pate_tf.Student("supervised", model="mlp").fit(ANY_POOL, queried([0.9, 0.6]))


def test_nothing_is_said_where_all_was_asked():
    assert certainty(queried([])) is None
