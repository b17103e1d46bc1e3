"""The release boundary: votes and feature sums, their charge, the noise."""
