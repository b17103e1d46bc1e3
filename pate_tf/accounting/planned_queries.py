"""How many queries to ask, from public values alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Final

from pate_tf.accounting.assumed_votes import AssumedVotes
from pate_tf.accounting.mechanisms import (
    ConfidentGaussianNoisyMax,
    ExponentialMechanism,
    GaussianHistogram,
    GaussianNoisyMax,
    Mechanism,
    StabilityGate,
)
from pate_tf.accounting.target import Target

NUMBERS: Final = (10, 20, 50, 100, 200, 500, 1000)
LEAST_LARGE_BATCH: Final = 50
QUERIES_A_CLASS: Final = 5
GOOD_SHARE: Final = 0.95
# Calibrated in no time, and near the best of those that are not.
_QUICK: Final = (GaussianHistogram, ExponentialMechanism, StabilityGate)
_STANDS_FOR: Final[dict[type[Mechanism], type[Mechanism]]] = {
    GaussianNoisyMax: GaussianHistogram,
    ConfidentGaussianNoisyMax: GaussianHistogram,
}


def planned_num_queries(
    target: Target,
    assumed: AssumedVotes,
    *,
    kinds: Sequence[type[Mechanism]] | None = None,
    at_most: int | None = None,
    adaptive: bool = False,
) -> int:
    """Returns the number of queries with most right labels, of which nearly all are right.

    Of 10, 20, 50 and so on up to 1,000: the one with most expected right labels among those of
    which some mechanism labels 95 % right even if teachers agree half as well as assumed; else
    among those of which it does as assumed; else the one with the largest share. A mechanism that
    labels whole batches is asked for `largest_batch` at most.

    Args:
        target: what the labels may cost; its own number of queries is not read.
        assumed: the votes that are assumed.
        kinds: mechanisms to choose from. Default: some that are calibrated quickly.
        at_most: the most that can be asked.
        adaptive: whether batches that are fixed beforehand are left out.

    Raises:
        ValueError: if no number is possible.
    """
    limit = NUMBERS[-1] if at_most is None else min(at_most, NUMBERS[-1])
    numbers = [one for one in NUMBERS if assumed.num_exceptions < one <= limit] or [limit]
    batch = max(largest_batch(assumed), numbers[0])
    best, most = numbers[0], (False, False, 0.0)
    for kind in kinds or _QUICK:
        quick = _STANDS_FOR.get(kind, kind)
        if adaptive and quick.is_paid_once:
            continue
        for number in numbers:
            if not (quick.is_paid_once and number > batch):
                worth = _worth(quick, dataclasses.replace(target, num_queries=number), assumed)
                best, most = (number, worth) if worth > most else (best, most)
    return best


def largest_batch(assumed: AssumedVotes) -> int:
    """Returns how many queries a batch has that is paid once: five a class, but at least 50.

    It costs the same whatever its size, but each query more may be the one on which teachers
    disagree.
    """
    return max(LEAST_LARGE_BATCH, QUERIES_A_CLASS * assumed.num_classes)


def _worth(
    kind: type[Mechanism], target: Target, assumed: AssumedVotes
) -> tuple[bool, bool, float]:
    number = target.num_queries
    counts = assumed.counts(number)
    try:
        planned = kind.for_target(target, counts)
        right = planned.expected_right(counts)
        at_half = planned.expected_right(assumed.with_half_the_margin().counts(number))
    except ValueError:  # it can't be planned for; who compares them says why
        return False, False, 0.0
    if right < GOOD_SHARE * number:
        return False, False, right / number
    return at_half >= GOOD_SHARE * number, True, right
