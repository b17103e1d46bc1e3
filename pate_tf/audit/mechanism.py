"""Lower bound on a mechanism's epsilon: it is sampled for neighboring votes or sums.

An (epsilon, delta) guarantee says that Pr[E | D] <= exp(epsilon) Pr[E | D'] + delta for every event
E and all neighbors D, D'. So draws for both bound epsilon from below, by Clopper and Pearson's
intervals of both probabilities. The event is chosen on some of the draws and counted on the others,
which makes the choice free. A bound above what is charged is a violation.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from scipy import special

from pate_tf.accounting.composition import Charge, smallest_epsilon
from pate_tf.accounting.conversions import DEFAULT_DELTA, LATTICE, FloatArray
from pate_tf.accounting.mechanisms import GaussianMoments
from pate_tf.accounting.mechanisms.base import Mechanism, ReleasesFeatureSums, check_mechanism
from pate_tf.core import checks
from pate_tf.core.checks import IntArray
from pate_tf.core.reporting import QUIET, Reporting
from pate_tf.release.noise import SystemNoise, check_drawable

PASSED: Final = "passed"
VIOLATION: Final = "violation"
NOT_CHECKED: Final = "not checked"
DEFAULT_DRAWS: Final = 200_000
CONFIDENCE: Final = 0.999
CHUNK: Final = 50_000  # queries, or sums, that are drawn together
CHOOSING: Final = 0.25  # fraction of the draws by which an event is chosen; the others count
PILOT: Final = 10_000  # draws for each pair of neighbors among which one is chosen
PILOT_CONFIDENCE: Final = 0.99
FEWEST: Final = 1_000
DELTAS: Final = (1e-3, 1e-2, 0.1)  # that are tested besides the one asked for
MOST_THRESHOLDS: Final = 512


@dataclasses.dataclass(frozen=True, kw_only=True)
class MechanismAudit:
    """What an audit of a mechanism found. Public: no private data take part.

    Attributes:
        mechanism: its JSON.
        summary: its name and parameters.
        outcome: "passed" or "violation".
        delta: where the lower bound is the largest fraction of the claim.
        claimed: epsilon at delta that is charged for one draw.
        lower_bound: what a guarantee must have at least, by the draws, with confidence 99.9 % over
            all deltas that are tested.
        num_draws: for each of the two neighboring data sets.
        neighbors: the two in words.
    """

    mechanism: Mapping[str, Any]
    summary: str
    outcome: str
    delta: float
    claimed: float
    lower_bound: float
    num_draws: int
    neighbors: str

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        return {"audit": "mechanism", **dataclasses.asdict(self)}


class Pair(NamedTuple):
    """Neighboring histograms `[num_classes]`.

    One teacher changes its vote, as with one record replaced, or one owner added or removed.
    """

    first: tuple[int, ...]
    second: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Outcomes:
    """What was released, draw by draw.

    Attributes:
        kinds: the label, or the number of classes for none, int `[num_draws]`.
        values: of each round a number that follows from noisy counts or sums, float `[num_draws,
            num_rounds]`; 0 where none was released.
    """

    kinds: IntArray
    values: FloatArray


def neighboring_pairs(mechanism: Mechanism) -> list[Pair]:
    """Returns pairs of neighboring histograms among which the most telling one is looked for.

    Gaps between two classes up to several times the noise, and votes near every number that the
    mechanism has as a parameter, such as a threshold.
    """
    if isinstance(mechanism, ReleasesFeatureSums) and mechanism.unit == "owner":
        return [Pair((1,), (0,))]  # one owner removed: a distance of 1
    if isinstance(mechanism, GaussianMoments):
        return [Pair((1, 0), (0, 1))]  # one record replaced by another: an L2 distance of sqrt(2)
    if isinstance(mechanism, ReleasesFeatureSums):
        return [Pair((1,), (-1,))]  # one record replaced by its opposite: an L2 distance of 2
    scale = max(mechanism.noise_scales.values(), default=100.0)
    farthest = min(max(4.0 * scale, 64.0), 2.0**20)
    ratio = 2.0 if mechanism.noise_scales else 1.2  # without noise all may hang on one vote
    powers = range(1 + math.ceil(math.log(farthest) / math.log(ratio)))
    gaps = sorted({2 * math.ceil(ratio**power / 2.0) - 1 for power in powers})
    pairs = [Pair((gap + 1, 1), (gap, 2)) for gap in gaps]
    numbers = {float(number) for number in dataclasses.asdict(mechanism).values()}
    for number in sorted(number for number in numbers if number >= 4.0):
        top = math.ceil(number)
        clear = math.ceil(number + min(4.0 * scale, 2.0**20))  # no test stands in the way there
        for most in (top, clear):
            pairs.append(Pair((most, most - 3), (most - 1, most - 2)))
            pairs.append(Pair((most, most - 1), (most - 1, most)))
    return pairs


def draw(
    mechanism: Mechanism,
    pair: Pair,
    number: int,
    progress: Callable[[int], object] = lambda done: None,
) -> tuple[Outcomes, Outcomes]:
    """Returns `number` draws for each data set of a pair."""
    noise = SystemNoise()
    num_classes = len(pair.first)
    drawn = []
    for counts in pair:
        kinds = list[IntArray]()
        values = list[FloatArray]()
        for done in range(0, number, CHUNK):
            size = min(CHUNK, number - done)
            table = np.tile(np.array(counts), (size, 1))
            kind = np.zeros(size, np.int64)
            value = np.zeros((size, 1))
            if isinstance(mechanism, ReleasesFeatureSums):
                # In each later round every number is that of the first or its opposite, as the
                # noisy one before says.
                sign = np.ones_like(table)
                rounds = []
                for _ in range(mechanism.num_rounds):
                    noisy = mechanism.draw_sums(sign * table * LATTICE, noise)
                    rounds.append((sign * noisy) @ np.subtract(pair.first, pair.second) / LATTICE)
                    sign = np.where(noisy < 0, -1, 1)
                value = np.stack(rounds, axis=1)
            else:
                answers = mechanism.draw(table, noise)
                labels = [num_classes if label is None else label for label in answers.labels]
                kind = np.array(labels, np.int64)
                if answers.noisy_counts is not None:  # a label follows from its noisy counts
                    gaps = (answers.noisy_counts[:, 0] - answers.noisy_counts[:, 1]) / LATTICE
                    value = np.where(kind == num_classes, 0.0, gaps)[:, np.newaxis]
                    kind = np.where(kind == num_classes, kind, 0)
            kinds.append(kind)
            values.append(value)
            progress(size)
        drawn.append(Outcomes(np.concatenate(kinds), np.concatenate(values)))
    return drawn[0], drawn[1]


def epsilon_lower_bound(
    likelier: npt.ArrayLike, other: npt.ArrayLike, total: int, *, delta: float, confidence: float
) -> FloatArray:
    """Returns the largest epsilons that counts exclude at delta, at least 0.

    By Clopper and Pearson's bounds on both probabilities, each of which fails half as often.

    Args:
        likelier: in how many draws an event happened for the data set where it is likelier.
        other: for the other one.
        total: draws for each.
        delta: of the guarantee.
        confidence: that the true epsilon is no smaller, if the event was chosen without looking at
            these draws.
    """
    x = np.asarray(likelier, float)
    y = np.asarray(other, float)
    alpha = (1.0 - confidence) / 2.0
    # betaincinv is nan at a parameter of 0, where the interval ends at 0 or 1.
    low = np.where(x > 0, special.betaincinv(np.maximum(x, 1), total - x + 1, alpha), 0.0)
    high = special.betaincinv(y + 1, np.maximum(total - y, 1), 1.0 - alpha)
    high = np.where(y < total, high, 1.0)
    return np.log(np.maximum((low - delta) / high, 1.0))


def tested(
    drawn: tuple[Outcomes, Outcomes], delta: float, *, confidence: float = CONFIDENCE
) -> float:
    """Returns a lower bound on epsilon at delta, by the event that some of the draws choose.

    Thresholds of the score are dense in both tails, where small deltas are decided.
    """
    middle = int(CHOOSING * len(drawn[0].kinds))
    choosing, counting = (
        [Outcomes(outcomes.kinds[part], outcomes.values[part]) for outcomes in drawn]
        for part in (slice(middle), slice(middle, None))
    )
    # How much likelier an outcome is for the first data set, as a logarithm; the last kind stands
    # for all that were not seen.
    size = max(int(each.kinds.max()) for each in choosing) + 2
    counts = [np.bincount(each.kinds, minlength=size) + 0.5 for each in choosing]
    by_kind = np.log(counts[0] / counts[0].sum()) - np.log(counts[1] / counts[1].sum())
    means = [each.values.mean(axis=0) for each in choosing]
    # Gaussian rounds: the ratio is linear in each, and steeper the less noise it has.
    variance = np.maximum(sum(each.values.var(axis=0) for each in choosing) / 2.0, 1e-12)
    slope = (means[0] - means[1]) / variance
    centre = (means[0] + means[1]) / 2.0

    def score(outcomes: Outcomes) -> FloatArray:
        kinds = np.minimum(outcomes.kinds, size - 1)
        return np.asarray(by_kind[kinds] + (outcomes.values - centre) @ slope)

    chosen = [np.sort(score(outcomes)) for outcomes in choosing]
    counted = [np.sort(score(outcomes)) for outcomes in counting]
    ordered = np.sort(np.concatenate(chosen))
    tail = np.unique(np.geomspace(1, middle + 1, MOST_THRESHOLDS // 3).astype(int)) - 1
    places = [tail, -1 - tail, np.linspace(0, 2 * middle - 1, MOST_THRESHOLDS // 3).astype(int)]
    thresholds = np.unique(ordered[np.concatenate(places)])

    def hits(scores: Sequence[FloatArray]) -> tuple[IntArray, IntArray]:
        """Events, both ways round: a score of at least each threshold, a score below it."""
        below = [np.searchsorted(each, thresholds, "left") for each in scores]
        first, second = ([len(scores[0]) - each, each] for each in below)
        return np.stack([*first, *second]), np.stack([*second, *first])

    bounds = epsilon_lower_bound(*hits(chosen), middle, delta=delta, confidence=confidence)
    best = np.unravel_index(bounds.argmax(), bounds.shape)
    likelier, other = (each[best] for each in hits(counted))
    total = len(counted[0])
    bound = epsilon_lower_bound(likelier, other, total, delta=delta, confidence=confidence)
    return float(bound)


def audit_mechanism(
    mechanism: Mechanism,
    *,
    delta: float = DEFAULT_DELTA,
    num_draws: int = DEFAULT_DRAWS,
    reporting: Reporting = QUIET,
) -> MechanismAudit:
    """Audits a mechanism's noise and its charge by draws for neighboring data sets.

    >>> import pate_tf
    >>> audit = pate_tf.audit.audit_mechanism(
    ...     pate_tf.LaplaceNoisyMax(scale=1.0), delta=1e-5, num_draws=20_000
    ... )
    >>> audit.outcome, audit.lower_bound <= audit.claimed
    ('passed', True)

    The claim is what a ledger is charged for one draw, at delta and at each of `DELTAS`;
    "violation" means that more was found at one of them, with a false alarm in a thousand audits at
    most. More draws find smaller errors.

    Args:
        mechanism: a registered one that draws noise.
        delta: that is tested besides `DELTAS`.
        num_draws: for each data set.
        reporting: how progress is shown.

    Raises:
        ValueError: if the mechanism draws no noise, is not registered, or claims nothing finite;
            if delta or draws are out of range.
    """
    checks.between(0, 1, delta=delta)
    checks.whole(FEWEST, num_draws=num_draws)
    check_mechanism(mechanism)
    check_drawable(mechanism)
    charged: dict[Charge, int] = {mechanism: mechanism.number_charged(1)}
    claims = {each: smallest_epsilon(charged, each)[0] for each in {delta, *DELTAS}}
    claims = {each: claim for each, claim in claims.items() if math.isfinite(claim)}
    if not claims:
        raise ValueError(
            f"mechanism: expected one with a finite guarantee at delta {delta:g}, got "
            f"{mechanism.summary()}"
        )

    def promise(pair: Pair) -> float:
        """Returns how large a bound is by few draws that nothing else uses."""
        drawn = draw(mechanism, pair, PILOT)
        return max(
            tested(drawn, each, confidence=PILOT_CONFIDENCE) / max(claim, 1e-9)
            for each, claim in claims.items()
        )

    pairs = neighboring_pairs(mechanism)
    pair = pairs[0] if len(pairs) == 1 else max(pairs, key=promise)
    with reporting.progress_bar(desc="drawing", total=2 * num_draws, unit="draw") as bar:
        drawn = draw(mechanism, pair, num_draws, bar.update)
    confidence = 1.0 - (1.0 - CONFIDENCE) / len(claims)
    bounds = {each: tested(drawn, each, confidence=confidence) for each in claims}
    worst = max(claims, key=lambda each: bounds[each] / max(claims[each], 1e-9))
    return MechanismAudit(
        mechanism=mechanism.to_dict(),
        summary=mechanism.summary(),
        outcome=VIOLATION if bounds[worst] > claims[worst] * (1.0 + 1e-9) else PASSED,
        delta=worst,
        claimed=claims[worst],
        lower_bound=bounds[worst],
        num_draws=num_draws,
        neighbors=f"votes {pair.first} and {pair.second}",
    )
