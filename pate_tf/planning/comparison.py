"""Compares methods and mechanisms at a given epsilon, from public values only.

The result may be published, because no data, votes or ledgers are read. The expected accuracies
assume a vote margin. The privacy cost does not depend on this assumption.
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
from pate_tf.core.reporting import card
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
# Mechanisms are treated as equally good if their expected numbers of correct labels differ by at
# most this fraction of the queries.
EQUALLY_GOOD: Final = 0.005
# Feature sums with at least this expected accuracy are chosen without a comparison with votes.
ALWAYS_CHOSEN: Final = 1.0 - EQUALLY_GOOD
# Mechanisms, each with a similar mechanism whose noise is much faster to calibrate.
_SURROGATES: Final[dict[type[Mechanism], type[Mechanism]]] = {
    GaussianNoisyMax: GaussianHistogram,
    ConfidentGaussianNoisyMax: GaussianHistogram,
}
MIN_ACCURACY: Final = 0.5  # with a lower fraction of correct labels, labels are treated as noise

# Assumption about features: the inner product of a vector with the mean of its class, minus its
# inner product with the mean of another class.
FEATURE_MARGIN: Final = 0.12
# Assumed margin between the two most frequent classes of a cluster, as a fraction of its records.
CLUSTER_MARGIN: Final = 0.9
# To compare sums with votes, margins of sums are converted to votes. The scale of the noise becomes
# this number of votes.
_SCALE: Final = 1000.0

# Signal-to-noise ratios. CLUSTER_RATIO is the number of records per cluster, divided by the noise
# of a count. The others are numbers of records per class, divided by the noise. Below MIN_RATIO,
# labels are noise. From CLASS_RATIO, sums of vectors are preferred to counts in clusters: below it,
# counts gain .5 to 2.3 points on MNIST and Fashion-MNIST. From ROUNDS_RATIO, sums are released in
# several rounds. SMALL_POOL_RATIO replaces CLASS_RATIO if the pool has less than two clusters per
# class: with one, counts lose 7 points of label accuracy on scikit-learn's digits at epsilon 2.
CLUSTER_RATIO: Final = 6.0
MIN_RATIO: Final = 3.0
CLASS_RATIO: Final = 100.0
SMALL_POOL_RATIO: Final = 20.0
ROUNDS: Final = 16
# Without a pool. On folds of benchmarks/board, 40 rounds lose up to 4 points of accuracy, and 250
# rounds gain less than half a point.
ROUNDS_WITHOUT_POOL: Final = 120
ROUNDS_RATIO: Final = 400.0

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
        textwrap.fill(line, WIDTH, break_on_hyphens=False) for line in text.splitlines() if line
    ),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """Inputs of a plan. All of them are public values from the user; see `plan`.

    Attributes:
        known: numbers of records, classes and public inputs, and the protected unit.
        release: epsilon, delta, mechanism, queries, margin and number of teachers.
        purpose: if all noisy counts are used together, a sentence with the reason; otherwise empty.
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
                    f"num_teachers must be at most `num_records`, got {self.num_teachers:,} "
                    f"teachers for {number:,} records"
                )
        most = self.known.pool_size
        wanted = self.release.queries.num_queries
        if wanted is not None and not 1 <= wanted <= most:
            raise ValueError(f"num_queries must be from 1 to {most}, the pool size, got {wanted}")

    @property
    def num_teachers(self) -> int:
        """Number of teachers that vote."""
        return self.release.num_teachers or DEFAULT_NUM_TEACHERS

    @property
    def target(self) -> Target:
        """Maximum privacy cost of the release."""
        budget = self.release.budget
        delta = default_delta(self.known.num_records) if budget.delta is None else budget.delta
        return Target(epsilon=budget.epsilon or 0.0, delta=delta, unit=self.known.unit)

    def in_words(self) -> str:
        """Returns the assumption about votes, as a sentence."""
        return (
            f"on every query, the correct class has a vote margin of "
            f"{100.0 * self.release.margin:g} % of {self.num_teachers:,} teachers over each other "
            f"class, with {self.known.num_classes:,} classes"
        )


def planned_candidate(kind: type[Mechanism], settings: PlanSettings, num_queries: int) -> Candidate:
    """Returns a mechanism of a given type with the least noise within the target.

    The candidate also contains its expected labels. In the assumed votes, class 0 is correct.

    Raises:
        ValueError: if the mechanism can't meet the target. The message contains the reason.
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
        # Sum over all classes; classes with equal counts are computed only once.
        if mechanism.withholds:
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
    """Returns the number of queries that is expected to give many correct and few wrong labels.

    The function compares `NUMBERS`: 10, 20, 50 and so on up to 1,000. It considers numbers for
    which at least 95 % of the labels are expected to be correct at all `MARGINS`. If there are no
    such numbers, 95 % are required at the full and half the margin, then only at the full margin.
    Among these numbers, the result is the number with the most expected correct labels. If no
    number reaches 95 % at the full margin, the result is the number with the largest fraction of
    correct labels.
    """
    limit = min(settings.known.pool_size, NUMBERS[-1])
    numbers = [number for number in NUMBERS if number <= limit] or [limit]
    best = numbers[0]
    best_utility = (0, 0.0)
    for number in numbers:
        try:
            outlooks = planned_candidate(_SURROGATES.get(kind, kind), settings, number).outlooks
        except ValueError:  # no noise meets the target; the function `compared` reports why
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
    """Public: comparison of feature sums and all mechanisms for votes at the same epsilon.

    >>> import pate_tf
    >>> pate_tf.plan(2.0, num_teachers=250).forecast("pate").num_labels
    20.0

    Attributes:
        settings: inputs of the plan.
        num_queries: number of queries to the teachers.
        candidates: mechanisms of method pate, from the best to the worst; empty without a pool.
        sums: release of method feature_sums; None if its labels would be noise. The expected
            accuracies consider only the noise, not errors of the features. In the same way,
            expected accuracies of votes do not consider errors of the teachers.
        refusal: reason why labels from feature sums would be noise; otherwise empty.
    """

    settings: PlanSettings
    num_queries: int
    candidates: tuple[Candidate, ...]
    sums: Candidate | None
    refusal: str = ""

    @property
    def mechanism(self) -> Mechanism:
        """The recommended mechanism of method pate; without a pool, of method feature_sums."""
        return (*self.candidates, cast(Candidate, self.sums))[0].mechanism

    @property
    def expected_share(self) -> float:
        """Expected fraction of queries with a correct label, under the assumed margin."""
        return self.candidates[0].outlooks[0].expected_correct / self.num_queries

    @property
    def method(self) -> str:
        """The recommended method.

        It is feature_sums if the labels of this method are, at half the margin, at least about as
        accurate as labels from votes. Feature sums label the whole pool, but votes label only some
        queries.
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
        """Reason for the choice of the mechanism, for statements and reports."""
        if not self.candidates:
            return "The noise was chosen from public values."
        worst = self.candidates[0].outlooks[-1].expected_correct / self.num_queries
        target = self.settings.target
        return (
            "Mechanism, noise and number of queries were planned from public values, not from "
            f"votes. The plan is for epsilon {target.epsilon:g} at delta {target.delta:g} and "
            f"{self.num_queries:,} queries. It assumes that {self.settings.in_words()}. Then "
            f"{self.mechanism.name} labels {self.expected_share:.1%} of the queries correctly, or "
            f"{worst:.1%} at a quarter of this margin. The cost does not depend on the "
            f"assumption.{' ' if self.settings.purpose else ''}{self.settings.purpose}"
        )

    def forecast(
        self, method: str, num_features: int = 1, measured: Forecast | None = None
    ) -> Forecast | None:
        """Returns the expected accuracy of a method's labels; None if too little is known.

        For feature sums, the number of records must be public. For both methods, there must be a
        pool.

        For votes, the accuracy is the accuracy without noise, times the fraction of labels that are
        correct in spite of the noise. This fraction is computed at the assumed margin and at a
        quarter of it.

        Args:
            method: "pate" or "feature_sums".
            num_features: length of a record's feature vector, for feature sums; see
                `forecast_of_sums`.
            measured: accuracy of votes without noise, measured on public labels of the pool.
                Default: the range of accuracies on other data sets (`WITHOUT_NOISE`).
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
        # With less than one record per class and teacher, most teachers have no records of some
        # classes.
        least = self.settings.num_teachers * known.num_classes
        is_known = (known.num_records or inf) >= least
        return Forecast(
            low=low,
            high=max(low, highest * max(accuracies)),
            num_labels=candidate.outlooks[1].expected_labels,
            is_measured=measured is not None,
            auc=None if measured is None else measured.auc,
            is_noise=candidate.outlooks[1].is_noise(known.num_classes)
            or self.expected_share < MIN_ACCURACY
            or not is_known,
        )

    @property
    def is_noise(self) -> bool:
        """Whether labels of the recommended method are expected to be noise."""
        # If all counts are used together, single labels may be wrong.
        forecast = None if self.settings.purpose else self.forecast(self.method)
        return forecast is not None and forecast.is_noise

    def commands(self, method: str) -> tuple[str, ...]:
        """Returns the commands that run a method."""
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
        """Returns the comparison as a text table, with its assumptions.

        Args:
            of_votes: whether to leave out feature sums and commands.
        """
        of_votes = of_votes or self.settings.release.mechanism is not None
        named = [(candidate.mechanism.name, candidate) for candidate in self.candidates]
        if named and self.sums is not None and not of_votes:
            named.append((FEATURE_SUMS, self.sums))
        # If epsilon is within the target, the rounded epsilon must not exceed the target.
        most = f"{self.settings.target.epsilon:.12g}"
        rows = [
            (name, min(rounded_up(candidate.epsilon), most, key=float), candidate.outlooks)
            for name, candidate in named
        ]
        # If all counts are used together, single labels may be wrong.
        forecasts = {} if self.settings.purpose else {name: self.forecast(name) for name in METHODS}
        page = TEMPLATES.get_template("comparison.md").render(
            plan=self,
            of_votes=of_votes,
            rows=rows,
            noise=[name for name, forecast in forecasts.items() if forecast and forecast.is_noise],
        )
        return page.rstrip()

    __str__ = in_words

    _repr_html_ = card

    def to_dict(self) -> dict[str, Any]:
        """Returns the plan as JSON values."""
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
    """Compares both methods and all mechanisms at one epsilon, and recommends one of them.

    No votes are read. Each mechanism gets the least noise for which the worst-case epsilon is
    within the target. Mechanisms are ranked by the expected number of correct labels. This number
    is averaged over three vote margins: the assumed margin, half of it and a quarter of it
    (`MARGINS`).

    If the averages of the best mechanisms differ by at most 0.5 % of the queries, these mechanisms
    are ranked by their expected number of correct labels at a quarter of the margin.

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
        epsilon: maximum total epsilon of the labels.
        delta: delta of the guarantee. 0 is possible only for mechanisms with a pure epsilon.
            Default: 1e-5, or less if there are many records.
        num_teachers: number of teachers that vote.
        num_queries: number of queries. Default: chosen by the plan.
        mechanism: name or class of a single mechanism. Default: all mechanisms are compared.
        margin: assumed vote margin of every query, as a fraction of the teachers.
        **known: fields of `PublicNumbers`: unit ("record" or "owner"), num_classes, num_records,
            pool_size, has_augmentation.

    Raises:
        ValueError: if a number is out of range, or no mechanism has noise within the target.
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
            sums = planned_sums(stated.target, facts, resolutions, has_rounds=True)
        else:  # the number of owners is private in a run, so it must not influence a plan
            uncounted = dataclasses.replace(facts, num_records=None)
            sums = planned_sums(stated.target, uncounted, resolutions)
            outlooks = outlooks_of_sums(cast(ReleasesFeatureSums, sums.mechanism), facts)
            sums = dataclasses.replace(sums, outlooks=outlooks)
    except ValueError as error:  # delta is 0, and there are no cluster counts
        if not facts.pool_size:
            raise
        return compared(stated, None, refusal=str(error))
    return compared(stated, sums)


def compared(stated: PlanSettings, sums: Candidate | None, *, refusal: str = "") -> Plan:
    """Compares all mechanisms for votes with planned feature sums.

    Args:
        stated: inputs of the plan.
        sums: planned feature sums; None to compare only mechanisms for votes.
        refusal: reason why feature sums are not possible; otherwise empty.

    Raises:
        ForecastError: if there is no pool and labels from feature sums would be noise.
        ValueError: if no mechanism has noise within the target.
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
    reason = ""
    for kind in kinds:
        try:
            candidates.append(planned_candidate(kind, stated, number))
        except ValueError as error:
            reason = str(error)
    if not candidates:
        raise ValueError(f"mechanism: no mechanism is possible for this target: {reason}")
    return Plan(
        settings=stated,
        num_queries=number,
        candidates=_ranked(candidates, number),
        sums=None if refusal else sums,
        refusal=refusal,
    )


def _ranked(candidates: Sequence[Candidate], number: int) -> tuple[Candidate, ...]:
    """Sorts the candidates from the best to the worst, by the order that `plan` describes."""
    correct = {each: [outlook.expected_correct for outlook in each.outlooks] for each in candidates}
    good = [each for each in candidates if correct[each][0] >= GOOD_SHARE * number]
    compared = good or candidates
    enough = max(np.mean(correct[each]) for each in compared) - EQUALLY_GOOD * number

    def rank(candidate: Candidate) -> tuple[bool, float]:
        mean = float(np.mean(correct[candidate]))
        is_best = candidate in compared and mean >= enough
        return not is_best, -(correct[candidate][-1] if is_best else mean)

    return tuple(sorted(candidates, key=rank))


# Planned feature sums within an epsilon, and the expected accuracy of their labels.


def planned_sums(
    target: Target, known: PublicNumbers, resolutions: Sequence[int], *, has_rounds: bool = False
) -> Candidate:
    """Plans feature sums within an epsilon, from public values.

    The release consists of sums of features with Gaussian noise. If that noise is too large for the
    number of records, or delta is 0, it consists of counts of records in clusters with Laplace
    noise instead. The number of clusters is the largest for which the mean number of records in a
    cluster is at least `CLUSTER_RATIO` times the noise of a count. Without public inputs, there are
    several rounds, or second moments are released as well.

    Args:
        target: maximum privacy cost of the release.
        known: numbers of private records, classes and public inputs.
        resolutions: possible numbers of clusters; empty if clusters are not possible.
        has_rounds: whether sums can be released in several rounds. Never for owners, because later
            rounds protect only records.

    Raises:
        ValueError: if delta is 0 and there are no clusters.
    """
    num_classes = known.num_classes
    number = known.num_records
    of_class = (number or 0) / num_classes
    mechanism: ReleasesFeatureSums | None = _cluster_counts(target, known, resolutions)
    least = 0.0  # records per class
    if mechanism is not None:
        least = MIN_RATIO * mechanism.standard_deviation
    if target.delta or mechanism is None or not number:
        kind = GaussianFeatureSums if known.pool_size else GaussianMoments
        features = kind.for_target(target, np.zeros((1, num_classes), np.int64))
        ratio = CLASS_RATIO if max(resolutions, default=0) >= 2 * num_classes else SMALL_POOL_RATIO
        num_rounds = _number_of_rounds(known, features.sigma) if has_rounds else 1
        if num_rounds > 1:
            mechanism = target.least_noise(
                lambda scale: GaussianResidualSums(sigma=scale, num_rounds=num_rounds)
            )
            least = features.sigma
        elif mechanism is None or number is None or of_class >= ratio * features.sigma:
            mechanism = features
            least = features.sigma
    refusal = ""
    if number is not None and of_class < least:
        balanced = f"with balanced classes, about {of_class:,.0f} records per class"
        refusal = (
            f"epsilon={target.epsilon:g} needs so much noise that labels would be random: "
            f"{balanced}, but the noise needs at least {least:,.0f}. About "
            f"{ceil(least) * num_classes:,} records would be enough. {NOTHING_CHARGED}"
        )
    return Candidate(
        mechanism=mechanism,
        epsilon=target.epsilon_of(mechanism),
        delta=0.0 if mechanism.pure_epsilon is not None else target.delta,
        outlooks=outlooks_of_sums(mechanism, known),
        refusal=refusal,
    )


def _number_of_rounds(known: PublicNumbers, noise: float) -> int:
    """Returns the number of rounds of residual sums, given the noise of a single release."""
    if not known.pool_size:
        return ROUNDS_WITHOUT_POOL
    is_precise = (known.num_records or 0) / known.num_classes / noise >= ROUNDS_RATIO
    return ROUNDS if is_precise else 1


def _cluster_counts(
    target: Target, known: PublicNumbers, resolutions: Sequence[int]
) -> LaplaceClusterCounts | None:
    """Plans counts of records in as many clusters as possible.

    None if clusters are not possible.
    """
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
    """Returns the expected number of labels, and of correct labels, from feature sums.

    The result has one entry for each assumed margin. The score of an input for a class is the inner
    product of its vector with the noisy sum of this class. The score of the correct class is
    assumed to exceed all other scores by the margin times the number of records per class. The
    vector has a norm of at most 1, so the noise of a score has a standard deviation of at most
    sigma. For several rounds with a pool, only the first round is considered. For cluster counts,
    the score is the noisy count of the class in the input's cluster. The score of the correct class
    is assumed to exceed all other scores by the margin times the number of records per cluster. The
    noise is Laplace noise.

    Args:
        mechanism: mechanism that releases the sums.
        known: numbers of classes, private records and public inputs. If the number of records is
            None, the result is empty. Without public inputs, the number of labels is the number of
            private records.
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
    if not known.pool_size:  # all rounds together determine the model
        scale /= sqrt(mechanism.num_rounds)
    num_labels = float(known.pool_size or number)
    outlooks = []
    for share in MARGINS:
        counts = np.zeros((1, known.num_classes), np.int64)
        counts[0, 0] = round(min(margin * share * number / num_sums / scale, 100.0) * _SCALE)
        correct = float(law.outcome_probabilities(counts)[0, 0]) * num_labels
        outlooks.append(Outlook(margin * share, num_labels, correct))
    return tuple(outlooks)


def forecast_of_sums(candidate: Candidate, known: PublicNumbers, num_features: int) -> Forecast:
    """Forecasts the accuracy of labels from feature sums, from results on other data sets.

    For sums of vectors, the accuracy is chance + (`WITHOUT_NOISE` - chance) s / (s + a). In this
    formula, s is a signal-to-noise ratio: the number of records per class, divided by the noise in
    all features of a sum together. The constant a is 2 for the lower end of the forecast range, and
    1/2 for the upper end. For cluster counts, the accuracy is `WITHOUT_NOISE` times the fraction of
    labels that are correct in spite of the noise.

    Args:
        candidate: planned feature sums, with their outlooks.
        known: numbers of classes, private records and public inputs. The number of records must not
            be None.
        num_features: length of a record's feature vector.
    """
    sums = candidate.mechanism
    number = known.num_records or 0
    chance = 1.0 / known.num_classes
    lowest, highest = WITHOUT_NOISE
    accuracies = [outlook.accuracy for outlook in candidate.outlooks]
    low = max(chance, lowest * min(accuracies))
    high = highest * max(accuracies)
    if isinstance(sums, GaussianFeatureSums):
        # Several rounds are at least as accurate as a single release with the same cost. `noise` is
        # the noise of this single release, times the number of classes.
        noise = sums.sigma / np.sqrt(sums.num_rounds) * known.num_classes
        # In rounds without a pool, the product of a vector with a sum has noise of only sigma from
        # all features together. On twelve tables of benchmarks/board at epsilon 0.1 to 3, most
        # accuracies are in the range for this exponent.
        is_gradual = sums.num_rounds > 1 and not known.pool_size
        noise *= num_features ** (0.25 if is_gradual else 0.5)
        signal = number / noise
        low = float(chance + (max(lowest, chance) - chance) * signal / (signal + 2.0))
        high = float(chance + (highest - chance) * signal / (signal + 0.5))
    is_noise = candidate.outlooks[1].is_noise(known.num_classes)
    return Forecast(low, max(low, high), known.pool_size, is_noise=is_noise)
