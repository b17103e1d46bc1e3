"""Releases of the data-dependent cost under a plan that was fixed before the votes were read.

| release | what is published | guarantee |
|---|---|---|
| `log_cost` | the noisy logarithm of a smooth cost, and an epsilon from it | instance |
| `gate` | the same, and whether it is within a public budget | worst case |
| `smooth_sensitivity` | the cost with noise scaled to its smooth sensitivity | instance |

They rest, in this order, on docs/proofs/theory.md, Theorem B2, Theorem B3 and Theorem B1.

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
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import ceil, isfinite
from typing import Any, Final

import numpy as np

from pate_tf.accounting.conversions import SAFETY_MARGIN
from pate_tf.accounting.cost_release import CostRelease, release_from_dict
from pate_tf.accounting.delta import DEFAULT_DELTA
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.moments import data_dependent, data_dependent_alphas
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
from pate_tf.core import artifacts, validation
from pate_tf.core.validation import IntArray
from pate_tf.ledger import Ledger, LedgerError
from pate_tf.ledger.journal import DEBITS, charge_of
from pate_tf.release.noise import NoiseSource

DiscreteGaussian = Callable[[float], int]

_FINE_BITS = 55  # lattice of 2^-55 standard deviations for the noise of `smooth_sensitivity`
_COARSE = 2.0**14  # published values per unit of Renyi divergence


def _check_release(
    counts: IntArray, mechanism: Mechanism, plan: CostRelease, *, adaptive: bool
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
    plan: CostRelease,
    *,
    adaptive: bool,
    noise: DiscreteGaussian,
) -> LogCost:
    """Draws the noisy logarithm of the smooth cost, once: `prepare_log_cost`, and its draw."""
    return prepare_log_cost(counts, mechanism, plan, adaptive=adaptive)(noise)


def prepare_log_cost(
    counts: IntArray, mechanism: Mechanism, plan: CostRelease, *, adaptive: bool
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
        scale it is given, in production `pate_tf.release.noise`.

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
    plan: CostRelease,
    delta: float,
    *,
    adaptive: bool,
    noise: DiscreteGaussian,
) -> SanitisedEpsilon:
    """Draws an epsilon that may be published: `prepare_epsilon`, and its draw."""
    return prepare_epsilon(counts, mechanism, plan, delta, adaptive=adaptive)(noise)


def prepare_epsilon(
    counts: IntArray, mechanism: Mechanism, plan: CostRelease, delta: float, *, adaptive: bool
) -> Callable[[DiscreteGaussian], SanitisedEpsilon]:
    """Returns what draws an epsilon that may be published: Theorem B2, or B1 if the plan says so.

    Args, result and errors: as `prepare_log_cost`; and ValueError unless 0 < delta < 1.
    """
    validation.between(0, 1, delta=delta)
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
    counts: IntArray, mechanism: Mechanism, plan: CostRelease, delta: float
) -> Callable[[DiscreteGaussian], SanitisedEpsilon]:
    """Theorem B1, with a Gaussian on a lattice so fine that only float rounding remains.

    The result is rounded up to a public grid. Rounding errors of relative size 2^-51 move it across
    a point of the grid with a probability that the public floor under U keeps at about 1e-9; delta
    does not count it.
    """
    moment = plan.moment
    cap = plan.num_queries * float(data_dependent(mechanism).cost_cap(np.array([moment]))[0])
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


# Releases of the data-dependent cost, drawn once for the same votes and stored.
#
# Drawing twice and averaging would undo the noise, and choosing the smaller of two draws its
# guarantee. So the first draw from some votes is stored in a ledger; the same plan gets the same
# answer for ever, and another plan, mechanism or selection of the same votes is refused. The ledger
# is charged before it is drawn: that of the labels, else one of the votes' own.


FOLDER: Final = "releases"


def release(
    source: VoteSource,
    request: ReleaseRequest,
    noise: NoiseSource,
    *,
    folder: pathlib.Path,
    discard_earlier: bool = False,
) -> Released:
    """Returns what was drawn earlier under the same plan, or charges, draws and stores it.

    Draws from a ledger's votes are stored there. A file of votes gets a ledger of its own below
    `folder`; by the registry of this user it knows of draws from the same file elsewhere.

    Args:
        source: votes of one mechanism.
        request: what is to be released.
        noise: not drawn from if there is a draw already, nor before a ledger was charged for it and
            for whether it is secure.
        folder: a sensitive folder; ledgers of files lie in `releases/` in it.
        discard_earlier: whether a draw under another plan, or in another folder, was never
            published, so that a new one may take its place. How often that happened is stored and
            reported.

    Raises:
        ValueError: if the queries are adaptive, the source or mechanism has no such release, or an
            earlier draw from the same votes exists.
        BudgetExceeded: if the ledger's budget does not cover the draw; nothing was drawn.
        LedgerError: if the ledger can't be used; what was drawn is not returned either.
    """
    if request.adaptive:
        raise ValueError(
            "release: expected queries chosen without looking at noisy labels, got adaptive ones; "
            "account for them data-independently"
        )
    if source.labels_left and GATE in request.kinds:
        raise ValueError(
            "release: expected labels that wait for the gate, got a ledger's, which were released "
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
    digest = hashlib.sha256(source.identity().encode()).hexdigest()

    def earlier(ledger: Ledger) -> Mapping[str, Any] | None:
        """Returns the draw that stands: with this key, or None where a new one may be made."""
        stored = ledger.stored_release()
        if stored is None:
            _check_elsewhere(ledger, source, plan, request, discard_earlier)
        elif stored["key"] != key:
            if not discard_earlier:
                differing = [name for name in key if stored["key"].get(name) != key[name]]
                raise ValueError(
                    f"release: expected the {' and '.join(differing)} of the earlier release from "
                    f"these votes, stored in {ledger.folder}, got another; if that one was never "
                    f"published, `discard_earlier` puts this one in its place"
                )
            if GATE in request.kinds:
                raise ValueError(
                    f"discard_earlier: expected no gate after an earlier draw ({ledger.folder}): "
                    f"those who saw that one could choose between them"
                )
            return None
        return stored

    def fix_plan(ledger: Ledger) -> bool:
        """Fixes the plan of labels; returns whether it was fixed before there were votes."""
        if source.folder is None:
            return False
        ledger.check_plan(request.planned)
        return not ledger.plan_is_late

    with _opened(source, digest, folder) as ledger:
        drawn = ledger.stored_release()
        if drawn is None or drawn["key"] != key:
            fix_plan(ledger)
        stored, spent = earlier(ledger), ledger.spent(request.delta).epsilon
    if stored is None:
        # Outside of the lock: the exact cost may take longer than others wait for a ledger.
        draw = _prepared(counts, mechanism, plan, request.delta)
        with _opened(source, digest, folder) as ledger:
            stored = earlier(ledger)
            if stored is None:
                if source.folder is not None and ledger.num_answered != len(counts):
                    raise LedgerError(
                        f"release: expected {len(counts)} answered queries, got "
                        f"{ledger.num_answered}: others were answered meanwhile; run it again"
                    )
                replaced = ledger.stored_release()
                failures = [one.failure for one in _drawn_elsewhere(ledger, source)]
                if replaced is not None:
                    failures = [replaced["failure"]] + [0.0] * replaced["num_discarded"]
                facts = {
                    "key": key,
                    "num_discarded": len(failures),
                    "failure": plan.failure + sum(failures),
                    "secure_noise": noise.is_secure,
                    "plan_was_fixed": fix_plan(ledger),
                }
                debit = ledger.debit(plan, secure_noise=noise.is_secure)
                stored = {**facts, "drawn": draw(noise.discrete_gaussian)}
                ledger.store_release(debit, stored)
            spent = ledger.spent(request.delta).epsilon
    return _released(stored, request, spent, is_charged=source.folder is not None)


@contextlib.contextmanager
def _opened(source: VoteSource, digest: str, folder: pathlib.Path) -> Iterator[Ledger]:
    """Opens the ledger that is charged for a draw, exclusively.

    Args:
        source: the votes.
        digest: of what they are drawn from.
        folder: of ledgers of files; a file's ledger has a random name, which tells nothing of
            votes.
    """
    with contextlib.ExitStack() as stack:
        place = source.folder
        if place is None:
            releases = artifacts.make_sensitive_folder(folder / FOLDER)
            stack.enter_context(artifacts.only_writer(releases, waits=True))
            place = releases / secrets.token_hex(8)
            for path in sorted(releases.glob("*/ledger.sqlite3")):
                with Ledger.read(path.parent) as found:
                    place = path.parent if found.ensemble_digest == digest else place
        delta = DEFAULT_DELTA
        if source.folder is not None or place.exists():
            with Ledger.read(place) as found:
                digest, delta = found.ensemble_digest, found.delta
        ledger = stack.enter_context(
            Ledger.open(
                place,
                ensemble_digest=digest,
                delta=delta,
                unit="record" if source.folder is None else None,
                source=source.source,
            )
        )
        stack.enter_context(ledger.exclusive())
        yield ledger


def _drawn_elsewhere(ledger: Ledger, source: VoteSource) -> Sequence[CostRelease]:
    """Returns draws of a ledger that is gone, and of a file's other ledgers, in other folders."""
    debits = [row for row in ledger.history() if row.kind in DEBITS]
    charges = [charge_of(row)[0] for row in debits if "carried_from" in row.details]
    spending = None if source.source is None else ledger.source_spending()
    if spending is not None:
        charges += (Counter(spending.charges) - ledger.charges).elements()
    return [charge for charge in charges if isinstance(charge, CostRelease)]


def _check_elsewhere(
    ledger: Ledger,
    source: VoteSource,
    plan: CostRelease,
    request: ReleaseRequest,
    discard_earlier: bool,
) -> None:
    """Checks that draws from the same file elsewhere, or of a deleted ledger, allow another one.

    Raises:
        ValueError: if they don't: a gate may be tried as often as was stated beforehand, something
            else drawn again once the user says that the earlier one was never published.
    """
    drawn = _drawn_elsewhere(ledger, source)
    if not drawn or (discard_earlier and GATE not in request.kinds):
        return
    if GATE in request.kinds and set(drawn) == {plan} and len(drawn) < (request.attempts or 1):
        return
    raise ValueError(
        f"release: expected no draw from these votes elsewhere, got {len(drawn)}, of a ledger "
        f"in another folder or of one that is gone; show that one again; `attempts` covers several "
        f"tries of a gate, `discard_earlier` puts this in the place of what was never published"
    )


def _prepared(
    counts: IntArray, mechanism: Mechanism, plan: CostRelease, delta: float
) -> Callable[[DiscreteGaussian], dict[str, Any]]:
    """SENSITIVE: computes the exact cost and returns what draws from it."""
    if plan.release == "smooth_sensitivity":
        draw_epsilon = prepare_epsilon(counts, mechanism, plan, delta, adaptive=False)

        def draw(noise: DiscreteGaussian) -> dict[str, Any]:
            found = draw_epsilon(noise)
            names = ("epsilon", "confidence", "worst_case_epsilon")
            return {name: getattr(found, name) for name in names}

        return draw
    draw_log_cost = prepare_log_cost(counts, mechanism, plan, adaptive=False)
    return lambda noise: {"steps": draw_log_cost(noise).steps}


def _released(
    stored: Mapping[str, Any], request: ReleaseRequest, spent: float, *, is_charged: bool
) -> Released:
    sanitised, gate = None, None
    if GATE in request.kinds:
        gate = log_cost(stored).gate(request.delta, attempts=request.attempts or 1)
    if set(request.kinds) != {GATE}:
        sanitised = sanitised_epsilon(stored, delta=request.delta, spent=spent)
    return Released(
        plan=release_from_dict(stored["key"]["plan"]),
        sanitised=sanitised,
        gate=gate,
        attempts=request.attempts,
        plan_was_fixed=stored.get("plan_was_fixed", False),
        num_discarded=stored["num_discarded"],
        is_charged=is_charged,
        secure_noise=stored.get("secure_noise", True),
    )
