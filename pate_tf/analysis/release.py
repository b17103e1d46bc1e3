"""Releases of the data-dependent cost under a plan that was fixed before the votes were read.

| release | what is published | guarantee |
|---|---|---|
| `log_cost` | the noisy logarithm of a smooth cost, and an epsilon from it | instance |
| `gate` | the same, and whether it is within a public budget | worst case |
| `smooth_sensitivity` | the cost with noise scaled to its smooth sensitivity | instance |

They rest, in this order, on docs/theory.md, Theorem B2, Theorem B3 and Theorem B1.

Instance: with probability at least `confidence` over the noise of the one release, the true data
and each of its neighbours, and no other pairs, satisfy the (epsilon, delta) inequalities for
everything published, the epsilon itself included (both directions of each if the plan's bound is
two-sided, else the loss under the true data alone). Worst case: ordinary (epsilon,
delta)-differential privacy on all data.

`log_cost` and `gate` work in integers once the cost is computed, so no floating-point noise is
published; prefer them to `smooth_sensitivity`, which costs more besides. Two releases from the
same votes compose: both costs count. A `LogCost` gives both its epsilon and its gate for one cost.
"""

from __future__ import annotations

import contextlib
import hashlib
import operator
import pathlib
import secrets
from collections.abc import Callable, Iterator, Mapping
from math import ceil, isfinite
from typing import Any, Protocol

import numpy as np

from pate_tf.accounting.conversions import SAFETY_MARGIN, check_delta
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.moments import data_dependent_alphas
from pate_tf.accounting.planning import PlannedRelease
from pate_tf.accounting.release_plan import ReleasePlan, plan_from_dict
from pate_tf.aggregation.noise import NoiseSource
from pate_tf.analysis.accounting import single_group
from pate_tf.analysis.release_planning import GATE, Released, ReleaseRequest
from pate_tf.analysis.release_results import (
    LogCost,
    SanitisedEpsilon,
    log_cost,
    sanitised,
    sanitised_epsilon,
    total_cap,
)
from pate_tf.analysis.smooth_sensitivity import log_smooth_cost, smooth_sensitivity
from pate_tf.analysis.votes import VoteSource, order_free_digest
from pate_tf.core import artifacts
from pate_tf.core.validation import IntArray
from pate_tf.ledger import Ledger, LedgerError

DiscreteGaussian = Callable[[float], int]

_FINE_BITS = 55  # lattice of 2^-55 standard deviations for the noise of `smooth_sensitivity`
_COARSE = 2.0**14  # published values per unit of Renyi divergence


def _check_release(
    counts: IntArray, mechanism: Mechanism, plan: ReleasePlan, *, adaptive: bool
) -> None:
    """Raises ValueError, whatever the votes, if the plan does not fit what is to be released."""
    if adaptive:
        raise ValueError(
            "expected queries chosen without looking at noisy labels, got adaptive ones; "
            "account for them data-independently"
        )
    plan.check_mechanism(mechanism)
    if len(counts) != plan.num_queries:
        raise ValueError(f"expected the {plan.num_queries} queries planned, got {len(counts)}")
    if not isfinite(total_cap(mechanism, plan)):
        raise ValueError(f"expected a finite cost at moment {plan.moment}, got an infinite one")


def release_log_cost(
    counts: IntArray,
    mechanism: Mechanism,
    plan: ReleasePlan,
    *,
    adaptive: bool,
    noise: DiscreteGaussian,
) -> LogCost:
    """Draws the noisy logarithm of the smooth cost, once: `prepare_log_cost`, and its draw."""
    return prepare_log_cost(counts, mechanism, plan, adaptive=adaptive)(noise)


def prepare_log_cost(
    counts: IntArray, mechanism: Mechanism, plan: ReleasePlan, *, adaptive: bool
) -> Callable[[DiscreteGaussian], LogCost]:
    """Computes the smooth cost, which may take long, and returns what draws from it.

    Y = ceil(ln Cbar / step) changes by at most 1 between neighbours, so that a discrete Gaussian
    of scale sigma costs lambda / (2 sigma^2) at every Renyi order (Theorem B2).

    Args:
        counts: int64 [num_queries, num_classes], every row with one vote of every teacher.
        mechanism: the mechanism that draws the labels.
        plan: fixed before the votes were read.
        adaptive: whether queries were chosen by looking at earlier noisy labels.

    Returns:
        SENSITIVE: a function to be called once, with what draws from the discrete Gaussian of the
        scale it is given, in production `pate_tf.aggregation.noise`.

    Raises:
        ValueError: for adaptive queries, or a plan for other queries, mechanisms or releases.
    """
    _check_release(counts, mechanism, plan, adaptive=adaptive)
    if plan.release == "smooth_sensitivity":
        raise ValueError(f"expected a plan for a noisy log cost, got one for {plan.release!r}")
    exact = log_smooth_cost(
        counts,
        mechanism,
        bound=plan.bound,
        moment=plan.moment,
        eta=plan.smoothness,
        floor=plan.cost_floor,
    )
    exact_steps = ceil((exact + SAFETY_MARGIN) / plan.step)

    def draw(noise: DiscreteGaussian) -> LogCost:
        steps = exact_steps + operator.index(noise(plan.sigma))
        return LogCost(steps=steps, mechanism=mechanism, plan=plan)

    return draw


def release_epsilon(
    counts: IntArray,
    mechanism: Mechanism,
    plan: ReleasePlan,
    delta: float,
    *,
    adaptive: bool,
    noise: DiscreteGaussian,
) -> SanitisedEpsilon:
    """Draws an epsilon that may be published: `prepare_epsilon`, and its draw."""
    return prepare_epsilon(counts, mechanism, plan, delta, adaptive=adaptive)(noise)


def prepare_epsilon(
    counts: IntArray, mechanism: Mechanism, plan: ReleasePlan, delta: float, *, adaptive: bool
) -> Callable[[DiscreteGaussian], SanitisedEpsilon]:
    """Returns what draws an epsilon that may be published: Theorem B2, or B1 if the plan says so.

    Args, result and errors: as `prepare_log_cost`; and ValueError unless 0 < delta < 1.
    """
    check_delta(delta)
    if plan.release == "smooth_sensitivity":
        _check_release(counts, mechanism, plan, adaptive=adaptive)
        return _prepare_by_smooth_sensitivity(counts, mechanism, plan, delta)
    draw = prepare_log_cost(counts, mechanism, plan, adaptive=adaptive)
    return lambda noise: draw(noise).sanitised_epsilon(delta)


def _fine_normal(noise: DiscreteGaussian) -> float:
    """Returns a normal variable, of two draws because a source may limit the scale of one.

    The second draw has eight lattice steps of the first as its standard deviation and so fills the
    lattice up; it makes the variance larger by 2^-54.
    """
    rough, fill = operator.index(noise(2.0**30)), operator.index(noise(2.0**28))
    return ((rough << (_FINE_BITS - 30)) + fill) / 2.0**_FINE_BITS


def _prepare_by_smooth_sensitivity(
    counts: IntArray, mechanism: Mechanism, plan: ReleasePlan, delta: float
) -> Callable[[DiscreteGaussian], SanitisedEpsilon]:
    """Theorem B1, with a Gaussian on a lattice so fine that only float rounding remains.

    The result is rounded up to a public grid. Rounding errors of relative size 2^-51 move it across
    a point of the grid with a probability that the public floor under U keeps at about 1e-9; delta
    does not count it.
    """
    moment = plan.moment
    cap = plan.num_queries * float(mechanism.cost_cap(np.array([moment]))[0])
    cost = float(data_dependent_alphas(counts, mechanism, np.array([moment]), bound=plan.bound)[0])
    sensitivity = smooth_sensitivity(
        counts, mechanism, moment=moment, beta=plan.smoothness, bound=plan.bound
    )
    sensitivity = sensitivity * (1.0 + SAFETY_MARGIN) + 1e-6 * cap

    def draw(noise: DiscreteGaussian) -> SanitisedEpsilon:
        normal = _fine_normal(noise)
        divergence = (cost + plan.sigma * sensitivity * (normal + plan.shift)) / moment
        published = max(0.0, ceil(divergence * _COARSE) / _COARSE)
        return sanitised(moment * published, mechanism, plan, delta)

    return draw


# Where the one draw from some votes is kept: in the ledger that paid for their labels, or a file.
#
# A ledger charges for the draw before there is any. Votes of a file have no ledger; their draw lies
# in the sensitive folder of the results. A roof room, without TensorFlow.


FOLDER = "releases"

Draw = Callable[[DiscreteGaussian], dict[str, Any]]


class Draws(Protocol):
    """Sensitive: the draws from one source of votes, while no other process may draw."""

    place: str
    kept: Mapping[str, Any] | None

    def keep(
        self,
        plan: ReleasePlan,
        num_queries: int,
        facts: Mapping[str, Any],
        draw: Draw,
        noise: NoiseSource,
    ) -> Mapping[str, Any]:
        """Draws, makes it durable in place of an earlier one, and returns it."""

    def fix(self, planned: PlannedRelease) -> bool:
        """Fixes how it is drawn, for good where a ledger keeps it.

        Returns whether that had been fixed before there were votes.
        """

    def epsilon(self, delta: float) -> float:
        """Returns what is known to have been paid so far, data-independent; 0 for nothing."""


class LedgerDraws:
    """Draws kept in a ledger, paid for through it; every one of them, discarded or not.

    Attributes:
      place: where they are kept, in words that tell nothing of the votes.
      kept: the last one; None if there is none.
    """

    def __init__(self, ledger: Ledger) -> None:
        self.place = f"the ledger in {ledger.folder}"
        self.kept = ledger.stored_release()
        self._ledger = ledger

    def keep(
        self,
        plan: ReleasePlan,
        num_queries: int,
        facts: Mapping[str, Any],
        draw: Draw,
        noise: NoiseSource,
    ) -> Mapping[str, Any]:
        """Pays, draws and keeps, if `num_queries` are still all that were answered.

        Raises:
          LedgerError: if more were answered since the votes were read, it does not fit the budget,
            or can't be made durable.
        """
        if self._ledger.num_answered != num_queries:
            raise LedgerError(
                f"release: expected {num_queries} answered queries, got "
                f"{self._ledger.num_answered}: others were answered meanwhile; run it again"
            )
        debit = self._ledger.debit(plan, secure_noise=noise.is_secure)
        kept = {**facts, "drawn": draw(noise.discrete_gaussian)}
        self._ledger.store_release(debit, kept)
        return kept

    def fix(self, planned: PlannedRelease) -> bool:
        """Fixes how it is drawn in the ledger.

        Raises:
          BudgetMismatch: if something else was fixed.
        """
        self._ledger.plan_release(planned)
        return not self._ledger.plan_is_late

    def epsilon(self, delta: float) -> float:
        """Returns what all labels and draws of the ledger cost, data-independent."""
        return self._ledger.spent(delta).epsilon


class FileDraws:
    """Draws kept in a folder of files, one for each source of votes.

    Attributes:
      place: as of `LedgerDraws`; the file's name tells nothing of the votes either.
      kept: the draw from this source; None if there is none.
    """

    def __init__(self, folder: pathlib.Path, identity: str) -> None:
        self._path = folder / f"{secrets.token_hex(8)}.json"
        self.kept: Mapping[str, Any] | None = None
        self._identity = identity
        for path in sorted(folder.glob("*.json")):
            found = _read(path)
            if found["source"] == identity:
                self._path, self.kept = path, found
        self.place = str(self._path)

    def keep(
        self,
        plan: ReleasePlan,
        num_queries: int,
        facts: Mapping[str, Any],
        draw: Draw,
        noise: NoiseSource,
    ) -> Mapping[str, Any]:
        """Draws and writes the file.

        Raises:
          OSError: if it can't be written.
        """
        del plan, num_queries
        drawn = draw(noise.discrete_gaussian)
        kept = {"source": self._identity, **facts, "drawn": drawn}
        artifacts.write_json(self._path, kept, private=True)
        return kept

    def fix(self, planned: PlannedRelease) -> bool:
        """Returns False: files fix nothing before there are votes."""
        del planned
        return False

    def epsilon(self, delta: float) -> float:
        """Returns 0: nobody keeps accounts of files."""
        del delta
        return 0.0


@contextlib.contextmanager
def in_ledger(folder: pathlib.Path, identity: str) -> Iterator[LedgerDraws]:
    """Opens the draws of a ledger's votes.

    A draw kept in a file beside the ledger, as before ledgers charged for them, is paid for and
    taken over, also above the budget: it has left.

    Args:
      folder: the ledger's.
      identity: digest of the source.

    Raises:
      ValueError: if such a file is damaged.
      LedgerError: if the ledger is damaged or can't be written.
    """
    with Ledger.read(folder) as known:
        ensemble_digest, delta = known.ensemble_digest, known.delta
    with (
        Ledger.open(folder, ensemble_digest=ensemble_digest, delta=delta) as ledger,
        ledger.exclusive(),
    ):
        unpaid = _unpaid(ledger, identity)
        if unpaid is not None:
            debit = ledger.debit(
                plan_from_dict(unpaid["key"]["plan"]),
                secure_noise=unpaid.get("secure_noise", True),
                was_released=True,
            )
            ledger.store_release(debit, unpaid)
        yield LedgerDraws(ledger)


def is_unpaid(ledger: Ledger) -> bool:
    """Whether a draw lies beside a ledger that was never charged for it.

    Only versions before ledgers charged for draws left such; only in the ledger's own folder are
    they found.
    """
    return _unpaid(ledger, identity_of(ledger.ensemble_digest)) is not None


def identity_of(votes: str) -> str:
    """Returns the digest that draws are kept by, from what `VoteSource.identity` gives."""
    return hashlib.sha256(votes.encode()).hexdigest()


def _unpaid(ledger: Ledger, identity: str) -> Mapping[str, Any] | None:
    if ledger.stored_release() is not None:
        return None
    return FileDraws(ledger.folder / FOLDER, identity).kept


@contextlib.contextmanager
def in_files(folder: pathlib.Path, identity: str) -> Iterator[FileDraws]:
    """Opens the draws from a source of votes that has no ledger.

    Args:
      folder: a sensitive folder; draws go to `releases/` in it.
      identity: digest of the source.

    Raises:
      ValueError: if a kept draw is damaged.
    """
    folder = artifacts.make_sensitive_folder(folder / FOLDER)
    with artifacts.one_at_a_time(folder):
        yield FileDraws(folder, identity)


def _read(path: pathlib.Path) -> dict[str, Any]:
    kept = artifacts.read_json(path)
    fields = {"source": str, "key": dict, "drawn": dict, "num_discarded": int, "failure": float}
    if not all(isinstance(kept.get(name), kind) for name, kind in fields.items()):
        raise ValueError(f"{path}: expected a kept release, got something else")
    return kept


# Releases of the data-dependent cost, drawn once for the same votes and kept.
#
# Drawing twice and averaging would undo the noise, and choosing the smaller of two draws its
# guarantee. So the first draw from some votes is kept (`draws.py`); the same plan gets the same
# answer for ever, and another plan, mechanism or selection of the same votes is refused. A ledger
# is
# charged before it is drawn. A roof room, without TensorFlow.


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
