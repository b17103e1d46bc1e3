"""Students: models that learn only from noisy labels and public inputs."""
