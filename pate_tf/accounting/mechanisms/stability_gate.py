"""The stability gate: every plurality label of a batch, without noise, or nothing.

Everything is drawn in integers, with exactly the probabilities of
`pate_tf.accounting.stability_gate`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import inf, nextafter
from typing import ClassVar, Final, Self

import numpy as np

from pate_tf.accounting.divergences import FloatArray
from pate_tf.accounting.mechanisms.base import Mechanism
from pate_tf.accounting.mechanisms.drawing import Answers, NoiseSource, NoisyWinners, largest_sums
from pate_tf.accounting.mechanisms.parameters import Flag, Parameter
from pate_tf.accounting.mechanisms.registry import register
from pate_tf.accounting.pass_function import CERTAIN
from pate_tf.accounting.quadrature import IntArray
from pate_tf.accounting.stability_distances import stability_distances
from pate_tf.accounting.stability_gate import StabilityGateLaw
from pate_tf.accounting.target import Target

# A batch that leaves as often needs an epsilon of some 9 % more than with all of delta, which would
# leave nothing to anything else; and two changed teachers, of a replaced owner or of two records of
# one person, use up 1 + exp(epsilon) times as much.
SHARE_OF_DELTA: Final = 1.0 / 3.0
EPSILON = Parameter(
    field="epsilon",
    flag=Flag(
        name="epsilon",
        help="Epsilon of a stability gate: of all labels of a batch together.",
        default=0.25,
        more_is_noisier=False,
        unit="",
    ),
)
DELTA = Parameter(
    field="delta",
    flag=Flag(
        name="gate_delta",
        help="Delta that a stability gate uses up. What it leaves of --delta is for whatever else "
        "the ensemble ever releases: a second batch, or labels of another mechanism.",
        default=SHARE_OF_DELTA * 1e-5,
        same_as="delta",
        share=SHARE_OF_DELTA,
        more_is_noisier=False,
        unit="",
    ),
)
NUM_WITHHELD = Parameter(
    field="num_withheld",
    flag=Flag(
        name="num_withheld",
        help="Queries that a stability gate may leave without a label, so that a few on which "
        "teachers disagree don't shut it. Needs a --selection_epsilon.",
        default=0.0,
        is_whole=True,
        is_positive=False,
        unit="queries",
    ),
)
SELECTION_EPSILON = Parameter(
    field="selection_epsilon",
    flag=Flag(
        name="selection_epsilon",
        help="Epsilon of choosing the queries that a stability gate leaves without a label.",
        default=0.0,
        is_positive=False,
        more_is_noisier=False,
        unit="",
    ),
)
SELECTION_SHARES: Final = tuple(np.linspace(0.05, 0.95, 19).tolist())
WITHHELD: Final = (
    " Of the batch {num_withheld} queries got no label. They were chosen with an epsilon of "
    "{selection_epsilon} more, those on which teachers disagree with a larger probability."
)


def affordable_guarantee(target: Target) -> tuple[float, float]:
    """Returns the epsilon and the delta that a batch which is paid once may use up of a target.

    All of epsilon for one changed teacher, and a third of delta: the rest is for whatever else the
    ensemble will release. Less delta where owners are protected, or several teachers may change,
    and their epsilon would be infinite.

    Raises:
        ValueError: if epsilon is so large that no delta is left.
    """
    changed = target.num_changed_teachers
    # Rounded down by more than all that rounds up where several teachers are accounted for.
    total = target.epsilon if changed == 1 else target.epsilon / changed * (1.0 - 1e-9)
    protected = max(changed, 2 if target.unit == "owner" else 1)
    with np.errstate(over="ignore"):
        spread = float(np.exp(total * np.arange(protected)).sum()) * (1.0 + 1e-8)
    delta = min(SHARE_OF_DELTA * target.delta, target.delta / spread)
    if not delta > 0.0:
        raise ValueError(f"expected an epsilon that leaves a delta, got {target.epsilon}")
    return total, delta


@register
@dataclass(frozen=True, kw_only=True)
class StabilityGate(StabilityGateLaw, Mechanism):
    """Labels a whole batch without noise, for one (epsilon, delta), or releases nothing of it.

    `StabilityGateLaw` says how, and what its fields mean. The batch and the gate are fixed before
    any vote on it is seen. Paid once for a batch, whether or not labels leave; drawn once for it.

    Attributes:
        epsilon: of all labels together.
        delta: likewise; the gate uses up so much of the ledger's delta.
        num_withheld: number of queries that get no label.
        selection_epsilon: of choosing those.
    """

    name: ClassVar[str] = "stability_gate"
    parameters: ClassVar[tuple[Parameter, ...]] = (EPSILON, DELTA, NUM_WITHHELD, SELECTION_EPSILON)
    is_paid_once: ClassVar[bool] = True
    withholds: ClassVar[bool] = True
    lacks: ClassVar[Mapping[str, str]] = {
        "calibration": "it has no scale of noise; `pass_function.least_epsilon` finds the epsilon "
        "that lets a batch out",
        "dp event": "that library has no event for an (epsilon, delta) guarantee",
        "bounds": "its cost is the same for all votes",
        "outcome law": "labels of a batch leave together or not at all, so none has a law of its "
        "own",
    }
    words: ClassVar[str] = (
        "A batch of queries was fixed beforehand. All its labels, each the class with most votes, "
        "left together and without noise, or none did: the more teachers it would take to change "
        "any of them, the likelier they left, and where a single one could, they left with a "
        "probability of at most {delta}. That is ({epsilon}, {delta}) differentially private, "
        "whatever the number of labels."
    )
    labels_in_words: ClassVar[str] = "labels without noise"
    query_strategy: ClassVar[str] = "typical"
    unanswered_advice: ClassVar[str] = (
        "the gate stayed shut, which is drawn at random, the likelier the fewer teachers could "
        "change a label. Expect more of fewer queries, of ones that everybody agrees on, of more "
        "teachers or of a larger epsilon; any other batch is paid for again"
    )

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns zeros, [num_moments]: `approximate` says all about it."""
        return np.zeros_like(moments)

    @property
    def approximate(self) -> tuple[float, float]:
        """Epsilon of both steps, rounded up, and delta."""
        total = Fraction(self.epsilon) + Fraction(self.selection_epsilon)
        nearest = float(total)
        return (nearest if Fraction(nearest) >= total else nextafter(nearest, inf), self.delta)

    @classmethod
    def for_target(cls, target: Target, counts: IntArray) -> Self:
        """Returns the gate with `affordable_guarantee` of the target.

        Queries on which assumed votes are divided are withheld, as many as there are; the share of
        epsilon that chooses them is the one that lets most labels out.

        Raises:
            ValueError: if no delta is left to it.
        """
        divided = int((stability_distances(counts) <= 1).sum())
        withheld = divided if divided < len(counts) else 0
        total, delta = affordable_guarantee(target)
        gates = [
            cls(
                epsilon=total * (1.0 - share) * (1.0 - 1e-15 * bool(share)),
                delta=delta,
                num_withheld=withheld,
                selection_epsilon=total * share,
            )
            for share in (SELECTION_SHARES if withheld else (0.0,))
        ]
        return max(gates, key=lambda gate: gate.expected_right(counts))

    def expected_right(self, counts: IntArray) -> float:
        """Returns the expected number of labels of class 0 that leave."""
        return self.expected_released(stability_distances(counts), np.argmax(counts, axis=1) == 0)

    def check_counts(self, counts: IntArray) -> None:
        """Raises ValueError unless every query has all votes and not all queries are withheld."""
        if len(stability_distances(counts)) <= self.num_withheld:
            raise ValueError(
                f"num_withheld: expected fewer than the {len(counts)} new queries of the batch, "
                f"got {self.num_withheld}"
            )

    def draw(
        self,
        counts: IntArray,
        noise: NoiseSource,
        *,
        noisy_winners: NoisyWinners = largest_sums,
    ) -> Answers:
        """Draws which queries are withheld, and whether the labels of the others leave."""
        del noisy_winners
        distances = stability_distances(counts)
        withheld = self._drawn_withheld(distances, noise)
        passes = self.pass_numerator(self.distance(distances, withheld))
        if noise.uniform_below(CERTAIN) >= passes:
            return Answers([None] * len(counts))
        labels: list[int | None] = np.argmax(counts, axis=1).tolist()
        for query in withheld:
            labels[query] = None
        return Answers(labels)

    def in_words(self) -> str:
        """Returns what it does; of the queries that are withheld only where there are some."""
        words = self.words + (WITHHELD if self.num_withheld else "")
        return words.format(**dataclasses.asdict(self))

    def summary(self) -> str:
        """Returns name and parameters; of the queries that are withheld only where there are."""
        shown = f"{self.name}, epsilon {self.epsilon:g}, delta {self.delta:g}"
        if not self.num_withheld:
            return shown
        return (
            f"{shown}, num_withheld {self.num_withheld}, selection_epsilon "
            f"{self.selection_epsilon:g}"
        )

    def _drawn_withheld(self, distances: IntArray, noise: NoiseSource) -> IntArray:
        ends = list(accumulate(self.selection_weights(distances)))
        drawn = noise.uniform_below(ends[-1])
        num_least_stable = next(k for k, end in enumerate(ends) if drawn < end)
        others = noise.uniform_subset(
            self.num_withheld - num_least_stable, below=len(distances) - num_least_stable - 1
        )
        return self.withheld_queries(distances, num_least_stable=num_least_stable, others=others)
