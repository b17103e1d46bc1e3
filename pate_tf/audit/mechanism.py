"""Audit of a mechanism: neighbouring votes or sums through the real release code, many times.

The mechanism's releases for two neighbouring data sets are drawn by the labeller (or the release of
feature sums) with the noise source of production and a ledger of its own in a temporary folder.
What can be told apart better than the ledger's charge allows is a violation. Nothing here knows a
mechanism by name: what is registered can be audited.
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
from pate_tf.accounting.mechanisms.base import (
    Mechanism,
    ReleasesFeatureSums,
    UsesStudentPredictions,
    check_mechanism,
)
from pate_tf.aggregation.feature_sums import release_sums
from pate_tf.aggregation.labeller import Labeller
from pate_tf.aggregation.noise import SystemNoise, check_drawable, check_scales
from pate_tf.api.reporting import QUIET, Reporting
from pate_tf.audit import statistics
from pate_tf.audit.statistics import CONFIDENCE, Promise
from pate_tf.core import validation
from pate_tf.core.sensitive import FeatureSums, VoteCounts
from pate_tf.core.validation import IntArray
from pate_tf.ledger import Ledger, LedgerWarning
from pate_tf.ledger.rollback_guard import STATE_VARIABLE

PASSED, VIOLATION, NO_POWER = "passed", "violation", "no power"
DEFAULT_DELTA: Final = 1e-5
DEFAULT_SECONDS: Final = 120.0
CHUNK: Final = 49_999  # queries, or sums, that one call of the release code draws; odd, see draw
CHOOSING: Final = 0.25  # share of the draws by which an event is chosen; the others count
PILOT: Final = 19_999  # draws for each pair of neighbours that could be audited
PILOT_BATCHES: Final = 300
PILOT_CONFIDENCE: Final = 0.5  # as if there were ten times as many
EACH_OF_TWO: Final = 1.0 - (1.0 - CONFIDENCE) / 2.0  # two tests decide: each may fail half as often
FEWEST: Final = 400  # transcripts; fewer can't tell anything at this confidence
LARGEST_GROUP: Final = 4**6  # queries of one transcript
HALF: Final = 0.5  # of the noise: what the control draws
LOOKS: Final = (0.125, 0.25, 0.5, 1.0)  # shares of the control's draws after which it is judged
OWN_DELTA: Final = 0.4  # of the ledger of many batches, each with a delta of its own
DELTAS: Final = tuple(float(one) for one in np.geomspace(1e-4, 0.4, 10).round(6))
_CHILD: Final = (
    "from pate_tf.api.settings import LabelSettings\n"
    "for one in (LabelSettings(method='feature_sums', epsilon=1.0).noise() for _ in range(2)):\n"
    "    print(one.is_secure, *one.words(4), sep=',')\n"
    "    for draw in (one.laplace_integers, one.gaussian_integers):\n"
    "        print(one.is_secure, *draw(1e6, 4), sep=',')"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that an audit looked at.

    Attributes:
        name: what was checked.
        how: how.
        outcome: "passed", "violation" or "not checked".
        found: what was seen, in a sentence.
        blind_spot: what it can't see.
    """

    name: str
    how: str
    outcome: str
    found: str
    blind_spot: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CurvePoint:
    """At one delta what is claimed, and what the draws exclude (99.9 % for each point)."""

    delta: float
    claimed: float
    lower_bound: float


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
        num_draws: for each of the two neighbouring data sets.
        neighbours: the two in words.
        curve: claims and bounds as functions of delta.
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
    curve: Sequence[CurvePoint]
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
    """Neighbouring histograms `[num_classes]`, and what a student says of the query, if anything.

    One teacher changes its vote, as with one record replaced, or one owner added or removed.
    """

    first: tuple[int, ...]
    second: tuple[int, ...]
    predictions: tuple[float, ...] | None = None

    def __str__(self) -> str:
        said = "" if self.predictions is None else f", a student says {self.predictions}"
        return f"votes {self.first} and {self.second}{said}"


@dataclasses.dataclass(frozen=True)
class Outcomes:
    """What was released, draw by draw.

    Attributes:
        kinds: what kind of answer each was: a label, or none, int `[num_draws]`.
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


@functools.cache
def _winners(num_classes: int) -> Callable[[IntArray, IntArray], IntArray]:
    from pate_tf.aggregation.graph import VoteAggregation  # which imports TensorFlow

    return VoteAggregation(num_classes).label


class Releases:
    """Releases of one mechanism, with ledgers of their own below a temporary folder."""

    def __init__(self, mechanism: Mechanism, delta: float, folder: pathlib.Path) -> None:
        self.mechanism, self.delta, self._folder = mechanism, delta, folder
        self.wrong_charges: list[str] = []
        self.is_of_sums = isinstance(mechanism, ReleasesFeatureSums)
        # Where a batch is charged once, or shares a number of labels, its answers are one draw.
        has_quota = getattr(mechanism, "label_share", 1.0) < 1.0
        self.is_batched = not self.is_of_sums and (mechanism.charged_per_batch or has_quota)
        self.batch = _batch(mechanism) if self.is_batched else 1

    @contextlib.contextmanager
    def ledger(self, delta: float | None = None) -> Iterator[Ledger]:
        """Yields a new ledger."""
        folder = self._folder / secrets.token_hex(8)
        with Ledger.open(
            folder,
            ensemble_digest=secrets.token_hex(32),
            delta=self.delta if delta is None else delta,
        ) as ledger:
            yield ledger

    def claims(self, group: int, deltas: Sequence[float]) -> list[float]:
        """Returns the epsilon at each delta that a ledger charged for one transcript, released."""
        with self.ledger() as ledger:
            if isinstance(self.mechanism, ReleasesFeatureSums):
                self._sums(ledger, np.zeros((1, 1), np.int64), AuditNoise())
            else:
                pair = Pair((2, 1), (1, 2))
                self._label(ledger, pair.first, None, 0, group * self.batch, AuditNoise())
            return [ledger.spent(one).epsilon for one in deltas]

    def _label(
        self,
        ledger: Ledger,
        counts: Sequence[int],
        predictions: Sequence[float] | None,
        start: int,
        number: int,
        noise: AuditNoise,
    ) -> Outcomes:
        """Returns what the labeller releases for different queries with the same votes."""
        mechanism, num_classes = self.mechanism, len(counts)
        labeller = Labeller(
            voter=lambda inputs: VoteCounts(np.tile(np.array(counts), (len(inputs), 1))),
            ledger=ledger,
            noise=noise,
            noisy_winners=_winners(num_classes),
            num_classes=num_classes,
        )
        said = None if predictions is None else np.tile(np.array(predictions), (number, 1))
        before = ledger.charges.copy()
        released = labeller.label(
            np.arange(start, start + number), mechanism=mechanism, predictions=said
        )
        due = before + Counter({mechanism: mechanism.number_charged(number)})
        if +ledger.charges != +due or not released.secure_noise:
            self.wrong_charges.append(
                f"{number} answers of {mechanism.name} were not charged as {number}"
                if released.secure_noise
                else "the ledger notes predictable noise"
            )
        labels = np.full(number, num_classes, np.int64)
        labels[released.query_indices] = released.labels
        projected = np.full(number, np.nan)
        if released.noisy_counts is not None:
            projected[released.query_indices] = released.noisy_counts @ _direction(num_classes)
        return Outcomes(labels, projected)

    def _sums(self, ledger: Ledger, sums: IntArray, noise: AuditNoise) -> IntArray:
        """Returns the noisy tables of all rounds, `[num_rounds, *shape of sums]`.

        In each later round every number is that of the first, or its opposite, as earlier noisy
        ones say: what is asked of a record follows from them, and it answers as much as it may.
        """
        rounds = getattr(self.mechanism, "num_rounds", 1)
        released = release_sums(
            FeatureSums(sums),
            self.mechanism,
            ledger=ledger,
            noise=noise,
            unit="record",
            next_sums=None if rounds == 1 else lambda noisy: _signs(noisy)[-1] * sums,
        )
        if +ledger.charges != Counter({self.mechanism: 1}) or not released.secure_noise:
            self.wrong_charges.append("sums were released and not charged as one release")
        return released.values.reshape(rounds, *sums.shape)

    def release_table(self, sums: IntArray) -> tuple[IntArray, float]:
        """Returns one release of sums, of all rounds as `_sums`, and its charge at delta."""
        with self.ledger() as ledger:
            return self._sums(ledger, sums, AuditNoise()), ledger.spent().epsilon

    def release_counts(self, counts: IntArray, classes: IntArray) -> tuple[FloatArray, float]:
        """Labels queries; returns how far a class of each is ahead, and what it was charged.

        Args:
            counts: int64 `[num_queries, num_classes]`.
            classes: one of each query, `[num_queries]`.

        Returns:
            The noisy surplus over the largest other class where noisy counts are released, else 1
            where the class is the label and 0 where it is not, `[num_queries]`.
        """
        number, num_classes = counts.shape
        with self.ledger() as ledger:
            labeller = Labeller(
                voter=lambda inputs: VoteCounts(counts[inputs]),
                ledger=ledger,
                noise=AuditNoise(),
                noisy_winners=_winners(num_classes),
                num_classes=num_classes,
            )
            released = labeller.label(np.arange(number), mechanism=self.mechanism)
            surplus, answered = np.zeros(number), released.query_indices
            if released.noisy_counts is None:
                surplus[answered] = released.labels == classes[answered]
            else:
                noisy = released.noisy_counts / LATTICE
                rows = np.arange(len(noisy))
                own = noisy[rows, classes[answered]]
                noisy[rows, classes[answered]] = -np.inf
                surplus[answered] = own - noisy.max(axis=1)
            return surplus, ledger.spent().epsilon

    def draw(
        self, pair: Pair, number: int, *, share: float = 1.0, progress: Callable[[int], object]
    ) -> tuple[Outcomes, Outcomes]:
        """Returns `number` draws for each data set of a pair, batches counting as one."""
        found: tuple[list[Outcomes], list[Outcomes]] = ([], [])
        left = number
        while left:
            size = 1 if self.is_batched else min(CHUNK, left - (left + 1) % 2)
            noise = AuditNoise(share, num_queries=size, num_classes=len(pair.first))
            for place, counts in enumerate((pair.first, pair.second)):
                found[place].append(self._drawn_together(pair, counts, size, noise))
                noise.replay()
                progress(size)
            left -= size
        return _joined(found[0]), _joined(found[1])

    def _drawn_together(
        self, pair: Pair, counts: Sequence[int], size: int, noise: AuditNoise
    ) -> Outcomes:
        """Returns `size` draws that one call of the release code gives, or one batch.

        Batches are drawn by the mechanism itself, as a ledger would take most of the time; charges
        of batches are compared in `claims`.
        """
        if isinstance(self.mechanism, ReleasesFeatureSums):
            table = np.full((size, 1), counts[0] * LATTICE, np.int64)
            with self.ledger() as ledger:
                values = mean_of_rounds(self._sums(ledger, table, noise)).ravel() / LATTICE
            return Outcomes(np.zeros(size, np.int64), values)
        if self.is_batched:
            return self._drawn(pair, counts, self.batch, noise)
        delta = None if self.mechanism.approximate is None else OWN_DELTA
        with self.ledger(delta) as ledger:
            return self._label(ledger, counts, pair.predictions, 0, size, noise)

    def _drawn(self, pair: Pair, counts: Sequence[int], rows: int, noise: AuditNoise) -> Outcomes:
        """Returns what the mechanism draws without a ledger; of a batch, as one answer."""
        mechanism, num_classes = self.mechanism, len(counts)
        table = np.tile(np.array(counts), (rows, 1))
        if pair.predictions is not None and isinstance(mechanism, UsesStudentPredictions):
            said = np.tile(np.array(pair.predictions), (rows, 1))
            answers = mechanism.draw_with(said, table, noise)
        else:
            answers = mechanism.draw(table, noise)
        labels = np.array([num_classes if one is None else one for one in answers.labels], np.int64)
        values = np.full(rows, np.nan)
        if answers.noisy_counts is not None:
            values = np.asarray(answers.noisy_counts @ _direction(num_classes), np.float64)
            values[labels == num_classes] = np.nan
        found = Outcomes(labels, values)
        return _of_batch(found, num_classes) if self.is_batched else found

    def pilot(self, pair: Pair) -> tuple[Outcomes, Outcomes]:
        """Returns draws with half the noise, without ledger, by which a pair is chosen."""
        if self.is_batched:
            return self.draw(pair, PILOT_BATCHES, share=HALF, progress=lambda done: None)
        noise = AuditNoise(HALF, num_queries=PILOT, num_classes=len(pair.first))
        first = self._drawn(pair, pair.first, PILOT, noise)
        noise.replay()
        return _joined([first]), _joined([self._drawn(pair, pair.second, PILOT, noise)])


def _signs(noisy: IntArray) -> IntArray:
    """Returns how the numbers of the round that follows each are asked, 1 or -1."""
    return np.where(noisy < 0, -1, 1)


def mean_of_rounds(noisy: IntArray) -> FloatArray:
    """Returns what noisy tables of rounds say together of the first one's exact numbers.

    Of all that they say it is the sufficient statistic where noise is Gaussian.
    """
    first, later = noisy[0], noisy[1:] * _signs(noisy[:-1])
    return np.asarray((first + later.sum(axis=0)) / len(noisy), np.float64)


def _direction(num_classes: int) -> FloatArray:
    """Returns the direction along which neighbours differ, in votes: from class 1 to class 0."""
    direction = np.zeros(num_classes)
    direction[:2] = (1.0 / LATTICE, -1.0 / LATTICE)
    return direction


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


def neighbouring_pairs(mechanism: Mechanism) -> list[Pair]:
    """Returns pairs of neighbouring histograms among which the most telling one is looked for.

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
        if isinstance(mechanism, UsesStudentPredictions):
            high = 2 * top
            votes = (high, high - 1)
            share = (high - number) / sum(votes)
            pairs.append(Pair(votes, (high - 1, high), (round(share, 6), round(1.0 - share, 6))))
    return pairs


def _groups(releases: Releases, number: int) -> list[int]:
    """Returns sizes of transcripts, in draws; sums and batches stand alone."""
    if releases.is_of_sums or releases.is_batched:
        return [1]
    sizes = [1, 2, *(4**power for power in range(1, 20))]
    return [one for one in sizes if number // one >= 2 * FEWEST and one <= LARGEST_GROUP]


@dataclasses.dataclass(frozen=True)
class _Test:
    """An event that was chosen on some draws, of transcripts of some size, at some delta."""

    group: int
    delta: float
    claimed: float
    promise: Promise


class Trial:
    """Draws for two neighbours: events are chosen on some of them and counted on the others.

    Attributes:
        score: what was learnt on the draws that events are chosen by.
        tests: the most telling event for each size of transcript and each delta.
    """

    def __init__(
        self,
        drawn: tuple[Outcomes, Outcomes],
        claims: Mapping[int, Sequence[float]],
        deltas: Sequence[float],
        *,
        confidence: float,
    ) -> None:
        """Chooses events.

        Args:
            drawn: for either data set.
            claims: for each size of transcript what is claimed at each delta.
            deltas: that claims are compared at.
            confidence: of each bound.
        """
        number = len(drawn[0])
        middle = int(CHOOSING * number)
        chosen_by = [one[:middle] for one in drawn]
        self._counted = [one[middle:] for one in drawn]
        self._confidence = confidence
        self.score = Score(*chosen_by)
        self.tests = []
        for group, of_group in claims.items():
            finite = _finite(of_group, deltas)
            promises = statistics.best_events(
                self.score(chosen_by[0], group),
                self.score(chosen_by[1], group),
                finite,
                num_counted=len(self._counted[0]) // group,
                confidence=confidence,
            )
            self.tests += [
                _Test(group, delta, claimed, promise)
                for (claimed, delta), promise in zip(finite, promises, strict=True)
            ]

    def most_telling(self) -> _Test:
        """Returns the test that speaks most against a claim."""
        return max(self.tests, key=lambda one: one.promise.excess)

    def largest(self, delta: float) -> _Test:
        """Returns the test whose bound is the largest share of its claim, at a delta."""
        fitting = [one for one in self.tests if one.delta == delta]
        return max(fitting or self.tests, key=lambda one: one.promise.bound / (one.claimed or 1.0))

    def bound(self, test: _Test, confidence: float | None = None) -> float:
        """Returns the lower bound that a test gives on the draws that count."""
        event = test.promise.event
        counts = event.counts(*self.scores(test.group))
        return statistics.epsilon_lower_bound(
            counts,
            delta=test.delta,
            stake=event.stake,
            confidence=confidence or self._confidence,
        )

    def scores(self, group: int = 1) -> tuple[FloatArray, FloatArray]:
        """Returns the scores of transcripts that count, for either data set."""
        first, second = self._counted
        return self.score(first, group), self.score(second, group)


def _is_excess(bound: float, claimed: float) -> bool:
    return bound > claimed * (1.0 + 1e-9)


@functools.cache
def noise_check() -> Check:
    """Draws by new objects in new processes; a generator with a fixed seed repeats itself."""
    name = "noise source"
    how = "two sources in each of two new processes draw; what they drew is compared"
    blind = "a seed that differs by process or by time; entropy of the operating system itself"
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
        return Check(name=name, how=how, outcome="not checked", found="no process could draw")
    insecure = not all(line.startswith("True,") for line in drawn)
    repeats = len(set(drawn)) < len(drawn)
    found = "no draw was repeated"
    if repeats or insecure:
        found = (
            "the same noise was drawn twice: it comes from a seed" if repeats else "it is seeded"
        )
    return Check(
        name=name,
        how=how,
        outcome=VIOLATION if repeats or insecure else PASSED,
        found=found,
        blind_spot=blind,
    )


def is_too_small(noise: FloatArray, deviation: float) -> bool:
    """Whether noise has less variance than claimed, at a false alarm rate of about 1e-6.

    For laws with tails up to Laplace's, whose squares vary by at most sqrt(5) times the variance.
    """
    ratio = float(np.square(noise).mean()) / deviation**2
    return ratio < 1.0 - 4.9 * math.sqrt(5.0 / noise.size) or (ratio < 1e-3 and noise.size > 9)


def _table_check(releases: Releases) -> Check:
    """Releases a table of sums: every number must have noise of its own, of the claimed scale."""
    shape, mechanism = (200, 10), releases.mechanism
    if not isinstance(mechanism, ReleasesFeatureSums):
        raise TypeError(f"expected a mechanism that releases sums, got {mechanism.name}")
    values, _ = releases.release_table(np.zeros(shape, np.int64))
    noise, claimed = values / LATTICE, mechanism.standard_deviation
    repeated = noise.size - len(np.unique(noise))
    is_wrong = any(is_too_small(one, claimed) for one in noise) or (
        repeated >= 0.5 * noise.size and claimed * LATTICE > 1e4
    )
    return Check(
        name="noise on every number of the sums",
        how=f"a table {list(shape)} of zeros is released, and the variance of its noise tested at "
        f"1e-6",
        outcome=VIOLATION if is_wrong else PASSED,
        found=f"standard deviation {noise.std():.4g}, claimed {claimed:.4g}",
        blind_spot="noise of other tables",
    )


def audit_mechanism(
    mechanism: Mechanism,
    *,
    delta: float = DEFAULT_DELTA,
    seconds: float = DEFAULT_SECONDS,
    num_draws: int | None = None,
    reporting: Reporting = QUIET,
) -> MechanismAudit:
    """Audits a mechanism's noise and its charge by draws for neighbouring data sets.

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
    began = time.monotonic()
    with (
        tempfile.TemporaryDirectory(prefix="pate_audit_") as folder,
        own_registry(pathlib.Path(folder)),
    ):
        return _audited(
            mechanism, delta, seconds, num_draws, pathlib.Path(folder), reporting, began
        )


def _audited(
    mechanism: Mechanism,
    delta: float,
    seconds: float,
    num_draws: int | None,
    folder: pathlib.Path,
    reporting: Reporting,
    began: float,
) -> MechanismAudit:
    releases = Releases(mechanism, delta, folder)
    deltas = (delta, *(one for one in DELTAS if one > delta))
    own = releases.claims(1, deltas)
    if not any(math.isfinite(one) for one in own):
        raise ValueError(
            f"mechanism: expected one with a finite guarantee at delta {delta:g}, got "
            f"{mechanism.summary()}"
        )
    pairs = neighbouring_pairs(mechanism)
    for probe in (20, 500) if releases.is_batched else (200, 10_000):
        started = time.monotonic()  # the first one also loads and traces what it needs
        releases.draw(pairs[0], probe, progress=lambda done: None)
        each = (time.monotonic() - started) / probe
    if num_draws is None:
        num_draws = max(int(seconds / 2.0 / each), 4 * FEWEST)
    reporting.note(
        f"auditing {mechanism.summary()}: {num_draws:,} draws for each of two neighbouring data "
        f"sets, and up to as many of a control; about {2.0 * each * num_draws:.0f} s at most"
    )
    pair = most_telling_pair(releases, pairs, deltas, own)
    found = measure(
        releases,
        pair,
        num_draws,
        deltas,
        reporting=reporting,
        most_draws=lambda: int((seconds - (time.monotonic() - began)) / each),
    )
    checks = [
        found.check,
        _charge_check(releases),
        noise_check(),
        *([_table_check(releases)] if releases.is_of_sums else []),
    ]
    outcome = PASSED if found.control_caught else NO_POWER
    if any(one.outcome == VIOLATION for one in checks):
        outcome = VIOLATION
    return MechanismAudit(
        mechanism=mechanism.to_dict(),
        summary=mechanism.summary(),
        outcome=outcome,
        delta=delta,
        group=found.group * releases.batch,
        claimed=found.claimed,
        lower_bound=found.lower_bound,
        control_caught=found.control_caught,
        control_draws=found.control_draws,
        num_draws=found.num_draws,
        neighbours=_in_words(releases, pair),
        curve=found.curve,
        checks=checks,
        seconds=time.monotonic() - began,
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """What draws for one pair of neighbours say; see `MechanismAudit`.

    Attributes:
        scores: of the draws that were counted, for either data set.
    """

    group: int
    claimed: float
    lower_bound: float
    control_caught: bool
    control_draws: int
    num_draws: int
    curve: Sequence[CurvePoint]
    check: Check
    scores: tuple[FloatArray, FloatArray] = dataclasses.field(repr=False)


def measure(
    releases: Releases,
    pair: Pair,
    num_draws: int,
    deltas: Sequence[float],
    *,
    reporting: Reporting,
    most_draws: Callable[[], int] = lambda: 0,
) -> Measured:
    """Runs the control, then draws for both data sets of a pair and compares with the claims.

    Args:
        releases: of the mechanism.
        pair: the neighbours.
        num_draws: for each of them, and at most for the control.
        deltas: that claims are compared at; the first one is reported.
        reporting: how progress is shown.
        most_draws: how many draws the time suffices for where the control needed fewer.
    """
    claims = {one: releases.claims(one, deltas) for one in _groups(releases, num_draws)}
    caught, control_draws = _control(releases, pair, num_draws, claims, deltas, reporting)
    if caught and control_draws < num_draws:  # what the control left is the audit's
        num_draws = max(num_draws, min(most_draws(), 2 * num_draws))
    with reporting.progress_bar("drawing", 2 * num_draws, "draw") as advance:
        drawn = releases.draw(pair, num_draws, progress=advance)
    trial = Trial(drawn, claims, deltas, confidence=EACH_OF_TWO)
    telling, largest = trial.most_telling(), trial.largest(deltas[0])
    at_delta = trial.bound(largest)
    return Measured(
        group=largest.group,
        claimed=largest.claimed,
        lower_bound=at_delta,
        control_caught=caught,
        control_draws=control_draws,
        num_draws=num_draws,
        curve=[
            CurvePoint(
                delta=one.delta, claimed=one.claimed, lower_bound=trial.bound(one, CONFIDENCE)
            )
            for one in trial.tests
            if one.group == telling.group
        ],
        check=_draws_check(telling, trial.bound(telling), largest, at_delta),
        scores=trial.scores(),
    )


def _in_words(releases: Releases, pair: Pair) -> str:
    if releases.is_of_sums:
        rounds = getattr(releases.mechanism, "num_rounds", 1)
        in_each = f" in each of {rounds} rounds, asked as earlier ones say" if rounds > 1 else ""
        return (
            f"sums that differ by one record replaced by its opposite, an L2 distance of 2{in_each}"
        )
    of_each = f", on {releases.batch} queries of a batch" if releases.is_batched else ""
    return f"{pair}{of_each}"


def most_telling_pair(
    releases: Releases, pairs: Sequence[Pair], deltas: Sequence[float], claims: Sequence[float]
) -> Pair:
    """Returns the pair on which half the noise shows most; by draws that nothing else uses."""
    if len(pairs) == 1:
        return pairs[0]

    def excess(pair: Pair) -> float:
        drawn = releases.pilot(pair)
        score = Score(*drawn)
        first, second = (score(one) for one in drawn)
        promises = statistics.best_events(
            first,
            second,
            _finite(claims, deltas),
            num_counted=len(first),
            confidence=PILOT_CONFIDENCE,
        )
        return max(one.excess for one in promises)

    return max(pairs, key=excess)


def _finite(claims: Sequence[float], deltas: Sequence[float]) -> list[tuple[float, float]]:
    return [one for one in zip(claims, deltas, strict=True) if math.isfinite(one[0])]


def _control(
    releases: Releases,
    pair: Pair,
    num_draws: int,
    claims: Mapping[int, Sequence[float]],
    deltas: Sequence[float],
    reporting: Reporting,
) -> tuple[bool, int]:
    """Returns whether half the noise is caught with no more draws, and after how many."""
    parts: tuple[list[Outcomes], list[Outcomes]] = ([], [])
    with reporting.progress_bar("control with half the noise", 2 * num_draws, "draw") as advance:
        done = 0
        for share in LOOKS:
            size = int(share * num_draws) - done
            for place, one in enumerate(releases.draw(pair, size, share=HALF, progress=advance)):
                parts[place].append(one)
            done += size
            if done < 4 * FEWEST and share < 1.0:
                continue
            fitting = {
                group: claimed
                for group, claimed in claims.items()
                if done // group >= 2 * FEWEST or group == 1
            }
            drawn = (_rejoined(parts[0]), _rejoined(parts[1]))
            if _is_caught(drawn, fitting, deltas):
                return True, done
    return False, num_draws


def _is_caught(
    drawn: tuple[Outcomes, Outcomes],
    claims: Mapping[int, Sequence[float]],
    deltas: Sequence[float],
) -> bool:
    trial = Trial(drawn, claims, deltas, confidence=EACH_OF_TWO)
    test = trial.most_telling()
    return _is_excess(trial.bound(test), test.claimed)


def is_caught(
    releases: Releases, pair: Pair, num_draws: int, deltas: Sequence[float], share: float
) -> bool:
    """Whether a mechanism that draws this share of its noise is caught by so many draws."""
    claims = {one: releases.claims(one, deltas) for one in _groups(releases, num_draws)}
    drawn = releases.draw(pair, num_draws, share=share, progress=lambda done: None)
    return _is_caught(drawn, claims, deltas)


def _rejoined(parts: Sequence[Outcomes]) -> Outcomes:
    return Outcomes(
        np.concatenate([one.kinds for one in parts]), np.concatenate([one.values for one in parts])
    )


def _draws_check(telling: _Test, at_it: float, largest: _Test, at_delta: float) -> Check:
    worse = next(
        (
            (test, bound)
            for test, bound in ((telling, at_it), (largest, at_delta))
            if _is_excess(bound, test.claimed)
        ),
        None,
    )
    test, bound = worse or (largest, at_delta)
    return Check(
        name="draws for neighbouring data sets",
        how="an event is chosen on a quarter of the draws and counted on the others, in pairs that "
        "share their noise; 99.9 % over both tests that decide",
        outcome=PASSED if worse is None else VIOLATION,
        found=f"at least epsilon {bound:.4g} at delta {test.delta:g}, claimed {test.claimed:.4g}, "
        f"for {test.group} draws together",
        blind_spot="a loss on other neighbours than these, or one smaller than the control's",
    )


def _charge_check(releases: Releases) -> Check:
    wrong = releases.wrong_charges
    return Check(
        name="charges",
        how="every release is compared with what its ledger notes",
        outcome=VIOLATION if wrong else PASSED,
        found=wrong[0] if wrong else "every answer was charged",
        blind_spot="what a charge costs, which the draws test",
    )
