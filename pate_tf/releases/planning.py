"""Plans for votes that nobody has looked at: chosen for a stated hypothetical profile.

A profile that the true votes do not resemble makes the released epsilon larger, never invalid: no
theorem on releases asks how a plan was chosen, but that no vote was read (docs/theory.md).
"""

from __future__ import annotations

import dataclasses

import numpy as np

from pate_tf.accounting.assumed_votes import profile_counts
from pate_tf.accounting.conversions import check_delta, epsilon_from_alphas
from pate_tf.accounting.divergences import FloatArray
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.moments import bound_tail, query_costs, union_bound, vote_reach
from pate_tf.accounting.planned_release import DEFAULT_PROFILE
from pate_tf.accounting.release_plan import (
    ReleasePlan,
    gaussian_smooth_sensitivity_rdp,
    integer_step,
    steps_above,
)
from pate_tf.accounting.special import ndtri
from pate_tf.releases.neighbourhoods import ball_maxima, tail_table
from pate_tf.releases.smooth_sensitivity import local_sensitivities
from pate_tf.values.arrays import IntArray

PASS_PROBABILITY = 0.99

_FAILURE = 0.01
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
) -> ReleasePlan:
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
    check_delta(delta)
    if attempts < 1:
        raise ValueError(f"expected attempts >= 1, got {attempts}")
    counts = profile_counts(num_teachers, num_classes, profile)
    aware = release != "smooth_sensitivity" and "class_aware" in mechanism.bounds
    blank = ReleasePlan(
        release=release,
        bound=bound or ("class_aware" if aware else "two_sided"),
        moment=1.0,
        smoothness=1.0,
        sigma=1.0,
        failure=delta / (2.0 * attempts) if release == "gate" else _FAILURE,
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
    mechanism: Mechanism, plan: ReleasePlan, counts: IntArray
) -> tuple[IntArray, FloatArray]:
    """Returns numbers of moved votes and K_k at each moment, [num_steps, num_moments]."""
    num_teachers = int(counts.sum())
    steps = np.unique(np.linspace(0, num_teachers // 2 + 1, _MOST_STEPS).astype(np.int64))
    reach = vote_reach(plan.bound, mechanism)
    q, u = ball_maxima(counts, steps + reach, tail_table(plan.bound, mechanism, num_teachers))
    costs = query_costs(plan.bound, mechanism, q[:, 0], u[:, 0], _MOMENTS)
    return steps, np.maximum(plan.num_queries * costs, plan.cost_floor)


def _plan_log_cost(
    mechanism: Mechanism, plan: ReleasePlan, counts: IntArray, delta: float, attempts: int
) -> _Candidate:
    smooth = _smooth_steps(*_profile_totals(mechanism, plan, counts))
    cap = mechanism.data_independent_alpha(_MOMENTS, num_queries=plan.num_queries)
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
    mechanism: Mechanism, plan: ReleasePlan, counts: IntArray, delta: float
) -> _Candidate:
    """Searches shares of the largest beta that Theorem B1 allows at each moment."""
    q, u = union_bound(bound_tail(plan.bound, mechanism), counts)
    costs = plan.num_queries * query_costs(plan.bound, mechanism, q, u, _MOMENTS)[0]
    caps = mechanism.data_independent_alpha(_MOMENTS, num_queries=plan.num_queries)
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
