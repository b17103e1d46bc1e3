"""The release boundary, which charges votes and feature sums and releases them with noise."""
