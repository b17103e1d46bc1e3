"""Shared training across organisations: gRPC with mutual TLS."""
