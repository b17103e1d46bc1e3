"""The three-outcome experiment that a noisy maximum comes down to in the worst case.

One vote moves from class a to class b. Given the noise of all other classes, what the label tells
is which of a, b and "another class" won. So no moment of the label exceeds the largest moment of
that experiment over all positions of a and b (docs/theory_worst_case.md, Theorem W1).
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pate_tf.accounting.divergences import FloatArray

_EVERY = 4
_CHUNK = 2**13


class Experiments(NamedTuple):
    """Pairs of laws of three outcomes.

    Attributes:
        here: probabilities of the outcomes where the vote has not moved, [num_pairs, 3].
        there: the same after the move, [num_pairs, 3].
    """

    here: FloatArray
    there: FloatArray


def joined(parts: list[Experiments]) -> Experiments:
    """Returns the pairs of all parts in one."""
    return Experiments(
        np.concatenate([part.here for part in parts]),
        np.concatenate([part.there for part in parts]),
    )


class Evaluated(NamedTuple):
    """Pairs with their moments at the knots, `chord_knots`, of a list of moments.

    Attributes:
        pairs: the pairs.
        at_knots: `excesses` at those moments, [num_knots, num_pairs].
    """

    pairs: Experiments
    at_knots: FloatArray


def evaluated(pairs: Experiments, moments: FloatArray) -> Evaluated:
    """Returns the pairs with their moments at the knots of `moments`."""
    return Evaluated(pairs, excesses(pairs, moments[chord_knots(len(moments))]))


def between_moments(
    moments: FloatArray, grid: FloatArray, certified: FloatArray, cap: FloatArray
) -> FloatArray:
    """Returns bounds at any moments from bounds at a grid of moments, and at most the cap.

    The cost of every pair of laws is convex in l and 0 at l = 0, and so is the largest of them:
    chords bound it from above. Beyond the last moment the cap alone does.
    """
    chords = np.interp(moments, np.append(0.0, grid), np.append(0.0, certified), right=np.inf)
    return np.asarray(np.minimum(chords, cap))


def largest_excess(parts: list[Evaluated], moments: FloatArray) -> FloatArray:
    """Returns max E_here[(here / there)^l] - 1 over all pairs, [num_moments].

    Infinite where a moment overflows. The logarithm of a moment is convex in l for every pair. So
    between knots those pairs alone are evaluated whose chord exceeds what another pair reaches.

    Args:
        parts: pairs, evaluated at the knots of `moments`.
        moments: [num_moments], positive, ascending.
    """
    pairs = joined([part.pairs for part in parts])
    at_knots = np.concatenate([part.at_knots for part in parts], axis=1)
    knots = chord_knots(len(moments))
    largest = np.zeros(len(moments))
    largest[knots] = np.max(at_knots, axis=1)
    logs = np.log1p(at_knots)
    for index, (left, right) in enumerate(pairwise(knots)):
        inner = np.arange(left + 1, right)
        if not np.isfinite(largest[right]):
            largest[inner] = np.inf
        elif inner.size:
            share = (moments[inner] - moments[left]) / (moments[right] - moments[left])
            ends = slice(index, index + 2)
            leaders = np.argmax(at_knots[ends], axis=1)
            reached = np.max(excesses(chosen(pairs, leaders), moments[inner]), axis=1)
            chords = np.stack([1.0 - share, share], axis=1) @ logs[ends]
            rivals = np.any(chords > np.log1p(reached)[:, None], axis=0)
            rivals[leaders] = True
            largest[inner] = np.max(excesses(chosen(pairs, rivals), moments[inner]), axis=1)
    return largest


def chord_knots(num_moments: int) -> NDArray[np.int64]:
    """Returns the indices of the moments at which every pair is evaluated."""
    return np.unique(np.append(np.arange(0, num_moments, _EVERY), num_moments - 1))


def chosen(pairs: Experiments, which: NDArray[np.int64] | NDArray[np.bool_]) -> Experiments:
    """Returns some of the pairs, by index or mask."""
    return Experiments(pairs.here[which], pairs.there[which])


def excesses(pairs: Experiments, moments: FloatArray) -> FloatArray:
    """Returns E_here[(here / there)^l] - 1 of every pair, [num_moments, num_pairs].

    An outcome without probability under both laws adds nothing. Infinite on overflow, and where a
    probability came out negative.
    """
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratios = np.log1p((pairs.here - pairs.there) / pairs.there)
        ratios[(pairs.here == 0.0) & (pairs.there == 0.0)] = 0.0
        ratios[(pairs.here < 0.0) | (pairs.there < 0.0)] = np.nan
        total = np.zeros((len(moments), len(ratios)))
        for start in range(0, len(ratios), _CHUNK):
            part = slice(start, start + _CHUNK)
            for outcome in range(ratios.shape[1]):
                terms = np.expm1(np.outer(moments, ratios[part, outcome]))
                terms *= pairs.here[part, outcome]
                total[:, part] += terms
    return np.asarray(np.where(np.isnan(total), np.inf, np.maximum(total, 0.0)))
