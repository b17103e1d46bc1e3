"""Post-processing: computes labels and weights from released values only, not from private ones."""
