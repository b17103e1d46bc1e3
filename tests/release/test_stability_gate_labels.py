"""The stability gate in the labeller: charged first, drawn once, stored."""

import functools
import logging
import re

import numpy as np
import pytest

from pate_tf.accounting.charge import Cost
from pate_tf.accounting.composition import several_teachers_epsilon, smallest_epsilon
from pate_tf.accounting.mechanisms import LaplaceNoisyMax, StabilityGate, StabilityGateOrHistogram
from pate_tf.accounting.mechanisms import charged_once as gate_module
from pate_tf.core.sensitive import VoteCounts
from pate_tf.ledger import BudgetExceeded, Ledger
from pate_tf.release.noise import SystemNoise
from pate_tf.release.votes import release_votes
from pate_tf.statement import check_statement
from pate_tf.statement.labels_statement import LabelsStatement

DELTA = 1e-5
GATE = StabilityGate(epsilon=0.25, delta=DELTA)
SURE, TIED = [1000, 0, 0], [500, 500, 0]


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "sensitive", ensemble_digest="ab" * 32, delta=DELTA) as ledger:
        yield ledger


def pool(*numbers):
    return np.array(numbers, np.float32).reshape(-1, 1)


def labeller_on(ledger, *, tied=(), unit="record"):
    """Teachers who all say 0, 1 or 2 by the input; on some inputs they are divided."""

    def voter(inputs):
        rows = [TIED if one in tied else np.roll(SURE, int(one) % 3) for one in inputs[:, 0]]
        return VoteCounts(np.array(rows))

    return functools.partial(
        release_votes, voter=voter, ledger=ledger, noise=SystemNoise(), num_classes=3, unit=unit
    )


def stated(released, ledger, **changes):
    """The statement on labels of these teachers."""
    facts = {"pool_name": "digits", "num_teachers": 1000, "student_digest": "cd" * 32}
    return LabelsStatement.of(released, ledger, **facts, **changes)


@pytest.mark.parametrize("num_queries", [1, 300])
def test_a_whole_batch_is_labelled_rightly_for_one_epsilon(ledger, num_queries):
    released = labeller_on(ledger)(pool(*range(num_queries)), mechanism=GATE)
    assert released.labels.tolist() == [number % 3 for number in range(num_queries)]
    assert released.cost == Cost(charge=GATE, number=1, epsilon=0.25, delta=DELTA)
    assert (ledger.charges, ledger.spent().epsilon) == ({GATE: 1}, 0.25)
    statement = stated(released, ledger)
    check_statement(statement.to_dict(), ledger)
    assert "left together and without noise" in statement.to_markdown()


def test_stored_outcomes_answer_parts_and_permutations_for_nothing(ledger):
    labeller = labeller_on(ledger)
    labeller(pool(*range(30)), mechanism=GATE)
    history = ledger.history()
    order = np.random.default_rng(0).permutation(30)
    again = labeller(pool(*order), mechanism=GATE)
    assert again.labels.tolist() == (order % 3).tolist() and again.cost.number == 1
    part = labeller_on(ledger, tied=range(30))(pool(7, 3, 3, 20), mechanism=GATE)
    assert part.labels.tolist() == [1, 0, 0, 2]
    assert ledger.history() == history


def test_a_gate_that_stays_shut_was_charged_and_stays_shut(ledger):
    released = labeller_on(ledger, tied=[3])(pool(*range(10)), mechanism=GATE)
    assert (released.num_answered, released.cost.epsilon) == (0, 0.25)
    history = ledger.history()
    for batch in (range(10), [5], [9, 0]):
        assert labeller_on(ledger)(pool(*batch), mechanism=GATE).num_answered == 0
    assert ledger.history() == history


def test_noisy_labels_after_a_gate_that_stayed_shut_cost_both(ledger):
    gate, noisy = StabilityGate(epsilon=0.25, delta=DELTA / 3), LaplaceNoisyMax(gamma=0.05)
    labeller = labeller_on(ledger, tied=[3])
    assert labeller(pool(1, 2), mechanism=gate).num_answered == 2
    released = labeller(pool(1, 2), mechanism=noisy)
    assert released.cost.before == ()  # they did not wait for it
    assert labeller(pool(3, 4), mechanism=gate).num_answered == 0
    released = labeller(pool(3, 4), mechanism=noisy)
    assert released.cost.before == ((gate, 1),)
    assert released.cost.epsilon == smallest_epsilon({gate: 1, noisy: 2}, DELTA)[0]
    assert released.cost.in_words().endswith(f", after {gate.several(1)}")
    statement = stated(released, ledger)
    check_statement(statement.to_dict(), ledger)
    assert f"led to these labels: {gate.several(1)}." in statement.to_markdown()
    with pytest.raises(ValueError, match="charged_before, got fewer"):
        check_statement({**statement.to_dict(), "charged_before": []}, ledger)


@pytest.mark.parametrize(
    ("first", "second"),
    [(GATE, GATE), (GATE, LaplaceNoisyMax(gamma=0.05)), (LaplaceNoisyMax(gamma=0.05), GATE)],
    ids=str,
)
def test_what_leaves_nothing_of_delta_is_refused_before_it_is_charged(ledger, first, second):
    labeller = labeller_on(ledger)
    labeller(pool(1, 2), mechanism=first)
    history = ledger.history()
    with pytest.raises(BudgetExceeded, match="would use up delta 1e-05") as refusal:
        labeller(pool(3, 4), mechanism=second)
    assert "\n" not in str(refusal.value) and "nan" not in str(refusal.value)
    assert refusal.value.num_affordable == 0 == ledger.affordable(second)
    assert ledger.history() == history and np.isfinite(ledger.spent().epsilon)


def test_owners_need_a_delta_that_holds_for_two_teachers(ledger):
    labeller = labeller_on(ledger, unit="owner")
    with pytest.raises(ValueError, match=r"against replacing an owner.*smaller delta"):
        labeller(pool(1, 2), mechanism=GATE)
    assert not ledger.charges
    labeller(pool(1, 2), mechanism=StabilityGate(epsilon=0.25, delta=4e-6))
    assert 0.4999 < several_teachers_epsilon(ledger.charges, delta=ledger.delta) < 0.5


def test_owners_are_checked_beside_the_debit_too(ledger):
    """While one asks teachers, another process is charged for a gate of its own."""
    gate = StabilityGate(epsilon=0.25, delta=4e-6)
    slow, fast = labeller_on(ledger, unit="owner"), labeller_on(ledger, unit="owner")

    def voter(inputs):
        if len(ledger.charges) == 0:
            fast(pool(5), mechanism=gate)
        return fast.keywords["voter"](inputs)

    with pytest.raises(ValueError, match=r"against replacing an owner.*smaller delta"):
        functools.partial(slow, voter=voter)(pool(1, 2), mechanism=gate)
    assert ledger.charges == {gate: 1}
    assert np.isfinite(several_teachers_epsilon(ledger.charges, delta=ledger.delta))


def test_nothing_of_the_draw_is_shown_or_kept(ledger, monkeypatch, capsys, caplog):
    """Distance, weights and k are seen by the draw alone; the counts lie with the other votes."""
    caplog.set_level(logging.DEBUG)
    gate = StabilityGate(epsilon=0.25, delta=DELTA)
    secrets = []
    real = gate_module.StabilityGate.pass_numerator
    monkeypatch.setattr(
        gate_module.StabilityGate,
        "pass_numerator",
        lambda self, distance: secrets.append(distance) or real(self, distance),
    )
    counts = np.array([[8317, 2154, 0]] * 3)  # distance 3082
    released = functools.partial(
        release_votes,
        voter=lambda inputs: VoteCounts(counts[: len(inputs)]),
        ledger=ledger,
        noise=SystemNoise(),
        num_classes=3,
    )(pool(1, 2, 3), mechanism=gate)
    assert secrets == [3082]
    shown = repr(released) + repr(ledger.history()) + "".join(capsys.readouterr()) + caplog.text
    shown += repr([row.details for row in ledger.history()])
    # Whole numbers: a digest may hold any four digits.
    assert not re.search(r"\b(3082|8317|2154)\b", shown)


def test_an_opened_and_a_shut_batch_of_one_mechanism_are_given_together_as_labels(ledger):
    both = StabilityGateOrHistogram(epsilon=0.25, delta=1e-6, sigma=400.0, most_queries=3)
    labeller = labeller_on(ledger, tied=(7,))
    opened = labeller(pool(1, 2, 3), mechanism=both)
    assert opened.noisy_counts is None and opened.labels.tolist() == [1, 2, 0]
    shut = labeller(pool(7, 8), mechanism=both)
    assert shut.noisy_counts.shape == (2, 3)
    mixed = labeller(pool(3, 8, 7), mechanism=both)
    assert mixed.noisy_counts is None and mixed.weights is None
    assert mixed.labels.tolist() == [0, shut.labels[1], shut.labels[0]]
    assert ledger.charges == {both: 2} and mixed.cost.number == 2
    with pytest.raises(ValueError, match="most_queries: expected a batch of at most 3 new queries"):
        labeller(pool(10, 11, 12, 13), mechanism=both)
    assert ledger.charges == {both: 2}
    # A part of what was answered is free, whatever the batch.
    assert labeller(pool(2, 1), mechanism=both).labels.tolist() == [2, 1]
    assert ledger.charges == {both: 2}
