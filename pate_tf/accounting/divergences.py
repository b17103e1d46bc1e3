"""Moments of privacy loss, computed without losing what is small or what is large.

A moment is a real number l > 0. Its cost alpha(l) is l times the Renyi divergence of order l + 1,
in natural logarithms: alpha(l) = ln E_{o ~ P}[(P(o) / Q(o))^l].
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from math import factorial
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

# The lattice that Gaussian noise is drawn on.


# Steps in one vote.
LATTICE: Final = 2**20


# SciPy's special functions, imported when one is first called.
#
# They take a fifth of the memory of a process that needs none of them, such as a silo that
# randomises
# its own votes.


@functools.cache
def _found(name: str) -> Callable[..., Any]:
    function: Callable[..., Any] = getattr(importlib.import_module("scipy.special"), name)
    return function


def _lazily(name: str) -> Callable[..., Any]:
    def call(*arguments: Any, **options: Any) -> Any:
        return _found(name)(*arguments, **options)

    call.__name__ = name
    call.__doc__ = f"Calls `scipy.special.{name}`."
    return call


betainc = _lazily("betainc")
betaln = _lazily("betaln")
erfc = _lazily("erfc")
expit = _lazily("expit")
log_ndtr = _lazily("log_ndtr")
logsumexp = _lazily("logsumexp")
ndtr = _lazily("ndtr")
ndtri = _lazily("ndtri")
softmax = _lazily("softmax")


FloatArray = NDArray[np.float64]

SERIES_RADIUS = 0.5
SERIES_COEFFICIENTS = tuple(1.0 / factorial(k) for k in range(15, 1, -1))


def exp_remainder(x: FloatArray) -> FloatArray:
    """Returns e^x - 1 - x, at full relative accuracy also near zero; infinite on overflow."""
    with np.errstate(over="ignore"):
        remainder = np.asarray(np.expm1(x) - x)
    small = np.abs(x) < SERIES_RADIUS
    near = x[small]
    series = np.full_like(near, SERIES_COEFFICIENTS[0])
    for coefficient in SERIES_COEFFICIENTS[1:]:
        series *= near
        series += coefficient
    remainder[small] = series * near * near
    return remainder


def excess(log_ratio: FloatArray, moments: FloatArray) -> FloatArray:
    """Returns phi(r) = x^(l+1) - 1 - (l+1)(x - 1) >= 0 at x = e^r, broadcast over both arguments.

    For distributions P and Q, E_P[(P/Q)^l] - 1 = sum_o Q(o) phi(ln P(o)/Q(o)): a sum of terms that
    are never negative, so nothing cancels where the loss is small (docs/theory.md, Proposition C1).
    Infinite on overflow.
    """
    order = moments + 1.0
    with np.errstate(invalid="ignore", over="ignore"):
        value = exp_remainder(order * log_ratio) - order * exp_remainder(log_ratio)
    return np.where(np.isnan(value), np.inf, np.maximum(value, 0.0))


def pure_alpha(epsilon: float, moments: FloatArray) -> FloatArray:
    """Returns D*(l), the largest alpha of any epsilon-differentially private mechanism.

    D*(l) = ln[(e^{epsilon (l+1)} + e^{-epsilon l}) / (e^epsilon + 1)], reached by randomised
    response (docs/theory.md, Proposition C2). Shape [num_moments].
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


def bounded_range_alpha(width: float, moments: FloatArray) -> FloatArray:
    """Returns the largest alpha of any mechanism whose log ratios lie within a range of `width`.

    With e^{-w/2} and e^{w/2} the two ratios there and p = Pr[the first], ln of the moment is
    l ln(p e^{-w/2} + (1-p) e^{w/2}) + ln(p e^{lw/2} + (1-p) e^{-lw/2}): concave in p, and largest
    where its derivative vanishes (docs/theory_worst_case.md, Theorem W9). Shape [num_moments].
    Infinite on overflow, and for a width below 0.01, where digits would be lost; rounded up by
    1e-9.
    """
    if width < 0.01:
        return np.full_like(moments, np.inf)
    falling = -np.expm1(-width)
    with np.errstate(over="ignore", invalid="ignore"):
        rising = np.expm1(moments * width)
        # Both brackets over their value at p = 0: 1 - p falling and 1 + p rising.
        p = (1.0 / falling - moments / rising) / (moments + 1.0)
        total = moments * np.log1p(-p * falling) + np.log1p(p * rising)
    return np.asarray(np.where(np.isfinite(total), total * (1.0 + 1e-9), np.inf))
