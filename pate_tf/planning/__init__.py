"""Planning of a release, before anything is charged, from public values only."""
