"""Features of the public pool's inputs, and labels propagated over their neighbors."""
