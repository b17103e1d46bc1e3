import dataclasses

import numpy as np
import pytest
from ledger_helpers import DELTA, MECHANISMS, NUM_CLASSES, labeller_on

from pate_tf.accounting.charge import Cost, ReleasedLabels
from pate_tf.accounting.mechanisms import ConfidentGaussianNoisyMax, LaplaceNoisyMax
from pate_tf.analysis import read_ledgers
from pate_tf.core.sensitive import VoteCounts
from pate_tf.ledger import BudgetExceeded, Ledger, LedgerError
from pate_tf.release.noise import SeededNoise
from pate_tf.release.votes import query_digests, stored_counts


@dataclasses.dataclass
class CountingVoter:
    """Undecided teachers that remember their queries."""

    asked: list = dataclasses.field(default_factory=list)

    def __call__(self, inputs):
        self.asked.extend(inputs[:, 0].tolist())
        return VoteCounts(np.tile([90, 85, 75], (len(inputs), 1)))


@pytest.fixture
def voter():
    return CountingVoter()


@pytest.fixture
def ledger(tmp_path):
    with Ledger.open(tmp_path / "sensitive", ensemble_digest="ab" * 32, delta=DELTA) as ledger:
        yield ledger


def pool(*numbers):
    return np.array([[number, 1.0] for number in numbers], np.float32).reshape(-1, 2)


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_released_labels_carry_mechanism_cost_and_ledger_row(ledger, voter, mechanism):
    released = labeller_on(ledger, voter=voter)(
        pool(*range(50)), mechanism=mechanism, query_indices=np.arange(100, 150)
    )
    assert isinstance(released, ReleasedLabels)
    assert released.num_queries == 50 and released.num_classes == NUM_CLASSES
    epsilon, _ = mechanism.data_independent_epsilon(num_queries=50, delta=DELTA)
    assert released.cost == Cost(charge=mechanism, number=50, epsilon=epsilon, delta=DELTA)
    assert (released.ledger_rows, released.secure_noise) == ((2,), True)
    assert released.noisy_counts is None
    assert set(released.query_indices) <= set(range(100, 150))
    if not isinstance(mechanism, ConfidentGaussianNoisyMax):
        assert released.query_indices.tolist() == list(range(100, 150))
    assert ledger.spent().epsilon == released.cost.epsilon


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_asking_again_gives_the_stored_answers_at_no_cost(ledger, voter, mechanism):
    labeller = labeller_on(ledger, voter=voter)
    first = labeller(pool(*range(40)), mechanism=mechanism)
    history = ledger.history()
    again = labeller(pool(*range(40)), mechanism=mechanism)
    assert ledger.history() == history
    np.testing.assert_array_equal(first.labels, again.labels)
    np.testing.assert_array_equal(first.query_indices, again.query_indices)
    assert len(voter.asked) == 40


def test_a_superset_is_charged_for_the_new_queries_alone(ledger, voter):
    labeller = labeller_on(ledger, voter=voter)
    first = labeller(pool(1, 2, 3, 4), mechanism=MECHANISMS[0])
    second = labeller(pool(9, 4, 3, 8, 2, 1), mechanism=MECHANISMS[0])
    assert second.labels[[5, 4, 2, 1]].tolist() == first.labels.tolist()
    assert ledger.charges == {MECHANISMS[0]: 6}
    assert second.ledger_rows == (2, 4)
    assert voter.asked == [1, 2, 3, 4, 9, 8]


def test_another_mechanism_or_type_or_shape_is_another_query(ledger, voter):
    labeller = labeller_on(ledger, voter=voter)
    inputs = pool(1, 2)
    labeller(inputs, mechanism=MECHANISMS[0])
    labeller(inputs, mechanism=LaplaceNoisyMax(gamma=0.06))
    labeller(inputs.astype(np.float64), mechanism=MECHANISMS[0])
    labeller(inputs[:, :, np.newaxis], mechanism=MECHANISMS[0])
    assert ledger.charges == {MECHANISMS[0]: 6, LaplaceNoisyMax(gamma=0.06): 2}
    digests = query_digests(inputs, MECHANISMS[0])
    assert len(set(digests)) == 2 and {len(digest) for digest in digests} == {16}


def test_a_batch_that_does_not_fit_is_neither_charged_nor_voted_on(tmp_path, voter):
    with Ledger.open(tmp_path, ensemble_digest="ab", delta=DELTA, epsilon_budget=1.0) as ledger:
        labeller = labeller_on(ledger, voter=voter)
        affordable = ledger.affordable(MECHANISMS[0])
        with pytest.raises(BudgetExceeded, match=f"at most {affordable} more queries"):
            labeller(pool(*range(affordable + 1)), mechanism=MECHANISMS[0])
        assert not voter.asked and not ledger.charges
        labeller(pool(*range(affordable)), mechanism=MECHANISMS[0])
        # Stored answers stay free when the budget is used up.
        labeller(pool(*range(affordable)), mechanism=MECHANISMS[0])
        with pytest.raises(BudgetExceeded, match="at most 0 more queries"):
            labeller(pool(affordable), mechanism=MECHANISMS[0])


def test_withheld_queries_are_charged_and_stay_withheld(ledger):
    def half_certain(inputs):
        certain = inputs[:, 0] % 2 == 0
        return VoteCounts(np.where(certain[:, np.newaxis], [250, 0, 0], [90, 80, 80]))

    mechanism = ConfidentGaussianNoisyMax(threshold=180.0, sigma_threshold=5.0, sigma=5.0)
    labeller = labeller_on(ledger, voter=half_certain)
    released = labeller(pool(*range(20)), mechanism=mechanism)
    assert released.query_indices.tolist() == list(range(0, 20, 2))
    assert released.labels.tolist() == [0] * 10
    assert (released.num_queries, released.num_answered, ledger.num_answered) == (20, 10, 10)
    worst_case, _ = mechanism.data_independent_epsilon(num_queries=20, delta=DELTA)
    assert released.cost.epsilon == ledger.spent().epsilon == worst_case
    assert labeller(pool(1, 3), mechanism=mechanism).num_answered == 0
    assert ledger.charges == {mechanism: 20}


def test_counts_of_charged_queries_are_kept_for_analysis(ledger):
    def voter(inputs):
        return VoteCounts(np.stack([inputs[:, 0] + 200, inputs[:, 0], 10 - 2 * inputs[:, 0]], 1))

    labeller = labeller_on(ledger, voter=voter)
    labeller(pool(1, 2, 2, 3), mechanism=MECHANISMS[0])
    labeller(pool(3, 4), mechanism=MECHANISMS[0])
    confident = dataclasses.replace(MECHANISMS[2], threshold=202.5, sigma_threshold=0.01)
    labeller(pool(2, 3), mechanism=confident)
    batches = list(stored_counts(ledger))
    assert [batch.debit for batch in batches] == [2, 4, 6]
    assert [batch.counts.values[:, 1].tolist() for batch in batches] == [[1, 2, 3], [4], [2, 3]]
    assert [batch.answered.tolist() for batch in batches] == [[True] * 3, [True], [False, True]]
    assert batches[2].mechanism == confident
    assert "201" not in repr(batches)


@pytest.mark.parametrize("damage", ["missing", "truncated", "swapped", "foreign"])
def test_damaged_counts_are_refused(ledger, voter, damage):
    labeller = labeller_on(ledger, voter=voter)
    labeller(pool(1, 2), mechanism=MECHANISMS[0])
    labeller(pool(3), mechanism=MECHANISMS[0])
    first, second = sorted((ledger.folder / "votes").iterdir())
    if damage == "missing":
        first.unlink()
    elif damage == "truncated":
        first.write_bytes(first.read_bytes()[:-40])
    elif damage == "swapped":
        first.write_bytes(second.read_bytes())
    else:
        np.savez(first.with_suffix(""), other=np.zeros(3))
    with pytest.raises(LedgerError, match="counts of"):
        list(stored_counts(ledger))


def test_votes_that_an_earlier_version_stored_as_adaptive_are_read_as_such(ledger, voter):
    labeller = labeller_on(ledger, voter=voter)
    for number in (2, 3, 4):
        labeller(pool(*range(1, number + 1)), mechanism=MECHANISMS[0])
    _, second, _ = sorted((ledger.folder / "votes").iterdir())
    with np.load(second) as stored:
        np.savez(second.with_suffix(""), **stored, adaptive=np.array(True))
    assert [batch.adaptive for batch in stored_counts(ledger)] == [False, True, False]
    assert read_ledgers([ledger], votes_needed=False).groups == ()


def test_noise_is_drawn_only_after_the_debit_is_on_disk(ledger, voter):
    seen = []

    class Spy(SeededNoise):
        def laplace_integers(self, scale, size):
            with Ledger.read(ledger.folder) as reader:
                seen.append(reader.charges)
            return super().laplace_integers(scale, size)

    labeller_on(ledger, voter=voter, noise=Spy(1))(pool(1, 2, 3), mechanism=MECHANISMS[0])
    assert seen == [{MECHANISMS[0]: 3}]


def test_neither_errors_nor_reprs_show_counts(ledger):
    secret = 987_654_321

    def wrong(inputs):
        return VoteCounts(np.full((len(inputs), NUM_CLASSES + 1), secret))

    with pytest.raises(ValueError) as info:
        labeller_on(ledger, voter=wrong)(pool(1), mechanism=MECHANISMS[0])
    assert str(secret) not in str(info.value)
    labeller_on(
        ledger, voter=lambda inputs: VoteCounts(np.full((len(inputs), NUM_CLASSES), secret))
    )(pool(1), mechanism=MECHANISMS[0])
    assert str(secret) not in repr(ledger.history()) + repr(list(stored_counts(ledger)))


def test_every_teacher_has_one_vote_on_every_query(ledger):
    def uneven(inputs):
        counts = np.tile([90, 85, 75], (len(inputs), 1))
        counts[-1, 0] += 1
        return VoteCounts(counts)

    for voter in (uneven, lambda inputs: VoteCounts(np.zeros((len(inputs), 3), np.int64))):
        with pytest.raises(ValueError, match=r"one vote (per teacher|for every)") as error:
            labeller_on(ledger, voter=voter)(pool(1, 2, 3), mechanism=MECHANISMS[1])
        assert "90" not in str(error.value)
    assert ledger.num_queries == 0
