"""Plans a release from public values only, before anything is charged."""
