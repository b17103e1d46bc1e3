"""Chooses public inputs that are sent to teachers as queries, and stores their noisy labels."""
