"""Lower bound on the epsilon of a mechanism: `python -m benchmarks.mechanism_audit NAME`.

Samples the mechanism for neighboring votes or sums.

An (epsilon, delta) guarantee means that Pr[E | D] <= exp(epsilon) Pr[E | D'] + delta for every
event E and all neighbors D and D'. Therefore, samples for both data sets bound epsilon from below,
by Clopper-Pearson intervals of both probabilities. The event is chosen on some of the samples and
counted on the others, so the choice does not bias the bound. If the bound exceeds the charged
epsilon, the guarantee is violated.
"""

import dataclasses
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from absl import flags
from scipy import special

from pate_tf.accounting.composition import Charge, smallest_epsilon
from pate_tf.accounting.conversions import DEFAULT_DELTA, LATTICE, FloatArray
from pate_tf.accounting.mechanisms import GaussianMoments
from pate_tf.accounting.mechanisms.base import (
    MECHANISMS,
    Mechanism,
    ReleasesFeatureSums,
    check_mechanism,
)
from pate_tf.audit.run_audit import PASSED, VIOLATION
from pate_tf.cli import command_line
from pate_tf.core import checks
from pate_tf.core.checks import IntArray
from pate_tf.core.reporting import QUIET, Reporting
from pate_tf.release.noise import SystemNoise, check_drawable

DEFAULT_DRAWS: Final = 200_000
CONFIDENCE: Final = 0.999
CHUNK: Final = 50_000  # queries or sums per batch of draws
CHOOSING_FRACTION: Final = 0.25  # fraction of the draws for the choice of an event
PILOT: Final = 10_000  # draws for each pair of neighbors, to choose a pair
PILOT_CONFIDENCE: Final = 0.99
MIN_DRAWS: Final = 1_000
DELTAS: Final = (1e-3, 1e-2, 0.1)  # tested in addition to the requested delta
MAX_THRESHOLDS: Final = 512


@dataclasses.dataclass(frozen=True, kw_only=True)
class MechanismAudit:
    """The result of an audit of a mechanism. Public: it does not use private data.

    Attributes:
        mechanism: the mechanism as JSON values.
        summary: name and parameters of the mechanism.
        outcome: "passed" or "violation".
        delta: the tested delta at which the lower bound is the largest fraction of the claim.
        claimed: the epsilon that is charged for one draw, at `delta`.
        lower_bound: lower bound on the true epsilon at `delta`, with confidence 99.9 % over all
            tested deltas.
        num_draws: number of draws for each of the two neighboring data sets.
        neighbors: text that describes the two data sets.
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

    One teacher changes its vote, because of replace-one record or add-or-remove-one owner.
    """

    first: tuple[int, ...]
    second: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Outcomes:
    """The released values of each draw.

    Attributes:
        kinds: the label, or the number of classes if the label was withheld, int `[num_draws]`.
        values: for each round, a number computed from noisy counts or sums, float `[num_draws,
            num_rounds]`; 0 without noisy counts or sums.
    """

    kinds: IntArray
    values: FloatArray


def neighboring_pairs(mechanism: Mechanism) -> list[Pair]:
    """Returns candidate pairs of neighboring histograms, to find the pair with the largest bound.

    The pairs have gaps between two classes of up to several times the noise, and votes near each
    numerical parameter of the mechanism, such as a threshold.
    """
    if isinstance(mechanism, ReleasesFeatureSums) and mechanism.unit == "owner":
        return [Pair((1,), (0,))]  # one owner is removed: L2 distance 1
    if isinstance(mechanism, GaussianMoments):
        return [Pair((1, 0), (0, 1))]  # one record is replaced: L2 distance sqrt(2)
    if isinstance(mechanism, ReleasesFeatureSums):
        return [Pair((1,), (-1,))]  # one record is replaced by its opposite: L2 distance 2
    scale = max(mechanism.noise_scales.values(), default=100.0)
    farthest = min(max(4.0 * scale, 64.0), 2.0**20)
    ratio = 2.0 if mechanism.noise_scales else 1.2  # without noise, a single vote may decide
    powers = range(1 + math.ceil(math.log(farthest) / math.log(ratio)))
    gaps = sorted({2 * math.ceil(ratio**power / 2.0) - 1 for power in powers})
    pairs = [Pair((gap + 1, 1), (gap, 2)) for gap in gaps]
    numbers = {float(number) for number in dataclasses.asdict(mechanism).values()}
    for number in sorted(number for number in numbers if number >= 4.0):
        top = math.ceil(number)
        clear = math.ceil(number + min(4.0 * scale, 2.0**20))  # far above the threshold
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
                # In each later round, the sign of each number depends on the previous noisy
                # number. Its absolute value is the same as in the first round.
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
                if answers.noisy_counts is not None:  # noisy counts determine the label
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
    """Returns lower bounds on epsilon at delta, at least 0, from counts of events.

    It uses Clopper-Pearson bounds on both probabilities, each at half the error rate.

    Args:
        likelier: number of draws with the event, for the data set for which it is more likely.
        other: number of draws with the event, for the other data set.
        total: number of draws for each data set.
        delta: delta of the guarantee.
        confidence: confidence of the bounds, if the event was chosen without looking at these
            draws.
    """
    x = np.asarray(likelier, float)
    y = np.asarray(other, float)
    alpha = (1.0 - confidence) / 2.0
    # betaincinv returns nan for a parameter of 0. In this case, the interval ends at 0 or 1.
    low = np.where(x > 0, special.betaincinv(np.maximum(x, 1), total - x + 1, alpha), 0.0)
    high = special.betaincinv(y + 1, np.maximum(total - y, 1), 1.0 - alpha)
    high = np.where(y < total, high, 1.0)
    return np.log(np.maximum((low - delta) / high, 1.0))


def tested(
    drawn: tuple[Outcomes, Outcomes], delta: float, *, confidence: float = CONFIDENCE
) -> float:
    """Returns a lower bound on epsilon at delta. Some of the draws are used to choose an event.

    Thresholds of the score are dense in both tails, which matter for small deltas.
    """
    middle = int(CHOOSING_FRACTION * len(drawn[0].kinds))
    choosing, counting = (
        [Outcomes(outcomes.kinds[part], outcomes.values[part]) for outcomes in drawn]
        for part in (slice(middle), slice(middle, None))
    )
    # The logarithm of the ratio of probabilities, for each kind of outcome. The last entry is for
    # kinds that were not seen.
    size = max(int(each.kinds.max()) for each in choosing) + 2
    counts = [np.bincount(each.kinds, minlength=size) + 0.5 for each in choosing]
    by_kind = np.log(counts[0] / counts[0].sum()) - np.log(counts[1] / counts[1].sum())
    means = [each.values.mean(axis=0) for each in choosing]
    # For Gaussian noise, this logarithm is linear in the value of each round. Its slope is larger
    # if the noise is smaller.
    variance = np.maximum(sum(each.values.var(axis=0) for each in choosing) / 2.0, 1e-12)
    slope = (means[0] - means[1]) / variance
    centre = (means[0] + means[1]) / 2.0

    def score(outcomes: Outcomes) -> FloatArray:
        kinds = np.minimum(outcomes.kinds, size - 1)
        return np.asarray(by_kind[kinds] + (outcomes.values - centre) @ slope)

    chosen = [np.sort(score(outcomes)) for outcomes in choosing]
    counted = [np.sort(score(outcomes)) for outcomes in counting]
    ordered = np.sort(np.concatenate(chosen))
    tail = np.unique(np.geomspace(1, middle + 1, MAX_THRESHOLDS // 3).astype(int)) - 1
    places = [tail, -1 - tail, np.linspace(0, 2 * middle - 1, MAX_THRESHOLDS // 3).astype(int)]
    thresholds = np.unique(ordered[np.concatenate(places)])

    def hits(scores: Sequence[FloatArray]) -> tuple[IntArray, IntArray]:
        """Counts scores at or above each threshold, and scores below it, in both directions."""
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
    """Audits the noise and the charge of a mechanism, by draws for neighboring data sets.

    >>> import pate_tf
    >>> audit = pate_tf.audit.audit_mechanism(
    ...     pate_tf.LaplaceNoisyMax(scale=1.0), delta=1e-5, num_draws=20_000
    ... )
    >>> audit.outcome, audit.lower_bound <= audit.claimed
    ('passed', True)

    The claim is the epsilon that a ledger is charged for one draw, at delta and at each of
    `DELTAS`. "violation" means that the lower bound exceeds the claim at one of these deltas. At
    most one in a thousand audits gives a false alarm. More draws can detect smaller errors.

    Args:
        mechanism: a registered mechanism that draws noise.
        delta: delta to test, in addition to `DELTAS`.
        num_draws: number of draws for each data set.
        reporting: how progress is shown.

    Raises:
        ValueError: if the mechanism draws no noise, is not registered, or has no finite epsilon; or
            if delta or the number of draws is out of range.
    """
    checks.between(0, 1, delta=delta)
    checks.whole(MIN_DRAWS, num_draws=num_draws)
    check_mechanism(mechanism)
    check_drawable(mechanism)
    charged: dict[Charge, int] = {mechanism: mechanism.number_charged(1)}
    claims = {each: smallest_epsilon(charged, each)[0] for each in {delta, *DELTAS}}
    claims = {each: claim for each, claim in claims.items() if math.isfinite(claim)}
    if not claims:
        raise ValueError(
            f"{mechanism.summary()} has no finite epsilon at delta {delta:g}, so there is no claim "
            f"to audit"
        )

    def promise(pair: Pair) -> float:
        """Returns the largest bound as a fraction of its claim, from a separate set of draws."""
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


def main() -> int:
    """Audits the mechanism that the first argument names; the flags are its parameters.

    Exit code 0: passed; 1: a violation was found; 2: it could not be run.
    """
    name = sys.argv.pop(1) if len(sys.argv) > 1 else ""
    kind = MECHANISMS.get(name)
    if kind is None or ("draw" in kind.lacks and not kind.releases_feature_sums):
        print(f"error: name one of {', '.join(sorted(MECHANISMS))}", file=sys.stderr)
        return 2
    command_line.define_parameters(kind)
    if "delta" not in flags.FLAGS:
        flags.DEFINE_float("delta", DEFAULT_DELTA, "Delta to test, in addition to others.")
    flags.DEFINE_integer("draws", DEFAULT_DRAWS, "Draws for each of two data sets.")
    command_line.parse_flags(sys.argv)
    try:
        audit = audit_mechanism(
            command_line.chosen(kind), delta=flags.FLAGS.delta, num_draws=flags.FLAGS.draws
        )
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(
        f"  epsilon at delta {audit.delta:g}: claimed {audit.claimed:.4g}, at least "
        f"{audit.lower_bound:.4g} by {audit.num_draws:,} draws for {audit.neighbors} "
        f"(confidence 99.9 %)"
    )
    print(audit.outcome.upper())
    return int(audit.outcome == VIOLATION)


if __name__ == "__main__":
    sys.exit(main())
