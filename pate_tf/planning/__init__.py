"""What is decided before anything is charged, from public values alone."""
