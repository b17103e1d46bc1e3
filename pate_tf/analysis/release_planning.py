"""Plans of releases of the data-dependent cost, for a hypothetical profile: no vote is read.

A profile that the true votes do not resemble makes the released epsilon larger, never invalid: no
theorem on releases asks how a plan was chosen, but that no vote was read.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from pate_tf.accounting.charges import (
    CostRelease,
    PlannedRelease,
    gaussian_smooth_sensitivity_rdp,
    integer_step,
    steps_above,
)
from pate_tf.accounting.composition import total_alphas
from pate_tf.accounting.conversions import FloatArray, epsilon_from_alphas, ndtri
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.moments import bound_tail, query_costs, union_bound, vote_reach
from pate_tf.accounting.planning import profile_counts
from pate_tf.analysis.smooth_sensitivity import ball_maxima, local_sensitivities, tail_table
from pate_tf.core import validation
from pate_tf.core.validation import IntArray

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

    The epsilon that is minimised, over a grid of moments, smoothness and sigma, is the published
    one at the median of its noise, with the bound that covers both directions most tightly. No vote
    enters.

    Args:
        mechanism: the mechanism that will draw the labels.
        planned: kind, profile, and what is not left to planning. Default: `PlannedRelease()`.
        num_queries: number of labelled queries.
        num_teachers: number of teachers.
        num_classes: number of classes.
        delta: that of the statement.

    Raises:
        ValueError: if an argument is out of range, or the mechanism has no such release.
    """
    validation.between(0, 1, delta=delta)
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
    reach = vote_reach(plan.bound, mechanism)
    q, u = ball_maxima(counts, steps + reach, tail_table(plan.bound, mechanism, num_teachers))
    costs = query_costs(plan.bound, mechanism, q[:, 0], u[:, 0], _MOMENTS)
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
    q, u = union_bound(bound_tail(plan.bound, mechanism), counts)
    costs = plan.num_queries * query_costs(plan.bound, mechanism, q, u, _MOMENTS)[0]
    caps = total_alphas({mechanism: mechanism.number_charged(plan.num_queries)}, _MOMENTS)
    b = -float(ndtri(plan.failure))
    largest_betas: FloatArray = np.log1p(1.0 / _MOMENTS) / 2.0  # where l (e^{2 beta} - 1) = 1
    alphas = np.empty((len(_BETA_FRACTIONS), len(_SIGMAS), len(_MOMENTS)))
    for place, (moment, cost, cap) in enumerate(zip(_MOMENTS, costs, caps, strict=True)):
        slopes = plan.num_queries * local_sensitivities(
            counts, mechanism, moment=float(moment), bound=plan.bound
        )
        for row, beta in enumerate(_BETA_FRACTIONS * largest_betas[place]):
            largest = float(np.max(np.exp(-beta * np.arange(len(slopes))) * slopes))
            for column, sigma in enumerate(_SIGMAS):
                release = gaussian_smooth_sensitivity_rdp(moment + 1.0, beta=beta, sigma=sigma, b=b)
                noisy = min(cost + b * sigma * largest, cap)
                alphas[row, column, place] = noisy + moment * release
    candidates = list[Candidate]()
    for fraction, of_fraction in zip(_BETA_FRACTIONS, alphas, strict=True):
        for sigma, of_sigma in zip(_SIGMAS, of_fraction, strict=True):
            epsilon, moment = epsilon_from_alphas(of_sigma, _MOMENTS, delta)
            beta = float(fraction * np.log1p(1.0 / moment) / 2.0)
            candidates.append((epsilon, moment, beta, float(sigma)))
    return candidates
