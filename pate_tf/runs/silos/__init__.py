"""Runs of many holders: one silo, one party of secure aggregation, their coordinator."""
