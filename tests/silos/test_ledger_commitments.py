"""A silo restored from a copy is detected by its own registry, or by the coordinator's
commitment.
"""

import secrets
import shutil
import warnings

import numpy as np
import pytest
from silo_helpers import RANDOMISED, SECURE, answer_until, batch, pool, roster, silo

from pate_tf.ledger import LedgerWarning
from pate_tf.silos import Coordinator
from pate_tf.silos.messages import RandomisedVotes, Reason, Refusal, SealedShares

NAMES = ("clinic", "school")


def another_machine(monkeypatch, tmp_path):
    """Uses an empty registry, as after restoring a whole machine."""
    monkeypatch.setenv("PATE_TF_STATE", str(tmp_path / secrets.token_hex(4)))


def put_back(copy, folder):
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(copy, folder)


def coordinator(tmp_path, silos):
    return Coordinator(roster(*NAMES), folder=tmp_path / "coordinator", silos=silos)


def test_a_coordinator_s_commitment_stops_a_silo_that_is_behind(tmp_path, monkeypatch):
    """Account and registry were restored together, so nothing on the silo's machine shows it."""
    silos = {name: silo(tmp_path / name, silo=name) for name in NAMES}
    with coordinator(tmp_path, list(silos.values())) as running:
        running.ask(pool(), np.arange(10))
        silos["clinic"].close()
        shutil.copytree(tmp_path / "clinic", tmp_path / "copy")
        silos["clinic"] = silo(tmp_path / "clinic", silo="clinic")
    with coordinator(tmp_path, list(silos.values())) as running:
        running.ask(pool(), np.arange(20))
    silos["clinic"].close()
    shutil.copytree(tmp_path / "clinic", tmp_path / "newest")

    put_back(tmp_path / "copy", tmp_path / "clinic")
    another_machine(monkeypatch, tmp_path)
    behind = silos["clinic"] = silo(tmp_path / "clinic", silo="clinic")
    rows = behind.account.history()
    with coordinator(tmp_path, list(silos.values())) as running:
        with pytest.warns(LedgerWarning, match="knows of a row that this ledger lacks") as told:
            running.ask(pool(), np.arange(30))
        assert len(told) == 1 and "Put the newest ledger back" in str(told[0].message)
        replies = running.journal.rounds[-1].replies
        assert replies["clinic"].reason is Reason.UNKNOWN_COMMITMENT
        assert isinstance(replies["school"], RandomisedVotes)
        # A refusal removes no commitment.
        with pytest.warns(LedgerWarning):
            running.ask(pool(), np.arange(40))
    assert behind.account.history() == rows
    behind.close()

    put_back(tmp_path / "newest", tmp_path / "clinic")
    silos["clinic"] = silo(tmp_path / "clinic", silo="clinic")
    with coordinator(tmp_path, list(silos.values())) as running:
        running.ask(pool(), np.arange(50))
        replies = running.journal.rounds[-1].replies
        assert isinstance(replies["clinic"], RandomisedVotes)
    for one in silos.values():
        one.close()


def test_a_lost_account_goes_on_once_its_owner_acknowledges_the_commitment(tmp_path, monkeypatch):
    with silo(tmp_path / "account") as one:
        commitment = one.answer(batch(0, 5)).commitment
    shutil.rmtree(tmp_path / "account")
    another_machine(monkeypatch, tmp_path)
    with silo(tmp_path / "account", acknowledge_reset=True) as one:
        assert isinstance(one.answer(batch(5, 9, commitment=commitment)), RandomisedVotes)
        assert one.account.was_reset
        # Of one commitment only.
        with pytest.warns(LedgerWarning):
            assert isinstance(one.answer(batch(20, 22, commitment=bytes(32))), Refusal)
    with silo(tmp_path / "account") as one:
        assert isinstance(one.answer(batch(10, 12, commitment=commitment)), RandomisedVotes)


@pytest.mark.parametrize("mechanism", [RANDOMISED, SECURE], ids=lambda each: each.name)
def test_a_lying_coordinator_gets_refusals_and_nothing_else(tmp_path, mechanism):
    with silo(tmp_path / "other", silo="school") as other:
        foreign = other.answer(batch(0, 5)).commitment
    with silo(tmp_path / "account") as one:
        first = one.answer(batch(0, 5, mechanism=mechanism))
        rows = one.account.history()
        made_up = [bytes(32), secrets.token_bytes(32), foreign]
        made_up.append(bytes.fromhex(one.account.head.digest))
        made_up.append(bytes([first.commitment[0] ^ 1]) + first.commitment[1:])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LedgerWarning)
            for commitment in made_up:
                for query_batch in (
                    batch(0, 5, mechanism=mechanism, commitment=commitment),
                    batch(5, 9, mechanism=mechanism, batch_id="c", commitment=commitment),
                ):
                    assert one.answer(query_batch).reason is Reason.UNKNOWN_COMMITMENT
        assert one.account.history() == rows
        # Sending an older commitment, or none, gains nothing over the truth.
        again = batch(0, 5, mechanism=mechanism)
        later = one.answer(
            batch(5, 9, mechanism=mechanism, batch_id="c", commitment=first.commitment)
        )
        assert not isinstance(later, Refusal) and later.commitment != first.commitment
        for commitment in (None, first.commitment, later.commitment):
            reply = one.answer(batch(0, 5, mechanism=mechanism, commitment=commitment))
            assert given(reply) == given(first)
        assert given(one.answer(again)) == given(first)
        assert one.account.charges.total() == 9


def given(reply):
    return reply.sealed if isinstance(reply, SealedShares) else reply.labels.tolist()


def test_a_copy_that_is_continued_charges_unanswered_queries_again(tmp_path):
    """The other copy answered them with other random numbers."""
    with silo(tmp_path / "one") as one:
        answer_until(one, batch(0, 5), "silo_debited")
    shutil.copytree(tmp_path / "one", tmp_path / "copy")
    with silo(tmp_path / "one") as one:
        one.answer(batch(0, 5))
        assert one.account.charges == {RANDOMISED: 5}
    with silo(tmp_path / "copy", acknowledge_reset=True) as other:
        other.answer(batch(0, 5))
        assert other.account.charges == {RANDOMISED: 10}
