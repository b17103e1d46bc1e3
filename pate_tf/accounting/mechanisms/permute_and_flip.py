"""Permute-and-flip: exponential noise on every count, drawn without any."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pate_tf.accounting import outcomes
from pate_tf.accounting.divergences import FloatArray
from pate_tf.accounting.mechanisms.drawing import Answers, NoiseSource, NoisyWinners, largest_sums
from pate_tf.accounting.mechanisms.pure import PureNoisyMax
from pate_tf.accounting.mechanisms.registry import register
from pate_tf.accounting.quadrature import IntArray


@register
@dataclass(frozen=True)
class PermuteAndFlip(PureNoisyMax):
    """Visits classes in random order and accepts one with probability e^{-gamma (max - count)}.

    The same law as adding exponential noise of rate gamma (docs/theory.md, Proposition D2).
    """

    name: ClassVar[str] = "permute_and_flip"
    words: ClassVar[str] = (
        "Classes are visited in random order, and the first one accepted is the label: the leader "
        "always, another with a probability that falls by a factor of e for every {scale} votes "
        "that it is behind. Nothing else of the votes leaves."
    )

    def draw(
        self,
        counts: IntArray,
        noise: NoiseSource,
        *,
        noisy_winners: NoisyWinners = largest_sums,
    ) -> Answers:
        """Draws who would be accepted, and one of those uniformly.

        Acceptances are independent of the order of the visits, so the first one accepted is a
        uniform choice among all who would be.
        """
        del noisy_winners
        gaps = counts.max(axis=1, keepdims=True) - counts
        accepted = noise.bernoulli_exp(gaps.ravel(), self.gamma).reshape(gaps.shape)
        picks = noise.uniform_integers(accepted.sum(axis=1))
        labels = np.argmax(accepted.cumsum(axis=1) > picks[:, np.newaxis], axis=1)
        return Answers(labels.tolist())

    def pairwise_tail(self, gaps: FloatArray) -> FloatArray:
        """Returns e^{-gamma D}/2 for D >= 0, and one minus its mirror image below."""
        return outcomes.exponential_noise_tail(gaps, self.gamma)

    def outcome_probabilities(self, counts: IntArray) -> FloatArray:
        """Returns the exact law of the label."""
        return outcomes.permute_and_flip_outcomes(counts, self.gamma)
