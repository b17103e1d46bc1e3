"""The lattice that Gaussian noise is drawn on."""

from typing import Final

# Steps in one vote.
LATTICE: Final = 2**20
