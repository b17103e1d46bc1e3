"""The labeller and the ledger with mechanisms that a test registers."""

import functools

import numpy as np
import pytest
from toy_mechanisms import TOYS, ToyHistogram, ToyNoisyMax

from pate_tf.accounting.charge import Cost
from pate_tf.accounting.mechanisms import LATTICE, LaplaceNoisyMax, base, register
from pate_tf.core.sensitive import VoteCounts
from pate_tf.ledger import Ledger, LedgerError
from pate_tf.release.noise import SystemNoise
from pate_tf.release.votes import release_votes, stored_counts
from pate_tf.statement import check_statement
from pate_tf.statement.labels import LabelsStatement

DELTA = 1e-5
CLEAR, UNDECIDED = [250, 0, 0], [90, 85, 75]


@pytest.fixture(autouse=True)
def toys(monkeypatch):
    monkeypatch.setattr(base, "MECHANISMS", dict(base.MECHANISMS))
    for toy in TOYS:
        register(toy)


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "sensitive", ensemble_digest="ab" * 32, delta=DELTA) as ledger:
        yield ledger


def labeller_on(ledger, counts=CLEAR):
    return functools.partial(
        release_votes,
        voter=lambda inputs: VoteCounts(np.tile(counts, (len(inputs), 1))),
        ledger=ledger,
        noise=SystemNoise(),
        noisy_winners=lambda counts, noise: np.argmax(counts * LATTICE + noise, axis=1),
        num_classes=3,
    )


def pool(start, stop):
    return np.arange(start, stop, dtype=np.float32).reshape(-1, 1)


def stated(ledger, released):
    facts = {"pool_name": "digits", "num_teachers": 250, "student_digest": "cd" * 32}
    return LabelsStatement.of(released, ledger, **facts)


def test_a_toy_is_drawn_charged_kept_and_stated(ledger):
    toy = ToyNoisyMax(epsilon=2.0)
    released = labeller_on(ledger)(pool(0, 30), mechanism=toy)
    epsilon, _ = toy.data_independent_epsilon(num_queries=30, delta=DELTA)
    assert released.cost == Cost(charge=toy, number=30, epsilon=epsilon, delta=DELTA)
    assert (released.labels == 0).all() and released.num_answered == 30
    assert ledger.charges == {toy: 30} and ledger.spent().epsilon == epsilon
    assert [batch.mechanism for batch in stored_counts(ledger)] == [toy]
    statement = stated(ledger, released)
    check_statement(statement.to_dict(), ledger)
    assert "Toy noise of epsilon 2 is added" in statement.to_markdown()


def test_noisy_counts_leave_with_the_labels_once_and_for_all(ledger):
    toy = ToyHistogram(sigma=40.0)
    labeller = labeller_on(ledger, UNDECIDED)
    released = labeller(pool(0, 20), mechanism=toy)
    assert released.noisy_counts.shape == (20, 3)
    assert released.noisy_counts.argmax(axis=1).tolist() == released.labels.tolist()
    votes = released.noisy_counts / LATTICE
    assert 0 < np.abs(votes - UNDECIDED).mean() < 100
    again = labeller(pool(5, 20)[::-1], mechanism=toy)
    np.testing.assert_array_equal(again.noisy_counts[::-1], released.noisy_counts[5:])
    assert ledger.charges == {toy: 20}
    with Ledger.read(ledger.folder) as reader:
        assert reader.charges == {toy: 20}
    assert labeller(pool(0, 2), mechanism=LaplaceNoisyMax(gamma=0.05)).noisy_counts is None


def test_a_ledger_of_an_unknown_mechanism_says_what_to_do(ledger, monkeypatch):
    labeller_on(ledger)(pool(0, 2), mechanism=ToyNoisyMax(epsilon=0.5))
    monkeypatch.delitem(base.MECHANISMS, ToyNoisyMax.name)
    with pytest.raises(LedgerError, match=r"row 2 charged something unknown.*toy_noisy_max"):
        Ledger.read(ledger.folder)
