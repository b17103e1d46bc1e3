"""The door for sums of records: it pays before it draws, and gives one answer for ever."""

import contextlib
import sqlite3

import numpy as np
import pytest

from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.divergences import LATTICE
from pate_tf.accounting.mechanisms import ClassSums, GaussianHistogram
from pate_tf.aggregation.feature_sums import release_sums
from pate_tf.aggregation.labeller import paid_counts
from pate_tf.aggregation.noise import SeededNoise, SystemNoise
from pate_tf.core.sensitive import FeatureSums
from pate_tf.ledger import BudgetExceeded, Ledger, LedgerError
from pate_tf.ledger.chain import DATABASE

DELTA = 1e-5
SUMS = FeatureSums(np.arange(12).reshape(4, 3) * LATTICE)
MECHANISM = ClassSums(40.0)


def opened(folder, **terms):
    return Ledger.open(folder, ensemble_digest="ab" * 32, delta=DELTA, **terms)


def release(ledger, mechanism=MECHANISM, sums=SUMS, noise=None):
    return release_sums(sums, mechanism, ledger=ledger, noise=noise or SystemNoise(), unit="record")


def test_what_was_released_once_is_released_again_for_nothing(tmp_path):
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
        other = release(ledger, ClassSums(50.0))
        assert (other.values != first.values).any()
        assert ledger.charges == {MECHANISM: 1, ClassSums(50.0): 1}
        assert list(paid_counts(ledger)) == []  # of votes there are none


class Refusing(SystemNoise):
    """Dies as it draws."""

    def gaussian_integers(self, scale, size):
        del scale, size
        raise KeyboardInterrupt


def test_it_is_paid_before_it_is_drawn(tmp_path):
    with opened(tmp_path) as ledger:
        with pytest.raises(KeyboardInterrupt):
            release(ledger, noise=Refusing())
        assert ledger.charges == {MECHANISM: 1}
        release(ledger)  # nothing was drawn, so that it is paid again
        assert ledger.charges == {MECHANISM: 2}


def test_what_does_not_fit_is_neither_charged_nor_drawn(tmp_path):
    epsilon = smallest_epsilon({MECHANISM: 1}, DELTA)[0]
    with opened(tmp_path, epsilon_budget=0.9 * epsilon) as ledger:
        with pytest.raises(BudgetExceeded):
            release(ledger, noise=Refusing())
        assert ledger.charges == {}


def test_refusals_come_before_any_charge(tmp_path):
    with opened(tmp_path) as ledger:
        with pytest.raises(ValueError, match="sums of records, got gaussian_histogram"):
            release(ledger, GaussianHistogram(3.0))
        with pytest.raises(ValueError, match="sigma"):
            release(ledger, ClassSums(2.0**40))
        assert ledger.charges == {}


def test_seeded_noise_marks_the_ledger_for_good(tmp_path):
    with opened(tmp_path) as ledger:
        assert not release(ledger, noise=SeededNoise(1)).secure_noise
        assert not ledger.is_secure


def test_sums_that_were_changed_in_the_ledger_are_not_given_out(tmp_path):
    with opened(tmp_path) as ledger:
        release(ledger)
    with contextlib.closing(sqlite3.connect(tmp_path / DATABASE)) as connection:
        for (name,) in connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        changed = connection.execute("UPDATE answers SET noisy_counts = zeroblob(96)").rowcount
        connection.commit()
    assert changed == 1
    with pytest.raises(LedgerError):
        opened(tmp_path)


def test_sums_are_checked_and_hide_themselves():
    assert "4 numbers of 3 classes" in repr(SUMS)
    for bad in (np.zeros(3, np.int64), np.zeros((2, 2)) + 0.5, np.zeros((0, 2), np.int64)):
        with pytest.raises(ValueError, match="sums: expected"):
            FeatureSums(bad)
