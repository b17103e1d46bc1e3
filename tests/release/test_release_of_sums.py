"""Feature sums: how far one record or owner can move them; charged before noise, released once."""

import contextlib
import dataclasses
import functools
import itertools
import math
import os
import signal
import sqlite3

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from script_processes import start

from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.mechanisms import GaussianFeatureSums, GaussianResidualSums
from pate_tf.accounting.mechanisms.charged_once import RESIDUAL_NORM
from pate_tf.core.sensitive import SumsByClass
from pate_tf.ledger import BudgetExceeded, Ledger, LedgerError
from pate_tf.ledger.ledger_file import DATABASE
from pate_tf.release.exact_sums import residual_sums, sums_by_class, vector_steps
from pate_tf.release.noise import SystemNoise
from pate_tf.release.noisy_sums import release_sums, sums_in_ledger
from pate_tf.release.votes import stored_counts
from pate_tf.statement.privacy_statement import check_unit

DELTA = 1e-5
SUMS = SumsByClass(np.arange(12).reshape(4, 3) * LATTICE)
MECHANISM = GaussianFeatureSums(sigma=40.0)
NUM_CLASSES = 3


def norm(steps) -> float:
    """Returns the exact squared norm, in Python integers."""
    return math.sqrt(sum(int(one) ** 2 for one in steps.ravel()))


def some(seed, number=9):
    from pate_tf.models.encoder import record_vectors

    random = np.random.default_rng(seed)
    features = random.normal(size=(number, 4)).astype(np.float32)
    return record_vectors(features, None), random.integers(0, NUM_CLASSES, number)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**20))
def test_one_record_replaced_moves_them_by_two_at_most(seed):
    vectors, labels = some(seed)
    before = sums_by_class(vectors, labels, num_classes=NUM_CLASSES)
    others = sums_by_class(vectors[1:], labels[1:], num_classes=NUM_CLASSES)
    assert norm(before - others) <= LATTICE  # contribution of one record
    for changed, label in ((-vectors[0], labels[0]), (vectors[1], (labels[0] + 1) % NUM_CLASSES)):
        changed[-1] = vectors[0, -1]  # the constant
        after = sums_by_class(
            np.vstack([changed, vectors[1:]]), np.append(label, labels[1:]), num_classes=NUM_CLASSES
        )
        assert 0 < norm(after - before) <= 2 * LATTICE


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**20), st.integers(1, 30))
def test_an_owner_adds_a_norm_of_one_at_most_however_many_records(seed, number):
    mine, my_labels = some(seed, number)
    vectors, labels = some(seed + 1)
    owners = np.arange(len(labels)) % 3
    without = sums_by_class(vectors, labels, num_classes=NUM_CLASSES, owners=owners)
    with_me = sums_by_class(
        np.vstack([mine, vectors]),
        np.append(my_labels, labels),
        num_classes=NUM_CLASSES,
        owners=np.append(np.full(number, 7), owners),
    )
    assert 0 < norm(with_me - without) <= LATTICE


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("owned", [False, True])
@pytest.mark.parametrize("bad", [7.0, 1e300, np.nan, np.inf])
def test_a_vector_that_is_too_long_counts_as_none(bad, owned):
    """The norm is verified in integers for every result of `record_vectors`."""
    vectors, labels = some(5)
    owners = np.arange(len(labels)) if owned else None

    def sums(chosen):
        some_owners = None if owners is None else owners[chosen]
        return sums_by_class(
            vectors[chosen], labels[chosen], num_classes=NUM_CLASSES, owners=some_owners
        )

    without = sums(np.arange(1, len(labels)))
    vectors[0] = bad
    with_bad = sums(np.arange(len(labels)))
    if owned and bad == 7.0:  # shortened
        assert 0 < norm(with_bad - without) <= LATTICE
    elif not (owned and bad == 1e300):
        assert (with_bad == without).all()
    assert norm(with_bad - without) <= LATTICE


def test_sums_are_those_of_a_loop_in_whatever_order():
    vectors, labels = some(5)
    slow = np.zeros((vectors.shape[1], NUM_CLASSES))
    for vector, label in zip(vectors, labels, strict=True):
        slow[:, label] += vector
    sums = sums_by_class(vectors, labels, num_classes=NUM_CLASSES)
    np.testing.assert_allclose(sums / LATTICE, slow, atol=len(labels) / LATTICE)
    order = np.random.default_rng(0).permutation(len(labels))
    assert (sums_by_class(vectors[order], labels[order], num_classes=NUM_CLASSES) == sums).all()
    each = sums_by_class(vectors, labels, num_classes=NUM_CLASSES, owners=np.arange(len(labels)))
    np.testing.assert_allclose(each, sums, atol=1.0 * len(labels))  # steps


def slow_residuals(vectors, labels, weights):
    """Returns residuals by a loop over records, from Proposition D10, in steps of 2^-10."""
    total = np.zeros(weights.shape)
    for vector, label in zip(vectors, labels, strict=True):
        odds = np.exp(vector @ weights)
        missed = np.eye(weights.shape[1])[label] - odds / odds.sum()
        whole = np.round(vector * 2**10) / 2**10
        missed /= max(RESIDUAL_NORM, np.linalg.norm(np.outer(whole, missed)))
        total += np.outer(whole, np.fix(missed * 2**10) / 2**10)
    return total


@pytest.mark.parametrize("size", [0.0, 1.0, 30.0])  # at 30 most are clipped
def test_one_record_replaced_moves_residual_sums_by_two_at_most(size):
    """Tests all records and all replacements of a small universe, for arbitrary models."""
    directions = [np.array(one, float) for one in itertools.product((-1, 0, 1), repeat=2)]
    universe = vector_steps(
        np.array([[*one, 1.0] / np.linalg.norm([*one, 1.0]) for one in directions])
    )
    weights = size * np.random.default_rng(1).normal(size=(3, NUM_CLASSES))
    cases = [(row, label) for row in range(len(universe)) for label in range(NUM_CLASSES)]
    others = universe[[1, 5]], np.array([0, 2])

    def sums(row, label):
        return residual_sums(
            np.vstack([universe[row], others[0]]), np.append(label, others[1]), weights
        )

    actual = [sums(*case) for case in cases]
    alone = [residual_sums(universe[[row]], np.array([label]), weights) for row, label in cases]
    assert all(norm(one) <= LATTICE for one in alone)
    largest = max(norm(one - other) for one, other in itertools.combinations(actual, 2))
    assert (1.2 if size else 1.0) * LATTICE < largest <= 2 * LATTICE
    expected = slow_residuals(
        np.vstack([universe[0], others[0]]) / 2**10, np.append(1, others[1]), weights
    )
    np.testing.assert_allclose(sums(0, 1) / LATTICE, expected, atol=1e-5)


def test_all_rounds_are_charged_before_the_first_and_released_once(tmp_path):
    mechanism, queries = GaussianResidualSums(sigma=40.0, num_rounds=3), []

    def following(earlier):
        queries.append(earlier.copy())
        assert ledger.charges == {mechanism: 1}
        return SUMS.values

    def released():
        return release_sums(
            SUMS, mechanism, ledger=ledger, noise=SystemNoise(), unit="record", next_sums=following
        )

    with opened(tmp_path) as ledger:
        first = released()
        again = released()
        assert ledger.charges == {mechanism: 1}
        tables = first.values.reshape(3, *SUMS.values.shape)
        assert (again.values == first.values).all() and len(queries) == 2
        assert (queries[0] == tables[:1]).all() and (queries[1] == tables[:2]).all()
        with pytest.raises(ValueError, match="`next_sums` is required for several rounds"):
            release(ledger, GaussianResidualSums(sigma=50.0, num_rounds=2))
        assert ledger.charges == {mechanism: 1}


@pytest.mark.parametrize("unit", ["record", "owner"])
def test_later_rounds_are_refused_for_owners_and_not_charged(tmp_path, unit):
    """An owner with many records would move them by more than the charge allows."""
    mechanism = GaussianResidualSums(sigma=40.0, num_rounds=2, unit=unit)
    with opened(tmp_path) as ledger:
        with pytest.raises(ValueError, match="num_rounds must be 1 for owners"):
            release_sums(
                SUMS,
                mechanism,
                ledger=ledger,
                noise=SystemNoise(),
                unit="owner",
                next_sums=lambda earlier: SUMS.values,
            )
        assert not ledger.charges


def opened(folder, **terms):
    return Ledger.open(folder, **{"ensemble_digest": "ab" * 32, "delta": DELTA, **terms})


def release(ledger, mechanism=MECHANISM, sums=SUMS, noise=None):
    return release_sums(sums, mechanism, ledger=ledger, noise=noise or SystemNoise(), unit="record")


def test_what_was_released_once_is_released_again_without_a_charge(tmp_path):
    with opened(tmp_path) as ledger:
        first = release(ledger)
        assert ledger.charges == {MECHANISM: 1}
    with opened(tmp_path) as ledger:
        again = release(ledger)
        assert ledger.charges == {MECHANISM: 1}
        assert (again.values == first.values).all() and (again.values != SUMS.values).any()
        assert again.cost == first.cost and again.ledger_rows == first.ledger_rows
        assert first.cost.epsilon == smallest_epsilon({MECHANISM: 1}, DELTA)[0]
        assert first.secure_noise
        other = release(ledger, GaussianFeatureSums(sigma=50.0))
        assert (other.values != first.values).any()
        assert ledger.charges == {MECHANISM: 1, GaussianFeatureSums(sigma=50.0): 1}
        assert list(stored_counts(ledger)) == []  # there are no votes


class Refusing(SystemNoise):
    """Fails while it draws."""

    def gaussian_integers(self, scale, size):
        raise KeyboardInterrupt


def test_it_is_charged_before_it_is_drawn(tmp_path):
    with opened(tmp_path) as ledger:
        with pytest.raises(KeyboardInterrupt):
            release(ledger, noise=Refusing())
        assert ledger.charges == {MECHANISM: 1}
        release(ledger)  # under the same debit: nobody saw the first draw
        assert ledger.charges == {MECHANISM: 1}


IN_ROUNDS = GaussianResidualSums(sigma=40.0, num_rounds=4)


def kill_in_round(number, point):
    """Labels from noisy sums, until the process dies in a round."""

    def following(earlier):
        if len(earlier) == number:
            os.environ["PATE_TF_FAULT_POINT"] = point
        return SUMS.values + len(earlier) * LATTICE

    return following


def released_in_rounds(ledger, next_sums, mechanism=IN_ROUNDS, noise=None):
    return release_sums(
        SUMS,
        mechanism,
        ledger=ledger,
        noise=noise or SystemNoise(),
        unit="record",
        next_sums=next_sums,
    )


def stopped(folder, call, point=None):
    """Makes a call with the ledger of a folder, in a process that is killed during the call."""
    running = start(functools.partial(with_ledger, folder, call), folder=folder, point=point)
    assert running.wait().code == -signal.SIGKILL


def with_ledger(folder, call):
    with opened(folder) as ledger:
        call(ledger)


def release_in_rounds_until(number, point, ledger):
    released_in_rounds(ledger, kill_in_round(number, point))


def stored_tables(ledger, mechanism=IN_ROUNDS):
    numbers, rows = sums_in_ledger(ledger, mechanism)
    assert len(rows) <= 1
    return np.array(numbers, np.int64).reshape(-1, *SUMS.values.shape)


@pytest.mark.parametrize(
    ("point", "charged"),
    [("before_debit", 0), ("debit_committed", 1), ("noise_drawn", 1), ("answers_committed", 1)],
)
def test_killed_at_every_step_of_a_release(tmp_path, point, charged):
    with opened(tmp_path):
        pass
    stopped(tmp_path, release, point)
    with opened(tmp_path) as ledger:
        assert ledger.charges[MECHANISM] == charged
        release(ledger)
        assert ledger.charges[MECHANISM] == 1


@pytest.mark.parametrize(
    ("point", "number", "stored"),
    [
        ("noise_drawn", 1, 1),
        ("noise_drawn", 3, 3),
        ("answers_written", 2, 2),
        ("answers_committed", 2, 3),
        ("answers_committed", 3, 4),
    ],
)
def test_a_run_killed_in_a_round_goes_on_with_those_stored(tmp_path, point, number, stored):
    with opened(tmp_path):
        pass
    stopped(tmp_path, functools.partial(release_in_rounds_until, number, point))
    with opened(tmp_path) as ledger:
        before, queries = stored_tables(ledger), []

        def following(earlier):
            queries.append(earlier.copy())
            return SUMS.values + len(earlier) * LATTICE

        actual = released_in_rounds(ledger, following)
        after = actual.values.reshape(-1, *SUMS.values.shape)
        assert ledger.charges == {IN_ROUNDS: 1} and len(before) == stored
        assert [len(one) for one in queries] == list(range(stored, 4))
        assert (after[:stored] == before).all() and (after == stored_tables(ledger)).all()
        exact = SUMS.values + LATTICE * np.arange(4)[:, None, None]
        assert (np.abs(after - exact) < 8 * 40 * LATTICE).all()  # the sums of each round
        assert actual.cost.epsilon == smallest_epsilon({IN_ROUNDS: 1}, DELTA)[0]
        # A different call is charged separately.
        for other in (
            GaussianResidualSums(sigma=40.0, num_rounds=3),
            GaussianResidualSums(sigma=41.0, num_rounds=4),
        ):
            released_in_rounds(ledger, following, other)
            assert ledger.charges[other] == 1


def test_what_does_not_fit_is_neither_charged_nor_drawn(tmp_path):
    epsilon = smallest_epsilon({MECHANISM: 1}, DELTA)[0]
    with opened(tmp_path, epsilon_budget=0.9 * epsilon) as ledger:
        with pytest.raises(BudgetExceeded):
            release(ledger, noise=Refusing())
        assert ledger.charges == {}


def test_sums_that_were_changed_in_the_ledger_are_not_released(tmp_path):
    with opened(tmp_path):
        pass
    stopped(tmp_path, functools.partial(release_in_rounds_until, 1, "noise_drawn"))
    with contextlib.closing(sqlite3.connect(tmp_path / DATABASE)) as connection:
        for (name,) in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        changed = connection.execute("UPDATE answers SET noisy_counts = zeroblob(96)").rowcount
        connection.commit()
    assert changed == 1
    with pytest.raises(LedgerError, match=r"answers of row 3 were changed$"):
        opened(tmp_path)


def test_a_charge_for_owners_is_refused_where_records_are_protected(tmp_path):
    """The charge would be too small by half. Nothing is charged or drawn, and no
    statement is made.
    """
    mechanism = dataclasses.replace(MECHANISM, unit="owner")
    with opened(tmp_path) as ledger:
        with pytest.raises(ValueError, match="unit must be 'owner' for gaussian_feature_sums"):
            release_sums(SUMS, mechanism, ledger=ledger, noise=SystemNoise(), unit="record")
        assert not ledger.charges
    with pytest.raises(ValueError, match="unit: a charge is for owners"):
        check_unit("record", [MECHANISM, mechanism])
    check_unit("owner", [MECHANISM, mechanism])
