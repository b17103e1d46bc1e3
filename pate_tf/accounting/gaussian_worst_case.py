"""The tight worst case of the noisy maximum with Gaussian noise.

docs/theory_worst_case.md, Theorem W6. A Gaussian variable is, up to a factor of 1e-13, a mixture of
slightly narrower ones that are centred on a grid. So the worst position (x, y) of two classes
against a fixed third count is bounded by the worst position on the grid, with 1 % less variance.
Far from the origin an outcome is rare, and simple bounds hold.
"""

from __future__ import annotations

from functools import lru_cache
from math import ceil, floor, log2, sqrt

import numpy as np

from pate_tf.accounting.divergences import FloatArray
from pate_tf.accounting.special import ndtr
from pate_tf.accounting.three_outcomes import Evaluated, Experiments, evaluated, largest_excess

SMALLEST_SIGMA, LARGEST_SIGMA = 0.5, 2.0**14
ROUNDING = 1e-10

_GROUPS = (1.0, 4.0)  # l / sigma up to which one box serves
_SIGMAS_PER_DOUBLING = 512
_KEPT_VARIANCE = 0.994
_GRID_STEP = 0.8 * sqrt(1.0 - _KEPT_VARIANCE)
_MIXING_ERROR = 4e-13  # 2 sum_j e^{-2 pi^2 j^2 / 0.64}, normalised, of two variables
_RARE = 5.0
_NODES = 24
_BEYOND = 12.0


def gaussian_noisy_max_alphas(
    sigma: float, moments: tuple[float, ...], lattice_step: float
) -> FloatArray:
    """Returns a bound on the cost of one label, whatever the counts, [num_moments].

    Holds for any number of classes, both directions, any way to break ties, and the noise that is
    drawn: a discrete Gaussian on a lattice. Never above l (l+1) / sigma^2, which is returned for
    l > 4 sigma and for sigma outside of 0.5 .. 2^14. sigma is rounded down to a geometric grid:
    more noise never costs more (Lemma W7).

    Args:
        sigma: standard deviation of the noise, in votes.
        moments: positive and ascending.
        lattice_step: of the noise, in votes.
    """
    cap = np.array(moments) * (np.array(moments) + 1.0) / sigma**2
    if not SMALLEST_SIGMA <= sigma <= LARGEST_SIGMA:
        return cap
    below = 2.0 ** (floor(log2(sigma) * _SIGMAS_PER_DOUBLING) / _SIGMAS_PER_DOUBLING)
    return np.asarray(np.minimum(_alphas(min(below, sigma), moments, lattice_step), cap))


@lru_cache(maxsize=256)
def _alphas(sigma: float, moments: tuple[float, ...], lattice_step: float) -> tuple[float, ...]:
    """Returns the bound at every moment, infinite above the last group."""
    orders = np.array(moments)
    alphas = np.full(len(orders), np.inf)
    scale = sigma * sqrt(_KEPT_VARIANCE)
    shift, slack = 1.0 / scale, 2.0 * lattice_step / scale
    lowest = 0.0
    for highest in _GROUPS:
        some = (orders * shift > lowest) & (orders * shift <= highest)
        lowest = highest
        if np.any(some):
            alphas[some] = _group_alphas(shift, slack, orders[some], highest)
    return tuple(alphas.tolist())


def _group_alphas(shift: float, slack: float, moments: FloatArray, reach: float) -> FloatArray:
    """Returns the bound where moments * shift <= reach; lengths in standard deviations."""
    # Rounded down to the lattice, so that points of the grid are points of the lattice.
    step = floor(_GRID_STEP / slack) * slack
    near = ceil((reach + _RARE + shift) / step)
    a_far = near + ceil((sqrt(2.0) * _RARE + 2.0 * shift) / step) + 1
    b_far = near + ceil((sqrt(2.0) * _RARE + 2.0 * reach) / step) + 1
    close: FloatArray = np.arange(-near, near + 1.0) * step
    a_leads: FloatArray = np.arange(near + 1.0, a_far + 1.0) * step
    b_leads: FloatArray = np.arange(near + 1.0, b_far + 1.0) * step
    parts = [
        evaluated(_positions(shift, slack, np.append(close, a_leads), close), moments),
        evaluated(_positions(shift, slack, close, b_leads), moments),
    ]
    gaps: FloatArray = np.arange(-b_far, a_far + 1.0) * step
    race = [evaluated(_two_classes(shift, slack, gaps), moments)]
    inside, two = (
        np.log1p(largest_excess(found, moments) + max(_surplus(found), 0.0))
        for found in (parts, race)
    )
    whole = moments * (moments + 1.0) * shift**2
    rare = 4.0 * float(ndtr(slack - _RARE))
    outside = np.logaddexp(
        np.maximum(two, whole / 2.0) - moments * np.log1p(-rare), whole + np.log(rare)
    )
    return np.asarray(
        np.maximum(inside, outside) + (2.0 * moments + 1.0) * (_MIXING_ERROR + ROUNDING)
    )


def _surplus(parts: list[Evaluated]) -> float:
    """Returns by how much the enclosed probabilities of a pair add up to more than 1."""
    return max(float(np.max(np.sum(part.pairs.here, axis=1))) for part in parts) - 1.0


def _positions(shift: float, slack: float, x: FloatArray, y: FloatArray) -> Experiments:
    """Returns pairs at all (x, y): `here` above, `there` below the laws on the lattice."""
    x_there, y_there = x - shift, y + shift
    here = (
        _wins(x + slack, y),
        _wins(y + slack, x).T,
        np.outer(ndtr(slack - x), ndtr(slack - y)),
    )
    there = (
        _wins(x_there - slack, y_there),
        _wins(y_there - slack, x_there).T,
        np.outer(ndtr(-slack - x_there), ndtr(-slack - y_there)),
    )
    return Experiments(*(np.stack([law.ravel() for law in laws], axis=1) for laws in (here, there)))


def _wins(mine: FloatArray, others: FloatArray) -> FloatArray:
    """Returns Pr[mine + Z >= max(others + Z', 0)], [len(mine), len(others)].

    The integral over v > 0 of phi(v - mine) Phi(v - others), by Gauss-Legendre on pieces of
    length 1: all terms are positive, and the error is below 1e-13 of the value (Lemma W8).
    """
    pieces = ceil(max(float(mine[-1]), float(others[-1])) + _BEYOND)
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    points = (np.arange(pieces)[:, None] + (nodes + 1.0) / 2.0).ravel()
    density = np.exp(-((points - mine[:, None]) ** 2) / 2.0) / np.sqrt(2.0 * np.pi)
    return np.asarray((density * np.tile(weights / 2.0, pieces)) @ ndtr(points[:, None] - others))


def _two_classes(shift: float, slack: float, gaps: FloatArray) -> Experiments:
    """Returns pairs of two classes alone, whose means are `gaps` apart."""
    moved = gaps - 2.0 * shift
    here = [ndtr((gaps + slack) / sqrt(2.0)), ndtr((slack - gaps) / sqrt(2.0))]
    there = [ndtr((moved - slack) / sqrt(2.0)), ndtr((-slack - moved) / sqrt(2.0))]
    return Experiments(np.stack(here, axis=1), np.stack(there, axis=1))
