"""Publishable numbers about the data-dependent cost: plans, noise, smooth sensitivity."""
