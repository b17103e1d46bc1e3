"""Calls between organizations: mutual TLS, limits, arrays as checked bytes."""
