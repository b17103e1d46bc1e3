"""Secure aggregation: votes are shared among parties, and only a noisy histogram opens."""
