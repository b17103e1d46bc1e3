"""Chooses queries from the public pool, and stores released labels."""
