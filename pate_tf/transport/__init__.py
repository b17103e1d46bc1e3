"""Calls between organisations: mutual TLS, rosters, limits, arrays as checked bytes."""
