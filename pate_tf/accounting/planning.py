"""Which method, mechanism and noise for an epsilon: from public values alone, so publishable.

Reads no data, no votes and no ledger. The comparison rests on an assumption about how far teachers
agree; what labels cost does not.
"""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Sequence
from math import inf, nextafter, sqrt
from typing import Any, Final, NamedTuple, cast

import numpy as np

from pate_tf.accounting.charge import rounded_up
from pate_tf.accounting.charges import DEFAULT_PROFILE
from pate_tf.accounting.conversions import DELTA, check_delta, default_delta
from pate_tf.accounting.mechanisms import (
    ConfidentGaussianNoisyMax,
    ExponentialMechanism,
    GaussianFeatureSums,
    GaussianHistogram,
    GaussianMoments,
    GaussianNoisyMax,
    GaussianResidualSums,
    LaplaceClusterCounts,
    LaplaceNoisyMax,
    Mechanism,
    StabilityGate,
    base,
)
from pate_tf.accounting.mechanisms.base import MECHANISMS, UNITS, ReleasesFeatureSums, Target
from pate_tf.accounting.mechanisms.charged_once import CHANGED
from pate_tf.core.validation import ITEM, IntArray, Settings, setting, whole

METHODS: Final = ("pate", "feature_sums")
PATE, FEATURE_SUMS = METHODS
DEFAULT_NUM_TEACHERS: Final = 100
DEFAULT_MARGIN: Final = DEFAULT_PROFILE
WIDTH: Final = 96
# Fractions of the assumed margin that a plan is judged at; the last is the worst reasonable case.
MARGINS: Final = (1.0, 0.5, 0.25)
NUMBERS: Final = (10, 20, 50, 100, 200, 500, 1000)
GOOD_SHARE: Final = 0.95
# Of a batch that is charged once: each query more may be the one on which teachers disagree.
LARGE_BATCH, QUERIES_A_CLASS = 50, 5
# Mechanisms whose correct labels differ by less than this fraction of the queries are equally good.
EQUALLY_GOOD: Final = 0.005
ALWAYS_CHOSEN: Final = 1.0 - EQUALLY_GOOD  # accuracy of feature sums, whatever votes promise
# Calibrated in no time, and near the best of those that are not.
_QUICK: Final = (GaussianHistogram, ExponentialMechanism, StabilityGate)
_SURROGATES: Final[dict[type[Mechanism], type[Mechanism]]] = {
    GaussianNoisyMax: GaussianHistogram,
    ConfidentGaussianNoisyMax: GaussianHistogram,
}

# By how much a record's vector is nearer to the mean of its class than to another.
FEATURE_MARGIN: Final = 0.12
# By which fraction of a cluster's records its first class leads the second.
CLUSTER_MARGIN: Final = 0.9
WITHOUT_NOISE: Final = (0.6, 0.97)  # lowest and highest accuracy of labels without noise
LEAST_ACCURACY: Final = 0.5  # of labels of queries that a plan must expect
_SCALE: Final = 1000.0  # votes that stand for one standard deviation of the sums' noise

SUMS_ASSUME: Final = (
    f"Assumed: an input's features are nearer to those of its own class by {FEATURE_MARGIN:g} of "
    f"their length, and the first class of a cluster leads the second by {CLUSTER_MARGIN:g} of its "
    f"records."
)

CLUSTERS_OF_CLASS: Final = (1, 2, 3, 5, 10)
FEWEST_OF_CLUSTER: Final = 20  # inputs of the pool
# Signal-to-noise ratios: records of a mean cluster over the noise on a count, records of a class
# over the noise, below which labels would be noise, and from which on sums are released in rounds.
CLUSTER_RATIO: Final = 6.0
LEAST_RATIO: Final = 3.0
ROUNDS: Final = 16
ROUNDS_RATIO: Final = 400.0


class ForecastError(ValueError):
    """Labels are not expected to be worth their cost; nothing was charged.

    >>> import pate_tf
    >>> forecast = pate_tf.plan(0.1, num_teachers=5).forecast("pate")
    >>> try:
    ...     forecast.check(None)
    ... except pate_tf.ForecastError as error:
    ...     print(str(error)[:62])
    forecast: expected labels that are worth their cost, got about
    """


NOISE: Final = "the noise leaves too few correct labels"
HELPS: Final = (
    "What helps: more private records, a larger epsilon, fewer classes, or an encoder "
    "(docs/how-to/pretrained_encoder.md)."
)
ENCODER_HELPS: Final = (
    "For photographs above 32 x 32 pixels and for texts take a pre-trained encoder, such as "
    "--representation=EfficientNetV2B0 or hub:FOLDER (docs/how-to/pretrained_encoder.md)."
)
NOTHING_CHARGED: Final = ITEM.join(
    ("Nothing was charged.", HELPS, "To continue anyway: `accept_forecast`.")
)


ACCEPT_FORECAST: Final = {
    "help": "Continue where labels are not expected to be worth their cost: correct more often "
    "than the most frequent class of the pool, or than guesses. Otherwise nothing is charged, and "
    "the command ends with exit code 4."
}


def compared_in_words(majority: float | None) -> str:
    """Returns what the accuracy of labels compares with, the pool's majority share, as a sentence.

    Args:
        majority: share of the pool's most frequent class; None if the pool has no labels.
    """
    if majority is None:
        return "The pool has no labels: no comparison with the share of its most frequent class."
    return f"The most frequent class of the pool has a share of {majority:.1%}."


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanSettings(Settings):
    """What a plan is made from. Public, all of it stated by the user; see `plan`."""

    epsilon: float = setting(
        group="privacy", above=0.0, help="What the release may cost at --delta, in the worst case."
    )
    delta: float | None = setting(None, group="privacy", **DELTA)
    unit: str = setting(
        "record",
        group="privacy",
        choices=UNITS,
        help="What is protected: each record, or each owner with all records of that owner.",
    )
    num_classes: int = setting(
        10, group="data", flag="nb_labels", least=2, help="Number of classes."
    )
    num_records: int | None = setting(
        None,
        group="data",
        flag="nb_records",
        least=1,
        help="About how many private records there are, or owners with --unit=owner, as far as "
        "that is public. Without it there is no forecast for feature_sums.",
    )
    pool_size: int = setting(
        NUMBERS[-1],
        group="data",
        flag="stdnt_share",
        least=0,
        help="Number of public inputs, which form the student's pool; 0 for none.",
    )
    num_teachers: int = setting(
        DEFAULT_NUM_TEACHERS,
        group="method pate",
        flag="nb_teachers",
        least=1,
        help="Number of teachers that vote.",
    )
    num_queries: int | None = setting(
        None,
        group="method pate",
        flag="queries",
        least=1,
        help=f"Number of labels. Default: planned, up to {NUMBERS[-1]:,}.",
    )
    mechanism: str | type[Mechanism] | None = setting(
        None,
        group="method pate",
        choices=tuple(base.offered()),
        help="The only mechanism to compare. Default: all.",
    )
    margin: float = setting(
        DEFAULT_MARGIN,
        group="method pate",
        above=0.0,
        most=1.0,
        help="What is assumed of every query: the first class leads the second by this share of "
        "the teachers. Half and a quarter of it are shown too. A guess, never measured on votes.",
    )
    has_augmentation: bool = setting(
        True,
        group="data",
        flag="augmented",
        help="The inputs are images whose data set names an augmentation. Only then can "
        "feature_sums count records in clusters of the pool.",
    )
    adaptive: bool = False
    may_agree: bool = True
    strategy: str = "medoids"
    purpose: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delta is None:
            object.__setattr__(self, "delta", default_delta(self.num_records))
        if self.num_records is not None:
            check_delta(self.delta or 0.0, self.num_records, self.unit)
            if self.num_records < self.num_teachers:
                raise ValueError(
                    f"num_teachers: expected at most `num_records`, got {self.num_teachers:,} "
                    f"teachers for {self.num_records:,} records"
                )
        if self.num_queries is not None and self.num_queries > self.pool_size:
            raise ValueError(
                f"num_queries: expected from 1 to the pool's {self.pool_size}, got "
                f"{self.num_queries}"
            )

    def in_words(self) -> str:
        """Returns what is assumed of votes, as a sentence."""
        return (
            f"on every query the correct class leads every other by {100.0 * self.margin:g} % "
            f"of {self.num_teachers:,} teachers, among {self.num_classes:,} classes"
        )


# Votes that a plan assumes, and what is expected of labels then.


def profile_counts(num_teachers: int, num_classes: int, profile: float) -> IntArray:
    """Returns the sorted counts of the profile, int64 [1, num_classes].

    The first class leads the others by the fraction `profile` of the teachers; what is left is
    spread evenly over all classes.

    Args:
        num_teachers: at least 1.
        num_classes: at least 1.
        profile: in (0, 1].

    Raises:
        ValueError: if a number is below 1.
    """
    whole(num_teachers=num_teachers, num_classes=num_classes)
    margin = round(profile * num_teachers) if num_classes > 1 else num_teachers
    each, left = divmod(num_teachers - margin, num_classes)
    counts = np.full((1, num_classes), each, np.int64)
    counts[0, 0] += margin
    counts[0, 1 : 1 + left] += 1
    return -np.sort(-counts, axis=1)


class Outlook(NamedTuple):
    """What is expected of a batch of queries, or of a pool, at one margin. Public.

    Attributes:
        margin: by how many of the teachers, as a fraction, the first class leads the second.
        expected_labels: expected number of queries that get a label at all.
        expected_correct: expected number of queries that get the correct one.
    """

    margin: float
    expected_labels: float
    expected_correct: float

    @property
    def accuracy(self) -> float:
        """Expected accuracy of the labels that arrive."""
        return self.expected_correct / max(self.expected_labels, 1.0)

    def is_noise(self, num_classes: int) -> bool:
        """Whether guesses would be correct as often, by two of their standard deviations."""
        chance, number = 1.0 / num_classes, max(self.expected_labels, 1.0)
        return self.accuracy <= chance + 2.0 * sqrt(chance * (1.0 - chance) / number)

    def in_words(self) -> str:
        """Returns labels that arrive, and their accuracy in per cent, rounded down."""
        if self.expected_labels < 0.05:
            return "none"
        share = self.expected_correct / self.expected_labels
        accuracy = f"{int(share * 1000.0 + 1e-6) / 10.0:.1f} %"
        return f"{self.expected_labels:,.1f} {accuracy:>8}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate:
    """One mechanism, with the least noise that keeps to the target. Public.

    Attributes:
        mechanism: with its noise.
        epsilon: what the labels cost, whatever the votes; never above the target.
        outlooks: at the assumed margin, and at the lower ones of `MARGINS`; empty for sums where
            the number of records is not known.
    """

    mechanism: Mechanism
    epsilon: float
    outlooks: tuple[Outlook, ...]

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        outlooks = [outlook._asdict() for outlook in self.outlooks]
        return {**vars(self), "mechanism": self.mechanism.to_dict(), "outlooks": outlooks}


def planned_candidate(kind: type[Mechanism], settings: PlanSettings, num_queries: int) -> Candidate:
    """Returns a mechanism with the least noise within the target, and what to expect of it.

    Class 0 is the correct one in the votes that are assumed.

    Raises:
        ValueError: if it can't be planned for; says why.
    """
    batches = [
        np.repeat(
            profile_counts(settings.num_teachers, settings.num_classes, settings.margin * share),
            num_queries,
            axis=0,
        )
        for share in MARGINS
    ]
    target = Target(
        epsilon=settings.epsilon,
        delta=settings.delta or 0.0,
        num_queries=num_queries,
        unit=settings.unit,
    )
    mechanism = kind.for_target(target, batches[0])
    outlooks = []
    for share, counts in zip(MARGINS, batches, strict=True):
        correct, labels = mechanism.expected_correct(counts), float(num_queries)
        if mechanism.withholds:  # the sum over all classes that a label may be; equal columns once
            _, first, number = np.unique(counts, axis=1, return_index=True, return_counts=True)
            rolled = [np.roll(counts, -label, axis=1) for label in first]
            by_class = [mechanism.expected_correct(votes) for votes in rolled]
            labels = float(number @ np.array(by_class))
        labels = max(correct, min(labels, float(num_queries)))
        outlooks.append(Outlook(settings.margin * share, labels, correct))
    return Candidate(
        mechanism=mechanism, epsilon=target.epsilon_of(mechanism), outlooks=tuple(outlooks)
    )


def planned_num_queries(settings: PlanSettings, kinds: Sequence[type[Mechanism]]) -> int:
    """Returns the number of queries with most correct labels, of which nearly all are correct.

    Of 10, 20, 50 and so on up to 1,000: the one with most expected correct labels among those of
    which some mechanism labels 95 % correctly even in the worst case of `MARGINS`; else among those
    of which it does at half the margin, then as assumed; else the one with the largest fraction. A
    mechanism that labels whole batches is asked for five a class, or 50, at most, and counts only
    where nearly all labels arrive in the worst case.
    """
    limit = min(settings.pool_size, NUMBERS[-1])
    numbers = [number for number in NUMBERS if number <= limit] or [limit]
    batch = max(LARGE_BATCH, QUERIES_A_CLASS * settings.num_classes, numbers[0])
    best, best_utility = numbers[0], (0, 0.0)
    for kind in (_SURROGATES.get(kind, kind) for kind in kinds):
        for number in numbers:
            if kind.charged_per_batch and (settings.adaptive or number > batch):
                continue
            try:
                outlooks = planned_candidate(kind, settings, number).outlooks
            except ValueError:  # it can't be planned for; who compares them says why
                continue
            good = GOOD_SHARE * number
            if kind.charged_per_batch and outlooks[-1].expected_labels < good:
                continue
            is_good = [outlook.expected_correct >= good for outlook in outlooks]
            num_good, correct = (*is_good, False).index(False), outlooks[0].expected_correct
            utility = num_good, correct if num_good else correct / number
            if utility > best_utility:
                best, best_utility = number, utility
    return best


# Feature sums, or counts of records in clusters of the pool.


def cluster_numbers(pool_size: int, num_classes: int) -> list[int]:
    """Returns the numbers of clusters that a pool can have, ascending; at least one."""
    most = max(pool_size // FEWEST_OF_CLUSTER, 1)
    return sorted({min(number * num_classes, most) for number in CLUSTERS_OF_CLASS})


def planned_sums(
    target: Target,
    num_records: int | None,
    num_classes: int,
    resolutions: Sequence[int],
    num_rounds: int | None = 1,
    *,
    accept_forecast: bool = False,
    has_pool: bool = True,
) -> ReleasesFeatureSums:
    """Returns what feature sums release within an epsilon, chosen from public values.

    Sums of features with Gaussian noise; or, where that noise is heavy for the number of records,
    counts of records in clusters with Laplace noise, which have no delta: as many clusters as leave
    a cluster `CLUSTER_RATIO` times the noise. At delta 0 these counts alone.

    Args:
        target: what they may cost.
        num_records: private records, as far as public; None if unknown.
        num_classes: number of classes.
        resolutions: numbers of clusters that can be had; none where clusters are no use.
        num_rounds: of residual sums; None for `ROUNDS` where a class has `ROUNDS_RATIO` times more
            records than a single release has noise, 1 otherwise.
        accept_forecast: whether labels may be noise.
        has_pool: whether there are public inputs; without any, second moments are released too.

    Raises:
        ForecastError: if noise would exceed the signal.
        ValueError: if at delta 0 there are no clusters.
    """
    of_class = (num_records or 0) / num_classes
    scale = nextafter(CHANGED / target.epsilon, inf)
    while nextafter(CHANGED / scale, inf) > target.epsilon:
        scale = nextafter(scale, inf)
    deviation = sqrt(2.0) * scale
    most = max(of_class * num_classes / (CLUSTER_RATIO * deviation), num_classes)
    fitting = [number for number in resolutions if num_classes <= number <= most]
    released: ReleasesFeatureSums
    if target.delta or not (fitting and num_records) or (num_rounds or 1) > 1:
        kind = GaussianFeatureSums if has_pool else GaussianMoments
        features = kind.for_target(target, np.zeros((1, num_classes), np.int64))
        if num_rounds is None:
            is_clear = has_pool and of_class / features.sigma >= ROUNDS_RATIO
            num_rounds = ROUNDS if is_clear else 1
        if num_rounds > 1:
            in_rounds = target.least_noise(
                lambda scale: GaussianResidualSums(sigma=scale, num_rounds=num_rounds)
            )
            least = in_rounds.fewest_of_class
            if num_records is not None and of_class < least and not accept_forecast:
                raise ForecastError(
                    f"num_rounds: expected rounds whose noise leaves labels, got {num_rounds} at "
                    f"epsilon {target.epsilon:g}: with balanced classes, about {of_class:,.0f} "
                    f"records per class, where {least:,.0f} are needed. {NOTHING_CHARGED}"
                )
            return in_rounds
        if num_records is None or of_class >= features.fewest_of_class:
            return features
        released, least = features, features.sigma
    if fitting:
        released = LaplaceClusterCounts(scale=scale, num_clusters=max(fitting))
        least = LEAST_RATIO * deviation
    if of_class < least and not accept_forecast:
        raise ForecastError(
            f"epsilon: expected one at which records outweigh the noise, got {target.epsilon:g}: "
            f"with balanced classes, about {of_class:,.0f} records per class, below noise of "
            f"{least:,.0f}. {NOTHING_CHARGED}"
        )
    return released


def sums_candidate(settings: PlanSettings, sums: ReleasesFeatureSums | None = None) -> Candidate:
    """Returns what feature sums release within the target, and what to expect of their labels.

    An input's score of a class is its product with the noisy sum of that class: of its own class it
    is larger by margin times the records of a class, in the mean, and noise of standard deviation
    sigma is added to each score, as the input's vector has at most norm 1. Of several rounds it is
    what the first alone would leave. Of counts, the score is that of its cluster: larger by margin
    times the records of a cluster, with Laplace noise.

    Raises:
        ValueError: if noise would exceed the signal; says why.
    """
    is_of_records = settings.unit == "record"
    target = Target(epsilon=settings.epsilon, delta=settings.delta or 0.0, unit=settings.unit)
    resolutions = list[int]()
    if settings.pool_size and settings.has_augmentation and settings.num_records is not None:
        resolutions = cluster_numbers(settings.pool_size, settings.num_classes)
    sums = sums or planned_sums(
        target,
        settings.num_records if is_of_records else None,
        settings.num_classes,
        resolutions,
        None if is_of_records else 1,
        has_pool=settings.pool_size > 0,
    )
    law: GaussianNoisyMax | LaplaceNoisyMax = GaussianNoisyMax(sigma=_SCALE)
    margin, num_sums = FEATURE_MARGIN, settings.num_classes
    if isinstance(sums, LaplaceClusterCounts):
        margin, num_sums, law = CLUSTER_MARGIN, sums.num_clusters, LaplaceNoisyMax(scale=_SCALE)
    outlooks = []
    for share in MARGINS if settings.num_records is not None and settings.pool_size else ():
        counts = np.zeros((1, settings.num_classes), np.int64)
        signal = margin * share * (settings.num_records or 0) / num_sums
        (scale,) = sums.noise_scales.values()
        counts[0, 0] = round(min(signal / scale, 100.0) * _SCALE)
        correct = float(law.outcome_probabilities(counts)[0, 0]) * settings.pool_size
        outlooks.append(Outlook(margin * share, float(settings.pool_size), correct))
    return Candidate(mechanism=sums, epsilon=target.epsilon_of(sums), outlooks=tuple(outlooks))


# What came of it.


class Forecast(NamedTuple):
    """Expected accuracy of the labels of a method, from public values. Public.

    Attributes:
        low: lower end of the range in which it is expected.
        high: upper end.
        num_labels: expected labels.
        is_measured: whether it was measured on labels of the pool, so that the range is its
            uncertainty; else the range is that of other data sets.
        is_noise: whether the noise alone, at half the assumed margin, leaves no more correct labels
            than guesses do, by two standard deviations of these.
        lead: by how much, at least, labels of all of the pool are more often correct than the most
            frequent class on the same samples; None where it was not measured.
    """

    low: float
    high: float
    num_labels: float
    is_measured: bool = False
    is_noise: bool = False
    lead: float | None = None

    @classmethod
    def measured(
        cls, predictions: IntArray, truth: IntArray, num_labels: int, folds: IntArray | None = None
    ) -> Forecast:
        """Returns the forecast by predictions for samples: two standard errors to each side.

        These are of which samples there are, and of a single draw of the noise.

        Args:
            predictions: `[num_samples]`, or `[num_draws, num_samples]`.
            truth: true labels, `[num_samples]`.
            num_labels: expected labels.
            folds: of each sample, from 0; each fold of each draw has noise of its own. None for
                predictions without noise.
        """
        is_correct, number = np.atleast_2d(predictions == truth), len(truth)
        accuracy, between = float(is_correct.mean()), 0.0
        variance = max(accuracy * (1.0 - accuracy), 1.0 / number)
        if folds is not None:
            sizes = np.bincount(folds)
            of_noise = np.array([np.bincount(folds, each) / sizes for each in is_correct])
            between = max(float(of_noise.var(ddof=1)) - variance / float(sizes.mean()), 0.0)
        error = 2.0 * sqrt(variance / number + between)
        low, high = max(accuracy - error, 0.0), min(accuracy + error, 1.0)
        leads = is_correct.mean(axis=0) - (truth == np.bincount(truth).argmax())
        lead = float(leads.mean() - 2.0 * sqrt(leads.var() / number + between))
        return cls(low, high, num_labels, is_measured=True, lead=lead)

    @property
    def accuracy(self) -> float:
        """The middle of the range."""
        return (self.low + self.high) / 2.0

    def in_words(self, majority: float | None) -> str:
        """Returns the forecast beside the share of the pool's most frequent class, in sentences."""
        by = "a trial on labels of the pool" if self.is_measured else "what other data sets had"
        return (
            f"about {self.num_labels:,.0f} labels, about {self.accuracy:.0%} of them correct "
            f"({self.low:.0%} to {self.high:.0%}, by {by}). {compared_in_words(majority)}"
        )

    def check(self, majority: float | None) -> None:
        """Checks that labels are expected to be worth their cost.

        Args:
            majority: share of the pool's most frequent class; None where the pool has no labels.

        Raises:
            ForecastError: if the planned labels are noise, or are not expected to be more often
                correct than the most frequent class.
        """
        lead = -inf if self.lead is None else self.lead
        if majority is not None:
            lead = max(lead, (self.low if self.is_measured else self.accuracy) - majority)
        if not self.is_noise and (majority is None or lead > 0.0):
            return
        why = NOISE if self.is_noise else "a constant answer is expected to be as good"
        raise ForecastError(
            f"forecast: expected labels that are worth their cost, got "
            f"{self.in_words(majority)} So {why}. {NOTHING_CHARGED}"
        )


def forecast_of_sums(candidate: Candidate, settings: PlanSettings, num_features: int) -> Forecast:
    """Returns the expected accuracy of labels from feature sums, by what other data sets had.

    Of sums of vectors it is `WITHOUT_NOISE`, drawn toward chance by s / (s + a), where s is the
    number of records of a class over the noise of all features of a sum, and a is 1/2 at best and 2
    at worst. Of counts it is `WITHOUT_NOISE` times what the noise leaves correct.

    Args:
        candidate: what is released, and its outlooks.
        settings: with the number of records.
        num_features: of a record's vector.
    """
    sums, chance, (lowest, highest) = candidate.mechanism, 1.0 / settings.num_classes, WITHOUT_NOISE
    accuracies = [outlook.accuracy for outlook in candidate.outlooks]
    low, high = max(chance, lowest * min(accuracies)), highest * max(accuracies)
    if isinstance(sums, GaussianFeatureSums):
        # Of a single release at this cost; rounds are no less accurate.
        noise = sums.sigma * np.sqrt(num_features / sums.num_rounds) * settings.num_classes
        signal = (settings.num_records or 0) / noise
        low = float(chance + (max(lowest, chance) - chance) * signal / (signal + 2.0))
        high = float(chance + (highest - chance) * signal / (signal + 0.5))
    is_noise = candidate.outlooks[1].is_noise(settings.num_classes)
    return Forecast(low, max(low, high), settings.pool_size, is_noise=is_noise)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Both methods within one epsilon, and all mechanisms of the first. Public.

    >>> import pate_tf
    >>> pate_tf.plan(2.0, num_teachers=250).forecast("pate").num_labels
    50.0

    Attributes:
        settings: what the plan was made from.
        num_queries: how many queries to ask teachers.
        candidates: mechanisms of method pate, the recommended one first; none without a pool.
        sums: what method feature_sums releases; None where that would be noise. Its outlooks are of
            noise alone: errors that the features make without it come on top, as the teachers' own
            errors do with votes.
        refusal: why there are none.
    """

    settings: PlanSettings
    num_queries: int
    candidates: tuple[Candidate, ...]
    sums: Candidate | None
    refusal: str = ""

    @property
    def mechanism(self) -> Mechanism:
        """The recommended mechanism of method pate; that of feature_sums without a pool."""
        return (*self.candidates, cast(Candidate, self.sums))[0].mechanism

    @property
    def expected_share(self) -> float:
        """Expected fraction of the queries that get a correct label, if the assumption holds."""
        return self.candidates[0].outlooks[0].expected_correct / self.num_queries

    @property
    def method(self) -> str:
        """The recommended method: feature_sums if its labels are equally good at half the margin.

        It labels the whole pool; votes label some queries.
        """
        if not self.candidates:
            return FEATURE_SUMS
        if self.settings.mechanism is not None or self.sums is None or not self.sums.outlooks:
            return PATE
        least = self.candidates[0].outlooks[1].accuracy - EQUALLY_GOOD
        return FEATURE_SUMS if self.sums.outlooks[1].accuracy >= least else PATE

    @property
    def reason(self) -> str:
        """Why this mechanism, and that no vote was read; for statements and reports."""
        if not self.candidates:
            return "Noise was chosen from a plan, not from private data. No teacher was asked."
        worst = self.candidates[0].outlooks[-1].expected_correct / self.num_queries
        return (
            f"Mechanism, noise and number of queries were chosen from a plan, not from votes: for "
            f"epsilon {self.settings.epsilon:g} at delta {self.settings.delta:g} and "
            f"{self.num_queries:,} queries, assuming that {self.settings.in_words()}. Under that "
            f"assumption {self.mechanism.name} labels {self.expected_share:.1%} of the queries "
            f"correctly, and {worst:.1%} if teachers agree a quarter as well. The assumption is "
            f"from public values; what the labels cost does not depend on it."
            f"{' ' if self.settings.purpose else ''}{self.settings.purpose}"
        )

    def forecast(
        self, method: str, num_features: int = 1, measured: Forecast | None = None
    ) -> Forecast | None:
        """Returns the expected accuracy of a method's labels; None where too little is known.

        That is so of sums of uncounted records, and without a pool.

        Of votes it is what noise leaves correct, at the assumed margin and at a quarter of it,
        times the accuracy without noise.

        Args:
            method: "pate" or "feature_sums".
            num_features: of a record's vector, for feature sums; see `forecast_of_sums`.
            measured: accuracy of votes without noise, measured on labels of the pool. Default: that
                of other data sets, `WITHOUT_NOISE`.
        """
        settings = self.settings
        if not settings.pool_size:
            return None
        candidate = self.candidates[0]
        if method == FEATURE_SUMS:
            if settings.num_records is None or self.sums is None:
                return None
            return forecast_of_sums(self.sums, settings, num_features)
        chance, (lowest, highest) = 1.0 / settings.num_classes, WITHOUT_NOISE
        accuracies = [outlook.accuracy for outlook in candidate.outlooks]
        worst = min(accuracies)
        if measured is not None:
            lowest, highest, worst = measured.low, measured.high, accuracies[1]
        low = max(chance, lowest * worst)
        # Fewer than one of each class for a teacher: most have never seen the class they name.
        is_known = (settings.num_records or inf) >= settings.num_teachers * settings.num_classes
        return Forecast(
            low=low,
            high=max(low, highest * max(accuracies)),
            num_labels=candidate.outlooks[1].expected_labels,
            is_measured=measured is not None,
            is_noise=candidate.outlooks[1].is_noise(settings.num_classes)
            or self.expected_share < LEAST_ACCURACY
            or not is_known,
        )

    @property
    def is_noise(self) -> bool:
        """Whether labels of the recommended method are expected to be noise."""
        # Of counts that are learned from together no label needs to be correct by itself.
        forecast = None if self.settings.purpose else self.forecast(self.method)
        return forecast is not None and forecast.is_noise

    def commands(self, method: str) -> tuple[str, ...]:
        """Returns what to type for a method, a line for each command."""
        settings = self.settings
        cost = f"--epsilon={settings.epsilon:.12g} --delta={settings.delta:.12g}"
        if not settings.pool_size:
            return (f"pate run --private=FILE --schema=FILE {cost}",)
        if method == FEATURE_SUMS:
            return (f"pate student --dataset=NAME --method=feature_sums {cost}",)
        chosen = f"--mechanism={self.mechanism.name} --queries={self.num_queries}"
        teachers = f"--dataset=NAME --nb_teachers={settings.num_teachers}"
        return f"pate teachers {teachers}", f"pate student {teachers} {cost} {chosen}"

    def in_words(self, *, of_votes: bool = False) -> str:
        """Returns the comparison as a table in text, with what it rests on.

        Args:
            of_votes: leaves feature sums and commands out.
        """
        settings, method, best = self.settings, self.method, self.mechanism
        if self.sums is not None and not self.candidates:
            return "\n".join(
                [
                    f"Plan for epsilon {settings.epsilon:g} at delta {settings.delta:g}, for every "
                    f"{settings.unit}, without public inputs",
                    *("", f"Recommended: {method}, {best.summary()}"),
                    *(f"  {command}" for command in self.commands(method)),
                ]
            )
        of_votes = of_votes or settings.mechanism is not None
        rows = [(candidate.mechanism.name, candidate) for candidate in self.candidates]
        notes = [
            f"Assumed, not measured: {settings.in_words()}. That is a guess from public values, "
            f"and an optimistic one where people disagree. If teachers agree less, fewer labels "
            f"are correct; epsilon holds whatever the votes. No label is read: compare accuracies "
            f"with the share of the most frequent class, which a constant answer reaches."
        ]
        if settings.purpose:
            notes.append(settings.purpose)
        elif self.expected_share < 0.9:
            notes.append(
                "No mechanism labels nine in ten queries correctly: take more teachers, a larger "
                "epsilon or fewer queries."
            )
        if self.sums is not None and not of_votes:
            rows.append((FEATURE_SUMS, self.sums))
            best = self.sums.mechanism if method == FEATURE_SUMS else best
            notes.append(f"feature_sums asks no teacher and labels the whole pool. {SUMS_ASSUME}")
        elif not of_votes:
            notes.append(f"feature_sums is refused: {self.refusal}")
        width = max(len(name) for name, _ in rows)
        heads = [f"{100.0 * settings.margin * share:g} %" for share in MARGINS]
        lines = ["  ".join(["", "margin".ljust(width), "epsilon", *(f"{h:>16}" for h in heads)])]
        for name, candidate in rows:
            cells = [f"{outlook.in_words():>16}" for outlook in candidate.outlooks]
            # Rounding up must not make a number that keeps to the target look as if it did not.
            epsilon = min(rounded_up(candidate.epsilon), f"{settings.epsilon:.12g}", key=float)
            cells = cells or ["not known without the number of records"]
            lines.append("  ".join(["", name.ljust(width), f"{epsilon:>7}", *cells]))
        method = PATE if of_votes else method
        # Of counts that are learned from together no label needs to be correct by itself.
        forecasts = {} if settings.purpose else {name: self.forecast(name) for name in METHODS}
        noise = [name for name, forecast in forecasts.items() if forecast and forecast.is_noise]
        verdict = f"Not worth its cost: {NOISE}" if method in noise else "Recommended"
        notes += [] if of_votes else [ENCODER_HELPS]
        lines += ["", f"{verdict}: {method}, {best.summary()}"]
        if method in noise:
            lines += [HELPS]
        elif not of_votes or settings.mechanism is not None:
            lines += [f"  {command}" for command in self.commands(method)]
        if self.sums is not None and not of_votes and method not in noise:
            other = PATE if method == FEATURE_SUMS else FEATURE_SUMS
            lines += ["", f"Or {other}" + f": {NOISE}" * (other in noise)]
            lines += [f"  {line}" for line in self.commands(other)]
        return "\n".join(
            [
                f"Plan for epsilon {settings.epsilon:g} at delta {settings.delta:g}, for every "
                f"{settings.unit}, and {self.num_queries:,} queries",
                *("", "Expected labels that arrive, and their accuracy as far as noise decides:"),
                *("", *lines, "", *(textwrap.fill(note, WIDTH) for note in notes)),
            ]
        )

    __str__ = in_words

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        settings = self.settings
        return {
            "target_epsilon": settings.epsilon,
            "delta": settings.delta,
            "unit": settings.unit,
            "method": self.method,
            "commands": {
                method: list(self.commands(method))
                for method in (PATE, FEATURE_SUMS)
                if self.candidates or method == FEATURE_SUMS
            },
            "queries": self.num_queries,
            "assumed": settings.in_words() if self.candidates else None,
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            "reason": self.reason,
            "feature_sums": {"refused": self.refusal} if self.sums is None else self.sums.to_dict(),
        }


def plan(epsilon: float, **settings: Any) -> Plan:
    """Compares both methods, and all mechanisms, within an epsilon, and recommends. Reads no votes.

    Each mechanism gets the least noise whose worst-case epsilon, over all data, keeps to the
    target. Compared are the expected numbers of correct labels that arrive, in the mean over the
    margin that is assumed of the votes, half and a quarter of it (`MARGINS`).

    Mechanisms whose mean is within half a hundredth of the queries of the best are ranked by the
    worst case. A gate, which labels all of a batch or none of it, comes first only where nearly all
    labels arrive in the worst case too, and nothing else labels 95 % of the queries correctly.

    >>> import pate_tf
    >>> plan = pate_tf.plan(2.0, num_teachers=250, num_classes=10)
    >>> plan.mechanism.name, plan.num_queries
    ('gaussian_noisy_max', 50)
    >>> pate_tf.plan(0.1, num_records=60_000, pool_size=9_000).method
    'feature_sums'
    >>> print(plan)
    Plan for epsilon 2 at delta 1e-05, for every record, and 50 queries
    ...

    Args:
        epsilon: the most that the labels may cost together.
        **settings: delta (default 1e-5, or less of many records; 0 leaves mechanisms with a pure
            epsilon), unit ("record" or "owner"), num_classes, num_records, pool_size, num_teachers,
            num_queries (default: planned), mechanism (the only one to compare, by name or class),
            margin (by how many of the teachers, as a fraction, the first class is assumed to lead
            the second on every query), has_augmentation, adaptive (whether queries
            will be chosen by earlier noisy labels), and may_agree (whether teachers may agree on
            all of a batch; else no gate is compared).

    Raises:
        ValueError: if a number is out of range, or no mechanism can be planned for.
    """
    stated = PlanSettings(epsilon=epsilon, **settings)
    if not stated.pool_size:
        return Plan(settings=stated, num_queries=0, candidates=(), sums=sums_candidate(stated))
    lacking, number, kind = {"draw", "flags", "calibration"}, stated.num_queries, stated.mechanism
    kinds = [kind for _, kind in sorted(MECHANISMS.items()) if not lacking & set(kind.lacks)]
    if kind is not None:
        kinds = [MECHANISMS[kind] if isinstance(kind, str) else kind]
    if stated.adaptive or (kind is None and not stated.may_agree):
        kinds = [each for each in kinds if not each.charged_per_batch]
    if not kinds:
        raise ValueError(
            "mechanism: expected one that answers queries chosen by earlier labels, got one whose "
            "batch must be fixed in advance"
        )
    num_in_batch = number or max(LARGE_BATCH, QUERIES_A_CLASS * stated.num_classes)
    quick = [each for each in _QUICK if each in kinds] if kind is None else kinds
    number = number or planned_num_queries(stated, quick)
    candidates, refusal = list[Candidate](), ""
    for kind in kinds:
        try:
            candidates.append(planned_candidate(kind, stated, number))
        except ValueError as error:  # it says what it lacks
            refusal = str(error)
    if not candidates:
        raise ValueError(f"mechanism: expected one that can be planned for: {refusal}")
    good = GOOD_SHARE * number
    single = [each for each in candidates if not each.mechanism.charged_per_batch]
    correct = {each: [outlook.expected_correct for outlook in each.outlooks] for each in candidates}
    compared = [each for each in single if correct[each][0] >= good]
    if not compared and number <= num_in_batch:
        opening = [each for each in candidates if each.outlooks[-1].expected_labels >= good]
        compared = [each for each in candidates if each in single or each in opening]
    compared = compared or single or candidates
    enough = max(np.mean(correct[each]) for each in compared) - EQUALLY_GOOD * number

    def rank(candidate: Candidate) -> tuple[bool, float]:
        mean = float(np.mean(correct[candidate]))
        is_best = candidate in compared and mean >= enough
        return not is_best, -(correct[candidate][-1] if is_best else mean)

    sums, refusal = None, ""
    try:
        sums = sums_candidate(stated)
    except ValueError as error:
        refusal = str(error).removeprefix("epsilon: ").removeprefix("delta: ")
    return Plan(
        settings=stated,
        num_queries=number,
        candidates=tuple(sorted(candidates, key=rank)),
        sums=sums,
        refusal=refusal,
    )
