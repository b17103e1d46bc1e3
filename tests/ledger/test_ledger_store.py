"""A ledger fulfills the contract of every store."""

from store_contract import StoreContract


class TestLedger(StoreContract):
    kind, is_single = "ledger", False
