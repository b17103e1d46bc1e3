"""A ledger keeps what every store does."""

from store_contract import StoreContract


class TestLedger(StoreContract):
    kind, is_single = "ledger", False
