"""From randomised answers back to votes: post-processing, which costs nothing.

Answers are int64 `[num_silos, num_queries]`, `ABSENT` where a silo gave none.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pate_tf.accounting.conversions import FloatArray
from pate_tf.accounting.local.base import LocalRandomiser
from pate_tf.accounting.local.randomised_response import RandomisedResponse
from pate_tf.accounting.outcomes import IntArray

ABSENT = -1
WEIGHTINGS = ("likelihood", "unbiased")

MOST_STEPS = 2_000


def debiased_counts(answers: IntArray, randomisers: Sequence[RandomisedResponse]) -> FloatArray:
    """Returns unbiased numbers of votes, `[num_queries, num_classes]`; some are negative.

    Each answer counts (1 - q) / (p - q) for its class and -q / (p - q) for every other one, with
    its silo's own p and q (docs/proofs/local.md, Theorem L4).

    Args:
        answers: int64 `[num_silos, num_queries]`.
        randomisers: of each silo, all of the same classes.

    Raises:
        ValueError: if numbers of silos or classes do not fit each other.
    """
    weights = np.array([1.0 / one.gap for one in randomisers])
    counts, present = _weighted(answers, randomisers, weights)
    taken = np.array([one.other / one.gap for one in randomisers])
    return np.asarray(counts - (present * taken[:, None]).sum(axis=0)[:, None])


def class_scores(
    answers: IntArray,
    randomisers: Sequence[RandomisedResponse],
    *,
    weighting: str = "likelihood",
) -> FloatArray:
    """Returns how much speaks for each class, `[num_queries, num_classes]`.

    likelihood: ln(p/q) of every silo that answered the class, which is its epsilon: the log
    likelihood that all silos would vote for it. unbiased: `debiased_counts`, whose weight 1/(p - q)
    trusts silos with a small epsilon more than they can bear. Both agree where all epsilons do.

    Raises:
        ValueError: as `debiased_counts`, and if the weighting is unknown.
    """
    if weighting not in WEIGHTINGS:
        raise ValueError(f"weighting: expected one of {', '.join(WEIGHTINGS)}, got {weighting!r}")
    if weighting == "unbiased":
        return debiased_counts(answers, randomisers)
    weights = np.array([one.epsilon for one in randomisers])
    return _weighted(answers, randomisers, weights)[0]


def _weighted(
    answers: IntArray, randomisers: Sequence[LocalRandomiser], weights: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Returns weighted counts [num_queries, num_classes], and who answered what."""
    num_classes = _num_classes(answers, randomisers)
    counts = np.zeros((answers.shape[1], num_classes))
    queries = np.arange(answers.shape[1])
    present = answers != ABSENT
    for row, is_there, weight in zip(answers, present, weights, strict=True):
        counts[queries[is_there], row[is_there]] += weight
    return counts, present.astype(np.float64)


def _num_classes(answers: IntArray, randomisers: Sequence[LocalRandomiser]) -> int:
    classes = {one.num_classes for one in randomisers}
    if answers.ndim != 2 or len(answers) != len(randomisers) or len(classes) != 1:
        raise ValueError(
            f"answers: expected [num_silos, num_queries] with a randomiser of the same classes for "
            f"each silo, got {list(answers.shape)} and {len(randomisers)} randomisers"
        )
    (num_classes,) = classes
    if answers.size and not (answers.min() >= ABSENT and answers.max() < num_classes):
        raise ValueError(f"answers: expected classes 0 to {num_classes - 1} or none, got others")
    return num_classes


def likeliest_shares(answers: IntArray, randomisers: Sequence[LocalRandomiser]) -> FloatArray:
    """Returns the shares of votes under which the answers are likeliest, `[num_queries, classes]`.

    Maximum likelihood through the channels by expectation and maximisation, from equal shares;
    rows sum to 1. For any randomiser, and the one to take for `truncated_geometric`, whose answers
    say little by themselves.

    Raises:
        ValueError: as `debiased_counts`.
    """
    num_classes = _num_classes(answers, randomisers)
    shares = np.full((answers.shape[1], num_classes), 1.0 / num_classes)
    # Silos with one randomiser are one histogram of answers.
    parts = []
    for kind in dict.fromkeys(randomisers):
        rows = answers[[one == kind for one in randomisers]]
        counts = np.stack([(rows == label).sum(axis=0) for label in range(num_classes)], axis=1)
        parts.append((counts.astype(np.float64), kind.channel()))
    present = np.maximum(sum(counts.sum(axis=1) for counts, _ in parts), 1.0)
    for _ in range(MOST_STEPS):
        expected = np.zeros_like(shares)
        for counts, channel in parts:
            expected += shares * ((counts / (shares @ channel)) @ channel.T)
        empty = expected.sum(axis=1) == 0.0
        new = np.where(empty[:, None], shares, expected / present[:, None])
        moved = float(np.abs(new - shares).max(initial=0.0))
        shares = new
        if moved < 1e-7:
            break
    return shares


# How often the plurality of randomised votes is that of the votes: what is possible at all.


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
    without ties, from below (docs/proofs/local.md, Theorem L6).

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
