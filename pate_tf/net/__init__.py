"""Calls between organisations: mutual TLS, limits, arrays as checked bytes."""
