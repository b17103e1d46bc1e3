"""Kills labeling processes at every step, races them, and fills their disk."""

import functools
import json
import os
import random
import signal
import sys
import time

import pytest
from ledger_helpers import MECHANISM, answers_of, label, open_ledger
from script_processes import limit_file_size, start

from pate_tf.accounting.mechanisms import ConfidentGaussianNoisyMax
from pate_tf.ledger import BudgetExceeded, Ledger, LedgerError
from pate_tf.release.noise import SeededNoise, SystemNoise
from pate_tf.release.votes import stored_counts

BUDGET = 0.72  # for 15 queries of `MECHANISM`, but not for 16

FAULT_POINTS = [
    *("opened_written", "opened_committed", "opened_noted"),
    *("before_debit", "debit_written", "debit_committed", "debit_noted"),
    *("noise_drawn", "counts_kept", "answers_written", "answers_committed", "answers_noted"),
]


def label_batches(folder, released_file, first, last, batch, budget=None, disk=None):
    """Labels batches and writes down each answer, as a student would."""
    if disk is not None:
        limit_file_size(disk)
    try:
        with open_ledger(folder, epsilon_budget=budget) as ledger, open(released_file, "a") as out:
            for begin in range(first, last, batch):
                released = label(ledger, begin, min(begin + batch, last))
                out.write(json.dumps(answers_of(released)) + "\n")
                out.flush()
                os.fsync(out.fileno())
    except BudgetExceeded:
        return
    except LedgerError as error:  # a full disk may have no room for a traceback
        sys.exit(f"LedgerError: {error}")


def start_child(folder, *arguments, point=None, **options):
    call = functools.partial(label_batches, folder, *arguments, **options)
    return start(call, folder=folder.parent, point=point)


def read_released(path):
    """Returns all answers that were ever released, in complete lines only. No query may
    have two.
    """
    answers = {}
    if not path.exists():
        return answers
    for line in path.read_text().splitlines(keepends=True):
        if line.endswith("\n"):
            for query, answer in json.loads(line).items():
                assert answers.setdefault(int(query), answer) == answer
    return answers


def check_after_crash(folder, released):
    """Checks spent >= released, verifies the chain, and compares stored with released answers."""
    answers = read_released(released)
    if not (folder / "ledger.sqlite3").exists():
        assert not answers
        return
    with open_ledger(folder) as ledger:
        assert ledger.spent().num_queries >= ledger.num_answered >= len(answers)
        if answers:
            before = ledger.spent()
            for query, answer in answers.items():
                assert answers_of(label(ledger, query, query + 1)) == {query: answer}
            assert ledger.spent() == before


@pytest.mark.parametrize("point", FAULT_POINTS)
def test_killed_at_every_step_of_a_labelling_transaction(tmp_path, point):
    folder, released = tmp_path / "sensitive", tmp_path / "released"
    if not point.startswith("opened"):
        with open_ledger(folder) as ledger:
            label(ledger, 0, 5)
    stored = 0 if point.startswith("opened") else 5
    charged = stored + 10 * (point in FAULT_POINTS[FAULT_POINTS.index("debit_committed") :])
    answered = stored + 10 * (point in FAULT_POINTS[FAULT_POINTS.index("answers_committed") :])
    num_kills = 1 if answered > stored or point.startswith(("opened", "debit")) else 3
    for _ in range(num_kills):
        child = start_child(folder, released, 5, 15, 10, point=point)
        assert child.wait().code == -signal.SIGKILL
        check_after_crash(folder, released)
        assert not read_released(released)
        with open_ledger(folder) as ledger:
            assert (ledger.spent().num_queries, ledger.num_answered) == (charged, answered)
    with open_ledger(folder, epsilon_budget=BUDGET) as ledger:
        # The same call resumes under its debit. The rest of the budget is too small for another
        # debit.
        first = answers_of(label(ledger, 5, 15))
        assert ledger.spent().num_queries == ledger.num_answered == stored + 10
        assert answers_of(label(ledger, 5, 15)) == first


CONFIDENT = ConfidentGaussianNoisyMax(threshold=90.0, sigma_threshold=20.0, sigma=40.0)


def release_batch(folder):
    with open_ledger(folder) as ledger:
        label(ledger, 0, 10, mechanism=CONFIDENT)


def test_answers_that_may_be_withheld_resume_under_their_debit(tmp_path):
    folder = tmp_path / "sensitive"
    call = functools.partial(release_batch, folder)
    for point in ("debit_committed", "noise_drawn", "counts_kept", "answers_written"):
        assert start(call, folder=tmp_path, point=point).wait().code == -signal.SIGKILL
    call()
    with Ledger.read(folder) as ledger:
        assert ledger.charges == {CONFIDENT: 10}
        (stored,) = stored_counts(ledger)
        assert len(stored.answered) == 10


class Failing(SystemNoise):
    """Fails after the debit, with an error that may depend on the draw."""

    def laplace_integers(self, scale, size):
        raise OSError("no space left")


def test_an_error_closes_the_debit_and_seeded_noise_takes_up_none(tmp_path):
    with open_ledger(tmp_path) as ledger:
        for number in (1, 2):
            with pytest.raises(OSError, match="no space left"):
                label(ledger, 0, 4, noise=Failing())
            assert ledger.spent().num_queries == 4 * number
    child = start_child(tmp_path, tmp_path / "released", 0, 4, 4, point="before_debit")
    assert child.wait().code == -signal.SIGKILL
    with open_ledger(tmp_path) as ledger:
        label(ledger, 0, 4)  # the mark of the killed process opens no earlier debit
        assert ledger.spent().num_queries == 12
    child = start_child(tmp_path, tmp_path / "released", 4, 8, 4, point="noise_drawn")
    assert child.wait().code == -signal.SIGKILL
    with open_ledger(tmp_path) as ledger:
        label(ledger, 4, 8, noise=SeededNoise(1))
        assert ledger.spent().num_queries == 20 and not ledger.is_secure


@pytest.mark.parametrize("num_kills", [20, pytest.param(200, marks=pytest.mark.long)])
def test_random_kills(tmp_path, num_kills):
    folder, released = tmp_path / "sensitive", tmp_path / "released"
    generator = random.Random(num_kills)
    killed = 0
    for _ in range(num_kills):
        lines = len(read_released(released))
        # The last few batches are queried again. Their answers must not change.
        child = start_child(folder, released, max(0, lines - 35), 100_000, 7)
        # Wait for its first answer after the restart, so that the kill hits a transaction.
        while child.process.is_alive() and len(read_released(released)) < lines + 7:
            time.sleep(0.002)
        time.sleep(generator.uniform(0.0, 0.05))
        child.kill()
        killed += child.wait().code == -signal.SIGKILL
        with Ledger.read(folder) as ledger:
            assert ledger.spent().num_queries >= ledger.num_answered >= len(read_released(released))
    assert killed == num_kills
    check_after_crash(folder, released)
    child = start_child(folder, released, 0, len(read_released(released)) + 20, 7)
    ended = child.wait()
    assert ended.code == 0, ended.err
    read_released(released)


@pytest.mark.parametrize("num_bytes", [500, 20_000, 45_000, 100_000, 300_000])
@pytest.mark.parametrize("num_before", [0, 5])
def test_a_full_disk_is_one_line_and_loses_no_charge(tmp_path, num_bytes, num_before):
    folder, released = tmp_path / "sensitive", tmp_path / "released"
    if num_before:
        with open_ledger(folder) as ledger:
            label(ledger, 0, num_before)
    ended = start_child(folder, released, num_before, 100_000, 7, disk=num_bytes).wait()
    assert ended.code == 1 and ended.err.splitlines()[-1].startswith("LedgerError: "), ended.err
    check_after_crash(folder, released)
    with open_ledger(folder) as ledger:
        before = ledger.spent().num_queries
        label(ledger, 200_000, 200_007)
        assert ledger.spent().num_queries == before + 7 >= num_before + 7


def test_eight_processes_until_refusal(tmp_path):
    folder = tmp_path / "sensitive"
    budget = 3.0
    with open_ledger(folder, epsilon_budget=budget) as ledger:
        affordable = ledger.affordable(MECHANISM)
    # Overlapping ranges: two processes label every query, in batches of 3.
    children = [
        start_child(folder, tmp_path / f"released{n}", 30 * n, 30 * n + 60, 3, budget=budget)
        for n in range(8)
    ]
    for child in children:
        ended = child.wait()
        assert ended.code == 0, ended.err

    answers = {}
    for n in range(8):
        for query, answer in read_released(tmp_path / f"released{n}").items():
            assert answers.setdefault(query, answer) == answer
    with Ledger.read(folder) as ledger:
        spent = ledger.spent()
        assert spent.epsilon <= budget
        assert spent.num_queries == ledger.num_answered == len(answers)
        assert affordable - 3 < spent.num_queries <= affordable
        debits = [row.details["num_queries"] for row in ledger.history() if row.kind == "debit"]
        assert sum(debits) == spent.num_queries
