"""The exponential mechanism: Gumbel noise on every count, drawn by rejection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pate_tf.accounting import outcomes
from pate_tf.accounting.divergences import FloatArray, bounded_range_alpha
from pate_tf.accounting.mechanisms.drawing import Answers, NoiseSource, NoisyWinners, largest_sums
from pate_tf.accounting.mechanisms.pure import PureNoisyMax
from pate_tf.accounting.mechanisms.registry import register
from pate_tf.accounting.quadrature import IntArray


@register
@dataclass(frozen=True)
class ExponentialMechanism(PureNoisyMax):
    """Draws a class with probability proportional to e^{gamma count}.

    docs/theory.md, Proposition D3.
    """

    name: ClassVar[str] = "exponential_mechanism"
    words: ClassVar[str] = (
        "The label is drawn at random, and a class is e times as likely for every {scale} votes "
        "more that it has. Nothing else of the votes leaves."
    )

    def draw(
        self,
        counts: IntArray,
        noise: NoiseSource,
        *,
        noisy_winners: NoisyWinners = largest_sums,
    ) -> Answers:
        """Draws uniform classes until one is accepted: e^{-gamma (max - count)} is how likely."""
        del noisy_winners
        gaps = counts.max(axis=1, keepdims=True) - counts
        labels = np.full(len(gaps), -1, np.int64)
        waiting = np.arange(len(gaps))
        while waiting.size:
            proposed = noise.uniform_integers(np.full(waiting.size, gaps.shape[1]))
            accepted = noise.bernoulli_exp(gaps[waiting, proposed], self.gamma)
            labels[waiting[accepted]] = proposed[accepted]
            waiting = waiting[~accepted]
        return Answers(labels.tolist())

    def pairwise_tail(self, gaps: FloatArray) -> FloatArray:
        """Returns 1 / (1 + e^{gamma D})."""
        return outcomes.gumbel_tail(gaps, self.gamma)

    @property
    def bounded_range(self) -> float:
        """2 gamma: the ratio of two outcomes changes by what their two counts change."""
        return 2.0 * self.gamma

    def cost_cap(self, moments: FloatArray) -> FloatArray:
        """Returns min(D*, gamma^2 l (l+1) / 2): the log ratio spans at most 2 gamma."""
        spread = self.gamma**2 * moments * (moments + 1.0) / 2.0
        return np.minimum(super().cost_cap(moments), spread)

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns the cost of the worst counts (docs/theory_worst_case.md, Theorem W9)."""
        return np.minimum(self.cost_cap(moments), bounded_range_alpha(self.bounded_range, moments))

    def outcome_probabilities(self, counts: IntArray) -> FloatArray:
        """Returns the exact law of the label."""
        return outcomes.exponential_mechanism_outcomes(counts, self.gamma)
