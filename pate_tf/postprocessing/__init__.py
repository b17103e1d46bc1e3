"""Post-processing: computes labels and weights from released numbers, without private values."""
