"""Releases of the data-dependent cost, drawn once for the same votes and kept.

Drawing twice and averaging would undo the noise, and choosing the smaller of two draws its
guarantee. So the first draw from some votes is kept (`draws.py`); the same plan gets the same
answer for ever, and another plan, mechanism or selection of the same votes is refused. A ledger is
charged before it is drawn. A roof room, without TensorFlow.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from pate_tf.accounting.kept_release import log_cost, sanitised_epsilon
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.plan import ReleasePlan, plan_from_dict
from pate_tf.accounting.planning import DEFAULT_PROFILE, plan_release
from pate_tf.accounting.release import (
    DiscreteGaussian,
    GateDecision,
    SanitisedEpsilon,
    prepare_epsilon,
    prepare_log_cost,
)
from pate_tf.aggregation.noise import NoiseSource
from pate_tf.analysis.accounting import single_group
from pate_tf.analysis.draws import Draws, identity_of, in_files, in_ledger
from pate_tf.analysis.votes import VoteSource, order_free_digest
from pate_tf.records import IntArray

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
            raise ValueError("gate_budget: expected it with --release=gate, got it without")
        if self.confidence is not None and GATE in self.kinds:
            raise ValueError(
                "confidence: expected none with a gate, whose failures are half of delta"
            )
        if self.confidence is not None and not 0.5 < self.confidence < 1.0:
            raise ValueError(f"confidence: expected in (0.5, 1), got {self.confidence}")

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
      num_discarded: how many earlier draws the user said were never published.
      is_charged: whether a ledger was charged for it; none was for votes of a file.
      secure_noise: False if the draw's noise came from a seed.
    """

    plan: ReleasePlan
    sanitised: SanitisedEpsilon | None
    gate: GateDecision | None
    num_discarded: int
    is_charged: bool
    secure_noise: bool


class ReleaseStore:
    """The draws of the votes that an analysis is about, one for each source.

    Draws from a ledger's votes are paid for and kept in the ledger. Draws from a file of votes are
    known in their own folder alone: whoever analyses them with another one, or another part of
    them as a file of its own, draws anew, and all draws cost.

    Args:
      folder: a sensitive folder; draws from files go to `releases/` in it.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder

    def release(
        self,
        source: VoteSource,
        request: ReleaseRequest,
        noise: NoiseSource,
        *,
        discard_earlier: bool = False,
    ) -> Released:
        """Returns what was drawn earlier under the same plan, or draws and keeps it.

        Args:
          source: votes of one mechanism.
          request: what is to be released.
          noise: not drawn from if there is a draw already, nor before a ledger was charged for it
            and for whether it is secure.
          discard_earlier: whether a draw under another plan was never published, so that a new one
            may take its place. How often that happened is kept and reported.

        Raises:
          ValueError: if the queries are adaptive, the source or mechanism has no such release, or
            an earlier draw from the same votes exists.
          BudgetExceeded: if the ledger's budget does not cover the draw; nothing was drawn.
          LedgerError: if the ledger can't be used; what was drawn is not returned either.
          OSError: if the draw can't be kept; then it is not returned either.
        """
        if request.adaptive:
            raise ValueError(
                "release: expected queries chosen without looking at noisy labels, got adaptive "
                "ones; account for them data-independently"
            )
        if source.labels_left and GATE in request.kinds:
            raise ValueError(
                "release: expected labels that wait for the gate, got a ledger's, which have left "
                "already; a gate after the fact promises nothing"
            )
        group = single_group(source)
        counts, mechanism = group.counts.values, group.mechanism
        plan = request.plan(
            mechanism,
            num_queries=len(counts),
            num_teachers=int(counts[0].sum()),
            num_classes=counts.shape[1],
        )
        # Everything that decides what is published, so that equal keys have equal answers.
        key = {
            "votes": order_free_digest(counts),
            "mechanism": mechanism.to_dict(),
            "plan": plan.to_dict(),
            "delta": request.delta if plan.release == "smooth_sensitivity" else None,
        }

        def is_replaced(earlier: Mapping[str, Any], place: str) -> bool:
            if earlier["key"] == key or not discard_earlier:
                return False
            if GATE in request.kinds:
                raise ValueError(
                    f"discard_release: expected no gate after an earlier draw ({place}): whoever "
                    f"saw that one could choose between them"
                )
            return True

        with self._draws(source) as draws:
            kept, paid_epsilon = draws.kept, draws.epsilon(request.delta)
        if kept is None or is_replaced(kept, draws.place):
            # Outside of the lock: the exact cost may take longer than others wait for a ledger.
            draw = _prepared(counts, mechanism, plan, request.delta)
            with self._draws(source) as draws:
                kept = draws.kept
                if kept is None or is_replaced(kept, draws.place):
                    facts = {
                        "key": key,
                        "num_discarded": 0 if kept is None else kept["num_discarded"] + 1,
                        "failure": plan.failure + (0.0 if kept is None else kept["failure"]),
                        "secure_noise": noise.is_secure,
                    }
                    kept = draws.keep(plan, len(counts), facts, draw, noise)
                paid_epsilon = draws.epsilon(request.delta)
        if kept["key"] != key:
            differing = [name for name in key if kept["key"].get(name) != key[name]]
            raise ValueError(
                f"release: expected the {' and '.join(differing)} of the earlier release from "
                f"these votes, kept in {draws.place}, got another; if that one was never "
                f"published, --discard_release puts this one in its place"
            )
        return _released(kept, request, paid_epsilon, is_charged=source.folder is not None)

    def _draws(self, source: VoteSource) -> contextlib.AbstractContextManager[Draws]:
        identity = identity_of(source.identity())
        if source.folder is not None:
            return in_ledger(source.folder, identity)
        return in_files(self._folder, identity)


def _prepared(
    counts: IntArray, mechanism: Mechanism, plan: ReleasePlan, delta: float
) -> Callable[[DiscreteGaussian], dict[str, Any]]:
    """SENSITIVE: computes the exact cost and returns what draws from it."""
    if plan.release == "smooth_sensitivity":
        draw_epsilon = prepare_epsilon(counts, mechanism, plan, delta, adaptive=False)

        def draw(noise: DiscreteGaussian) -> dict[str, Any]:
            found = draw_epsilon(noise)
            return {
                "epsilon": found.epsilon,
                "confidence": found.confidence,
                "worst_case_epsilon": found.worst_case_epsilon,
            }

        return draw
    draw_log_cost = prepare_log_cost(counts, mechanism, plan, adaptive=False)
    return lambda noise: {"steps": draw_log_cost(noise).steps}


def _released(
    kept: Mapping[str, Any], request: ReleaseRequest, paid_epsilon: float, *, is_charged: bool
) -> Released:
    plan, sanitised, gate = plan_from_dict(kept["key"]["plan"]), None, None
    if GATE in request.kinds:
        gate = log_cost(kept).gate(request.delta)
    if set(request.kinds) != {GATE}:
        sanitised = sanitised_epsilon(kept, delta=request.delta, paid_epsilon=paid_epsilon)
    return Released(
        plan=plan,
        sanitised=sanitised,
        gate=gate,
        num_discarded=kept["num_discarded"],
        is_charged=is_charged,
        secure_noise=kept.get("secure_noise", True),
    )
