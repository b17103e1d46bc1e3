"""Lower bounds on epsilon from observed events.

An (epsilon, delta) guarantee says that Pr[E | D] <= exp(epsilon) Pr[E | D'] + delta for every event
E and all neighbours D, D'. So what is drawn for both bounds epsilon from below. The event is chosen
on some of the draws and counted on the others, which makes the choice free.

Draws come in pairs: draw number i for D and draw number i for D' may share their noise, other pairs
are independent. With X and Y telling whether the event happened for D and for D',
Z = X - exp(epsilon) Y - delta has a mean of at most 0 under the guarantee. So for a fixed stake s
the product over all pairs of 1 + s Z has a mean of at most 1, and is above 1 / alpha with a
probability of at most alpha, by Markov. (Waudby-Smith and Ramdas 2024, "Estimating means of bounded
random variables by betting".) Shared noise makes Z vary less, and nothing is assumed of it.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.conversions import FloatArray

CONFIDENCE = 0.999
MOST_THRESHOLDS = 512
STAKES = 64  # that are tried for an event
LARGEST_BOUND = 64.0  # epsilon above which nothing is asked


@dataclasses.dataclass(frozen=True)
class Counts:
    """In how many pairs of draws an event happened.

    Attributes:
        likelier: for the data set where it is likelier alone.
        other: for the other one alone.
        both: for both.
        total: pairs.
    """

    likelier: int
    other: int
    both: int
    total: int


@dataclasses.dataclass(frozen=True)
class Event:
    """A score on one side of a threshold, and what is staked on it.

    Attributes:
        threshold: of the score.
        above: whether the event is a score of at least the threshold; else one below it.
        swapped: whether the event is likelier for the second data set than for the first.
        stake: of the test; any number above 0 is valid that was chosen without the draws counted.
    """

    threshold: float
    above: bool
    swapped: bool
    stake: float

    def counts(self, first: FloatArray, second: FloatArray) -> Counts:
        """Returns how often it happened in pairs of scores, each `[num_pairs]`."""
        x, y = (
            one >= self.threshold if self.above else one < self.threshold
            for one in ((second, first) if self.swapped else (first, second))
        )
        both = int((x & y).sum())
        return Counts(int(x.sum()) - both, int(y.sum()) - both, both, len(x))


def evidence(counts: Counts, *, epsilon: float, delta: float, stake: float) -> float:
    """Returns the logarithm of the product of 1 + stake * (X - exp(epsilon) Y - delta).

    Under (epsilon, delta)-privacy it exceeds log(1 / alpha) with probability alpha at most. Minus
    infinity where the stake could lose more than everything.
    """
    factor = math.exp(epsilon)
    if stake * (factor + delta) >= 1.0:
        return -math.inf
    neither = counts.total - counts.likelier - counts.other - counts.both
    return (
        counts.likelier * math.log1p(stake * (1.0 - delta))
        + counts.other * math.log1p(-stake * (factor + delta))
        + counts.both * math.log1p(stake * (1.0 - factor - delta))
        + neither * math.log1p(-stake * delta)
    )


def epsilon_lower_bound(
    counts: Counts, *, delta: float, stake: float, confidence: float = CONFIDENCE
) -> float:
    """Returns the largest epsilon that counts exclude at delta, at least 0.

    It exceeds a true epsilon with probability 1 - confidence at most, if event and stake were
    chosen without looking at these draws.

    Args:
        counts: of an event.
        delta: of the guarantee, at least 0.
        stake: of the test; see the module.
        confidence: of the bound.
    """
    needed = -math.log(1.0 - confidence)

    def is_excluded(epsilon: float) -> bool:  # falls as epsilon grows, as the evidence does
        return evidence(counts, epsilon=epsilon, delta=delta, stake=stake) > needed

    return _largest(is_excluded)


def _largest(is_excluded: Callable[[float], bool]) -> float:
    """Returns the largest epsilon that is excluded, by bisection from below; 0 if none is."""
    if not is_excluded(0.0):
        return 0.0
    low, high = 0.0, LARGEST_BOUND
    while high - low > 1e-7 * max(high, 1.0):
        middle = (low + high) / 2.0
        low, high = (middle, high) if is_excluded(middle) else (low, middle)
    return low


@dataclasses.dataclass(frozen=True)
class Promise:
    """What the draws that an event was chosen by say of it.

    Attributes:
        event: with its stake.
        bound: about the lower bound if it were counted on as many.
        excess: by how many standard errors it speaks against the claim.
    """

    event: Event
    bound: float
    excess: float


def best_events(
    first: FloatArray,
    second: FloatArray,
    claims: Sequence[tuple[float, float]],
    *,
    num_counted: int,
    confidence: float = CONFIDENCE,
) -> list[Promise]:
    """Returns for each claim the event that promises the largest lower bound at its delta.

    Thresholds are dense in both tails, where small deltas are decided.

    Args:
        first: scores for the first data set, `[num_pairs]`.
        second: for the second, which may share their noise, pair by pair.
        claims: pairs of epsilon and delta.
        num_counted: pairs on which the event is going to be counted.
        confidence: of the bound to come.
    """
    total = len(first)
    needed = -math.log(1.0 - confidence)
    ordered = np.sort(np.concatenate([first, second]))
    size = len(ordered)
    steps = np.unique(np.geomspace(1, size // 2 + 1, MOST_THRESHOLDS // 3).astype(int)) - 1
    places = np.concatenate(
        [steps, size - 1 - steps, np.linspace(0, size - 1, MOST_THRESHOLDS // 3).astype(int)]
    )
    thresholds = np.unique(ordered[np.clip(places, 0, size - 1)])
    scores = (first, second, np.minimum(first, second), np.maximum(first, second))
    x, y, lower, upper = (np.searchsorted(np.sort(one), thresholds, "left") for one in scores)
    # How often a score is at least each threshold, then how often below it: X, Y, and both.
    hits = np.stack([total - x, x]), np.stack([total - y, y]), np.stack([total - lower, upper])
    found = []
    for epsilon, delta in claims:
        bounds = np.stack(
            [
                _promised(one, other, hits[2], total, delta=delta, needed=needed)
                for one, other in ((hits[0], hits[1]), (hits[1], hits[0]))
            ]
        )
        swapped, below, place = (
            int(one) for one in np.unravel_index(bounds.argmax(), bounds.shape)
        )
        likelier, other = (hits[one][below, place] for one in (swapped, 1 - swapped))
        both = hits[2][below, place]
        counts = Counts(int(likelier - both), int(other - both + 1), int(both), total)
        mean, variance = _moments(likelier, other, both, total, epsilon=epsilon, delta=delta)
        event = Event(
            float(thresholds[place]),
            not below,
            bool(swapped),
            # The more are counted, the smaller a stake is best.
            stake=_best_stake(counts, delta=delta, needed=needed * total / num_counted),
        )
        excess = float(mean * np.sqrt(total / variance))
        found.append(Promise(event, float(bounds[swapped, below, place]), excess))
    return found


def _moments(
    likelier: npt.ArrayLike,
    other: npt.ArrayLike,
    both: npt.ArrayLike,
    total: int,
    *,
    epsilon: npt.ArrayLike,
    delta: float,
) -> tuple[FloatArray, FloatArray]:
    """Returns mean and variance, about, of X - exp(epsilon) Y - delta.

    An event that nearly never happened is taken to have happened once more.
    """
    p, q = np.asarray(likelier) / total, (np.asarray(other) + 1.0) / total
    together, factor = np.asarray(both) / total, np.exp(np.minimum(epsilon, LARGEST_BOUND))
    variance = p - together + (q - together) * factor**2 + together * (factor - 1.0) ** 2
    return p - factor * q - delta, variance


def _promised(
    likelier: npt.NDArray[np.int64],
    other: npt.NDArray[np.int64],
    both: npt.NDArray[np.int64],
    total: int,
    *,
    delta: float,
    needed: float,
) -> FloatArray:
    """Returns about what `epsilon_lower_bound` would say of events with the best stake.

    With a mean m and a variance v of Z, n draws suffice where m > sqrt(2 v L / n), for the evidence
    L that is needed, and a term for events that are so rare that stakes have an end.
    """
    low, high = np.zeros(likelier.shape), np.full(likelier.shape, LARGEST_BOUND)
    for _ in range(40):
        middle = (low + high) / 2.0
        mean, variance = _moments(likelier, other, both, total, epsilon=middle, delta=delta)
        least = np.sqrt(2.0 * variance * needed / total) + np.exp(middle) * needed / total / 2.0
        low, high = np.where(mean > least, middle, low), np.where(mean > least, high, middle)
    return low


def _best_stake(counts: Counts, *, delta: float, needed: float) -> float:
    """Returns the stake with which such counts give the largest bound."""
    confidence = -math.expm1(-needed)
    stakes = [float(one) for one in np.geomspace(1e-6, 0.99, STAKES)]
    return max(
        stakes,
        key=lambda stake: epsilon_lower_bound(
            counts, delta=delta, stake=stake, confidence=confidence
        ),
    )
