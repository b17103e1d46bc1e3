"""Lower bounds on epsilon from what was observed: events, their counts, and guesses in one run.

An (epsilon, delta) guarantee says that Pr[E | D] <= exp(epsilon) Pr[E | D'] + delta for every event
E and all neighbours D, D'. Counts of one event on both sides therefore bound epsilon from below.
The event is chosen on one half of the draws and counted on the other, so that the choice
costs no confidence; the probabilities are bounded by Clopper and Pearson (1934).
"""

import dataclasses
import math

import numpy as np
import numpy.typing as npt
from scipy import stats

from pate_tf.accounting.conversions import FloatArray, gaussian_dp_epsilon

CONFIDENCE = 0.999
MOST_THRESHOLDS = 512
_TINY = 1e-300


@dataclasses.dataclass(frozen=True)
class Event:
    """A score on one side of a threshold.

    Attributes:
        threshold: of the score.
        above: whether the event is a score of at least the threshold; else one below it.
        swapped: whether the event is likelier for the second data set than for the first.
    """

    threshold: float
    above: bool
    swapped: bool

    def counts(self, first: FloatArray, second: FloatArray) -> tuple[int, int]:
        """Returns how often it happened: where it is likelier, and where it is less likely."""
        found = [
            int((scores >= self.threshold).sum() if self.above else (scores < self.threshold).sum())
            for scores in (first, second)
        ]
        return (found[1], found[0]) if self.swapped else (found[0], found[1])


def probability_bounds(hits: int, total: int, *, alpha: float) -> tuple[float, float]:
    """Returns Clopper and Pearson's bounds, each of which fails with probability alpha at most."""
    low, high = (
        stats.binomtest(hits, total, alternative=side).proportion_ci(1.0 - alpha, method="exact")
        for side in ("greater", "less")
    )
    return float(low.low), float(high.high)


def epsilon_lower_bound(
    likelier: int,
    other: int,
    total: int,
    *,
    delta: float,
    confidence: float = CONFIDENCE,
    other_total: int | None = None,
) -> float:
    """Returns log((p - delta) / q) with p and q at their bounds, at least 0.

    It exceeds a true epsilon with probability 1 - confidence at most, if the event was chosen
    without looking at these draws. Draws within a side are independent; between sides they need not
    be.

    Args:
        likelier: how often the event happened on the side where it is likelier.
        other: how often on the other side.
        total: draws of the first side.
        delta: of the guarantee, at least 0.
        confidence: of the bound.
        other_total: draws of the other side; None for as many.
    """
    alpha = (1.0 - confidence) / 2.0
    low, _ = probability_bounds(likelier, total, alpha=alpha)
    _, high = probability_bounds(other, total if other_total is None else other_total, alpha=alpha)
    return math.log((low - delta) / high) if low - delta > high else 0.0


def events_of(first: FloatArray, second: FloatArray) -> tuple[list[Event], FloatArray, FloatArray]:
    """Returns candidate events, and how often each happened: where likelier, and on the other side.

    Thresholds are dense in both tails, where small deltas are decided.

    Args:
        first: scores for the first data set, `[num_draws]`.
        second: for the second, as many.
    """
    ordered = np.sort(np.concatenate([first, second]))
    size = len(ordered)
    steps = np.unique(np.geomspace(1, size // 2 + 1, MOST_THRESHOLDS // 3).astype(int)) - 1
    places = np.concatenate(
        [steps, size - 1 - steps, np.linspace(0, size - 1, MOST_THRESHOLDS // 3).astype(int)]
    )
    thresholds = np.unique(ordered[np.clip(places, 0, size - 1)])
    below = [np.searchsorted(np.sort(one), thresholds, "left") for one in (first, second)]
    events, likelier, others = [], [], []
    for above in (True, False):
        hits = [
            len(one) - under if above else under
            for one, under in zip((first, second), below, strict=True)
        ]
        for swapped in (False, True):
            events += [Event(float(one), above, swapped) for one in thresholds]
            likelier.append(hits[1] if swapped else hits[0])
            others.append(hits[0] if swapped else hits[1])
    return events, np.concatenate(likelier), np.concatenate(others)


def most_telling(
    first: FloatArray, second: FloatArray, *, delta: float, epsilon: float
) -> tuple[Event, float]:
    """Returns the event that speaks most against a claim, and by how many standard errors.

    Args:
        first: scores for the first data set, `[num_draws]`.
        second: for the second, as many.
        delta: of the claim.
        epsilon: of the claim.
    """
    total = len(first)
    events, likelier, other = events_of(first, second)
    factor = math.exp(min(epsilon, 300.0))
    p, q = likelier / total, (other + 1.0) / total
    error = np.sqrt((p * (1.0 - p) + factor**2 * q) / total) + _TINY
    excess = (p - factor * q - delta) / error
    best = int(np.argmax(excess))
    return events[best], float(excess[best])


def best_event(first: FloatArray, second: FloatArray, *, delta: float) -> tuple[Event, float]:
    """Returns the event with the largest lower bound on epsilon at delta, and that bound.

    The bound is of the draws that the event was chosen by, so it proves nothing by itself.
    """
    total, alpha = len(first), (1.0 - CONFIDENCE) / 2.0
    events, likelier, other = events_of(first, second)
    low = stats.beta.ppf(alpha, np.maximum(likelier, 1), total - np.maximum(likelier, 1) + 1.0)
    low = np.where(likelier > 0, low, 0.0)
    high = stats.beta.isf(alpha, np.minimum(other, total - 1) + 1.0, np.maximum(total - other, 1))
    high = np.where(other < total, high, 1.0)
    bounds = np.log(np.maximum(low - delta, _TINY) / high)
    best = int(np.argmax(bounds))
    return events[best], max(float(bounds[best]), 0.0)


def gaussian_epsilon_estimate(
    likelier: int, other: int, total: int, *, delta: float, confidence: float = CONFIDENCE
) -> float:
    """Returns epsilon at delta of the least Gaussian shift that explains an event's counts.

    It assumes that the trade-off is Gaussian; `epsilon_lower_bound` assumes nothing.
    (Nasr et al. 2023, arXiv 2302.07956.)
    """
    alpha = (1.0 - confidence) / 2.0
    low, _ = probability_bounds(likelier, total, alpha=alpha)
    _, high = probability_bounds(other, total, alpha=alpha)
    shift = float(stats.norm.ppf(low) - stats.norm.ppf(high))
    return gaussian_dp_epsilon(shift, delta) if shift > 0.0 else 0.0


def one_run_p_value(
    num_canaries: int, num_guesses: int, num_right: int, *, epsilon: float, delta: float
) -> float:
    """Returns how likely so many right guesses are at most under (epsilon, delta)-privacy.

    Each canary was put in by a fair coin of its own; guesses are about `num_guesses` of them.
    (Steinke, Nasr and Jagielski 2023, arXiv 2305.08846, Theorem 5.2.)
    """
    rate = float(1.0 / (1.0 + math.exp(-epsilon)))
    at_least = stats.binom.sf(num_right - 1, num_guesses, rate)
    steps = np.arange(1, num_right + 1)
    mass = np.cumsum(stats.binom.pmf(num_right - steps, num_guesses, rate))
    added = float((mass / steps).max(initial=0.0))
    return min(float(at_least + 2.0 * num_canaries * delta * added), 1.0)


def one_run_epsilon(
    num_canaries: int,
    num_guesses: int,
    num_right: int,
    *,
    delta: float,
    confidence: float = CONFIDENCE,
) -> float:
    """Returns the largest epsilon that right guesses in one run exclude; see `one_run_p_value`."""

    def is_excluded(epsilon: float) -> bool:
        found = one_run_p_value(num_canaries, num_guesses, num_right, epsilon=epsilon, delta=delta)
        return found < 1.0 - confidence

    if not num_guesses or not is_excluded(0.0):
        return 0.0
    low, high = 0.0, 64.0
    while high - low > 1e-6:
        middle = (low + high) / 2.0
        low, high = (middle, high) if is_excluded(middle) else (low, middle)
    return low


def rate_at_false_positives(
    members: npt.NDArray[np.float64], others: npt.NDArray[np.float64], rate: float
) -> float:
    """Returns the share of members above the threshold that this share of the others is above."""
    threshold = np.quantile(others, 1.0 - rate, method="higher")
    return float((members > threshold).mean())
