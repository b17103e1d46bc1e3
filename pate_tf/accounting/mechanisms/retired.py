"""Mechanisms that earlier versions offered. Ledgers that charged them keep their cost.

They are not registered, so nothing can choose, plan or draw them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Final

from pate_tf.accounting.mechanisms.base import Mechanism


class RetiredMechanism(Mechanism):
    """A mechanism that only ledgers of earlier versions name."""

    lacks: ClassVar[Mapping[str, str]] = {
        "draw": "only earlier versions drew it; gaussian_noisy_max is one of those that replace it",
        "bounds": "its cost is known in the worst case only",
    }
    words: ClassVar[str] = "An earlier version of pate_tf drew labels by {self.name}."


@dataclass(frozen=True, kw_only=True)
class RetiredGate(RetiredMechanism):
    """`stability_gate`: all labels of a batch without noise, or none, by a private test.

    One batch is (epsilon, delta) differentially private (Desfontaines, Voss, Gipson and Mandayam
    2022, Theorem 1).

    Attributes:
        epsilon: of a batch.
        delta: of a batch.
    """

    epsilon: float
    delta: float
    name: ClassVar[str] = "stability_gate"
    counted: ClassVar[tuple[str, str]] = ("batch", "batches")

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "approximate", (self.epsilon, self.delta))

    def number_charged(self, num_queries: int) -> int:
        """Returns 1 for a batch with queries."""
        return min(num_queries, 1)


@dataclass(frozen=True, kw_only=True)
class RetiredGateOrHistogram(RetiredGate):
    """`stability_gate_or_histogram`: the same, with noisy counts where the test failed.

    Attributes:
        sigma: standard deviation of the noise on each count, in votes.
        most_queries: of a batch.
    """

    sigma: float
    most_queries: int
    name: ClassVar[str] = "stability_gate_or_histogram"


@dataclass(frozen=True, kw_only=True)
class RetiredPermuteAndFlip(RetiredMechanism):
    """`permute_and_flip`: one label is 2 gamma differentially private.

    Attributes:
        gamma: inverse scale of the exponential noise that it amounts to, per vote.
    """

    gamma: float
    name: ClassVar[str] = "permute_and_flip"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "pure_epsilon", 2.0 * self.gamma)


RETIRED: Final[Mapping[str, type[RetiredMechanism]]] = {
    kind.name: kind for kind in (RetiredGate, RetiredGateOrHistogram, RetiredPermuteAndFlip)
}
