"""The truncated geometric mechanism: discrete Laplace noise on a class number, cut to the classes.

Of the distributed teacher and student paper (Zhao), mended: its equation (2) gives probability to
an answer that is no label.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, nextafter
from typing import ClassVar

import numpy as np

from pate_tf.accounting.conversions import FloatArray
from pate_tf.accounting.local.base import LocalNoise, LocalRandomiser, WorstPair, register
from pate_tf.accounting.outcomes import IntArray


@register
@dataclass(frozen=True, kw_only=True)
class TruncatedGeometric(LocalRandomiser):
    """Answers min(max(vote + Z, 0), num_classes - 1), Z discrete Laplace.

    The scale of Z is (num_classes - 1) / epsilon, and epsilon is exact (docs/proofs/local.md,
    Theorem L2). It takes classes as ordered: with ten of them, a class in the middle is its own
    likeliest answer only above epsilon 6.24. It is here for comparison with the paper.
    """

    name: ClassVar[str] = "truncated_geometric"
    is_recommended: ClassVar[bool] = False
    help: ClassVar[str] = (
        "Not recommended: it treats classes as ordered numbers, and at epsilon 1 with ten classes "
        "a vote is kept less often than by chance; for comparison with the paper."
    )
    words: ClassVar[str] = (
        "To the number of the class that a silo votes for discrete Laplace noise is added, and the "
        "sum is cut to the {num_classes} classes. One answer costs the silo epsilon {epsilon} with "
        "delta 0."
    )

    @property
    def scale(self) -> float:
        """Scale of the noise, in class numbers, rounded up."""
        return nextafter((self.num_classes - 1) / self.epsilon, inf)

    def channel(self) -> FloatArray:
        """Returns Pr[answer = column | vote = row]."""
        fall = exp(-1.0 / self.scale)
        classes = np.arange(self.num_classes)
        found = fall ** np.abs(classes[None, :] - classes[:, None]) / (1.0 + fall)
        found[:, 1:-1] *= 1.0 - fall
        return np.asarray(found)

    def worst_pair(self) -> WorstPair:
        """The first and the last class, whose losses are (num_classes - 1 - 2 answer) / scale."""
        last = self.num_classes - 1
        return WorstPair(
            self.epsilon / last,
            np.arange(-last, last + 1, 2),
            self.channel()[0][::-1].copy(),
        )

    def draw(self, votes: IntArray, noise: LocalNoise) -> IntArray:
        """Draws an answer to each vote; see `LocalRandomiser.draw`."""
        votes = self.checked_votes(votes)
        drawn = noise.laplace_integers(self.scale, len(votes))
        return np.asarray(np.clip(votes + drawn, 0, self.num_classes - 1))
