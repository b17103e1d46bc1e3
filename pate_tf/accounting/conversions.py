"""Converts moments, Gaussian and pure differential privacy guarantees to (epsilon, delta).

All results are rounded up: a returned epsilon is never below the exact value.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Callable
from math import exp, expm1, factorial, floor, inf, log, sqrt
from typing import Final, TypeVar

import numpy as np
import scipy  # imports its submodules when they are first used
from numpy.typing import ArrayLike, NDArray

from pate_tf.core import checks
from pate_tf.core.settings import Settings, setting

# The noise on votes and sums is a multiple of 1 / LATTICE.
LATTICE: Final = 2**20


FloatArray = NDArray[np.float64]

SERIES_RADIUS = 0.5
SERIES_COEFFICIENTS = tuple(1.0 / factorial(k) for k in range(15, 1, -1))


def excess(log_ratio: FloatArray, moments: FloatArray) -> FloatArray:
    """Returns phi(r) = x^(l+1) - 1 - (l+1)(x - 1) >= 0 at x = e^r, broadcast over both arguments.

    For distributions P and Q, E_P[(P/Q)^l] - 1 = sum_o Q(o) phi(ln P(o)/Q(o)). All terms of this
    sum are nonnegative, so nothing cancels for small losses (docs/proofs/theory.md, Proposition
    C1). The result is infinite if it overflows.
    """
    order = moments + 1.0

    def remainder(x: FloatArray) -> FloatArray:
        """Returns e^x - 1 - x, with full relative accuracy even near zero."""
        value = np.asarray(np.expm1(x) - x)
        small = np.abs(x) < SERIES_RADIUS
        near = x[small]
        series = np.full_like(near, SERIES_COEFFICIENTS[0])
        for coefficient in SERIES_COEFFICIENTS[1:]:
            series *= near
            series += coefficient
        value[small] = series * near * near
        return value

    with np.errstate(invalid="ignore", over="ignore"):
        value = remainder(order * log_ratio) - order * remainder(log_ratio)
    return np.where(np.isnan(value), np.inf, np.maximum(value, 0.0))


def pure_alpha(epsilon: float, moments: FloatArray) -> FloatArray:
    """Returns D*(l), the largest alpha that an epsilon-differentially private mechanism can have.

    This is the alpha of randomized response: D*(l) = ln[(e^{epsilon (l+1)} + e^{-epsilon l}) /
    (e^epsilon + 1)] (docs/proofs/theory.md, Proposition C2). The result has the shape
    [num_moments].
    """
    losing = np.exp(-epsilon) / (1.0 + np.exp(-epsilon))
    winning = 1.0 / (1.0 + np.exp(-epsilon))
    up = np.full(1, epsilon)
    with np.errstate(invalid="ignore", over="ignore"):
        near = np.log1p(losing * excess(up, moments) + winning * excess(-up, moments))
    far = (
        epsilon * moments
        + np.log1p(np.exp(-epsilon * (2.0 * moments + 1.0)))
        - np.log1p(np.exp(-epsilon))
    )
    return np.asarray(np.where(epsilon * (moments + 1.0) < 30.0, near, far))


Number = TypeVar("Number", int, float)

DEFAULT_MOMENTS: FloatArray = np.geomspace(0.05, 1024.0, 128)
DEFAULT_MOMENTS.flags.writeable = False

SAFETY_MARGIN = 1e-9


def least(
    holds: Callable[[Number], bool],
    low: Number,
    high: Number,
    *,
    within: float = 0.0,
    digits: int | None = None,
) -> Number:
    """Returns the smallest number in (low, high] for which `holds` is true, by bisection.

    `holds` must be false below the result and true above it. The ends are not tested: `low` is
    assumed to be too small, and `high` to be large enough. If both ends are ints, only integers are
    tested.

    Args:
        holds: function that returns whether a number is large enough.
        low: number that is too small, at least 0.
        high: number that is large enough, above `low`.
        within: relative precision of the result. By default, it is as precise as possible.
        digits: number of decimal places to which tested numbers are rounded. By default, they are
            not rounded.
    """
    while high - low > within * high:
        middle = (low + high) // 2 if isinstance(high, int) else (low + high) / 2.0
        middle = middle if digits is None else round(middle, digits)
        if not low < middle < high:
            break
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def epsilon_from_alphas(
    alphas: ArrayLike, moments: ArrayLike, delta: float, *, conversion: str = "improved"
) -> tuple[float, float]:
    """Converts total alphas to epsilon; returns the smallest epsilon and its moment.

    classic: epsilon = (alpha + ln(1/delta)) / l (Abadi et al. 2016, Theorem 2.2).
    improved: epsilon = alpha/l + ln(l/(l+1)) + (ln(1/delta) - ln(l+1))/l, at least zero
    (Balle et al. 2020; Canonne, Kamath and Steinke 2020; docs/proofs/theory.md, Proposition C3).

    Moments with an infinite or NaN alpha are ignored. Epsilon is infinite if delta is 0, or if no
    finite moment is given. If an alpha is exactly zero, nothing was released, and epsilon is zero.

    Args:
        alphas: total costs in natural logarithms, [num_moments].
        moments: moments l of the alphas, positive, [num_moments].
        delta: delta of the guarantee, in [0, 1).
        conversion: formula to use, "improved" (default) or "classic".

    Raises:
        ValueError: if moments are not positive and finite, shapes differ, an alpha is negative,
            delta is outside [0, 1), or the conversion is unknown.
    """
    checks.between(0, 1, ends="[)", delta=delta)
    checks.one_of(("improved", "classic"), conversion=conversion)
    orders = np.asarray(moments, dtype=np.float64)
    if orders.ndim != 1 or not orders.size or not np.all(np.isfinite(orders) & (orders > 0)):
        raise ValueError(f"moments must be positive and finite, got {moments!r}")
    costs = np.asarray(alphas, dtype=np.float64)
    checks.shape(orders.shape, alphas=costs)
    if np.any(costs < 0):
        raise ValueError("alphas must not be negative")
    costs = np.where(np.isnan(costs), np.inf, costs)
    needed = log(1.0 / delta) if delta else inf
    if conversion == "classic":
        epsilons = (costs + needed) / orders
    else:
        epsilons = costs / orders - np.log1p(1.0 / orders) + (needed - np.log1p(orders)) / orders
    epsilons = np.where(costs == 0.0, 0.0, np.maximum(epsilons, 0.0))
    best = int(np.argmin(epsilons))
    return float(epsilons[best]), float(orders[best])


def gaussian_dp_epsilon(mu: float, delta: float) -> float:
    """Returns the epsilon of mu-Gaussian differential privacy at delta.

    The result solves the equation delta = Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu -
    mu/2) (Dong, Roth and Su 2019, Corollary 2.13; docs/proofs/theory.md, Proposition C4) and is
    rounded up. It is infinite at delta 0.
    """
    checks.between(0, 1, ends="[)", delta=delta)
    if mu == 0.0:
        return 0.0
    if not mu < inf or not delta:
        return inf

    def holds(epsilon: float) -> bool:
        first = float(scipy.special.log_ndtr(-epsilon / mu + mu / 2.0))
        second = epsilon + float(scipy.special.log_ndtr(-epsilon / mu - mu / 2.0))
        return second < first and first + log(-expm1(second - first)) <= log(delta)

    if holds(0.0):
        return 0.0
    high = mu * mu / 2.0 + mu * sqrt(2.0 * log(1.0 / delta))
    return least(holds, 0.0, high) * (1.0 + SAFETY_MARGIN)


def gaussian_dp_delta(mu: float, epsilon: float | FloatArray) -> FloatArray:
    """Returns the delta of mu-Gaussian differential privacy at each epsilon, rounded up.

    delta = Phi(-epsilon/mu + mu/2) - e^epsilon Phi(-epsilon/mu - mu/2) (docs/proofs/theory.md,
    Proposition C4).
    """
    epsilons = np.asarray(epsilon, np.float64)
    if mu == 0.0:
        return np.zeros_like(epsilons)
    if not mu < inf:
        return np.ones_like(epsilons)
    first = scipy.special.log_ndtr(-epsilons / mu + mu / 2.0)
    second = epsilons + scipy.special.log_ndtr(-epsilons / mu - mu / 2.0)
    # The rounding error of a logarithm grows in proportion to its size, and so does the safety
    # margin.
    lost = SAFETY_MARGIN * (1.0 + np.abs(first))
    left = 1.0 - np.exp(np.minimum(second - first, 0.0))
    return np.asarray(np.minimum(np.exp(first) * (left + lost) * (1.0 + lost), 1.0))


def pure_composition_epsilon(epsilon: float, num_queries: int, delta: float) -> float:
    """Returns the epsilon at delta of num_queries adaptive epsilon-private mechanisms.

    The result is the optimal composition (Kairouz, Oh and Viswanath 2015, Theorem 3.3;
    docs/proofs/theory.md, Proposition C5). The worst case is randomized response, whose log ratio
    is epsilon (2k - num_queries) with a binomial k. So delta is Pr[k >= j] - e^total Pr'[k >= j],
    where j is the smallest number with a log ratio above the total. At delta 0, the result is the
    sum of all epsilons.
    """
    checks.between(0, 1, ends="[)", delta=delta)
    checks.whole(0, num_queries=num_queries)
    if not (delta and num_queries):
        return num_queries * epsilon

    ratios = np.array([epsilon, -epsilon])

    def holds(total: float) -> bool:
        wins = floor((total / epsilon + num_queries) / 2.0) + 1
        if wins > num_queries:
            return True
        tails = scipy.special.betainc(wins, num_queries - wins + 1, scipy.special.expit(ratios))
        here, there = map(float, tails)
        matched = exp(total + log(there)) if there > 0.0 else 0.0
        return here * (1.0 + SAFETY_MARGIN) - matched * (1.0 - SAFETY_MARGIN) <= delta

    if holds(0.0):
        return 0.0
    total = least(holds, 0.0, num_queries * epsilon) * (1.0 + SAFETY_MARGIN)
    return min(total, num_queries * epsilon)


# The default delta, and a check that delta is small enough.


DEFAULT_DELTA: Final = 1e-5


@dataclasses.dataclass(frozen=True, kw_only=True)
class WishedDelta(Settings):
    """Settings with the field `delta`. None selects the default value."""

    delta: float | None = setting(
        None,
        group="privacy",
        least=0.0,
        below=1.0,
        help="Delta of the guarantee, at most one over the number of private records; 0 for pure "
        "differential privacy. The first release fixes delta for all later releases. Default: "
        "1e-5, or a smaller power of ten if there are more than 10,000 records.",
    )


def default_delta(num_records: int | None) -> float:
    """Returns the largest power of ten that is at most 1e-5 and at most 1 / (10 num_records).

    Args:
        num_records: number of protected records or owners; None if it is not public.
    """
    return float(f"1e-{max(5, len(str(10 * (num_records or 1) - 1)))}")


def check_delta(delta: float, num_records: int | None, unit: str = "record") -> None:
    """Checks that delta is small enough for the number of records.

    If the number of records is unknown or private, every delta above `DEFAULT_DELTA` causes a
    warning. The warning reveals nothing about a private number.

    Args:
        delta: delta of the guarantee; 0 for pure differential privacy.
        num_records: number of protected records or owners; None if it is not public.
        unit: name of the protected unit, for messages.

    Raises:
        ValueError: if delta is not in [0, 1), or is above 1 / `num_records`.
    """
    checks.between(0, 1, ends="[)", delta=delta)
    if num_records is None and delta > DEFAULT_DELTA:
        warnings.warn(
            f"`delta` {delta:g} may be too large. It should be at most one over the number of "
            f"{unit}s, which is unknown here. With a larger delta, a mechanism that publishes "
            f"{unit}s unchanged could count as private",
            stacklevel=3,
        )
    # A mechanism that publishes one randomly chosen record of n records is (0, 1/n) differentially
    # private (Dwork and Roth 2014, section 2.3.1). So a guarantee with a larger delta is worthless.
    if num_records is not None and delta * num_records > 1.0:
        raise ValueError(
            f"delta must be at most one over the number of {unit}s, 1 / {num_records}, got "
            f"{delta:g}: publishing a random {unit} unchanged would already count as private"
        )
