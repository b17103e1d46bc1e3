"""What an analysis is asked to release, and what it released, as values.

A roof room, without TensorFlow.
"""

import dataclasses
from typing import Any

from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.planned_release import DEFAULT_PROFILE, PlannedRelease
from pate_tf.accounting.release_plan import ReleasePlan
from pate_tf.releases.planning import plan_release
from pate_tf.releases.results import GateDecision, SanitisedEpsilon

SANITISED, SMOOTH_SENSITIVITY, GATE = "sanitised", "smooth_sensitivity", "gate"
RELEASES = (SANITISED, SMOOTH_SENSITIVITY, GATE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleaseRequest:
    """What is to be released, fixed before the votes are read. Public.

    Attributes:
      kinds: some of `RELEASES`, at least one. `sanitised` and `gate` read one and the same draw;
        `smooth_sensitivity` is another draw and stands alone.
      delta: in total.
      adaptive: whether queries were chosen by looking at earlier noisy labels; then refused.
      profile: lead of the first class, as a share of the teachers, that the plan is made for.
      moment: of the plan; this and the following default to what planning finds best.
      smoothness: eta, or beta for `smooth_sensitivity`.
      sigma: of the release's noise, in sensitivities.
      budget: the gate's, a cost at the moment in natural logarithms.
      confidence: that the sanitised epsilon is not too low.
      attempts: how often a gate is tried on these votes in all, anywhere; its guarantee covers so
        many. None if nobody says; then it covers one, and is no worst case.

    Raises:
      ValueError: if kinds do not go together, or a value is for another kind.
    """

    kinds: tuple[str, ...]
    delta: float
    adaptive: bool = False
    profile: float = DEFAULT_PROFILE
    moment: float | None = None
    smoothness: float | None = None
    sigma: float | None = None
    budget: float | None = None
    confidence: float | None = None
    attempts: int | None = None

    def __post_init__(self) -> None:
        for kind in self.kinds:
            if kind not in RELEASES:
                raise ValueError(f"release: expected some of {list(RELEASES)}, got {kind!r}")
        if SMOOTH_SENSITIVITY in self.kinds and len(set(self.kinds)) > 1:
            raise ValueError(
                "release: expected smooth_sensitivity alone: two draws from the same votes cost "
                "twice"
            )
        if self.budget is not None and GATE not in self.kinds:
            raise ValueError("budget: expected it with a gate, got it without")
        if self.attempts is not None and (GATE not in self.kinds or self.attempts < 1):
            raise ValueError(
                f"attempts: expected at least 1, with a gate alone, got {self.attempts}"
            )
        if self.confidence is not None and GATE in self.kinds:
            raise ValueError(
                "confidence: expected none with a gate, whose failures are half of delta"
            )
        if self.confidence is not None and not 0.5 < self.confidence < 1.0:
            raise ValueError(f"confidence: expected in (0.5, 1), got {self.confidence}")

    @property
    def planned(self) -> PlannedRelease:
        """What a ledger fixes of it beforehand."""
        is_smooth = SMOOTH_SENSITIVITY in self.kinds
        return PlannedRelease(
            release="smooth_sensitivity" if is_smooth else "log_cost",
            profile=self.profile,
            moment=self.moment,
            smoothness=self.smoothness,
            sigma=self.sigma,
            confidence=self.confidence,
        )

    def plan(
        self, mechanism: Mechanism, *, num_queries: int, num_teachers: int, num_classes: int
    ) -> ReleasePlan:
        """Returns the plan; no vote enters.

        Raises:
          ValueError: if the mechanism has no such release, or a value is out of range.
        """
        release = "log_cost"
        if GATE in self.kinds:
            release = "gate"
        elif SMOOTH_SENSITIVITY in self.kinds:
            release = "smooth_sensitivity"
        planned = plan_release(
            mechanism,
            num_queries=num_queries,
            num_teachers=num_teachers,
            num_classes=num_classes,
            delta=self.delta,
            release=release,
            profile=self.profile,
            attempts=self.attempts or 1,
        )
        changes: dict[str, Any] = {
            name: value
            for name, value in (
                ("moment", self.moment),
                ("smoothness", self.smoothness),
                ("sigma", self.sigma),
                ("budget", self.budget),
                ("failure", None if self.confidence is None else 1.0 - self.confidence),
            )
            if value is not None
        }
        return dataclasses.replace(planned, **changes)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Released:
    """Publishable: what was read from the one draw.

    Attributes:
      plan: what was fixed before the votes were read.
      sanitised: an epsilon that covers labels and itself, if it was asked for.
      gate: whether labels may be released, if it was asked for.
      attempts: how many tries of the gate its guarantee covers, by what the user says; None if
        nobody said.
      plan_was_fixed: whether the plan was fixed before there were votes, as a ledger shows.
      num_discarded: how many earlier draws the user said were never published.
      is_charged: whether a ledger was charged for it; none was for votes of a file.
      secure_noise: False if the draw's noise came from a seed.
    """

    plan: ReleasePlan
    sanitised: SanitisedEpsilon | None
    gate: GateDecision | None
    attempts: int | None
    plan_was_fixed: bool
    num_discarded: int
    is_charged: bool
    secure_noise: bool
