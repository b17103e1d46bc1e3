"""A silo's account keeps what every store does."""

import pytest
from store_contract import StoreContract

from pate_tf.ledger import LedgerError
from pate_tf.ledger.rollback_guard import RollbackGuard


class TestAccount(StoreContract):
    kind, is_single = "account", True

    def test_of_two_accounts_that_are_opened_at_once_one_goes_on(self, tmp_path, monkeypatch):
        looked = RollbackGuard.missing_before

        def meanwhile(guard, runs):
            missing = looked(guard, runs)
            monkeypatch.setattr(RollbackGuard, "missing_before", looked)
            self.open(tmp_path / "other").close()
            return missing

        monkeypatch.setattr(RollbackGuard, "missing_before", meanwhile)
        with pytest.raises(LedgerError) as error:
            self.open(tmp_path / "one")
        assert f"another ledger of the same subject went on in {tmp_path / 'other'}" in str(
            error.value
        )
