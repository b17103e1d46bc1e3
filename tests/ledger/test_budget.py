import datetime
import functools
import math
import os
import pathlib
import threading
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_helpers import DELTA, MECHANISM, MECHANISMS, answers_of, label, open_ledger
from script_processes import start

from pate_tf.accounting.composition import total_alphas
from pate_tf.accounting.conversions import DEFAULT_MOMENTS, epsilon_from_alphas
from pate_tf.accounting.mechanisms import GaussianNoisyMax, LaplaceNoisyMax
from pate_tf.ledger import BudgetExceeded, BudgetMismatch, Head, Ledger, LedgerError, ledger_file
from pate_tf.release.noise import SeededNoise


def debit(ledger, mechanism, num_queries, *, secure_noise=True, tag=0):
    queries = [f"{tag}-{n}".encode() for n in range(num_queries)]
    with ledger.exclusive():
        return ledger.debit(mechanism, queries, secure_noise=secure_noise)


def test_what_was_recorded_comes_back(tmp_path):
    with open_ledger(tmp_path, epsilon_budget=20.0) as ledger:
        for number, mechanism in enumerate(MECHANISMS):
            debit(ledger, mechanism, number + 1)
        written = (ledger.history(), ledger.charges, ledger.spent(), ledger.head)
    for reopened in (Ledger.read(tmp_path), open_ledger(tmp_path, epsilon_budget=20.0)):
        with reopened as ledger:
            assert (ledger.history(), ledger.charges, ledger.spent(), ledger.head) == written
            assert ledger.charges == {mechanism: n + 1 for n, mechanism in enumerate(MECHANISMS)}
            assert [row.sequence for row in ledger.history()] == [1, 2, 3, 4]


@pytest.mark.parametrize("mechanism", MECHANISMS)
@pytest.mark.parametrize("spent_before", [[], [GaussianNoisyMax(sigma=30.0)]])
def test_the_refusal_says_exactly_how_many_queries_fit(tmp_path, mechanism, spent_before):
    with open_ledger(tmp_path, epsilon_budget=3.0) as ledger:
        for earlier in spent_before:
            debit(ledger, earlier, 20)
        before = ledger.history()
        affordable = ledger.affordable(mechanism)
        with pytest.raises(BudgetExceeded, match=f"at most {affordable} more queries") as info:
            debit(ledger, mechanism, affordable + 1)
        assert info.value.num_affordable == affordable
        assert ledger.history() == before
        debit(ledger, mechanism, affordable)
        assert ledger.spent().epsilon <= 3.0
        assert ledger.affordable(mechanism) == 0
        with pytest.raises(BudgetExceeded, match="at most 0 more queries"):
            debit(ledger, mechanism, 1)


@given(
    batches=st.lists(
        st.tuples(st.sampled_from(MECHANISMS), st.integers(1, 60)), min_size=1, max_size=12
    ),
    budget=st.floats(0.3, 5.0),
)
@settings(max_examples=25, deadline=None)
def test_the_budget_is_never_exceeded(tmp_path_factory, batches, budget):
    folder = tmp_path_factory.mktemp("ledger")
    with open_ledger(folder, ensemble_digest=folder.name, epsilon_budget=budget) as ledger:
        for number, (mechanism, num_queries) in enumerate(batches):
            before = ledger.spent().epsilon
            try:
                debit(ledger, mechanism, num_queries, tag=number)
            except BudgetExceeded as refusal:
                assert refusal.num_affordable < num_queries
                assert ledger.spent().epsilon == before
            # A mixture may lose the closed form of a single mechanism, so it is compared with
            # moments.
            moments, _ = epsilon_from_alphas(
                sum(total_alphas({m: n}, DEFAULT_MOMENTS) for m, n in ledger.charges.items())
                + np.zeros_like(DEFAULT_MOMENTS),
                DEFAULT_MOMENTS,
                DELTA,
            )
            assert ledger.spent().epsilon <= min(budget, moments)


@pytest.mark.parametrize("mechanism", [LaplaceNoisyMax(gamma=1e308)])
def test_a_mechanism_without_a_finite_guarantee_is_refused_without_a_budget_too(
    tmp_path, mechanism
):
    with open_ledger(tmp_path) as ledger:
        with pytest.raises(LedgerError, match="has no finite epsilon"):
            debit(ledger, mechanism, 1)
        assert len(ledger.history()) == 1


def test_the_budget_is_fixed_at_first_use(tmp_path):
    open_ledger(tmp_path, epsilon_budget=2.0).close()
    for changes in (
        {"epsilon_budget": 2.5},
        {"epsilon_budget": 1.5},
        {"epsilon_budget": 2.0, "delta": 1e-4},
        {"epsilon_budget": None, "delta": 1e-6},
    ):
        with pytest.raises(BudgetMismatch, match="set at first use"):
            open_ledger(tmp_path, **changes)
    for epsilon_budget in (None, 2.0):
        with open_ledger(tmp_path, epsilon_budget=epsilon_budget) as ledger:
            assert ledger.epsilon_budget == 2.0


def test_a_ledger_without_a_budget_takes_its_first_one_and_keeps_it(tmp_path):
    with open_ledger(tmp_path) as ledger:
        debit(ledger, MECHANISM, 50)
    with open_ledger(tmp_path, epsilon_budget=1.0) as ledger:
        assert not ledger.was_raised and ledger.remaining() == 0.0
        with pytest.raises(BudgetExceeded):
            debit(ledger, MECHANISM, 1)
    with pytest.raises(BudgetMismatch):
        open_ledger(tmp_path, epsilon_budget=9.0)


def replace_budget(ledger, epsilon_budget, delta):
    return ledger.raise_budget(epsilon_budget=epsilon_budget, delta=delta)


def test_a_raised_budget_is_reported_for_ever(tmp_path):
    with open_ledger(tmp_path, epsilon_budget=1.0) as ledger:
        assert not ledger.was_raised
        row = replace_budget(ledger, 2.0, 1e-4)
        assert row.details["previous_epsilon_budget"] == 1.0
        assert ledger.was_raised and (ledger.epsilon_budget, ledger.delta) == (2.0, 1e-4)
        replace_budget(ledger, 1.0, DELTA)
        replace_budget(ledger, 1.0, 1e-4)
    with open_ledger(tmp_path, epsilon_budget=1.0, delta=1e-4) as ledger:
        assert ledger.was_raised
        raised = [row.details["raised"] for row in ledger.history() if row.kind == "budget"]
        assert raised == [True, False, True]


@pytest.mark.parametrize(
    "epsilon_budget, delta",
    [*((budget, DELTA) for budget in (0.0, -1.0, math.nan, math.inf)), (1.0, -1e-9), (1.0, 1.0)],
)
def test_budgets_out_of_range_change_nothing(tmp_path, epsilon_budget, delta):
    with pytest.raises(ValueError, match="must be"):
        open_ledger(tmp_path / "new", epsilon_budget=epsilon_budget, delta=delta)
    assert not (tmp_path / "new").exists()
    with open_ledger(tmp_path, epsilon_budget=1.0) as ledger:
        with pytest.raises(ValueError, match="must be"):
            replace_budget(ledger, epsilon_budget, delta)
        assert len(ledger.history()) == 1


def test_another_ensemble_is_refused(tmp_path):
    open_ledger(tmp_path).close()
    with pytest.raises(LedgerError, match="to other teachers") as caught:
        open_ledger(tmp_path, ensemble_digest="cd" * 32)
    # All files are closed, even while somebody holds the error and with it the ledger.
    assert caught.value is not None
    left = [path.resolve() for path in pathlib.Path("/proc/self/fd").iterdir()]
    assert not [path for path in left if path.is_relative_to(tmp_path.resolve())]


def test_seeded_noise_marks_the_ledger_for_good(tmp_path):
    with open_ledger(tmp_path) as ledger:
        released = label(ledger, 0, 5, noise=SeededNoise(1))
        assert not released.secure_noise
        assert not label(ledger, 5, 10).secure_noise
    with open_ledger(tmp_path) as ledger:
        assert not ledger.is_secure
        assert not label(ledger, 10, 15).secure_noise


def test_what_another_process_did_counts_at_once(tmp_path):
    with open_ledger(tmp_path) as first, open_ledger(tmp_path) as second:
        released = label(first, 0, 5, noise=SeededNoise(1))
        assert answers_of(label(second, 0, 5)) == answers_of(released)
        assert not label(second, 0, 5).secure_noise
        open_ledger(tmp_path, epsilon_budget=0.3).close()
        with pytest.raises(BudgetExceeded):
            label(second, 5, 10)


def test_a_ledger_opened_to_read_is_never_written(tmp_path):
    open_ledger(tmp_path, epsilon_budget=1.0).close()
    with Ledger.read(tmp_path) as ledger:
        with pytest.raises(LedgerError, match="opened for reading only"):
            label(ledger, 0, 5)
        with pytest.raises(LedgerError, match="opened for reading only"):
            replace_budget(ledger, 2.0, DELTA)


def test_an_answer_can_be_stored_once(tmp_path):
    with open_ledger(tmp_path) as ledger:
        row = debit(ledger, MECHANISM, 2)
        with ledger.exclusive():
            ledger.store_answers(row, [b"a", b"b"], [1, None])
        before = ledger.history()
        with pytest.raises(LedgerError, match="second answer"), ledger.exclusive():
            ledger.store_answers(row, [b"c", b"b"], [1, 2])
        assert ledger.history() == before
        assert set(ledger.stored_answers([b"a", b"b", b"c"])) == {b"a", b"b"}


def test_a_clock_that_goes_backwards_changes_nothing(tmp_path, monkeypatch):
    class Clock(datetime.datetime):
        hours = iter([12, 3, 18, 1, 0])

        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 1, next(cls.hours), tzinfo=tz)

    module = types.SimpleNamespace(datetime=Clock, UTC=datetime.UTC)
    monkeypatch.setattr(ledger_file, "datetime", module)
    with open_ledger(tmp_path) as ledger:
        for tag in range(4):
            debit(ledger, MECHANISM, 1, tag=tag)
    with Ledger.read(tmp_path) as ledger:
        assert [row.time[11:13] for row in ledger.history()] == ["12", "03", "18", "01", "00"]
        assert [row.sequence for row in ledger.history()] == [1, 2, 3, 4, 5]


def test_a_quoted_head_is_found_again_and_a_foreign_one_is_not(tmp_path):
    with open_ledger(tmp_path / "a") as ledger, open_ledger(tmp_path / "b") as other:
        quoted = ledger.head
        debit(ledger, MECHANISM, 1)
        assert ledger.holds(quoted) and ledger.holds(ledger.head)
        assert not other.holds(quoted)
        assert not ledger.holds(Head(sequence=3, digest=quoted.digest))


def print_modes(folder):
    os.umask(0)
    with open_ledger(folder) as ledger:
        label(ledger, 0, 5)
        for path in [folder, *folder.rglob("*")]:
            print(oct(path.stat().st_mode & 0o7777), path.name)


def test_modes_are_private_under_any_umask(tmp_path):
    ended = start(functools.partial(print_modes, tmp_path / "sensitive"), folder=tmp_path).wait()
    assert ended.code == 0, ended.err
    modes = {name: mode for mode, name in (line.split() for line in ended.out.splitlines())}
    assert {modes.pop("sensitive"), modes.pop("votes")} == {"0o700"}
    assert set(modes.values()) == {"0o600"}
    assert {"ledger.sqlite3", "ledger.sqlite3-wal", "ledger.head.json", "000000002.npz"} <= set(
        modes
    )


def test_threads_keep_apart(tmp_path):
    """One ledger in four threads: each query has one answer and is charged once."""
    actual = []
    with open_ledger(tmp_path) as ledger:
        threads = [
            threading.Thread(target=lambda: actual.append(answers_of(label(ledger, 0, 20))))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert actual == [actual[0]] * 4
        assert ledger.charges == {MECHANISM: 20} and ledger.num_answered == 20
