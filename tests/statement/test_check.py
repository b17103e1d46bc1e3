import copy
import dataclasses
import json
import shutil

import pytest
from analysis_helpers import DELTA, MECHANISM, golden_counts, release_labels
from statement_helpers import check, state

from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.local import RandomisedResponse
from pate_tf.accounting.mechanisms import GaussianNoisyMax
from pate_tf.accounting.noisy_training import NoisyTraining
from pate_tf.core.source import PrivateSource
from pate_tf.ledger import Ledger
from pate_tf.silos import Policy
from pate_tf.silos.silo import SiloAccount
from pate_tf.statement import check_statement, opened_stores, spent_since, verify
from pate_tf.statement.labels_statement import LabelsStatement
from pate_tf.statement.several_holders import SharedTrainingStatement, SiloSpending, SilosStatement

SANITISED = {"epsilon": 0.001, "delta": DELTA, "confidence": 0.99, "worst_case_epsilon": 1.0}


@pytest.fixture
def charged(tmp_path):
    """Returns a ledger of two students, and the statement of the second."""
    first = release_labels(tmp_path, golden_counts("H1", 5))
    second = release_labels(tmp_path, golden_counts("H2", 7))
    assert first.ledger_rows != second.ledger_rows
    return tmp_path, state(tmp_path, second)


def test_against_replacing_an_owner_the_whole_ledger_counts_at_two_moved_teachers(tmp_path):
    release_labels(tmp_path, golden_counts("H1", 5))
    statement = state(tmp_path, release_labels(tmp_path, golden_counts("H2", 7)), unit="owner")
    check(tmp_path, statement)
    said = statement["epsilon_ledger_replaced"]
    assert said > statement["epsilon_ledger"]
    for lower in (said * 0.999, statement["epsilon_ledger"], float("nan")):
        with pytest.raises(ValueError, match="against replacing an owner"):
            check(tmp_path, {**statement, "epsilon_ledger_replaced": lower})


def test_a_reset_can_not_be_hidden(tmp_path):
    folder = tmp_path / "run/sensitive"
    release_labels(folder, golden_counts("H1", 5))
    shutil.rmtree(folder)
    opened = {"ensemble_digest": "ab" * 32, "delta": DELTA}
    Ledger.open(folder, **opened, acknowledge_reset=True).close()
    statement = state(folder, release_labels(folder, golden_counts("H2", 7)))
    check(folder, statement)
    assert statement["ledger_was_reset"] is True
    page = LabelsStatement.from_dict(statement).to_markdown()
    assert page.splitlines()[2].startswith("**THE LEDGER WAS RESET")
    with pytest.raises(ValueError, match="ledger_was_reset is False, but True in the ledger"):
        check(folder, {**statement, "ledger_was_reset": False})
    # The charges of the lost ledger are part of the ensemble's cost.
    assert statement["epsilon_ledger"] > statement["epsilon"]


def test_the_statement_names_the_sum_over_ledgers_of_a_source(tmp_path):
    source = PrivateSource.named("customers")
    ledgers = []
    for number, ensemble in enumerate(("ab" * 32, "cd" * 32)):
        folder = tmp_path / str(number)
        opened = {"ensemble_digest": ensemble, "delta": DELTA, "source": source}
        Ledger.open(folder, **opened).close()
        ledgers.append((folder, ensemble))
    release_labels(ledgers[0][0], golden_counts("H1", 5))
    released = release_labels(ledgers[1][0], golden_counts("H2", 7), ensemble=ledgers[1][1])
    statement = state(ledgers[1][0], released, source_name="customers")
    check(ledgers[1][0], statement)
    expected, _ = smallest_epsilon({MECHANISM: 12}, DELTA)
    assert statement["epsilon_source"] == expected > statement["epsilon_ledger"]
    assert statement["num_ledgers"] == 2
    page = LabelsStatement.from_dict(statement).to_markdown()
    assert "everything released from customers on this machine (2 ledgers)" in page
    with pytest.raises(ValueError, match="for all releases of the source"):
        check(ledgers[1][0], {**statement, "epsilon_source": 0.01})
    release_labels(ledgers[0][0], golden_counts("H3", 9))
    with opened_stores([ledgers[1][0]]) as stores:
        since = spent_since(LabelsStatement.from_dict(statement), stores)
    assert since.startswith("by now the ledgers of this source (2) have spent epsilon")


def test_a_true_statement_agrees_also_when_the_ledger_has_grown(charged):
    folder, statement = charged
    check(folder, statement)
    release_labels(folder, golden_counts("H3", 9))
    check(folder, statement)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"epsilon_ledger": 0.01}, "epsilon.* must be at least"),
        ({"epsilon": 1e9}, "for the whole ledger"),
        ({"epsilon": 0.0}, "epsilon.* must be at least"),
        ({"epsilon": 1e-9}, "epsilon.* must be at least"),
        ({"epsilon": float("nan")}, "epsilon.* must be at least"),
        ({"ledger_rows": []}, "does not contain the ledger rows of its labels"),
        ({"delta": 1e-12}, "delta is .*, but .* in the ledger"),
        ({"num_answered": -1}, "no more answers than queries"),
        ({"num_answered": 8}, "no more answers than queries"),
        ({"num_answered": 6}, "6 answers to 7 queries"),
        ({"num_queries": 0, "num_answered": 0}, "at least 1 queries, one per row"),
        ({"ledger_rows": [2, 4], "num_queries": 1, "num_answered": 1}, "at least 2 queries"),
        ({"epsilon_budget": 0.1}, "epsilon_budget is 0.1, but None in the ledger"),
        ({"budget_was_raised": True}, "budget_was_raised is True, but False in the ledger"),
        ({"guarantees": []}, "words do not match its numbers in guarantees"),
        ({"protected": "everything"}, "its numbers in .*protected"),
        ({"sections": {}}, "its numbers in sections"),
        ({"holder": "Another"}, "its numbers in sections"),
        ({"source_name": "customers"}, "source_name is customers, but None in the ledger"),
        ({"unit": "owner"}, "epsilon_ledger_replaced must be a number"),
        ({"unit": "owner", "epsilon_ledger_replaced": 1e9}, "its numbers in .*guarantees"),
        ({"kind": "perfect"}, "its numbers in kind"),
        ({"note": "certified"}, "unknown fields: note"),
        ({"sanitised": SANITISED}, "the ledger stores no release"),
        ({"sanitised": {**SANITISED, "epsilon": "low"}}, "is invalid: must not be "),
        ({"num_queries": 7.5}, "is invalid: must not be "),
        ({"versions": None}, "its field versions is invalid"),
        ({"epsilon_ledger": float("nan")}, "epsilon.* must be at least"),
        ({"ledger_rows": [1]}, "row 1 of the ledger is not a charge"),
        ({"ledger_rows": [99]}, "row 99 of the ledger is not a charge"),
        ({"mechanism": GaussianNoisyMax(sigma=400.0).to_dict()}, "a different mechanism"),
        ({"ledger_head": [3, "00" * 32]}, "another digest than in the statement"),
        ({"ledger_head": [99, "00" * 32]}, "another digest than in the statement"),
        ({"ledger_head": []}, "is invalid: "),
        ({"delta": "small"}, "is invalid: "),
    ],
    ids=str,
)
def test_a_cheaper_statement_is_refused(charged, change, told):
    folder, statement = charged
    with pytest.raises(ValueError, match=told) as caught:
        check(folder, {**statement, **change})
    assert "\n" not in str(caught.value)


def test_a_student_can_not_be_signed_by_the_head_before_it_was_charged(charged, tmp_path):
    folder, statement = charged
    with Ledger.read(folder) as ledger:
        earlier = ledger.history()[2]
    cheaper = copy.deepcopy(statement)
    cheaper["ledger_head"] = [earlier.sequence, earlier.digest]
    cheaper["epsilon"] = cheaper["epsilon_ledger"] = statement["epsilon"] / 2
    with pytest.raises(ValueError, match="of the ledger is not a charge"):
        check(folder, cheaper)


def test_a_budget_is_that_of_the_quoted_row(tmp_path):
    released = release_labels(tmp_path, golden_counts("H1", 5), budget=3.0)
    before = state(tmp_path, released)
    with Ledger.open(tmp_path, ensemble_digest="ab" * 32, delta=DELTA) as ledger:
        ledger.raise_budget(epsilon_budget=9.0, delta=DELTA)
    after = state(tmp_path, released)
    assert (after["epsilon_budget"], after["budget_was_raised"]) == (9.0, True)
    for statement in (before, after):
        check(tmp_path, statement)
    for change in ({"budget_was_raised": False}, {"epsilon_budget": 3.0}):
        with pytest.raises(ValueError, match=f"{next(iter(change))} is .*, but .* in the ledger"):
            check(tmp_path, {**after, **change})


def test_a_row_that_was_never_answered_taught_nobody(tmp_path):
    released = release_labels(tmp_path, golden_counts("H1", 5))
    with (
        Ledger.open(tmp_path, ensemble_digest="ab" * 32, delta=DELTA) as ledger,
        ledger.exclusive(),
    ):
        lost = ledger.debit(MECHANISM, [b"lost in a crash."], secure_noise=True)
    statement = state(tmp_path, released)
    check(tmp_path, statement)
    with pytest.raises(ValueError, match="was charged but never answered"):
        check(tmp_path, {**statement, "ledger_rows": [*statement["ledger_rows"], lost]})


def test_another_ledger_with_the_same_rows_does_not_vouch(charged, tmp_path_factory):
    _, statement = charged
    other = tmp_path_factory.mktemp("other")
    release_labels(other, golden_counts("H1", 5))
    release_labels(other, golden_counts("H2", 7))
    with pytest.raises(ValueError, match="another digest than in the statement"):
        check(other, statement)


def test_seeded_noise_can_not_be_hidden(tmp_path, monkeypatch):
    import analysis_helpers

    from pate_tf.release.noise import SeededNoise

    monkeypatch.setattr(analysis_helpers, "SystemNoise", lambda: SeededNoise(1))
    released = release_labels(tmp_path, golden_counts("H1", 5))
    statement = state(tmp_path, released)
    assert statement["secure_noise"] is False
    check(tmp_path, statement)
    with pytest.raises(ValueError, match="secure noise"):
        check(tmp_path, {**statement, "secure_noise": True})
    (tmp_path / "statement.json").write_text(json.dumps(statement))
    with pytest.raises(ValueError, match="noise came from a seed: NOT PRIVATE"):
        verify(tmp_path / "statement.json", [tmp_path])


# Shared training and silos.


@pytest.fixture
def trained(tmp_path):
    """Returns two participants' ledgers with equal charges, and the statement of their model."""
    charge = NoisyTraining(sampling_rate=0.1, noise_multiplier=1.0, rounds=20)
    folders = [tmp_path / "one", tmp_path / "other"]
    for number, folder in enumerate(folders):
        facts = {"ensemble_digest": f"{number}" * 64, "delta": DELTA}
        with Ledger.open(folder, **facts) as ledger, ledger.exclusive():
            ledger.debit(charge, secure_noise=True)
    heads = []
    for folder in folders:
        with Ledger.read(folder) as ledger:
            heads.append((ledger.head.sequence, ledger.head.digest))
            epsilon = ledger.spent().epsilon
    facts = {"num_participants": 2, "num_parameters": 9, "upload": 1.0, "rounds": 20}
    facts |= {"pool_name": "d", "protocol": "synchronous", "charge": charge, "unit": "record"}
    made = SharedTrainingStatement(**facts, epsilon=epsilon, delta=DELTA, ledger_heads=tuple(heads))
    return folders, json.loads(json.dumps(made.to_dict()))


def checked(folders, fields):
    with opened_stores(folders) as stores:
        return check_statement(fields, *stores)


def test_shared_training_is_checked_by_the_ledgers_of_participants(trained, tmp_path):
    folders, fields = trained
    for some in (folders, folders[:1], folders[1:], []):
        assert checked(some, fields).epsilon == fields["epsilon"]
    other = tmp_path / "third"
    Ledger.open(other, ensemble_digest="ab" * 32, delta=DELTA).close()
    for some, change, told in (
        ([], {"epsilon": fields["epsilon"] / 2}, "epsilon.* must be at least"),
        ([other], {}, "its ledger rows are not"),
        (folders, {"epsilon": fields["epsilon"] / 2}, "epsilon.* must be at least"),
        (folders, {"epsilon_source": 0.1}, "epsilon_source must be at least"),
        (folders, {"delta": 1e-4}, "delta is .*, but .* in the ledger"),
        (folders, {"ledger_heads": [[1, fields["ledger_heads"][0][1]]]}, "its ledger rows are not"),
        (folders, {"charge": {**fields["charge"], "rounds": 19}}, "not charged for this training"),
        (folders, {"kind": "perfect"}, "its numbers in kind"),
    ):
        with pytest.raises(ValueError, match=told):
            checked(some, {**fields, **change})


def test_silos_are_checked_by_their_accounts(tmp_path):
    charge = RandomisedResponse(epsilon=2.0, num_classes=10)
    policy = Policy(silo="north", epsilon_budget=90.0, delta=1e-6)
    account = SiloAccount(tmp_path / "north", policy)
    with account.exclusive():
        account.debit(charge, [bytes([n]) * 32 for n in range(5)])
    account.close()
    epsilon, _ = smallest_epsilon({charge: 5}, 1e-6)
    spent = SiloSpending(
        name="north", charged=((charge, 5),), num_refused=0, epsilon=epsilon, delta=1e-6
    )
    facts = {"run_id": "r", "query_strategy": "first", "num_queries": 5, "num_answered": 5}
    made = SilosStatement(pool_name="lines", delta=1e-6, unit="silo", silos=(spent,), **facts)
    checked([tmp_path / "north"], made.to_dict())
    for change, told in (
        ({"epsilon": epsilon / 2}, "epsilon.* must be at least"),
        ({"delta": 1e-9}, "delta must be at least"),
        ({"charged": ((charge, 6),), "epsilon": 50.0}, "ledger of north was not charged for"),
        ({"name": "south"}, "is not a ledger of its silos: south"),
    ):
        wrong = dataclasses.replace(made, silos=(dataclasses.replace(spent, **change),))
        with pytest.raises(ValueError, match=told):
            checked([tmp_path / "north"], wrong.to_dict())
