"""What a mechanism draws with, and what it draws: integers in, labels out."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pate_tf.accounting.lattice import LATTICE
from pate_tf.accounting.quadrature import IntArray

NoisyWinners = Callable[[IntArray, IntArray], IntArray]


class NoiseSource(Protocol):
    """The primitive draws that mechanisms are composed of; `pate_tf.noise` has the real ones."""

    def laplace_integers(self, scale: float, size: int) -> IntArray:
        """Returns integers k with probability proportional to e^(-|k|/scale), `[size]`."""

    def gaussian_integers(self, scale: float, size: int) -> IntArray:
        """Returns integers k with probability proportional to e^(-k^2/(2 scale^2)), `[size]`."""

    def bernoulli_exp(self, gaps: IntArray, gamma: float) -> NDArray[np.bool_]:
        """Returns True with probability e^(-gamma * gap), same shape as gaps `[size]`."""

    def uniform_integers(self, bounds: IntArray) -> IntArray:
        """Returns uniform whole numbers from 0 to bounds - 1, same shape as bounds `[size]`."""

    def random_orders(self, num_queries: int, num_classes: int) -> IntArray:
        """Returns uniform random orders of the classes, `[num_queries, num_classes]`."""

    def uniform_below(self, bound: int) -> int:
        """Returns a uniform whole number from 0 to bound - 1, of any size."""

    def uniform_subset(self, number: int, *, below: int) -> list[int]:
        """Returns `number` different whole numbers from 0 to below - 1, every set as likely."""


def largest_sums(counts: IntArray, noise: IntArray) -> IntArray:
    """Returns the class with the largest counts * LATTICE + noise, int64 [num_queries].

    Args:
        counts: int64 [num_queries, num_classes].
        noise: likewise, in units of 1 / LATTICE votes.
    """
    return np.asarray(np.argmax(counts * LATTICE + noise, axis=1))


@dataclass(frozen=True)
class Answers:
    """What a mechanism drew for a batch: all of it leaves, and nothing else does.

    Attributes:
        labels: of each query; None where it was withheld.
        noisy_counts: what leaves with the labels, int64 [num_queries, num_classes] in units of
            1 / LATTICE votes; those of withheld queries don't leave. None if labels leave alone.

    Raises:
        ValueError: if labels and noisy counts differ in number.
    """

    labels: Sequence[int | None] = dataclasses.field(repr=False)
    noisy_counts: IntArray | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.noisy_counts is not None and len(self.noisy_counts) != len(self.labels):
            raise ValueError(
                f"expected noisy counts of {len(self.labels)} queries, got {len(self.noisy_counts)}"
            )
