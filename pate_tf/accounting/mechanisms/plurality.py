"""The class with most votes: a baseline without privacy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from pate_tf.accounting.divergences import FloatArray
from pate_tf.accounting.mechanisms.base import Mechanism
from pate_tf.accounting.mechanisms.registry import register
from pate_tf.accounting.quadrature import IntArray

NO_NOISE = "it has no noise, and nothing private may come from it"


@register
@dataclass(frozen=True)
class Plurality(Mechanism):
    """The class with most votes and no noise: a baseline that nothing private may come from."""

    name: ClassVar[str] = "plurality"
    lacks: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("draw", "words", "calibration", "dp event", "bounds", "outcome law"), NO_NOISE
    )

    def pairwise_tail(self, gaps: FloatArray) -> FloatArray:
        """Returns 1 where gaps <= 0, and 0 elsewhere."""
        return np.where(gaps <= 0, 1.0, 0.0)

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns infinity, [num_moments]."""
        return np.full_like(moments, np.inf)

    def outcome_probabilities(self, counts: IntArray) -> FloatArray:
        """Returns 1 for the class with most votes, the lowest index among equals."""
        return np.asarray(np.eye(counts.shape[1])[np.argmax(counts, axis=1)])
