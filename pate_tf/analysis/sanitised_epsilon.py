"""Releases of the data-dependent cost under a plan that was fixed before the votes were read.

| release | what is published | docs/proofs/theory.md |
|---|---|---|
| `log_cost` | the noisy logarithm of a smooth cost, and an epsilon from it | Theorem B2 |
| `smooth_sensitivity` | the cost with noise scaled to its smooth sensitivity | Theorem B1 |

With probability at least `confidence` over the noise of the one release, the true data and each of
its neighbors, and no other pairs, satisfy the (epsilon, delta) inequalities for everything
published, the epsilon itself included.

`log_cost` works in integers once the cost is computed, so no floating-point noise is published;
prefer it to `smooth_sensitivity`, which costs more besides.

Drawing twice and averaging would undo the noise, and choosing the smaller of two draws its
guarantee. So the first draw from some votes is stored in a ledger; the same plan gets the same
answer forever, and another plan, mechanism or selection of the same votes is refused. The ledger
is charged before it is drawn: that of the labels, else one of the votes' own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import operator
import pathlib
import secrets
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from math import ceil, exp, isfinite
from typing import Any, Final, cast

import numpy as np

from pate_tf.accounting.charge import (
    CostRelease,
    PlannedRelease,
    SanitisedEpsilon,
    charge_from_dict,
    gaussian_smooth_sensitivity_rdp,
    integer_step,
    profile_counts,
    steps_above,
)
from pate_tf.accounting.composition import Charge, total_alphas
from pate_tf.accounting.conversions import (
    DEFAULT_DELTA,
    DEFAULT_MOMENTS,
    SAFETY_MARGIN,
    FloatArray,
    epsilon_from_alphas,
)
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.moments import bound_of, check_bound, data_dependent_alphas, union_bound
from pate_tf.analysis import smooth_sensitivity as smooth
from pate_tf.analysis.vote_sources import VoteSource, order_free_digest
from pate_tf.core import artifacts, checks
from pate_tf.core.checks import IntArray
from pate_tf.ledger import Ledger, LedgerError
from pate_tf.ledger.ledger_file import DEBITS, charge_of
from pate_tf.release.noise import NoiseSource

DiscreteGaussian = Callable[[float], int]

FOLDER: Final = "releases"
_FINE_BITS: Final = 55  # lattice of 2^-55 standard deviations for noise by smooth sensitivity
_COARSE: Final = 2.0**14  # published values per unit of Renyi divergence


def sanitised(
    alpha: float, mechanism: Mechanism, plan: CostRelease, delta: float
) -> SanitisedEpsilon:
    """Returns the smaller epsilon of a noisy cost at the plan's moment and of the worst case.

    The worst case of labels and release together holds always and may use any moment.
    """
    moment = np.array([plan.moment])
    charged: dict[Charge, int] = {mechanism: mechanism.number_charged(plan.num_queries)}
    cap = float(total_alphas(charged, moment)[0])
    total = (min(alpha, cap) + float(plan.alphas(moment)[0])) * (1.0 + SAFETY_MARGIN)
    worst = total_alphas({**charged, plan: 1}, DEFAULT_MOMENTS) * (1.0 + SAFETY_MARGIN)
    worst_epsilon, _ = epsilon_from_alphas(worst, DEFAULT_MOMENTS, delta)
    return SanitisedEpsilon(
        epsilon=min(epsilon_from_alphas([total], [plan.moment], delta)[0], worst_epsilon),
        delta=delta,
        confidence=1.0 - plan.failure,
        worst_case_epsilon=worst_epsilon,
    )


def log_cost_epsilon(
    steps: int, mechanism: Mechanism, plan: CostRelease, delta: float
) -> SanitisedEpsilon:
    """Returns the epsilon of the labels and of a noisy log cost together (Theorem B2).

    Args:
        steps: Y + discrete Gaussian of scale plan.sigma, Y = ceil(ln Cbar / plan.step). The whole
            value costs moment (moment + 1) / (2 sigma^2); everything read from it is free.
        mechanism: the mechanism of the labels.
        plan: fixed before the votes were read.
        delta: that the epsilon holds at, above 0.
    """
    # Below Y with probability at most plan.failure.
    upper_steps = steps + steps_above(plan.sigma, plan.failure)
    return sanitised(exp(min(plan.step * upper_steps, 700.0)), mechanism, plan, delta)


def stored_epsilon(drawn: Mapping[str, Any], *, delta: float, spent: float) -> SanitisedEpsilon:
    """Returns the epsilon that a stored draw gives.

    Args:
        drawn: as `Ledger.stored_release` returns it.
        delta: what it is to hold at; a draw by smooth sensitivity has its own and holds at that.
        spent: data-independent, at `delta`, of all that the ledger charged; 0 without one.
    """
    key = drawn["key"]
    if key["delta"] is None:
        mechanism = cast(Mechanism, charge_from_dict(key["mechanism"]))
        plan = cast(CostRelease, charge_from_dict(key["plan"]))
        epsilon = log_cost_epsilon(drawn["drawn"]["steps"], mechanism, plan, delta)
    else:
        epsilon = SanitisedEpsilon(delta=key["delta"], **drawn["drawn"])
    return dataclasses.replace(
        epsilon,
        confidence=max(0.0, 1.0 - drawn["failure"]),
        worst_case_epsilon=max(epsilon.worst_case_epsilon, spent),
        plan_was_fixed=bool(drawn.get("plan_was_fixed", False)),
    )


def prepare_draw(
    counts: IntArray, mechanism: Mechanism, plan: CostRelease, delta: float
) -> Callable[[DiscreteGaussian], dict[str, Any]]:
    """Computes the exact cost, which may take long, and returns what draws from it.

    Y = ceil(ln Cbar / step) changes by at most 1 between neighbors, so that a discrete Gaussian
    of scale sigma costs lambda / (2 sigma^2) at every Renyi order (Theorem B2).

    Args:
        counts: int64 [num_queries, num_classes], every row with one vote of every teacher, for
            queries chosen without looking at noisy labels.
        mechanism: the mechanism that draws the labels.
        plan: fixed before the votes were read.
        delta: of an epsilon by smooth sensitivity.

    Returns:
        SENSITIVE: a function to be called once, with what draws from the discrete Gaussian of the
        scale it is given, in production `pate_tf.release.noise`. It returns `steps`, as of
        `log_cost_epsilon`; by smooth sensitivity the fields of a `SanitisedEpsilon`.

    Raises:
        ValueError: if the plan is for other queries, mechanisms or releases.
    """
    plan.check_mechanism(mechanism)
    checks.between(0, 1, delta=delta)
    if len(counts) != plan.num_queries:
        raise ValueError(f"expected the {plan.num_queries} queries planned, got {len(counts)}")
    moment = np.array([plan.moment])
    if not isfinite(total_alphas({mechanism: mechanism.number_charged(len(counts))}, moment)[0]):
        raise ValueError(f"expected a finite cost at moment {plan.moment}, got an infinite one")
    if plan.release == "smooth_sensitivity":
        return _prepare_by_smooth_sensitivity(counts, mechanism, plan, delta)
    exact = smooth.log_smooth_cost(
        counts,
        mechanism,
        bound=plan.bound,
        moment=plan.moment,
        eta=plan.smoothness,
        floor=plan.cost_floor,
    )
    exact_steps = ceil((exact + SAFETY_MARGIN) / plan.step)
    return lambda noise: {"steps": exact_steps + operator.index(noise(plan.sigma))}


def _prepare_by_smooth_sensitivity(
    counts: IntArray, mechanism: Mechanism, plan: CostRelease, delta: float
) -> Callable[[DiscreteGaussian], dict[str, Any]]:
    """Theorem B1, with a Gaussian on a lattice so fine that only float rounding remains.

    The result is rounded up to a public grid. Rounding errors of relative size 2^-51 move it across
    a point of the grid with a probability that the public floor under U keeps at about 1e-9; delta
    does not count it.
    """
    moment = np.array([plan.moment])
    cap = plan.num_queries * float(check_bound(plan.bound, mechanism).cost_cap(moment)[0])
    cost = float(data_dependent_alphas(counts, mechanism, moment, bound=plan.bound)[0])
    sensitivity = smooth.smooth_sensitivity(
        counts, mechanism, moment=plan.moment, beta=plan.smoothness, bound=plan.bound
    )
    sensitivity = sensitivity * (1.0 + SAFETY_MARGIN) + 1e-6 * cap

    def draw(noise: DiscreteGaussian) -> dict[str, Any]:
        # Two draws, as a source may limit the scale of one. The second has eight lattice steps of
        # the first as its standard deviation, fills the lattice up, and adds 2^-54 of variance.
        rough = operator.index(noise(2.0**30))
        fill = operator.index(noise(2.0**28))
        normal = ((rough << (_FINE_BITS - 30)) + fill) / 2.0**_FINE_BITS
        divergence = (cost + plan.sigma * sensitivity * (normal + plan.shift)) / plan.moment
        published = max(0.0, ceil(divergence * _COARSE) / _COARSE)
        epsilon = sanitised(plan.moment * published, mechanism, plan, delta)
        names = ("epsilon", "confidence", "worst_case_epsilon")
        return {name: getattr(epsilon, name) for name in names}

    return draw


@dataclasses.dataclass(frozen=True, kw_only=True)
class Released:
    """Publishable: what was read from the one draw.

    Attributes:
        plan: what was fixed before the votes were read.
        sanitised: an epsilon that covers labels and itself.
        is_charged: whether the labels' ledger was charged for it; a file of votes has none.
        secure_noise: False if the draw's noise came from a seed.
    """

    plan: CostRelease
    sanitised: SanitisedEpsilon
    is_charged: bool
    secure_noise: bool


def _stored_draw(
    ledger: Ledger, source: VoteSource, key: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Returns the draw with this key; None where none was made from these votes.

    Raises:
        ValueError: if another draw was made from them.
    """
    stored = ledger.stored_release()
    if stored is None:  # of a ledger that is gone, or of a file's ledger in another folder
        debits = [row for row in ledger.history() if row.kind in DEBITS]
        elsewhere = [charge_of(row)[0] for row in debits if "carried_from" in row.details]
        spending = None if source.source is None else ledger.source_spending()
        if spending is not None:
            elsewhere += (Counter(spending.charges) - ledger.charges).elements()
        if any(isinstance(charge, CostRelease) for charge in elsewhere):
            raise ValueError(
                "release: expected no draw from these votes elsewhere, got one, of a ledger in "
                "another folder or of one that is gone; show that one again"
            )
    elif stored["key"] != key:
        differing = [name for name in key if stored["key"].get(name) != key[name]]
        raise ValueError(
            f"release: expected the {' and '.join(differing)} of the earlier release from "
            f"these votes, stored in {ledger.folder}, got another"
        )
    return stored


def release(
    source: VoteSource,
    noise: NoiseSource,
    *,
    folder: pathlib.Path,
    delta: float = DEFAULT_DELTA,
    planned: PlannedRelease | None = None,
) -> Released:
    """Returns what was drawn earlier under the same plan, or charges, draws and stores it.

    Draws from a ledger's votes are stored there. A file of votes gets a ledger of its own below
    `folder`; by the registry of this user it knows of draws from the same file elsewhere.

    Args:
        source: votes of one mechanism.
        noise: not drawn from if there is a draw already, nor before a ledger was charged for it and
            for whether it is secure.
        folder: a sensitive folder; ledgers of files lie in `releases/` in it.
        delta: of the epsilon.
        planned: how it is drawn. Default: as the ledger fixed it before there were votes.

    Raises:
        ValueError: if queries were chosen by looking at noisy labels, source or mechanism have no
            such release, or another draw from the same votes exists.
        BudgetExceeded: if the ledger's budget does not cover the draw; nothing was drawn.
        LedgerError: if the ledger can't be used; what was drawn is not returned either.
    """
    group = source.only_group()
    if source.source is None and source.folder is None:
        raise ValueError("release: expected one ledger or file, got others: release from each")
    counts = group.counts.values
    mechanism = group.mechanism
    planned = planned or source.planned_release or PlannedRelease()
    plan = plan_release(
        mechanism,
        planned,
        num_queries=len(counts),
        num_teachers=int(counts[0].sum()),
        num_classes=counts.shape[1],
        delta=delta,
    )
    # Everything that decides what is published, so that equal keys have equal answers.
    key = {
        "votes": order_free_digest(counts),
        "mechanism": mechanism.to_dict(),
        "plan": plan.to_dict(),
        "delta": delta if plan.release == "smooth_sensitivity" else None,
    }

    is_of_ledger = source.folder is not None
    with _opened(source, folder) as ledger:
        if is_of_ledger:
            ledger.check_plan(planned)
        stored = _stored_draw(ledger, source, key)
        spent = ledger.spent(delta).epsilon
    if stored is None:
        # Outside of the lock: the exact cost may take longer than others wait for a ledger.
        draw = prepare_draw(counts, mechanism, plan, delta)
        with _opened(source, folder) as ledger:
            stored = _stored_draw(ledger, source, key)
            if stored is None:
                if is_of_ledger and ledger.num_answered != len(counts):
                    raise LedgerError(
                        f"release: expected {len(counts)} answered queries, got "
                        f"{ledger.num_answered}: others were answered meanwhile; run it again"
                    )
                debit = ledger.debit(plan, secure_noise=noise.is_secure)
                stored = {
                    "key": key,
                    "failure": plan.failure,
                    "secure_noise": noise.is_secure,
                    "plan_was_fixed": is_of_ledger and not ledger.plan_is_late,
                    "drawn": draw(noise.discrete_gaussian),
                }
                ledger.store_release(debit, stored)
            spent = ledger.spent(delta).epsilon
    return Released(
        plan=plan,
        sanitised=stored_epsilon(stored, delta=delta, spent=spent),
        is_charged=is_of_ledger,
        secure_noise=stored["secure_noise"],
    )


@contextlib.contextmanager
def _opened(source: VoteSource, folder: pathlib.Path) -> Iterator[Ledger]:
    """Opens the ledger that is charged for a draw, exclusively.

    Args:
        source: the votes.
        folder: of ledgers of files; a file's ledger has a random name, which tells nothing of
            votes.
    """
    digest = hashlib.sha256(source.identity.encode()).hexdigest()
    delta = DEFAULT_DELTA
    with contextlib.ExitStack() as stack:
        place = source.folder
        if place is None:
            releases = artifacts.make_sensitive_folder(folder / FOLDER)
            stack.enter_context(artifacts.only_writer(releases, waits=True))
            place = releases / secrets.token_hex(8)
            for path in sorted(releases.glob("*/ledger.sqlite3")):
                with Ledger.read(path.parent) as ledger:
                    place = path.parent if ledger.ensemble_digest == digest else place
        if place.exists():
            with Ledger.read(place) as ledger:
                digest = ledger.ensemble_digest
                delta = ledger.delta
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


# Plans for a hypothetical profile: no vote is read. A profile that the true votes do not resemble
# makes the released epsilon larger, never invalid: theorems on releases ask that no vote was read.

FAILURE = 0.01
_LEAST_SMOOTHNESS = 1e-3
_MOMENTS = np.geomspace(0.5, 256.0, 46)
_FRACTIONS = np.linspace(0.1, 1.0, 10)
_BETA_FRACTIONS = np.linspace(0.1, 0.9, 9)
_SIGMAS = np.geomspace(0.5, 200.0, 41)
_MOST_STEPS = 400

Candidate = tuple[float, float, float, float]  # epsilon, moment, smoothness, sigma


def plan_release(
    mechanism: Mechanism,
    planned: PlannedRelease | None = None,
    *,
    num_queries: int,
    num_teachers: int,
    num_classes: int,
    delta: float,
) -> CostRelease:
    """Returns the plan of least epsilon for queries that all have the profile's votes.

    The epsilon that is minimized, over a grid of moments, smoothness and sigma, is the published
    one at the median of its noise, with the bound that covers both directions most tightly. No vote
    enters.

    Args:
        mechanism: the mechanism that will draw the labels.
        planned: kind, profile, and what is not left to planning. Default: `PlannedRelease()`.
        num_queries: number of labeled queries.
        num_teachers: number of teachers.
        num_classes: number of classes.
        delta: that of the statement.

    Raises:
        ValueError: if an argument is out of range, or the mechanism has no such release.
    """
    checks.between(0, 1, delta=delta)
    planned = planned or PlannedRelease()
    counts = profile_counts(num_teachers, num_classes, planned.profile)
    is_smooth = planned.release == "smooth_sensitivity"
    aware = not is_smooth and "class_aware" in mechanism.bounds
    blank = CostRelease(
        release=planned.release,
        bound="class_aware" if aware else "two_sided",
        moment=1.0,
        smoothness=1.0,
        sigma=1.0,
        failure=FAILURE,
        num_queries=num_queries,
        profile=(
            f"{num_queries} queries of {num_teachers} teachers and {num_classes} classes, all led "
            f"by {planned.profile:g} of the teachers"
        ),
    )
    blank.check_mechanism(mechanism)
    candidates = _smooth_sensitivity if is_smooth else _log_cost
    _, moment, smoothness, sigma = min(candidates(mechanism, blank, counts, delta))
    failure = FAILURE if planned.confidence is None else 1.0 - planned.confidence
    return dataclasses.replace(
        blank,
        moment=planned.moment or moment,
        smoothness=planned.smoothness or smoothness,
        sigma=planned.sigma or sigma,
        failure=failure,
    )


def _log_cost(
    mechanism: Mechanism, plan: CostRelease, counts: IntArray, delta: float
) -> list[Candidate]:
    """Searches fractions of the smoothness from which on Cbar is the profile's own cost."""
    num_teachers = int(counts.sum())
    steps = np.unique(np.linspace(0, num_teachers // 2 + 1, _MOST_STEPS).astype(np.int64))
    formula = bound_of(plan.bound, mechanism)
    tail = smooth.tail_table(plan.bound, mechanism, num_teachers)
    q, u = smooth.ball_maxima(counts, steps + formula.reach, tail)
    costs = formula.costs(q[:, 0], u[:, 0], _MOMENTS)
    logs = np.log(np.maximum(plan.num_queries * costs, plan.cost_floor))  # [num_steps, num_moments]
    steepest = np.max((logs[1:] - logs[0]) / steps[1:, None], axis=0)
    cap = total_alphas({mechanism: mechanism.number_charged(plan.num_queries)}, _MOMENTS)
    candidates = list[Candidate]()
    for fraction in _FRACTIONS:
        smoothness = np.maximum(fraction * steepest, _LEAST_SMOOTHNESS)
        step = integer_step(smoothness)
        whole = np.ceil(np.max(logs - smoothness * steps[:, None], axis=0) / step)
        for sigma in _SIGMAS:
            above = float(steps_above(sigma, plan.failure))
            bounds = np.exp(np.minimum(step * (whole + above), 700.0))
            release = _MOMENTS * (_MOMENTS + 1.0) / (2.0 * sigma**2)
            alphas = np.minimum(bounds, cap) + release
            epsilon, moment = epsilon_from_alphas(alphas, _MOMENTS, delta)
            place = int(np.searchsorted(_MOMENTS, moment))
            candidates.append((epsilon, moment, float(smoothness[place]), float(sigma)))
    return candidates


def _smooth_sensitivity(
    mechanism: Mechanism, plan: CostRelease, counts: IntArray, delta: float
) -> list[Candidate]:
    """Searches fractions of the largest beta that Theorem B1 allows at each moment."""
    formula = bound_of(plan.bound, mechanism)
    q, u = union_bound(formula.tail, counts)
    costs = plan.num_queries * formula.costs(q, u, _MOMENTS)[0]
    caps = total_alphas({mechanism: mechanism.number_charged(plan.num_queries)}, _MOMENTS)
    largest_betas: FloatArray = np.log1p(1.0 / _MOMENTS) / 2.0  # where l (e^{2 beta} - 1) = 1
    alphas = np.empty((len(_BETA_FRACTIONS), len(_SIGMAS), len(_MOMENTS)))
    for place, (moment, cost, cap) in enumerate(zip(_MOMENTS, costs, caps, strict=True)):
        slopes = plan.num_queries * smooth.local_sensitivities(
            counts, mechanism, moment=float(moment), bound=plan.bound
        )
        for row, beta in enumerate(_BETA_FRACTIONS * largest_betas[place]):
            largest = float(np.max(np.exp(-beta * np.arange(len(slopes))) * slopes))
            for column, sigma in enumerate(_SIGMAS):
                release = gaussian_smooth_sensitivity_rdp(
                    moment + 1.0, beta=beta, sigma=sigma, b=plan.shift
                )
                noisy = min(cost + plan.shift * sigma * largest, cap)
                alphas[row, column, place] = noisy + moment * release
    candidates = list[Candidate]()
    for fraction, of_fraction in zip(_BETA_FRACTIONS, alphas, strict=True):
        for sigma, of_sigma in zip(_SIGMAS, of_fraction, strict=True):
            epsilon, moment = epsilon_from_alphas(of_sigma, _MOMENTS, delta)
            beta = float(fraction * np.log1p(1.0 / moment) / 2.0)
            candidates.append((epsilon, moment, beta, float(sigma)))
    return candidates
