"""From votes to released labels: counting, noise, and the labeller that pays before it answers."""
