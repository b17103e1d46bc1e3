"""Calls between organizations: mutual TLS, limits, and encoding of messages."""
