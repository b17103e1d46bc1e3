"""Calls between organizations: mutual TLS, rate limits, and the encoding of messages."""
