"""The release boundary: charges and releases votes and feature sums with noise."""
