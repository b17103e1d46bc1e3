"""The release boundary: charges the privacy ledger, then releases votes and sums with noise."""
