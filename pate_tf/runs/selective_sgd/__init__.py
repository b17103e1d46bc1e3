"""Runs of shared training, and what is published of them."""
