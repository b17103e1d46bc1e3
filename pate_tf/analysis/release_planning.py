"""Plans and requests of releases of the data-dependent cost, for a hypothetical profile."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from pate_tf.accounting.composition import total_alphas
from pate_tf.accounting.conversions import FloatArray, epsilon_from_alphas, ndtri
from pate_tf.accounting.cost_release import (
    DEFAULT_PROFILE,
    CostRelease,
    PlannedRelease,
    gaussian_smooth_sensitivity_rdp,
    integer_step,
    steps_above,
)
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.moments import bound_tail, query_costs, union_bound, vote_reach
from pate_tf.accounting.planning import profile_counts
from pate_tf.analysis.release_results import GateDecision, SanitisedEpsilon
from pate_tf.analysis.smooth_sensitivity import ball_maxima, local_sensitivities, tail_table
from pate_tf.core import validation
from pate_tf.core.validation import IntArray

# Plans for votes that have not been looked at: chosen for a stated hypothetical profile.
#
# A profile that the true votes do not resemble makes the released epsilon larger, never invalid:
# no theorem on releases asks how a plan was chosen, but that no vote was read.


PASS_PROBABILITY = 0.99

FAILURE = 0.01
_LEAST_SMOOTHNESS = 1e-3
_MOMENTS = np.geomspace(0.5, 256.0, 46)
_SHARES = np.linspace(0.1, 1.0, 10)
_BETA_SHARES = np.linspace(0.1, 0.9, 9)
_SIGMAS = np.geomspace(0.5, 200.0, 41)
_MOST_STEPS = 400


@dataclasses.dataclass(frozen=True)
class _Candidate:
    epsilon: float
    moment: float
    smoothness: float
    sigma: float
    budget: float | None = None


def plan_release(
    mechanism: Mechanism,
    *,
    num_queries: int,
    num_teachers: int,
    num_classes: int,
    delta: float,
    release: str = "log_cost",
    bound: str | None = None,
    profile: float = DEFAULT_PROFILE,
    attempts: int = 1,
) -> CostRelease:
    """Returns the plan of least epsilon for queries that all have the profile's votes.

    The epsilon that is minimised, over a grid of moments, smoothness and sigma: the published one
    at the median of its noise with failure 1 % (`log_cost`, `smooth_sensitivity`); the worst case
    with failure delta / 2 and the budget that the profile passes with probability 99 % (`gate`).
    No vote enters.

    Args:
        mechanism: the mechanism that will draw the labels.
        num_queries: number of labelled queries.
        num_teachers: number of teachers.
        num_classes: number of classes.
        delta: that of the statement; at a gate the total.
        release: "log_cost" (default), "gate" or "smooth_sensitivity".
        bound: default the tightest two-sided bound that the release can use.
        profile: lead of the first class over the second, as a share of the teachers.
        attempts: how often a gate may be tried on these votes; each may fail, so that each may do
            so more seldom.

    Raises:
        ValueError: if an argument is out of range, or the mechanism has no such release.
    """
    validation.between(0, 1, delta=delta)
    validation.whole(1, attempts=attempts)
    counts = profile_counts(num_teachers, num_classes, profile)
    aware = release != "smooth_sensitivity" and "class_aware" in mechanism.bounds
    blank = CostRelease(
        release=release,
        bound=bound or ("class_aware" if aware else "two_sided"),
        moment=1.0,
        smoothness=1.0,
        sigma=1.0,
        failure=delta / (2.0 * attempts) if release == "gate" else FAILURE,
        num_queries=num_queries,
        budget=1.0 if release == "gate" else None,
        profile=(
            f"{num_queries} queries of {num_teachers} teachers and {num_classes} classes, all led "
            f"by {profile:g} of the teachers"
        ),
    )
    blank.check_mechanism(mechanism)
    if release == "smooth_sensitivity":
        best = _plan_smooth_sensitivity(mechanism, blank, counts, delta)
    else:
        best = _plan_log_cost(mechanism, blank, counts, delta, attempts)
    return dataclasses.replace(
        blank,
        moment=best.moment,
        smoothness=best.smoothness,
        sigma=best.sigma,
        budget=best.budget,
    )


def _profile_totals(
    mechanism: Mechanism, plan: CostRelease, counts: IntArray
) -> tuple[IntArray, FloatArray]:
    """Returns numbers of moved votes and K_k at each moment, [num_steps, num_moments]."""
    num_teachers = int(counts.sum())
    steps = np.unique(np.linspace(0, num_teachers // 2 + 1, _MOST_STEPS).astype(np.int64))
    reach = vote_reach(plan.bound, mechanism)
    q, u = ball_maxima(counts, steps + reach, tail_table(plan.bound, mechanism, num_teachers))
    costs = query_costs(plan.bound, mechanism, q[:, 0], u[:, 0], _MOMENTS)
    return steps, np.maximum(plan.num_queries * costs, plan.cost_floor)


def _plan_log_cost(
    mechanism: Mechanism, plan: CostRelease, counts: IntArray, delta: float, attempts: int
) -> _Candidate:
    smooth = _smooth_steps(*_profile_totals(mechanism, plan, counts))
    cap = total_alphas({mechanism: mechanism.number_charged(plan.num_queries)}, _MOMENTS)
    gate = plan.release == "gate"
    candidates = []
    for sigma in _SIGMAS:
        own = attempts * _MOMENTS * (_MOMENTS + 1.0) / (2.0 * sigma**2)
        above = float(steps_above(sigma, plan.failure))
        if gate:
            # The fraction of a step keeps the budget's own rounding from costing a whole one.
            above += steps_above(sigma, 1.0 - PASS_PROBABILITY) + 1e-6
        for smoothness, step, whole in smooth:
            bounds = np.exp(np.minimum(step * (whole + above), 700.0))
            epsilon, moment = epsilon_from_alphas(
                np.minimum(bounds, cap) + own,
                _MOMENTS,
                delta - attempts * plan.failure if gate else delta,
            )
            at = int(np.searchsorted(_MOMENTS, moment))
            budget = float(bounds[at]) if gate else None
            candidates.append(
                _Candidate(epsilon, moment, float(smoothness[at]), float(sigma), budget)
            )
    return min(candidates, key=lambda candidate: candidate.epsilon)


def _smooth_steps(
    steps: IntArray, totals: FloatArray
) -> list[tuple[FloatArray, FloatArray, FloatArray]]:
    """Returns eta, eta' and ceil(ln Cbar / eta') for each share, every one [num_moments].

    Full smoothness is that from which on Cbar is the profile's own cost.
    """
    logs = np.log(totals)
    steepest = np.max((logs[1:] - logs[0]) / steps[1:, None], axis=0)
    found = []
    for share in _SHARES:
        smoothness = np.maximum(share * steepest, _LEAST_SMOOTHNESS)
        step = integer_step(smoothness)
        found.append(
            (
                smoothness,
                step,
                np.ceil(np.max(logs - smoothness * steps[:, None], axis=0) / step),
            )
        )
    return found


def _plan_smooth_sensitivity(
    mechanism: Mechanism, plan: CostRelease, counts: IntArray, delta: float
) -> _Candidate:
    """Searches shares of the largest beta that Theorem B1 allows at each moment."""
    q, u = union_bound(bound_tail(plan.bound, mechanism), counts)
    costs = plan.num_queries * query_costs(plan.bound, mechanism, q, u, _MOMENTS)[0]
    caps = total_alphas({mechanism: mechanism.number_charged(plan.num_queries)}, _MOMENTS)
    b = -float(ndtri(plan.failure))
    alphas = np.empty((len(_BETA_SHARES), len(_SIGMAS), len(_MOMENTS)))
    for at, (moment, cost, cap) in enumerate(zip(_MOMENTS, costs, caps, strict=True)):
        slopes = plan.num_queries * local_sensitivities(
            counts, mechanism, moment=float(moment), bound=plan.bound
        )
        for row, beta in enumerate(_BETA_SHARES * _largest_beta(moment)):
            largest = float(np.max(np.exp(-beta * np.arange(len(slopes))) * slopes))
            for column, sigma in enumerate(_SIGMAS):
                own = gaussian_smooth_sensitivity_rdp(moment + 1.0, beta=beta, sigma=sigma, b=b)
                alphas[row, column, at] = min(cost + b * sigma * largest, cap) + moment * own
    candidates = []
    for share, of_share in zip(_BETA_SHARES, alphas, strict=True):
        for sigma, of_sigma in zip(_SIGMAS, of_share, strict=True):
            epsilon, moment = epsilon_from_alphas(of_sigma, _MOMENTS, delta)
            beta = float(share * _largest_beta(moment))
            candidates.append(_Candidate(epsilon, moment, beta, float(sigma)))
    return min(candidates, key=lambda candidate: candidate.epsilon)


def _largest_beta(moment: float) -> float:
    """Returns where Theorem B1 ends: l (e^{2 beta} - 1) = 1."""
    return float(np.log1p(1.0 / moment) / 2.0)


# What an analysis is asked to release, and what it released, as values.


SANITISED, SMOOTH_SENSITIVITY, GATE = "sanitised", "smooth_sensitivity", "gate"
RELEASES = (SANITISED, SMOOTH_SENSITIVITY, GATE)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleaseRequest:
    """What is to be released, fixed before the votes are read. Public.

    Attributes:
        kinds: some of `RELEASES`, at least one. `sanitised` and `gate` read one and the same draw;
            `smooth_sensitivity` is another draw and stands alone.
        delta: in total.
        planned: how it is drawn; a gate has no confidence, its failures are half of delta.
        adaptive: whether queries were chosen by looking at earlier noisy labels; then refused.
        budget: the gate's, a cost at the moment in natural logarithms. Default: planned.
        attempts: how often a gate is tried on these votes in all, anywhere; its guarantee covers
            that many. None where it is not stated; then it covers one, and is no worst case.

    Raises:
        ValueError: if kinds do not go together, or a value is for another kind.
    """

    kinds: tuple[str, ...]
    delta: float
    planned: PlannedRelease = dataclasses.field(default_factory=PlannedRelease)
    adaptive: bool = False
    budget: float | None = None
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
        if self.planned.confidence is not None and GATE in self.kinds:
            raise ValueError(
                "confidence: expected none with a gate, whose failures are half of delta"
            )
        # One draw gives a sanitised epsilon and a gate.
        release = "smooth_sensitivity" if SMOOTH_SENSITIVITY in self.kinds else "log_cost"
        object.__setattr__(self, "planned", dataclasses.replace(self.planned, release=release))

    def plan(
        self, mechanism: Mechanism, *, num_queries: int, num_teachers: int, num_classes: int
    ) -> CostRelease:
        """Returns the plan; no vote enters.

        Raises:
            ValueError: if the mechanism has no such release, or a value is out of range.
        """
        planned = self.planned
        found = plan_release(
            mechanism,
            num_queries=num_queries,
            num_teachers=num_teachers,
            num_classes=num_classes,
            delta=self.delta,
            release=GATE if GATE in self.kinds else planned.release,
            profile=planned.profile,
            attempts=self.attempts or 1,
        )
        failure = None if planned.confidence is None else 1.0 - planned.confidence
        names = ("moment", "smoothness", "sigma")
        changes: dict[str, Any] = {name: getattr(planned, name) for name in names}
        changes |= {"budget": self.budget, "failure": failure}
        given = {name: value for name, value in changes.items() if value is not None}
        return dataclasses.replace(found, **given)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Released:
    """Publishable: what was read from the one draw.

    Attributes:
        plan: what was fixed before the votes were read.
        sanitised: an epsilon that covers labels and itself, if it was asked for.
        gate: whether labels may be released, if it was asked for.
        attempts: how many tries of the gate its guarantee covers, as the user stated; or None.
        plan_was_fixed: whether the plan was fixed before there were votes, as a ledger shows.
        num_discarded: how many earlier draws the user said were never published.
        is_charged: whether the labels' ledger was charged for it; a file of votes has none.
        secure_noise: False if the draw's noise came from a seed.
    """

    plan: CostRelease
    sanitised: SanitisedEpsilon | None
    gate: GateDecision | None
    attempts: int | None
    plan_was_fixed: bool
    num_discarded: int
    is_charged: bool
    secure_noise: bool
