"""Silos, parties and a coordinator on different machines: gRPC with mutual TLS."""
