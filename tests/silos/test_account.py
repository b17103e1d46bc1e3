"""A silo's account fulfills the contract of every store."""

import dataclasses
from contextlib import closing

import pytest
from silo_helpers import secure_sums
from store_contract import StoreContract

from pate_tf.ledger import LedgerError
from pate_tf.ledger.rollback_guard import RollbackGuard
from pate_tf.silos.roster import Policy
from pate_tf.silos.silo import SiloAccount


def test_an_account_of_records_takes_no_charges_for_owners(tmp_path):
    charge = secure_sums(unit="owner")
    of_records = Policy(silo="clinic", epsilon_budget=9.0, delta=1e-5)
    of_owners = dataclasses.replace(of_records, unit="owner")
    with closing(SiloAccount(tmp_path, of_owners)) as account, account.exclusive():
        account.debit(charge, [b"q" * 16], batch="1")
    with pytest.raises(LedgerError, match="unit: charges in this ledger protect owners"):
        SiloAccount(tmp_path, of_records)
    with closing(SiloAccount(tmp_path, of_owners)) as account:
        assert account.charges == {charge: 1}


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
        assert f"another ledger of this subject was used in {tmp_path / 'other'}" in str(
            error.value
        )
