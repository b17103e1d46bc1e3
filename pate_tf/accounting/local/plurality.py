"""How often the plurality of randomised votes is that of the votes: what is possible at all."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from pate_tf.accounting.divergences import FloatArray
from pate_tf.accounting.local.base import LocalRandomiser
from pate_tf.accounting.local.randomised_response import RandomisedResponse
from pate_tf.accounting.quadrature import IntArray

_ROUNDING = 1e-12


class Estimated(NamedTuple):
    """A probability with its standard error, both `[num_queries]`."""

    probability: FloatArray
    error: FloatArray


def survival(
    counts: IntArray, randomiser: LocalRandomiser, *, num_samples: int = 2_000, seed: int = 0
) -> Estimated:
    """Returns Pr[the plurality of the answers is that of the votes], by simulation.

    The votes' plurality is the first of the largest counts; ties among answers are broken at
    random. For planning: what it is given must be public or stay where it is.

    Args:
        counts: votes for each class, int64 `[num_queries, num_classes]`.
        randomiser: of every silo.
        num_samples: simulations of each query.
        seed: fixes them. They protect nothing.

    Raises:
        ValueError: if counts are not of the randomiser's classes.
    """
    _check(counts, randomiser)
    generator = np.random.default_rng(seed)
    channel = randomiser.channel()
    channel = channel / channel.sum(axis=1, keepdims=True)
    right = np.empty(len(counts))
    for place, row in enumerate(counts):
        answers = sum(
            generator.multinomial(int(number), channel[label], num_samples)
            for label, number in enumerate(row)
        )
        scores = answers + 0.5 * generator.random((num_samples, len(row)))
        right[place] = np.mean(np.argmax(scores, axis=1) == np.argmax(row))
    return Estimated(right, np.sqrt(right * (1.0 - right) / num_samples))


def survival_bounds(
    counts: IntArray, randomiser: RandomisedResponse
) -> tuple[FloatArray, FloatArray]:
    """Returns bounds on the same probability, `[num_queries]` each, without any simulation.

    Pr[class j gets at least as many answers as the plurality] is exact for each j, as a sum of
    independent steps of -1, 0 and 1. Their sum bounds the failure from above; the largest one,
    without ties, from below (docs/theory_local.md, Theorem L6).

    Raises:
        ValueError: if counts are not of the randomiser's classes.
    """
    _check(counts, randomiser)
    lower, upper = np.empty(len(counts)), np.empty(len(counts))
    kept, other = randomiser.kept, randomiser.other
    for place, row in enumerate(counts):
        top, total = int(np.argmax(row)), int(row.sum())
        failed, worst = 0.0, 0.0
        for rival in range(len(row)):
            if rival == top:
                continue
            ahead, behind = int(row[top]), int(row[rival])
            # Steps of (answers for the top class) - (answers for the rival): -1, 0, 1.
            law = _sum_of_steps((other, kept), ahead)
            law = np.convolve(law, _sum_of_steps((kept, other), behind))
            law = np.convolve(law, _sum_of_steps((other, other), total - ahead - behind))
            failed += float(law[: total + 1].sum())
            worst = max(worst, float(law[:total].sum()))
        lower[place] = max(0.0, 1.0 - failed - _ROUNDING)
        upper[place] = min(1.0, 1.0 - worst + _ROUNDING)
    return lower, upper


def _sum_of_steps(chances: tuple[float, float], number: int) -> FloatArray:
    """Returns the law of a sum of steps -1, 0, 1 with chances of -1 and 1, `[2 number + 1]`."""
    down, up = chances
    total, square = np.ones(1), np.array([down, max(0.0, 1.0 - down - up), up])
    while number:
        if number % 2:
            total = np.convolve(total, square)
        number //= 2
        square = np.convolve(square, square) if number else square
    return total


def _check(counts: IntArray, randomiser: LocalRandomiser) -> None:
    if counts.ndim != 2 or counts.shape[1] != randomiser.num_classes or counts.min(initial=0) < 0:
        raise ValueError(
            f"counts: expected votes [num_queries, {randomiser.num_classes}], got shape "
            f"{list(counts.shape)} or negative ones"
        )
