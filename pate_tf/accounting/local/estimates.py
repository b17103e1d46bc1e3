"""From randomised answers back to votes: post-processing, which costs nothing.

Answers are int64 `[num_silos, num_queries]`, `ABSENT` where a silo gave none.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from pate_tf.accounting.divergences import FloatArray
from pate_tf.accounting.local.base import LocalRandomiser
from pate_tf.accounting.local.randomised_response import RandomisedResponse
from pate_tf.accounting.quadrature import IntArray

ABSENT = -1
WEIGHTINGS = ("likelihood", "unbiased")

MOST_STEPS = 2_000


def debiased_counts(answers: IntArray, randomisers: Sequence[RandomisedResponse]) -> FloatArray:
    """Returns unbiased numbers of votes, `[num_queries, num_classes]`; some are negative.

    Each answer counts (1 - q) / (p - q) for its class and -q / (p - q) for every other one, with
    its silo's own p and q (docs/theory_local.md, Theorem L4).

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
