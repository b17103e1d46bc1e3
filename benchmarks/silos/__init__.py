"""Many simulated silos: what their labels are worth, at which epsilon, and what skew does."""
