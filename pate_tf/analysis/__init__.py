"""What `analysis.py` does: read votes or a ledger, account for them, release, report, plot."""
