"""Which method, mechanism and noise for an epsilon: from public values alone, so publishable.

Reads no data, no votes and no ledger. The comparison rests on an assumption about how far teachers
agree; what labels cost does not.
"""

from __future__ import annotations

import dataclasses
import pathlib
import textwrap
from collections.abc import Sequence
from math import ceil, inf, nextafter, sqrt
from typing import Any, Final, cast

import jinja2
import numpy as np

from pate_tf.accounting.charge import profile_counts, rounded_up
from pate_tf.accounting.conversions import check_delta, default_delta
from pate_tf.accounting.mechanisms import (
    ConfidentGaussianNoisyMax,
    GaussianFeatureSums,
    GaussianHistogram,
    GaussianMoments,
    GaussianNoisyMax,
    GaussianResidualSums,
    LaplaceClusterCounts,
    LaplaceNoisyMax,
    Mechanism,
    base,
)
from pate_tf.accounting.mechanisms.base import ReleasesFeatureSums, Target
from pate_tf.accounting.mechanisms.charged_once import CHANGED
from pate_tf.core import checks
from pate_tf.core.public import cluster_numbers
from pate_tf.planning.forecast import (
    ENCODER_HELPS,
    HELPS,
    MARGINS,
    NOISE,
    NOTHING_CHARGED,
    TEXT_ENCODER_HELPS,
    WITHOUT_NOISE,
    Candidate,
    Forecast,
    ForecastError,
    Outlook,
)
from pate_tf.planning.release_settings import (
    DEFAULT_MARGIN,
    FEATURE_SUMS,
    METHODS,
    PATE,
    Budget,
    PublicNumbers,
    ReleaseSettings,
)
from pate_tf.queries.strategies import QueryWishes
from pate_tf.teachers.run_folder import DEFAULT_NUM_TEACHERS

WIDTH: Final = 96
NUMBERS: Final = (10, 20, 50, 100, 200, 500, 1000)
GOOD_SHARE: Final = 0.95
# Mechanisms whose correct labels differ by less than this fraction of the queries are equally good.
EQUALLY_GOOD: Final = 0.005
ALWAYS_CHOSEN: Final = 1.0 - EQUALLY_GOOD  # accuracy of feature sums, whatever votes promise
# Calibrated in no time, and near the mechanism that is not.
_SURROGATES: Final[dict[type[Mechanism], type[Mechanism]]] = {
    GaussianNoisyMax: GaussianHistogram,
    ConfidentGaussianNoisyMax: GaussianHistogram,
}
LEAST_ACCURACY: Final = 0.5  # of labels of queries that a plan must expect

# By how much a record's vector is nearer to the mean of its class than to another.
FEATURE_MARGIN: Final = 0.12
# By which fraction of a cluster's records its first class leads the second.
CLUSTER_MARGIN: Final = 0.9
_SCALE: Final = 1000.0  # votes that stand for one standard deviation of the sums' noise

# Signal-to-noise ratios: records of a mean cluster over the noise on a count, records of a class
# over the noise, below which labels would be noise, and from which on sums are released in rounds.
CLUSTER_RATIO: Final = 6.0
LEAST_RATIO: Final = 3.0
ROUNDS: Final = 16
ROUNDS_RATIO: Final = 400.0

# What plans say.
TEMPLATES: Final = jinja2.Environment(
    loader=jinja2.FileSystemLoader(pathlib.Path(__file__).with_name("templates")),
    trim_blocks=True,
    undefined=jinja2.StrictUndefined,
)
TEMPLATES.globals |= {
    "margins": MARGINS,
    "is_noise": NOISE,
    "helps": HELPS,
    "encoder_helps": ENCODER_HELPS,
    "text_encoder_helps": TEXT_ENCODER_HELPS,
    "feature_margin": FEATURE_MARGIN,
    "cluster_margin": CLUSTER_MARGIN,
}
TEMPLATES.filters |= {
    "rounded_up": rounded_up,
    "paragraphs": lambda text: "\n".join(
        textwrap.fill(line, WIDTH) for line in text.splitlines() if line
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """What a plan is made from. Public, all of it stated by the user; see `plan`.

    Attributes:
        known: numbers of records, classes and public inputs, and what is protected.
        release: epsilon, delta and wishes: mechanism, queries, margin and number of teachers.
        purpose: why noisy counts are learned from together, if they are.
    """

    known: PublicNumbers
    release: ReleaseSettings
    purpose: str = ""

    def __post_init__(self) -> None:
        number = self.known.num_records
        if number is not None:
            check_delta(self.target.delta, number, self.known.unit)
            if number < self.num_teachers:
                raise ValueError(
                    f"num_teachers: expected at most `num_records`, got {self.num_teachers:,} "
                    f"teachers for {number:,} records"
                )
        most = self.known.pool_size
        asked = self.release.queries.num_queries
        if asked is not None and not 1 <= asked <= most:
            raise ValueError(f"num_queries: expected from 1 to the pool's {most}, got {asked}")

    @property
    def num_teachers(self) -> int:
        """How many teachers vote."""
        return self.release.num_teachers or DEFAULT_NUM_TEACHERS

    @property
    def target(self) -> Target:
        """What the release may cost."""
        budget = self.release.budget
        delta = default_delta(self.known.num_records) if budget.delta is None else budget.delta
        return Target(epsilon=budget.epsilon or 0.0, delta=delta, unit=self.known.unit)

    def in_words(self) -> str:
        """Returns what is assumed of votes, as a sentence."""
        return (
            f"on every query the correct class leads every other by "
            f"{100.0 * self.release.margin:g} % of {self.num_teachers:,} teachers, among "
            f"{self.known.num_classes:,} classes"
        )


def planned_candidate(kind: type[Mechanism], settings: PlanSettings, num_queries: int) -> Candidate:
    """Returns a mechanism with the least noise within the target, and what to expect of it.

    Class 0 is the correct one in the votes that are assumed.

    Raises:
        ValueError: if it can't be planned for; says why.
    """
    margins = [settings.release.margin * share for share in MARGINS]
    batches = []
    for margin in margins:
        counts = profile_counts(settings.num_teachers, settings.known.num_classes, margin)
        batches.append(np.repeat(counts, num_queries, axis=0))
    target = dataclasses.replace(settings.target, num_queries=num_queries)
    mechanism = kind.for_target(target, batches[0])
    outlooks = []
    for margin, counts in zip(margins, batches, strict=True):
        correct = mechanism.expected_correct(counts)
        labels = float(num_queries)
        if mechanism.withholds:  # the sum over all classes that a label may be; equal columns once
            _, first, number = np.unique(counts, axis=1, return_index=True, return_counts=True)
            rolled = [np.roll(counts, -label, axis=1) for label in first]
            by_class = [mechanism.expected_correct(votes) for votes in rolled]
            labels = float(number @ np.array(by_class))
        labels = max(correct, min(labels, float(num_queries)))
        outlooks.append(Outlook(margin, labels, correct))
    return Candidate(
        mechanism=mechanism,
        epsilon=target.epsilon_of(mechanism),
        delta=0.0 if mechanism.pure_epsilon is not None else target.delta,
        outlooks=tuple(outlooks),
    )


def planned_num_queries(settings: PlanSettings, kind: type[Mechanism]) -> int:
    """Returns the number of queries with most correct labels, of which nearly all are correct.

    Of 10, 20, 50 and so on up to 1,000: the one with most expected correct labels among those of
    which the mechanism labels 95 % correctly even in the worst case of `MARGINS`; else among those
    of which it does at half the margin, then as assumed; else the one with the largest fraction.
    """
    limit = min(settings.known.pool_size, NUMBERS[-1])
    numbers = [number for number in NUMBERS if number <= limit] or [limit]
    best = numbers[0]
    best_utility = (0, 0.0)
    for number in numbers:
        try:
            outlooks = planned_candidate(_SURROGATES.get(kind, kind), settings, number).outlooks
        except ValueError:  # it can't be planned for; who compares them says why
            continue
        good = GOOD_SHARE * number
        is_good = [outlook.expected_correct >= good for outlook in outlooks]
        num_good = (*is_good, False).index(False)
        correct = outlooks[0].expected_correct
        utility = num_good, correct if num_good else correct / number
        if utility > best_utility:
            best = number
            best_utility = utility
    return best


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Both methods within one epsilon, and all mechanisms of the first. Public.

    >>> import pate_tf
    >>> pate_tf.plan(2.0, num_teachers=250).forecast("pate").num_labels
    20.0

    Attributes:
        settings: what the plan was made from.
        num_queries: how many queries to ask teachers.
        candidates: mechanisms of method pate, the recommended one first; none without a pool.
        sums: what method feature_sums releases; None where that would be noise. Its outlooks are of
            noise alone: errors that the features make without it come on top, as the teachers' own
            errors do with votes.
        refusal: why it would be noise.
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
        if (
            self.settings.release.mechanism is not None
            or self.sums is None
            or not self.sums.outlooks
        ):
            return PATE
        least = self.candidates[0].outlooks[1].accuracy - EQUALLY_GOOD
        return FEATURE_SUMS if self.sums.outlooks[1].accuracy >= least else PATE

    @property
    def reason(self) -> str:
        """Why this mechanism, and that no vote was read; for statements and reports."""
        if not self.candidates:
            return "The noise was chosen from public values."
        worst = self.candidates[0].outlooks[-1].expected_correct / self.num_queries
        target = self.settings.target
        return (
            f"Mechanism, noise and number of queries were chosen from a plan, not from votes: for "
            f"epsilon {target.epsilon:g} at delta {target.delta:g} and "
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
        known = self.settings.known
        if not known.pool_size:
            return None
        candidate = self.candidates[0]
        if method == FEATURE_SUMS:
            if known.num_records is None or self.sums is None:
                return None
            return forecast_of_sums(self.sums, known, num_features)
        chance = 1.0 / known.num_classes
        (lowest, highest) = WITHOUT_NOISE
        accuracies = [outlook.accuracy for outlook in candidate.outlooks]
        worst = min(accuracies)
        if measured is not None:
            lowest = measured.low
            highest = measured.high
            worst = accuracies[1]
        low = max(chance, lowest * worst)
        # Fewer than one of each class for a teacher: most have never seen the class they name.
        least = self.settings.num_teachers * known.num_classes
        is_known = (known.num_records or inf) >= least
        return Forecast(
            low=low,
            high=max(low, highest * max(accuracies)),
            num_labels=candidate.outlooks[1].expected_labels,
            is_measured=measured is not None,
            auc=None if measured is None else measured.auc,
            is_noise=candidate.outlooks[1].is_noise(known.num_classes)
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
        target = self.settings.target
        cost = f"--epsilon={target.epsilon:.12g} --delta={target.delta:.12g}"
        if not self.settings.known.pool_size:
            return (f"pate run --private=FILE --schema=FILE {cost}",)
        if method == FEATURE_SUMS:
            return (f"pate student --dataset=NAME --method=feature_sums {cost}",)
        chosen = f"--mechanism={self.mechanism.name} --queries={self.num_queries}"
        teachers = f"--dataset=NAME --nb_teachers={self.settings.num_teachers}"
        return f"pate teachers {teachers}", f"pate student {teachers} {cost} {chosen}"

    def in_words(self, *, of_votes: bool = False) -> str:
        """Returns the comparison as a table in text, with what it rests on.

        Args:
            of_votes: leaves feature sums and commands out.
        """
        of_votes = of_votes or self.settings.release.mechanism is not None
        named = [(candidate.mechanism.name, candidate) for candidate in self.candidates]
        if named and self.sums is not None and not of_votes:
            named.append((FEATURE_SUMS, self.sums))
        # Rounding up must not make a number that keeps to the target look as if it did not.
        most = f"{self.settings.target.epsilon:.12g}"
        rows = [
            (name, min(rounded_up(candidate.epsilon), most, key=float), candidate.outlooks)
            for name, candidate in named
        ]
        # Of counts that are learned from together no label needs to be correct by itself.
        forecasts = {} if self.settings.purpose else {name: self.forecast(name) for name in METHODS}
        page = TEMPLATES.get_template("comparison.md").render(
            plan=self,
            of_votes=of_votes,
            rows=rows,
            noise=[name for name, forecast in forecasts.items() if forecast and forecast.is_noise],
        )
        return page.rstrip()

    __str__ = in_words

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        target = self.settings.target
        return {
            "target_epsilon": target.epsilon,
            "delta": target.delta,
            "unit": target.unit,
            "method": self.method,
            "commands": {
                method: list(self.commands(method))
                for method in (PATE, FEATURE_SUMS)
                if self.candidates or method == FEATURE_SUMS
            },
            "queries": self.num_queries,
            "assumed": self.settings.in_words() if self.candidates else None,
            "candidates": [candidate.to_dict() for candidate in self.candidates],
            "reason": self.reason,
            "feature_sums": {"refused": self.refusal} if self.sums is None else self.sums.to_dict(),
        }


def plan(
    epsilon: float,
    *,
    delta: float | None = None,
    num_teachers: int = DEFAULT_NUM_TEACHERS,
    num_queries: int | None = None,
    mechanism: str | type[Mechanism] | None = None,
    margin: float = DEFAULT_MARGIN,
    **known: Any,
) -> Plan:
    """Compares both methods, and all mechanisms, within an epsilon, and recommends. Reads no votes.

    Each mechanism gets the least noise whose worst-case epsilon, over all data, keeps to the
    target. Compared are the expected numbers of correct labels that arrive, in the mean over the
    margin that is assumed of the votes, half and a quarter of it (`MARGINS`).

    Mechanisms whose mean is within half a hundredth of the queries of the best are ranked by the
    worst case.

    >>> import pate_tf
    >>> plan = pate_tf.plan(2.0, num_teachers=250, num_classes=10)
    >>> plan.mechanism.name, plan.num_queries
    ('gaussian_noisy_max', 20)
    >>> pate_tf.plan(0.1, num_records=60_000, pool_size=9_000).method
    'feature_sums'
    >>> print(plan)
    Plan for epsilon 2 at delta 1e-05, for every record, and 20 queries
    ...

    Args:
        epsilon: the most that the labels may cost together.
        delta: default 1e-5, or less of many records; 0 leaves mechanisms with a pure epsilon.
        num_teachers: that vote.
        num_queries: number of labels. Default: planned.
        mechanism: the only one to compare, by name or class.
        margin: by how many of the teachers, as a fraction, the first class is assumed to lead the
            second on every query.
        **known: of `PublicNumbers`: unit ("record" or "owner"), num_classes, num_records,
            pool_size, has_augmentation.

    Raises:
        ValueError: if a number is out of range, or no mechanism can be planned for.
    """
    if isinstance(mechanism, str):
        checks.one_of(base.offered(), mechanism=mechanism)
    stated = PlanSettings(
        known=PublicNumbers(**known),
        release=ReleaseSettings(
            budget=Budget(epsilon=epsilon, delta=delta),
            queries=QueryWishes(num_queries=num_queries),
            mechanism=base.offered()[mechanism] if isinstance(mechanism, str) else mechanism,
            num_teachers=num_teachers,
            margin=margin,
        ),
    )
    facts = stated.known
    resolutions = list[int]()
    if facts.pool_size and facts.has_augmentation and facts.num_records is not None:
        resolutions = cluster_numbers(facts.pool_size, facts.num_classes)
    try:
        if facts.unit == "record":
            sums = planned_sums(stated.target, facts, resolutions, None)
        else:  # their number is private in a run, where it decides nothing
            uncounted = dataclasses.replace(facts, num_records=None)
            sums = planned_sums(stated.target, uncounted, resolutions)
            outlooks = outlooks_of_sums(cast(ReleasesFeatureSums, sums.mechanism), facts)
            sums = dataclasses.replace(sums, outlooks=outlooks)
    except ValueError as error:  # there are none at delta 0
        if not facts.pool_size:
            raise
        return compared(stated, None, refusal=str(error))
    return compared(stated, sums)


def compared(stated: PlanSettings, sums: Candidate | None, *, refusal: str = "") -> Plan:
    """Returns the comparison of mechanisms of votes with planned feature sums.

    Args:
        stated: what it is made from.
        sums: what feature sums release; None where there are none, or votes alone are of interest.
        refusal: why there are none.

    Raises:
        ForecastError: if there is no pool, and sums would be noise.
        ValueError: if no mechanism can be planned for.
    """
    if sums is not None:
        refusal = sums.refusal
    if not stated.known.pool_size:
        if refusal:
            raise ForecastError(refusal)
        return Plan(settings=stated, num_queries=0, candidates=(), sums=sums)
    kinds = list(base.offered().values())
    quick: type[Mechanism] = GaussianHistogram if stated.target.delta else LaplaceNoisyMax
    if isinstance(stated.release.mechanism, type):
        quick = stated.release.mechanism
        kinds = [quick]
    number = stated.release.queries.num_queries
    if number is None:
        number = planned_num_queries(stated, quick)
    candidates = list[Candidate]()
    lacks = ""
    for kind in kinds:
        try:
            candidates.append(planned_candidate(kind, stated, number))
        except ValueError as error:  # it says what it lacks
            lacks = str(error)
    if not candidates:
        raise ValueError(f"mechanism: expected one that can be planned for: {lacks}")
    return Plan(
        settings=stated,
        num_queries=number,
        candidates=_ranked(candidates, number),
        sums=None if refusal else sums,
        refusal=refusal.removeprefix("epsilon: ").removeprefix("delta: "),
    )


def _ranked(candidates: Sequence[Candidate], number: int) -> tuple[Candidate, ...]:
    """Returns candidates, the best first, as `plan` says."""
    correct = {each: [outlook.expected_correct for outlook in each.outlooks] for each in candidates}
    good = [each for each in candidates if correct[each][0] >= GOOD_SHARE * number]
    compared = good or candidates
    enough = max(np.mean(correct[each]) for each in compared) - EQUALLY_GOOD * number

    def rank(candidate: Candidate) -> tuple[bool, float]:
        mean = float(np.mean(correct[candidate]))
        is_best = candidate in compared and mean >= enough
        return not is_best, -(correct[candidate][-1] if is_best else mean)

    return tuple(sorted(candidates, key=rank))


# What feature sums release within an epsilon, and what to expect of labels from them.


def planned_sums(
    target: Target, known: PublicNumbers, resolutions: Sequence[int], num_rounds: int | None = 1
) -> Candidate:
    """Returns what feature sums release within an epsilon, chosen from public values.

    Sums of features with Gaussian noise; or, where that noise is heavy for the number of records,
    counts of records in clusters with Laplace noise, which have no delta: as many clusters as leave
    a cluster `CLUSTER_RATIO` times the noise. At delta 0 these counts alone. Without public inputs
    second moments are released too.

    Args:
        target: what they may cost.
        known: the numbers of private records, of classes and of public inputs.
        resolutions: numbers of clusters that can be had; none where clusters are no use.
        num_rounds: of residual sums; None for `ROUNDS` where a class has `ROUNDS_RATIO` times more
            records than a single release has noise, 1 otherwise.

    Raises:
        ValueError: if at delta 0 there are no clusters.
    """
    num_classes = known.num_classes
    number = known.num_records
    of_class = (number or 0) / num_classes
    mechanism: ReleasesFeatureSums | None = _cluster_counts(target, known, resolutions)
    least = 0.0  # records of a class
    if mechanism is not None:
        least = LEAST_RATIO * mechanism.standard_deviation
    if target.delta or mechanism is None or not number or (num_rounds or 1) > 1:
        kind = GaussianFeatureSums if known.pool_size else GaussianMoments
        features = kind.for_target(target, np.zeros((1, num_classes), np.int64))
        if num_rounds is None:
            is_clear = known.pool_size > 0 and of_class / features.sigma >= ROUNDS_RATIO
            num_rounds = ROUNDS if is_clear else 1
        if num_rounds > 1:
            mechanism = target.least_noise(
                lambda scale: GaussianResidualSums(
                    sigma=scale, num_rounds=num_rounds, unit=target.unit
                )
            )
            least = mechanism.fewest_of_class
        elif mechanism is None or number is None or of_class >= features.fewest_of_class:
            mechanism = features
            least = features.sigma
    refusal = ""
    if number is not None and of_class < least:
        balanced = f"with balanced classes, about {of_class:,.0f} records per class"
        refusal = (
            f"epsilon: expected one at which records outweigh the noise, got {target.epsilon:g}: "
            f"{balanced}, below noise of {least:,.0f}. About {ceil(least) * num_classes:,} records "
            f"would be enough. {NOTHING_CHARGED}"
        )
        if mechanism.num_rounds > 1:
            refusal = (
                f"num_rounds: expected rounds whose noise leaves labels, got {num_rounds} at "
                f"epsilon {target.epsilon:g}: {balanced}, where {least:,.0f} are needed. "
                f"{NOTHING_CHARGED}"
            )
    return Candidate(
        mechanism=mechanism,
        epsilon=target.epsilon_of(mechanism),
        delta=0.0 if mechanism.pure_epsilon is not None else target.delta,
        outlooks=outlooks_of_sums(mechanism, known),
        refusal=refusal,
    )


def _cluster_counts(
    target: Target, known: PublicNumbers, resolutions: Sequence[int]
) -> LaplaceClusterCounts | None:
    """Returns counts in as many clusters as the noise allows; None where none fits."""
    moved = 1.0 if target.unit == "owner" else CHANGED
    scale = nextafter(moved / target.epsilon, inf)
    while nextafter(moved / scale, inf) > target.epsilon:
        scale = nextafter(scale, inf)
    least = known.num_classes
    most = max((known.num_records or 0) / (CLUSTER_RATIO * sqrt(2.0) * scale), least)
    fitting = [number for number in resolutions if least <= number <= most]
    if not fitting:
        return None
    return LaplaceClusterCounts(scale=scale, num_clusters=max(fitting), unit=target.unit)


def outlooks_of_sums(mechanism: ReleasesFeatureSums, known: PublicNumbers) -> tuple[Outlook, ...]:
    """Returns what to expect of labels from feature sums.

    An input's score of a class is its product with the noisy sum of that class: of its own class it
    is larger by margin times the records of a class, in the mean, and noise of standard deviation
    sigma is added to each score, as the input's vector has at most norm 1. Of several rounds it is
    what the first alone would leave. Of counts, the score is that of its cluster: larger by margin
    times the records of a cluster, with Laplace noise.

    Args:
        mechanism: that releases them.
        known: numbers of classes, of private records, whose number may not be public (then there
            is no outlook), and of public inputs: without any, as if there were as many.
    """
    law: GaussianNoisyMax | LaplaceNoisyMax = GaussianNoisyMax(sigma=_SCALE)
    margin = FEATURE_MARGIN
    num_sums = known.num_classes
    if isinstance(mechanism, LaplaceClusterCounts):
        law = LaplaceNoisyMax(scale=_SCALE)
        margin = CLUSTER_MARGIN
        num_sums = mechanism.num_clusters
    number = known.num_records
    if number is None:
        return ()
    (scale,) = mechanism.noise_scales.values()
    num_labels = float(known.pool_size or number)
    outlooks = []
    for share in MARGINS:
        counts = np.zeros((1, known.num_classes), np.int64)
        counts[0, 0] = round(min(margin * share * number / num_sums / scale, 100.0) * _SCALE)
        correct = float(law.outcome_probabilities(counts)[0, 0]) * num_labels
        outlooks.append(Outlook(margin * share, num_labels, correct))
    return tuple(outlooks)


def forecast_of_sums(candidate: Candidate, known: PublicNumbers, num_features: int) -> Forecast:
    """Returns the expected accuracy of labels from feature sums, by what other data sets had.

    Of sums of vectors it is `WITHOUT_NOISE`, drawn toward chance by s / (s + a), where s is the
    number of records of a class over the noise of all features of a sum, and a is 1/2 at best and 2
    at worst. Of counts it is `WITHOUT_NOISE` times what the noise leaves correct.

    Args:
        candidate: what is released, with its outlooks.
        known: as of `outlooks_of_sums`, with a number of private records.
        num_features: of a record's vector.
    """
    sums = candidate.mechanism
    number = known.num_records or 0
    chance = 1.0 / known.num_classes
    lowest, highest = WITHOUT_NOISE
    accuracies = [outlook.accuracy for outlook in candidate.outlooks]
    low = max(chance, lowest * min(accuracies))
    high = highest * max(accuracies)
    if isinstance(sums, GaussianFeatureSums):
        # Of a single release at this cost; rounds are no less accurate.
        noise = sums.sigma * np.sqrt(num_features / sums.num_rounds) * known.num_classes
        signal = number / noise
        low = float(chance + (max(lowest, chance) - chance) * signal / (signal + 2.0))
        high = float(chance + (highest - chance) * signal / (signal + 0.5))
    is_noise = candidate.outlooks[1].is_noise(known.num_classes)
    return Forecast(low, max(low, high), known.pool_size or number, is_noise=is_noise)
