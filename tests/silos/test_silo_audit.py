"""Audits the local epsilon from outside: what a silo releases, against what it charges."""

import math

import numpy as np
import pytest
from scipy import stats
from silo_helpers import batch, policy

from pate_tf.accounting.local import RandomisedResponse
from pate_tf.silos import Silo, SiloTeacher

# Of one audit: that it finds more than is true. Of randomised response at the claim, so that a
# silo of that law passes but with this probability.
FALSE_ALARM = 1e-7
NUM_CLASSES, EPSILON, AT_ONCE = 10, 1.0, 10_000


def histogram(vote, number):
    """How often each class is answered, asked of a silo that always votes so."""
    mechanism = RandomisedResponse(num_classes=NUM_CLASSES, epsilon=EPSILON)
    teacher = SiloTeacher(lambda queries: np.full(len(queries), vote), num_classes=NUM_CLASSES)
    allowed = policy(epsilon_budget=1e9, queries_per_day=10**7)
    answered = Silo(allowed, teacher, folder=None)
    counts = np.zeros(NUM_CLASSES, np.int64)
    for start in range(0, number, AT_ONCE):
        numbers = np.arange(start, min(start + AT_ONCE, number), dtype=np.float32)
        inputs = np.stack([numbers, numbers], axis=1)
        asked = {"inputs": inputs, "mechanism": mechanism, "num_classes": NUM_CLASSES}
        reply = answered.answer(batch(0, 0, batch_id=f"b{start}", **asked))
        counts += np.bincount(reply.labels, minlength=NUM_CLASSES)
    assert answered.account.charges == {mechanism: number}
    return counts


def audited(number):
    """A lower bound on the epsilon of one answer, of so many; wrong with probability FALSE_ALARM.

    Clopper and Pearson's bounds of each class under either of two votes.
    """
    here, there = histogram(3, number), histogram(7, number)
    tail = FALSE_ALARM / (4 * NUM_CLASSES)
    bounds = [
        np.log(
            stats.beta.ppf(tail, one, one.sum() - one + 1)
            / stats.beta.isf(tail, other + 1, other.sum() - other)
        )
        for one, other in ((here, there), (there, here))
    ]
    return float(np.max(bounds))


def with_half_the_noise(monkeypatch):
    """Draws at twice the epsilon that is charged."""
    honest = RandomisedResponse.threshold.fget
    monkeypatch.setattr(
        RandomisedResponse,
        "threshold",
        property(
            lambda one: honest(
                RandomisedResponse(num_classes=one.num_classes, epsilon=2.0 * one.epsilon)
            )
        ),
    )


@pytest.mark.parametrize("number", [40_000, pytest.param(500_000, marks=pytest.mark.long)])
def test_no_more_leaks_than_is_charged_and_the_audit_sees_most_of_it(number):
    found = audited(number)
    assert found <= EPSILON
    # Six standard deviations below: of the smaller one of two frequencies, the other is larger.
    slack = 12.0 / math.sqrt(
        number * RandomisedResponse(num_classes=NUM_CLASSES, epsilon=EPSILON).other
    )
    assert found >= EPSILON - slack


@pytest.mark.parametrize("number", [40_000, pytest.param(500_000, marks=pytest.mark.long)])
def test_a_silo_with_half_the_noise_is_rejected(monkeypatch, number):
    with_half_the_noise(monkeypatch)
    assert audited(number) > EPSILON
