"""Network calls between organizations: mutual TLS, limits of calls, and message encoding."""
