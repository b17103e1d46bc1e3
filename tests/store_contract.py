"""The guarantees of every store, even if it is restored, deleted, copied, opened twice
or killed.
"""

import functools
import shutil
import signal
import sqlite3
import warnings

import pytest
from script_processes import start
from stores import STORES, spend, spend_on

from pate_tf.core.source import PrivateSource
from pate_tf.ledger import LedgerError, LedgerWarning

FAULT_POINTS = [
    f"{kind}_{when}"
    for kind in ("opened", "debit", "answers")
    for when in ("written", "committed", "noted")
]


def one_line(error):
    text = str(error.value)
    assert "\n" not in text
    return text


class StoreContract:
    """Give `kind`, a key of `STORES`, and whether a subject may have only one store."""

    kind: str
    is_single: bool

    @pytest.fixture
    def folder(self, tmp_path):
        return tmp_path / "here" / "sensitive"

    def open(self, folder, **settings):
        return STORES[self.kind].open(folder, **settings)

    def spent(self, folder, numbers, **settings):
        """Returns answers of a store that is opened and closed for them."""
        store = self.open(folder, **settings)
        try:
            return spend(self.kind, store, numbers)
        finally:
            store.close()

    def put_back(self, copy, folder):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(copy, folder)

    def refusal(self, folder):
        with pytest.raises(LedgerError) as error:
            self.open(folder)
        return one_line(error)

    def test_a_query_has_one_answer_in_whatever_object(self, folder):
        one, other = self.open(folder), self.open(folder)
        first = spend(self.kind, one, range(3))
        again = spend(self.kind, other, range(5))
        assert first.items() <= again.items()
        assert spend(self.kind, one, range(5)) == again
        assert other.charges.total() == one.charges.total() == 5
        one.close()
        other.close()

    def test_redraws_from_a_restored_folder_are_refused(self, folder, tmp_path):
        self.open(folder).close()
        shutil.copytree(folder, tmp_path / "copy")
        first = self.spent(folder, range(20))
        shutil.copytree(folder, tmp_path / "newest")
        for _ in range(5):
            self.put_back(tmp_path / "copy", folder)
            text = self.refusal(folder)
            assert "ends at row 1, but row" in text and "Restore the newer copy" in text
        self.put_back(tmp_path / "newest", folder)
        assert self.spent(folder, range(20)) == first

    def test_a_restored_folder_that_is_acknowledged_is_charged_again(self, folder, tmp_path):
        self.spent(folder, range(2))
        shutil.copytree(folder, tmp_path / "copy")
        self.spent(folder, range(5))
        self.put_back(tmp_path / "copy", folder)
        store = self.open(folder, acknowledge_reset=True)
        assert store.was_reset
        assert store.charges.total() == 5
        spend(self.kind, store, range(5))
        store.close()
        store = self.open(folder)
        assert store.was_reset
        assert store.charges.total() == 8
        store.close()

    def test_a_deleted_store_is_never_a_fresh_one(self, folder):
        self.spent(folder, range(5))
        shutil.rmtree(folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LedgerWarning)
            try:
                store = self.open(folder)
            except LedgerError as error:
                assert "Restore the ledger" in str(error) and "\n" not in str(error)
                store = self.open(folder, acknowledge_reset=True)
        assert store.was_reset
        assert store.charges.total() == 5
        store.close()

    def test_another_store_counts_for_the_same_source_or_is_refused(self, folder, tmp_path):
        source = PrivateSource.named("patients")
        self.spent(folder, range(5), source=source)
        elsewhere = tmp_path / "there" / "sensitive"
        if self.is_single:  # the spending of the first one is charged here
            assert str(folder) in self.refusal(elsewhere)
            other = self.open(elsewhere, acknowledge_reset=True)
            assert other.charges.total() == 5
            spend(self.kind, other, range(20, 21))
            assert "another ledger of this subject was used in" in self.refusal(folder)
        else:
            with pytest.warns(LedgerWarning, match="2 ledgers use the records of the source pat"):
                other = self.open(elsewhere, source=source)
            assert other.charges.total() == 0
            spend(self.kind, other, range(20, 21))
            assert sum(other.source_spending().charges.values()) == 6
        other.close()

    def test_of_two_copies_one_goes_on(self, folder, tmp_path):
        self.spent(folder, range(2))
        copy = tmp_path / "copy" / "sensitive"
        shutil.copytree(folder, copy)
        one, other = self.open(folder), self.open(copy)
        spend(self.kind, one, range(10, 12))
        with pytest.raises(LedgerError) as error:
            spend(self.kind, other, range(10, 12))
        assert "it ends at row 5, but row 9 existed" in one_line(error)
        one.close()
        other.close()
        self.refusal(copy)
        # The copy that continued is gone. Its spending counts, independent of its location.
        shutil.rmtree(folder)
        store = self.open(copy, acknowledge_reset=True)
        assert store.charges.total() == 4
        store.close()

    def test_a_removed_row_is_refused(self, folder):
        self.spent(folder, range(3))
        for statement in ("sequence = 4", "sequence >= 6", "sequence = 1"):
            shutil.copy(folder / "ledger.sqlite3", folder / "kept")
            connection = sqlite3.connect(folder / "ledger.sqlite3")
            with connection:
                connection.execute(f"DELETE FROM rows WHERE {statement}")
            connection.close()
            assert "refused" in self.refusal(folder)
            shutil.move(folder / "kept", folder / "ledger.sqlite3")
        self.spent(folder, range(3))

    def test_a_witness_tells_of_a_store_that_was_restored_with_its_whole_machine(
        self, folder, tmp_path, monkeypatch
    ):
        store = self.open(folder)
        witnesses = [store.witness()]
        for number in range(3):
            spend(self.kind, store, [number])
            witnesses.append(store.witness())
        assert len({*witnesses}) == 4 and {len(one) for one in witnesses} == {32}
        assert all(store.holds_witness(one) for one in witnesses)
        assert not any(store.holds_witness(one) for one in (bytes(32), b"", witnesses[0][:31]))
        shutil.copytree(folder, tmp_path / "copy")
        spend(self.kind, store, [7])
        newest = store.witness()
        store.close()
        self.put_back(tmp_path / "copy", folder)
        monkeypatch.setenv("PATE_TF_STATE", str(tmp_path / "restored, too"))
        store = self.open(folder)
        assert all(store.holds_witness(one) for one in witnesses)
        assert not store.holds_witness(newest)
        # Spending the same amount again does not make the same row.
        spend(self.kind, store, [7])
        assert not store.holds_witness(newest)
        store.close()

    def test_witnesses_are_told_by_their_store_alone(self, tmp_path, monkeypatch):
        actual = []
        for place in ("one", "other"):
            monkeypatch.setenv("PATE_TF_STATE", str(tmp_path / place / "state"))
            actual.append(self.open(tmp_path / place / "sensitive"))
        one, other = actual
        assert not other.holds_witness(one.witness())
        assert one.head.digest not in one.witness().hex()
        for store in actual:
            store.close()

    def after_a_kill(self, folder, given):
        """Checks that every released answer was charged and stays the same, and that nothing is
        refused.
        """
        store = self.open(folder)
        numbers = list(given)
        assert store.charges.total() >= len(given)
        assert STORES[self.kind].answers(store, numbers) == given
        store.close()

    @pytest.mark.parametrize("point", FAULT_POINTS)
    def test_killed_at_every_step(self, folder, tmp_path, point):
        given = {} if point.startswith("opened") else self.spent(folder, range(3))
        if given:
            shutil.copytree(folder, tmp_path / "copy")
        call = functools.partial(spend_on, self.kind, folder, 5)
        assert start(call, folder=tmp_path, point=point).wait().code == -signal.SIGKILL
        self.after_a_kill(folder, given)
        if given and point in ("debit_noted", "answers_written", "answers_noted"):
            # A copy from before the kill lacks the debit, but the registry has noted it.
            self.put_back(tmp_path / "copy", folder)
            self.refusal(folder)
