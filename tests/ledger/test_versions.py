"""Ledgers that older versions wrote: `version_1` by the commit before releases, `version_2` after.

Each holds six queries of every mechanism, answered on undecided teachers, and a raised budget;
version 2 two charged releases besides. `expected.json` is what the code that wrote it said of it.
"""

import json
import pathlib
import shutil
import sqlite3

import pytest
from ledger_helpers import DELTA, ENSEMBLE, answers_of, label, labeller_on, open_ledger, pool

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.mechanisms import (
    ConfidentGaussianNoisyMax,
    ExponentialMechanism,
    GaussianNoisyMax,
    LaplaceNoisyMax,
    PermuteAndFlip,
)
from pate_tf.accounting.planning import ReleasePlan
from pate_tf.core.source import PrivateSource
from pate_tf.ledger import BudgetExceeded, Head, Ledger, LedgerError
from pate_tf.release.votes import stored_counts

HERE = pathlib.Path(__file__).parent
MECHANISMS = [
    PermuteAndFlip(gamma=0.05),
    LaplaceNoisyMax(gamma=0.05),
    ExponentialMechanism(gamma=0.05),
    GaussianNoisyMax(sigma=40.0),
    ConfidentGaussianNoisyMax(threshold=90.0, sigma_threshold=20.0, sigma=40.0),
]
PLANS = [
    ReleasePlan(
        release=release,
        bound="two_sided",
        moment=10.0,
        smoothness=0.01,
        sigma=9.0,
        failure=0.01,
        num_queries=20,
    )
    for release in ("log_cost", "smooth_sensitivity")
]


@pytest.fixture(params=[1, 2], ids="version {}".format)
def version(request):
    return request.param


@pytest.fixture
def folder(version, tmp_path):
    return pathlib.Path(shutil.copytree(HERE / f"version_{version}", tmp_path / "sensitive"))


@pytest.fixture
def expected(folder):
    return json.loads((folder / "expected.json").read_text())


def version_of(folder):
    connection = sqlite3.connect(folder / "ledger.sqlite3")
    (found,) = connection.execute("PRAGMA user_version").fetchone()
    connection.close()
    return found


def paid_before(version) -> dict[Charge, int]:
    plans = PLANS if version == 2 else []
    return {**dict.fromkeys(MECHANISMS, 6), **dict.fromkeys(plans, 1)}


def check(ledger, version, expected):
    assert ledger.charges == paid_before(version)
    spent = ledger.spent()
    # A sharper worst case makes it smaller, never larger.
    assert 0.5 * expected["epsilon"] < spent.epsilon <= expected["epsilon"] * (1 + 1e-9)
    assert (spent.num_queries, spent.num_answered) == (30, expected["num_answered"])
    assert [row.kind for row in ledger.history()][: len(expected["kinds"])] == expected["kinds"]
    assert (ledger.epsilon_budget, ledger.was_raised, ledger.is_secure) == (25.0, True, True)
    assert [batch.mechanism for batch in stored_counts(ledger)] == MECHANISMS
    kept = {"drawn": {"steps": -3}, "key": {"votes": "ab"}} if version == 2 else None
    assert ledger.stored_release() == kept


def test_it_is_read_without_being_touched(folder, version, expected):
    before = (folder / "ledger.sqlite3").read_bytes()
    with Ledger.read(folder) as ledger:
        check(ledger, version, expected)
        assert [ledger.head.sequence, ledger.head.digest] == expected["head"]
        assert ledger.stored_answers([b"unknown"]) == {}
    assert (folder / "ledger.sqlite3").read_bytes() == before
    assert version_of(folder) == version


def test_it_is_migrated_and_its_answers_and_history_stay(folder, version, expected):
    with open_ledger(folder, epsilon_budget=25.0) as ledger:
        assert version_of(folder) == 3
        check(ledger, version, expected)
        for mechanism in MECHANISMS:
            released = label(ledger, 0, 6, mechanism=mechanism)
            answers = {str(query): answer for query, answer in answers_of(released).items()}
            assert answers == expected["answers"][mechanism.name]
        sequence, digest = expected["head"]
        assert ledger.holds(Head(sequence=sequence, digest=digest))
        assert [row.kind for row in ledger.history()[sequence:]] == ["source"]
    with Ledger.read(folder) as ledger:
        check(ledger, version, expected)


def test_it_goes_on_being_paid(folder, version, expected):
    with open_ledger(folder, epsilon_budget=25.0) as ledger:
        label(ledger, 6, 9, mechanism=MECHANISMS[0])
        with ledger.exclusive():
            debit = ledger.debit(PLANS[0], secure_noise=True)
            ledger.store_release(debit, {"drawn": 1})
        assert ledger.spent().epsilon > 0.5 * expected["epsilon"]
        with pytest.raises(BudgetExceeded):
            label(ledger, 100, 100_000)
    with Ledger.read(folder) as ledger:
        due = paid_before(version)
        due[MECHANISMS[0]] += 3
        due[PLANS[0]] = due.get(PLANS[0], 0) + 1
        assert ledger.charges == due
        assert ledger.stored_release() == {"drawn": 1}
        assert ledger.history()[-2].details["charge"] == PLANS[0].to_dict()


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE rows SET details = replace(details, '\"num_queries\":6', '\"num_queries\":3')",
        "UPDATE answers SET label = (label + 1) % 3 WHERE position = 3",
        "DELETE FROM rows WHERE sequence = 4",
    ],
)
def test_a_change_is_noticed_before_and_after_migration(folder, statement):
    migrated = shutil.copytree(folder, folder.parent / "migrated")
    open_ledger(migrated, epsilon_budget=25.0).close()
    for one in (folder, migrated):
        connection = sqlite3.connect(one / "ledger.sqlite3")
        connection.execute(statement)
        connection.commit()
        connection.close()
        with pytest.raises(LedgerError, match="the ledger is refused"):
            Ledger.read(one)


def test_another_ensemble_or_voter_does_not_get_its_answers_again(folder):
    with pytest.raises(LedgerError, match="another ensemble"):
        open_ledger(folder, ensemble_digest="cd" * 32, epsilon_budget=25.0)
    with Ledger.open(folder, ensemble_digest=ENSEMBLE, delta=DELTA) as ledger:
        voter = labeller_on(ledger, voter=lambda inputs: pytest.fail("asked for stored answers"))
        voter(pool(0, 6), mechanism=MECHANISMS[0])


def test_the_source_is_fixed_when_this_version_first_opens_it(folder):
    """Else one ledger would be stated as charged to several sources, and counted in one."""
    first, second = (PrivateSource.named(name) for name in ("first", "second"))
    open_ledger(folder, epsilon_budget=None, source=first).close()
    with pytest.raises(LedgerError, match="source_name: expected first"):
        open_ledger(folder, epsilon_budget=None, source=second)
    with Ledger.read(folder) as ledger:
        assert ledger.source == first
