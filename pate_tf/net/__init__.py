"""Network calls between organizations: mutual TLS, call limits, and message encoding."""
