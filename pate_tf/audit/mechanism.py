"""Lower bound on a mechanism's epsilon: it is sampled for neighboring votes or sums.

The claim is what a ledger in a temporary folder charges for a real release. The mechanism draws for
two neighboring data sets with the noise source of production; outcomes that can be distinguished
better than the charge allows are a violation. Every registered mechanism can be audited.
"""

import contextlib
import dataclasses
import functools
import math
import os
import pathlib
import secrets
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.conversions import LATTICE, FloatArray
from pate_tf.accounting.mechanisms import InteractiveGaussianNoisyMax
from pate_tf.accounting.mechanisms.base import (
    Mechanism,
    ReleasesFeatureSums,
    check_mechanism,
)
from pate_tf.audit import statistics
from pate_tf.audit.statistics import CONFIDENCE, Promise
from pate_tf.core import validation
from pate_tf.core.reporting import QUIET, Reporting
from pate_tf.core.sensitive import SumsByClass, VoteCounts
from pate_tf.core.validation import IntArray
from pate_tf.ledger import Ledger, LedgerWarning
from pate_tf.ledger.rollback_guard import STATE_VARIABLE
from pate_tf.release.noise import SystemNoise, check_drawable, check_scales
from pate_tf.release.noisy_sums import release_sums
from pate_tf.release.votes import release_votes

PASSED, VIOLATION, NO_POWER, NOT_CHECKED = "passed", "violation", "no power", "not checked"
DEFAULT_DELTA: Final = 1e-5
DEFAULT_SECONDS: Final = 120.0
CHUNK: Final = 49_999  # queries, or sums, of one draw; odd, see `AuditNoise`
CHOOSING: Final = 0.25  # fraction of the draws by which an event is chosen; the others count
PILOT: Final = 19_999  # draws for each pair of neighbors among which one is chosen
PILOT_BATCHES: Final = 300
PILOT_CONFIDENCE: Final = 0.5  # as if there were ten times as many
EACH_OF_TWO: Final = 1.0 - (1.0 - CONFIDENCE) / 2.0  # two tests decide: each may fail half as often
FEWEST: Final = 400  # transcripts; fewer can't exclude anything at this confidence
GROUPS: Final = (2, 4, 16, 64, 256, 1_024, 4_096)  # queries of one transcript, beside 1
HALF: Final = 0.5  # of the noise: what the control draws
LOOKS: Final = (0.125, 0.25, 0.5, 1.0)  # fractions of the control's draws after which it is judged
DELTAS: Final = tuple(float(one) for one in np.geomspace(1e-4, 0.4, 10).round(6))
TABLE: Final = (200, 10)  # of sums, whose noise is measured
_CHILD: Final = (
    "from pate_tf.release.plan import LabelSettings\n"
    "for one in (LabelSettings(method='feature_sums', epsilon=1.0).noise() for _ in range(2)):\n"
    "    print(one.is_secure, *one.words(4), sep=',')\n"
    "    for draw in (one.laplace_integers, one.gaussian_integers):\n"
    "        print(one.is_secure, *draw(1e6, 4), sep=',')"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """One check of an audit.

    Attributes:
        name: what was checked.
        outcome: "passed", "violation", "warning" or "not checked".
        found: what was seen.
        blind_spot: what the check can't see.
    """

    name: str
    outcome: str
    found: str
    blind_spot: str = ""


def verdict(name: str, problems: Sequence[str], passed: str = "", blind_spot: str = "") -> Check:
    """Returns a violation with the first of the problems, or that all is as it should be."""
    more = f", and {len(problems) - 1} more" if len(problems) > 1 else ""
    found = f"{problems[0]}{more}" if problems else passed
    outcome = VIOLATION if problems else PASSED
    return Check(name=name, outcome=outcome, found=found, blind_spot=blind_spot)


@dataclasses.dataclass(frozen=True, kw_only=True)
class MechanismAudit:
    """What an audit of a mechanism found. Public: no private data take part.

    Attributes:
        mechanism: its JSON.
        summary: its name and parameters.
        outcome: "passed", "violation", or "no power" where half the noise was not caught either.
        delta: that `claimed` and `lower_bound` hold at.
        group: queries (or batches, releases) of one transcript that these two are about.
        claimed: epsilon that the ledger charged for such a transcript.
        lower_bound: what a guarantee must have at least, by the draws, with confidence 99.9 %.
        control_caught: whether the same mechanism with half the noise was caught.
        control_draws: after how many draws.
        num_draws: for each of the two neighboring data sets.
        neighbours: the two in words.
        checks: all that was checked.
        seconds: how long it took.
    """

    mechanism: Mapping[str, Any]
    summary: str
    outcome: str
    delta: float
    group: int
    claimed: float
    lower_bound: float
    control_caught: bool
    control_draws: int
    num_draws: int
    neighbours: str
    checks: Sequence[Check]
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        return {"audit": "mechanism", **dataclasses.asdict(self)}


class AuditNoise(SystemNoise):
    """The noise source of production, which can be replayed for a second data set, or made smaller.

    What is drawn for number i of the second data set may repeat what was drawn for number i of the
    first; all else is independent. So a draw is repeated only if it has one number, or one for each
    class, for every query.
    """

    def __init__(self, share: float = 1.0, *, num_queries: int = 1, num_classes: int = 1) -> None:
        """Takes what is drawn.

        Args:
            share: of the noise that is claimed: 1 for all of it, .5 for half.
            num_queries: that are answered together, each a draw. An odd number, so that one for
                each class of a part of them is not taken for one for every query; 1 for a batch.
            num_classes: of each.
        """
        super().__init__()
        self._share = share
        self._alone = num_queries == 1
        self._sizes = {num_queries, num_queries * num_classes}
        self._drawn: dict[object, list[Any]] = {}
        self._is_second = False

    def replay(self) -> None:
        """Gives what was drawn so far again, in the same order."""
        self._is_second = True

    def _once(self, what: object, size: int, draw: Callable[[], Any]) -> Any:
        if not (self._alone or size in self._sizes):
            return draw()
        drawn = self._drawn.setdefault((what, size), [])
        if self._is_second:
            return drawn.pop(0) if drawn else draw()
        drawn.append(draw())
        return drawn[-1].copy()

    def words(self, size: int) -> npt.NDArray[np.uint64]:
        """Returns uniform words, uint64 `[size]`."""
        return np.asarray(self._once("words", size, lambda: super(AuditNoise, self).words(size)))

    def laplace_integers(self, scale: float, size: int) -> IntArray:
        """Returns discrete Laplace variables, `[size]`."""
        draw = super().laplace_integers
        found = self._once(("Laplace", scale), size, lambda: draw(scale * self._share, size))
        return np.asarray(found)

    def gaussian_integers(self, scale: float, size: int) -> IntArray:
        """Returns discrete Gaussian variables, `[size]`."""
        draw = super().gaussian_integers
        found = self._once(("Gaussian", scale), size, lambda: draw(scale * self._share, size))
        return np.asarray(found)

    def bernoulli_exp(self, gaps: IntArray, gamma: float) -> npt.NDArray[np.bool_]:
        """Returns True with probability e^(-gamma * gap), `[size]`, with gamma over the share."""
        return super().bernoulli_exp(gaps, gamma / self._share)

    def uniform_below(self, bound: int) -> int:
        """Returns a uniform whole number below a bound; the larger of two for half the noise.

        What passes with a probability of p then passes with p^2, at twice the epsilon.
        """
        drawn = super().uniform_below(bound)
        return max(drawn, super().uniform_below(bound)) if self._share <= HALF else drawn


@dataclasses.dataclass(frozen=True)
class Pair:
    """Neighboring histograms `[num_classes]`, and a student's probabilities for the query, if any.

    One teacher changes its vote, as with one record replaced, or one owner added or removed.
    """

    first: tuple[int, ...]
    second: tuple[int, ...]
    predictions: tuple[float, ...] | None = None

    def __str__(self) -> str:
        student = "" if self.predictions is None else f", a student predicts {self.predictions}"
        return f"votes {self.first} and {self.second}{student}"


@dataclasses.dataclass(frozen=True)
class Outcomes:
    """What was released, draw by draw.

    Attributes:
        kinds: the label, or the number of classes for none, int `[num_draws]`.
        values: a number that follows from noisy counts or sums; NaN where none was released.
    """

    kinds: IntArray
    values: FloatArray

    def __getitem__(self, part: slice) -> "Outcomes":
        return Outcomes(self.kinds[part], self.values[part])

    def __len__(self) -> int:
        return len(self.kinds)


class Score:
    """The logarithm of how much likelier an answer is for the first data set, as was learnt."""

    def __init__(self, first: Outcomes, second: Outcomes) -> None:
        size = int(max(first.kinds.max(), second.kinds.max())) + 1
        counts = [np.bincount(one.kinds, minlength=size) + 0.5 for one in (first, second)]
        self._by_kind = np.log(counts[0] / counts[0].sum()) - np.log(counts[1] / counts[1].sum())
        self._slope, self._middle = 0.0, 0.0
        found = [one.values[np.isfinite(one.values)] for one in (first, second)]
        if min(len(found[0]), len(found[1])) > 1:  # Gaussian: the ratio is linear
            means = [float(one.mean()) for one in found]
            variance = float((found[0].var() + found[1].var()) / 2.0) or 1.0
            self._slope = (means[0] - means[1]) / variance
            self._middle = (means[0] + means[1]) / 2.0

    def __call__(self, outcomes: Outcomes, group: int = 1) -> FloatArray:
        """Returns the score of each transcript of `group` draws."""
        kinds = np.minimum(outcomes.kinds, len(self._by_kind) - 1)
        values = np.nan_to_num(outcomes.values - self._middle) * self._slope
        scores = self._by_kind[kinds] + values
        number = len(scores) // group
        grouped: FloatArray = scores[: number * group].reshape(number, group).sum(axis=1)
        return grouped


@contextlib.contextmanager
def own_registry(folder: pathlib.Path) -> Iterator[None]:
    """Keeps what ledgers of an audit charge out of the user's registry."""
    before = os.environ.get(STATE_VARIABLE)
    os.environ[STATE_VARIABLE] = str(folder / "registry")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", LedgerWarning)
            yield
    finally:
        if before is None:
            del os.environ[STATE_VARIABLE]
        else:
            os.environ[STATE_VARIABLE] = before


class Sampler:
    """Draws of one mechanism for neighboring data sets.

    Attributes:
        mechanism: that draws.
        is_of_sums: whether it releases sums of records.
        batch: queries that are one draw together: of a mechanism that is charged once for a batch,
            or withholds a number of its labels, the fewest that it takes; else 1.
    """

    def __init__(self, mechanism: Mechanism) -> None:
        self.mechanism = mechanism
        self.is_of_sums = isinstance(mechanism, ReleasesFeatureSums)
        has_quota = getattr(mechanism, "label_share", 1.0) < 1.0
        self.is_batched = not self.is_of_sums and (mechanism.charged_per_batch or has_quota)
        self.batch = _batch(mechanism) if self.is_batched else 1

    def draw(
        self, pair: Pair, number: int, *, share: float = 1.0, progress: Callable[[int], object]
    ) -> tuple[Outcomes, Outcomes]:
        """Returns `number` draws for each data set, with this fraction of the noise."""
        found: tuple[list[Outcomes], list[Outcomes]] = ([], [])
        left = number
        while left:
            size = 1 if self.is_batched else min(CHUNK, left - (left + 1) % 2)
            noise = AuditNoise(share, num_queries=size, num_classes=len(pair.first))
            for counts, outcomes in zip((pair.first, pair.second), found, strict=True):
                outcomes.append(self._outcomes(pair, counts, size * self.batch, noise))
                noise.replay()
                progress(size)
            left -= size
        return _joined(found[0]), _joined(found[1])

    def _outcomes(
        self, pair: Pair, counts: Sequence[int], rows: int, noise: AuditNoise
    ) -> Outcomes:
        mechanism, num_classes = self.mechanism, len(counts)
        table = np.tile(np.array(counts), (rows, 1))
        if isinstance(mechanism, ReleasesFeatureSums):
            # In each later round every number is that of the first or its opposite, as the noisy
            # one before says; the mean of the rounds is sufficient under Gaussian noise.
            noisy, sign, total = table, np.ones_like(table), np.zeros_like(table)
            for _ in range(mechanism.num_rounds):
                noisy = mechanism.draw_sums(sign * table * LATTICE, noise)
                total += sign * noisy
                sign = np.where(noisy < 0, -1, 1)
            values = total.ravel() / (mechanism.num_rounds * LATTICE)
            return Outcomes(np.zeros(rows, np.int64), values)
        if pair.predictions is not None and isinstance(mechanism, InteractiveGaussianNoisyMax):
            predictions = np.tile(np.array(pair.predictions), (rows, 1))
            answers = mechanism.draw_with(predictions, table, noise)
        else:
            answers = mechanism.draw(table, noise)
        labels = [num_classes if label is None else label for label in answers.labels]
        kinds, values = np.array(labels, np.int64), np.full(rows, np.nan)
        if answers.noisy_counts is not None:  # along the direction in which neighbors differ
            values = (answers.noisy_counts[:, 0] - answers.noisy_counts[:, 1]) / LATTICE
            values[kinds == num_classes] = np.nan
        found = Outcomes(kinds, values)
        return _of_batch(found, num_classes) if self.is_batched else found

    def claims(
        self, group: int, deltas: Sequence[float], folder: pathlib.Path
    ) -> tuple[list[float], list[str]]:
        """Releases one transcript by the code of production, charged to a new ledger.

        Returns:
            The epsilon at each delta that was charged, and what is wrong with the release.
        """
        mechanism, number = self.mechanism, group * self.batch
        with Ledger.open(
            folder / secrets.token_hex(8),
            ensemble_digest=secrets.token_hex(32),
            delta=deltas[0],
        ) as ledger:
            problems = []
            if isinstance(mechanism, ReleasesFeatureSums):
                zeros, number = np.zeros(TABLE, np.int64), 1
                released: Any = release_sums(
                    SumsByClass(zeros),
                    mechanism,
                    ledger=ledger,
                    noise=SystemNoise(),
                    unit="record",
                    next_sums=None if mechanism.num_rounds == 1 else lambda noisy: zeros,
                )
                noise = released.values.reshape(-1, *TABLE) / LATTICE
                deviation = mechanism.standard_deviation
                if any(is_too_small(row, deviation) for table in noise for row in table):
                    problems.append("sums were released with less noise than claimed")
            else:
                from pate_tf.release.graph import VoteAggregation  # which imports TensorFlow

                released = release_votes(
                    np.arange(number),
                    mechanism,
                    voter=lambda inputs: VoteCounts(np.tile([2, 1], (len(inputs), 1))),
                    ledger=ledger,
                    noise=SystemNoise(),
                    noisy_winners=VoteAggregation(2).label,
                    num_classes=2,
                )
            due = {mechanism: 1 if self.is_of_sums else mechanism.number_charged(number)}
            if +ledger.charges != +Counter(due):
                problems.append(f"{number} answers were charged as something else")
            if not released.secure_noise:
                problems.append("the ledger notes predictable noise")
            return [ledger.spent(delta).epsilon for delta in deltas], problems


def _of_batch(outcomes: Outcomes, num_classes: int) -> Outcomes:
    """Returns a batch as one answer: how many labels left, and which; sums of noisy counts."""
    is_answered = outcomes.kinds < num_classes
    first = int(outcomes.kinds[is_answered][0]) if is_answered.any() else num_classes
    has_counts = bool(np.isfinite(outcomes.values).any())
    kind = (int(is_answered.sum()) * (num_classes + 1) + first) * 2 + has_counts
    if has_counts:  # a label follows from its noisy counts
        kind = 1
    value = float(np.nansum(outcomes.values)) if has_counts else math.nan
    return Outcomes(np.array([kind]), np.array([value]))


def _joined(parts: Sequence[Outcomes]) -> Outcomes:
    kinds = np.concatenate([one.kinds for one in parts])
    values = np.concatenate([one.values for one in parts])
    if np.isfinite(values).any():  # labels that follow from noisy counts say nothing more
        kinds = np.where(np.isfinite(values), 0, kinds + 1)
    return Outcomes(kinds, values)


def _batch(mechanism: Mechanism) -> int:
    """Returns the smallest batch that a mechanism takes whose answers depend on each other."""
    size = 1 if mechanism.charged_per_batch else 8
    while True:
        try:
            mechanism.check_counts(np.tile(np.array([[100, 1]]), (size, 1)))
        except ValueError:
            if size > 1_000:
                raise
            size += 1
        else:
            return size


def neighboring_pairs(mechanism: Mechanism) -> list[Pair]:
    """Returns pairs of neighboring histograms among which the most telling one is looked for.

    Gaps between two classes up to several times the noise, and votes near every number that the
    mechanism has as a parameter, such as a threshold. What a student says puts a test of its
    surplus at that number.
    """
    if isinstance(mechanism, ReleasesFeatureSums):
        return [Pair((1,), (-1,))]  # one record replaced by its opposite: an L2 distance of 2
    scale = max(mechanism.noise_scales.values(), default=100.0)
    farthest = min(max(4.0 * scale, 64.0), 2.0**20)
    ratio = 2.0 if mechanism.noise_scales else 1.2  # without noise all may hang on one vote
    powers = range(1 + math.ceil(math.log(farthest) / math.log(ratio)))
    gaps = sorted({2 * math.ceil(ratio**power / 2.0) - 1 for power in powers})
    pairs = [Pair((gap + 1, 1), (gap, 2)) for gap in gaps]
    numbers = [float(one) for one in dataclasses.asdict(mechanism).values()]
    for number in sorted({one for one in numbers if one >= 4.0}):
        top = math.ceil(number)
        clear = math.ceil(number + min(4.0 * scale, 2.0**20))  # no test stands in the way there
        for most in (top, clear):
            pairs.append(Pair((most, most - 3), (most - 1, most - 2)))
            pairs.append(Pair((most, most - 1), (most - 1, most)))
        if isinstance(mechanism, InteractiveGaussianNoisyMax):
            high = 2 * top
            votes = (high, high - 1)
            share = (high - number) / sum(votes)
            pairs.append(Pair(votes, (high - 1, high), (round(share, 6), round(1.0 - share, 6))))
    return pairs


@dataclasses.dataclass(frozen=True)
class Test:
    """An event that was chosen on some draws, for transcripts of a size, at a delta.

    Attributes:
        group: draws of one transcript.
        delta: of the claim.
        claimed: epsilon at delta.
        promise: the event, with what the draws that it was chosen by say of it.
        bound: the lower bound by the other draws.
    """

    group: int
    delta: float
    claimed: float
    promise: Promise
    bound: float

    @property
    def is_excess(self) -> bool:
        """Whether the bound is above the claim."""
        return self.bound > self.claimed * (1.0 + 1e-9)


def tests_of(
    drawn: tuple[Outcomes, Outcomes],
    claims: Mapping[int, Sequence[float]],
    deltas: Sequence[float],
) -> tuple[Test, Test]:
    """Chooses events on a quarter of the draws and counts them on the others.

    Args:
        drawn: for either data set.
        claims: for each size of transcript the claimed epsilon at each delta.
        deltas: of the claims; the first one is reported.

    Returns:
        The test that speaks most against a claim, and that whose bound is the largest fraction of
        its claim at the first delta.
    """
    middle = int(CHOOSING * len(drawn[0]))
    score = Score(drawn[0][:middle], drawn[1][:middle])
    found: list[tuple[int, float, float, Promise]] = []
    for group, of_group in claims.items():
        finite = _finite(of_group, deltas)
        promises = statistics.best_events(
            score(drawn[0][:middle], group),
            score(drawn[1][:middle], group),
            finite,
            num_counted=(len(drawn[0]) - middle) // group,
            confidence=EACH_OF_TWO,
        )
        found += [
            (group, *claim[::-1], promise) for claim, promise in zip(finite, promises, strict=True)
        ]

    def counted(group: int, delta: float, claimed: float, promise: Promise) -> Test:
        counts = promise.event.counts(*(score(outcomes[middle:], group) for outcomes in drawn))
        bound = statistics.epsilon_lower_bound(
            counts, delta=delta, stake=promise.event.stake, confidence=EACH_OF_TWO
        )
        return Test(group, delta, claimed, promise, bound)

    at_first = [test for test in found if test[1] == deltas[0]] or found
    return (
        counted(*max(found, key=lambda test: test[3].excess)),
        counted(*max(at_first, key=lambda test: test[3].bound / (test[2] or 1.0))),
    )


@functools.cache
def noise_check() -> Check:
    """Draws by new objects in new processes; a generator with a fixed seed repeats itself."""
    path = os.pathsep.join([str(pathlib.Path(__file__).parents[2]), *sys.path])
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _CHILD],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        for _ in range(2)
    ]
    drawn = [line for child in children for line in child.communicate()[0].split()]
    if len(drawn) != 12:
        return Check(name="noise source", outcome=NOT_CHECKED, found="no process could draw")
    is_seeded = len(set(drawn)) < 12 or not all(line.startswith("True,") for line in drawn)
    problems = ["noise comes from a seed"] if is_seeded else []
    blind = "a seed that differs by process or by time; the operating system's entropy"
    return verdict("noise source", problems, "two processes drew different noise", blind)


def is_too_small(noise: FloatArray, deviation: float) -> bool:
    """Whether noise has less variance than claimed, at a false alarm rate of about 1e-6.

    For laws with tails up to Laplace's, whose squares vary by at most sqrt(5) times the variance.
    """
    ratio = float(np.square(noise).mean()) / deviation**2
    return ratio < 1.0 - 4.9 * math.sqrt(5.0 / noise.size) or (ratio < 1e-3 and noise.size > 9)


def audit_mechanism(
    mechanism: Mechanism,
    *,
    delta: float = DEFAULT_DELTA,
    seconds: float = DEFAULT_SECONDS,
    num_draws: int | None = None,
    reporting: Reporting = QUIET,
) -> MechanismAudit:
    """Audits a mechanism's noise and its charge by draws for neighboring data sets.

    >>> import pate_tf
    >>> found = pate_tf.audit.audit_mechanism(
    ...     pate_tf.PermuteAndFlip(scale=1.0), delta=1e-5, num_draws=20_000
    ... )
    >>> found.outcome, found.lower_bound <= found.claimed
    ('passed', True)

    The claim is what the ledger of a real release says that it spent, at every delta; "violation"
    means that more was found at one of them, with a false alarm in a thousand audits at most. The
    same mechanism with half the noise runs first: where that is not caught, the outcome is "no
    power".

    Args:
        mechanism: a registered one that draws noise.
        delta: that the reported numbers hold at. Default 1e-5.
        seconds: about how long it may take; more finds smaller errors. Default 120.
        num_draws: draws for each data set instead, at least 4 * `FEWEST`.
        reporting: how progress is shown; its `note` is told the expected time beforehand.

    Raises:
        ValueError: if the mechanism draws no noise, is not registered, or claims nothing finite;
            if delta, seconds or draws are out of range.
    """
    validation.between(0, 1, delta=delta)
    check_mechanism(mechanism)
    if isinstance(mechanism, ReleasesFeatureSums):
        check_scales(mechanism.noise_scales)
    else:
        check_drawable(mechanism)
    if not 0.0 < seconds < math.inf:
        raise ValueError(f"seconds: expected above 0 and finite, got {seconds}")
    if num_draws is not None and num_draws < 4 * FEWEST:
        raise ValueError(f"num_draws: expected at least {4 * FEWEST}, got {num_draws}")
    began, sampler = time.monotonic(), Sampler(mechanism)
    deltas = (delta, *(one for one in DELTAS if one > delta))
    with (
        tempfile.TemporaryDirectory(prefix="pate_audit_") as name,
        own_registry(folder := pathlib.Path(name)),
    ):
        claims = dict[int, list[float]]()
        claims[1], problems = sampler.claims(1, deltas, folder)
        if not any(math.isfinite(epsilon) for epsilon in claims[1]):
            raise ValueError(
                f"mechanism: expected one with a finite guarantee at delta {delta:g}, got "
                f"{mechanism.summary()}"
            )
        pairs = neighboring_pairs(mechanism)
        if num_draws is None:
            for probe in (20, 500) if sampler.is_batched else (200, 10_000):
                started = time.monotonic()  # the first one also loads what it needs
                sampler.draw(pairs[0], probe, progress=lambda done: None)
                each = (time.monotonic() - started) / probe
            num_draws = max(int(seconds / 4.0 / each), 4 * FEWEST)
        reporting.note(
            f"auditing {mechanism.summary()}: {num_draws:,} draws for each of two neighboring data "
            f"sets, and up to as many of a control"
        )
        for size in GROUPS:  # sums and batches stand alone
            if not (sampler.is_of_sums or sampler.is_batched) and num_draws // size >= 2 * FEWEST:
                claims[size], more = sampler.claims(size, deltas, folder)
                problems += more
    pair = _most_telling_pair(sampler, pairs, claims[1], deltas)
    control_draws = _control(sampler, pair, num_draws, claims, deltas, reporting)
    with reporting.progress_bar("drawing", 2 * num_draws, "draw") as advance:
        drawn = sampler.draw(pair, num_draws, progress=advance)
    telling, largest = tests_of(drawn, claims, deltas)
    worst = next((test for test in (telling, largest) if test.is_excess), largest)
    found = (
        f"at least epsilon {worst.bound:.4g} at delta {worst.delta:g}, claimed "
        f"{worst.claimed:.4g}, for {worst.group} draws together"
    )
    blind = "a loss on other neighbors than these, or one smaller than the control's"
    excess = [found] if worst.is_excess else []
    checks = [
        verdict("draws for neighboring data sets", excess, found, blind),
        verdict("release", problems, "charged as the mechanism says", "what a charge costs"),
        noise_check(),
    ]
    outcome = PASSED if control_draws is not None else NO_POWER
    if any(check.outcome == VIOLATION for check in checks):
        outcome = VIOLATION
    return MechanismAudit(
        mechanism=mechanism.to_dict(),
        summary=mechanism.summary(),
        outcome=outcome,
        delta=delta,
        group=largest.group * sampler.batch,
        claimed=largest.claimed,
        lower_bound=largest.bound,
        control_caught=control_draws is not None,
        control_draws=control_draws or num_draws,
        num_draws=num_draws,
        neighbours=str(pair),
        checks=checks,
        seconds=time.monotonic() - began,
    )


def _most_telling_pair(
    sampler: Sampler, pairs: Sequence[Pair], claims: Sequence[float], deltas: Sequence[float]
) -> Pair:
    """Returns the pair on which half the noise shows most; by draws that nothing else uses."""

    def excess(pair: Pair) -> float:
        number = PILOT_BATCHES if sampler.is_batched else PILOT
        drawn = sampler.draw(pair, number, share=HALF, progress=lambda done: None)
        score = Score(*drawn)
        promises = statistics.best_events(
            score(drawn[0]),
            score(drawn[1]),
            _finite(claims, deltas),
            num_counted=number,
            confidence=PILOT_CONFIDENCE,
        )
        return max(promise.excess for promise in promises)

    return pairs[0] if len(pairs) == 1 else max(pairs, key=excess)


def _finite(claims: Sequence[float], deltas: Sequence[float]) -> list[tuple[float, float]]:
    return [claim for claim in zip(claims, deltas, strict=True) if math.isfinite(claim[0])]


def _control(
    sampler: Sampler,
    pair: Pair,
    num_draws: int,
    claims: Mapping[int, Sequence[float]],
    deltas: Sequence[float],
    reporting: Reporting,
) -> int | None:
    """Returns after how many draws half the noise is caught; None if by no more than these."""
    parts: tuple[list[Outcomes], list[Outcomes]] = ([], [])
    with reporting.progress_bar("control with half the noise", 2 * num_draws, "draw") as advance:
        done = 0
        for fraction in LOOKS:
            size = int(fraction * num_draws) - done
            drawn = sampler.draw(pair, size, share=HALF, progress=advance)
            for outcomes, part in zip(parts, drawn, strict=True):
                outcomes.append(part)
            done += size
            if done < 4 * FEWEST and fraction < 1.0:
                continue
            fitting = {
                group: claimed
                for group, claimed in claims.items()
                if done // group >= 2 * FEWEST or group == 1
            }
            together = [
                Outcomes(
                    np.concatenate([part.kinds for part in one]),
                    np.concatenate([part.values for part in one]),
                )
                for one in parts
            ]
            if tests_of((together[0], together[1]), fitting, deltas)[0].is_excess:
                return done
    return None
