"""Releases of the data-dependent cost, drawn once for the same votes and kept.

Drawing twice and averaging would undo the noise, and choosing the smaller of two draws its
guarantee. So the first draw from some votes is kept (`draws.py`); the same plan gets the same
answer for ever, and another plan, mechanism or selection of the same votes is refused. A ledger is
charged before it is drawn. A roof room, without TensorFlow.
"""

import contextlib
import pathlib
from collections.abc import Callable, Mapping
from typing import Any

from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.release_plan import ReleasePlan, plan_from_dict
from pate_tf.analysis.accounting import single_group
from pate_tf.analysis.draws import Draws, identity_of, in_files, in_ledger
from pate_tf.analysis.release_request import GATE, Released, ReleaseRequest
from pate_tf.analysis.votes import VoteSource, order_free_digest
from pate_tf.noise import NoiseSource
from pate_tf.releases.kept import log_cost, sanitised_epsilon
from pate_tf.releases.release import DiscreteGaussian, prepare_epsilon, prepare_log_cost
from pate_tf.values.arrays import IntArray


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
                    f"discard_earlier: expected no gate after an earlier draw ({place}): whoever "
                    f"saw that one could choose between them"
                )
            return True

        with self._draws(source) as draws:
            kept, paid_epsilon = draws.kept, draws.epsilon(request.delta)
            if kept is None or kept["key"] != key:
                draws.fix(request.planned)
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
                        "plan_was_fixed": draws.fix(request.planned),
                    }
                    kept = draws.keep(plan, len(counts), facts, draw, noise)
                paid_epsilon = draws.epsilon(request.delta)
        if kept["key"] != key:
            differing = [name for name in key if kept["key"].get(name) != key[name]]
            raise ValueError(
                f"release: expected the {' and '.join(differing)} of the earlier release from "
                f"these votes, kept in {draws.place}, got another; if that one was never "
                f"published, `discard_earlier` puts this one in its place"
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
        gate = log_cost(kept).gate(request.delta, attempts=request.attempts or 1)
    if set(request.kinds) != {GATE}:
        sanitised = sanitised_epsilon(kept, delta=request.delta, paid_epsilon=paid_epsilon)
    return Released(
        plan=plan,
        sanitised=sanitised,
        gate=gate,
        attempts=request.attempts,
        plan_was_fixed=kept.get("plan_was_fixed", False),
        num_discarded=kept["num_discarded"],
        is_charged=is_charged,
        secure_noise=kept.get("secure_noise", True),
    )
