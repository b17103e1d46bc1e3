"""Mechanisms that add noise to every count and take the largest sum."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass

from pate_tf.accounting.mechanisms.base import Mechanism
from pate_tf.accounting.mechanisms.drawing import (
    Answers,
    NoiseSource,
    NoisyWinners,
    largest_sums,
)
from pate_tf.accounting.quadrature import IntArray


@dataclass(frozen=True)
class AdditiveNoisyMax(Mechanism):
    """A mechanism whose label is the class with the largest count after noise on each."""

    @abstractmethod
    def additive_noise(self, noise: NoiseSource, num_queries: int, num_classes: int) -> IntArray:
        """Returns noise in units of 1 / LATTICE votes, int64 `[num_queries, num_classes]`."""

    def draw(
        self,
        counts: IntArray,
        noise: NoiseSource,
        *,
        noisy_winners: NoisyWinners = largest_sums,
    ) -> Answers:
        """Draws noise for every count and returns the classes with the largest sums."""
        winners = noisy_winners(counts, self.additive_noise(noise, *counts.shape))
        return Answers(winners.tolist())


LARGEST_SUM = "The class with the largest sum is the label, and nothing else of the votes leaves."
