"""Mechanisms of earlier versions. They are needed to compute the cost of old ledgers.

These mechanisms are not registered, so they can't be chosen or planned, and they draw no labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from pate_tf.accounting.mechanisms.base import Mechanism


class RetiredMechanism(Mechanism):
    """A mechanism that occurs only in ledgers of earlier versions."""

    lacks: ClassVar[Mapping[str, str]] = {
        "draw": "only earlier versions could draw it; use gaussian_noisy_max instead",
        "bounds": "only its worst-case cost is known",
    }
    words: ClassVar[str] = "An earlier version of pate_tf drew the labels with {self.name}."


@dataclass(frozen=True, kw_only=True)
class RetiredGate(RetiredMechanism):
    """`stability_gate`: released all labels of a batch without noise if a private test passed.

    One batch is (epsilon, delta) differentially private (Desfontaines, Voss, Gipson and Mandayam
    2022, Theorem 1).

    Attributes:
        epsilon: epsilon of one batch.
        delta: delta of one batch.
    """

    epsilon: float
    delta: float
    name: ClassVar[str] = "stability_gate"
    counted: ClassVar[tuple[str, str]] = ("batch", "batches")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "approximate", (self.epsilon, self.delta))

    def number_charged(self, num_queries: int) -> int:
        """Returns 1 for a batch with at least one query, else 0."""
        return min(num_queries, 1)


@dataclass(frozen=True, kw_only=True)
class RetiredGateOrHistogram(RetiredGate):
    """`stability_gate_or_histogram`: `stability_gate`, or noisy counts if the test failed.

    Attributes:
        sigma: standard deviation of the noise on each count, in votes.
        most_queries: maximum number of queries of a batch.
    """

    sigma: float
    most_queries: int
    name: ClassVar[str] = "stability_gate_or_histogram"


@dataclass(frozen=True, kw_only=True)
class RetiredPermuteAndFlip(RetiredMechanism):
    """`permute_and_flip`: a mechanism whose label is 2 gamma differentially private.

    Attributes:
        gamma: inverse scale of the equivalent exponential noise, per vote.
    """

    gamma: float
    name: ClassVar[str] = "permute_and_flip"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "pure_epsilon", 2.0 * self.gamma)


RETIRED: Final[Mapping[str, type[RetiredMechanism]]] = {
    kind.name: kind for kind in (RetiredGate, RetiredGateOrHistogram, RetiredPermuteAndFlip)
}
