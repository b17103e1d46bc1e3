"""Which method, mechanism and noise for an epsilon: from public values alone, so publishable.

Reads no data, no votes and no ledger. TensorFlow is not imported.
"""

from __future__ import annotations

import dataclasses
import html
import textwrap
from math import ceil, inf
from typing import Any, Final

import numpy as np

from pate_tf.accounting.charge import rounded_up
from pate_tf.accounting.delta import DEFAULT_DELTA, DELTA, check_delta, default_delta
from pate_tf.accounting.mechanisms import (
    GaussianFeatureSums,
    GaussianNoisyMax,
    LaplaceNoisyMax,
    Mechanism,
    base,
)
from pate_tf.accounting.mechanisms.base import UNITS, ReleasesFeatureSums, Target
from pate_tf.accounting.planning import (
    DEFAULT_MARGIN,
    MARGINS,
    NUMBERS,
    WIDTH,
    Outlook,
    Recommendation,
    cluster_numbers,
    least_noise,
    most_queries,
    outlook_in_words,
    planned_sums,
    recommend,
)
from pate_tf.analysis.report import shown
from pate_tf.core.reporting import Table, TablesReport
from pate_tf.core.settings import Settings, setting

PATE, FEATURE_SUMS = "pate", "feature_sums"
DEFAULT_NUM_TEACHERS: Final = 100
# Of feature sums, what the margin of the votes is of votes: by how much a record's vector is nearer
# to the mean of its class than to another. With it the forecast says 79 % where 69 to 75 % of the
# labels of Fashion-MNIST's pool were right, and 41 % where 41 to 54 % were.
FEATURE_MARGIN: Final = 0.12
# Lowest and highest accuracy of labels without noise, in the first four of benchmarks/own_data.py.
WITHOUT_NOISE: Final = (0.6, 0.97)
# The same of counts: by which share of a cluster's records its first class leads the second. At an
# epsilon of .01 the forecast is 99.8, 95, 66 and 19 % for 30, 50, 100 and 400 clusters; of MNIST's
# pool 99.5, 95, 66 and 24 % of what is right without noise was right there before averaging.
CLUSTER_MARGIN: Final = 0.9
_SCALE: Final = 1000.0  # votes that stand for one standard deviation of the sums' noise


@dataclasses.dataclass(frozen=True, kw_only=True)
class PlanSettings(Settings):
    """What a comparison of methods is made from. Public, all of it stated by the user.

    >>> import pate_tf
    >>> pate_tf.PlanSettings(epsilon=0.25, num_teachers=250, num_records=60_000).unit
    'record'
    """

    epsilon: float = setting(
        group="privacy", above=0.0, help="What the release may cost at --delta, whatever the data."
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
        least=1,
        help="Number of public inputs, which form the student's pool.",
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
    mechanism: str | None = setting(
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
    num_exceptions: int = setting(
        0,
        group="method pate",
        flag="exceptions",
        least=0,
        help="Queries on which teachers are assumed to be divided.",
    )
    has_augmentation: bool = setting(
        True,
        group="data",
        flag="augmented",
        help="The inputs are images whose data set names an augmentation. Only then can "
        "feature_sums count records in clusters of the pool.",
    )
    dataset: str | None = setting(
        None,
        group="output",
        help="Name of the data set, for the commands that are printed; nothing of it is read.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.delta is None:
            object.__setattr__(self, "delta", default_delta(self.num_records))
        check_delta(self.delta or 0.0, self.num_records, self.unit)
        if self.num_records is not None and self.num_records < self.num_teachers:
            raise ValueError(
                f"num_teachers: expected at most `num_records`, got {self.num_teachers:,} teachers "
                f"for {self.num_records:,} records"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Forecast:
    """Expected accuracy of the labels of a method, from public values. Public.

    Attributes:
        low: lower end of the range in which it is expected.
        high: upper end.
        num_labels: expected labels.
        by: what the range follows from.
    """

    low: float
    high: float
    num_labels: float
    by: str = "by what other data sets had"

    def in_words(self) -> str:
        """Returns the forecast as a sentence."""
        middle = (self.low + self.high) / 2.0
        return (
            f"about {self.num_labels:,.0f} labels, about {middle:.0%} of them right "
            f"({self.low:.0%} to {self.high:.0%}, {self.by})"
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class MethodComparison:
    """Both methods within one epsilon, and all mechanisms of the first. Public.

    >>> import pate_tf
    >>> found = pate_tf.compare_methods(pate_tf.PlanSettings(
    ...     epsilon=0.25, num_teachers=250, num_records=60_000))
    >>> found.method
    'feature_sums'

    Attributes:
        asked: what the comparison was made from.
        plan: of method pate: its mechanisms, the recommended one first.
        sums: what method feature_sums releases, with its noise; None where that would be noise.
        sums_epsilon: what these sums cost.
        refusal: why there are none.
        outlooks: of the labels of feature sums, at falling margins; empty where the number of
            records is not known. Noise alone: errors that the features make
            without it come on top, as the teachers' own errors do with votes.
    """

    asked: PlanSettings
    plan: Recommendation
    sums: ReleasesFeatureSums | None
    sums_epsilon: float
    outlooks: tuple[Outlook, ...]
    refusal: str = ""

    @property
    def method(self) -> str:
        """The recommended method: feature_sums where its labels are as accurate at half the margin.

        It labels the whole pool; votes label some queries.
        """
        if self.asked.mechanism is not None or not self.outlooks:
            return PATE
        votes, sums = self.plan.candidates[0].outlooks[1], self.outlooks[1]
        share = votes.expected_right / max(votes.expected_labels, 1.0)
        return FEATURE_SUMS if sums.expected_right >= share * sums.expected_labels else PATE

    def forecast(self, method: str, num_features: int = 1) -> Forecast | None:
        """Returns the expected accuracy of a method's labels; None for sums of uncounted records.

        Of votes it is what noise leaves right, at the assumed margin and at a quarter of it, times
        `WITHOUT_NOISE`. Of feature sums it is `WITHOUT_NOISE`, drawn towards chance by s / (s + a),
        where s is the number of records of a class over the noise of all features of a sum, and a
        is 1/2 at best and 2 at worst: read off the pools of the first four of
        benchmarks/own_data.py.

        Args:
            method: "pate" or "feature_sums".
            num_features: of a record's vector, for feature sums.
        """
        if method == FEATURE_SUMS and self.asked.num_records is None:
            return None
        (lowest, highest), chance = WITHOUT_NOISE, 1.0 / self.asked.num_classes
        if method == FEATURE_SUMS and self.sums is not None and self.sums.num_clusters is None:
            # Of a single release at this cost, by which the range was read off; rounds say no less.
            deviation = self.sums.standard_deviation / np.sqrt(self.sums.num_rounds)
            noise = deviation * np.sqrt(num_features) * self.asked.num_classes
            signal = self.asked.num_records / noise
            low, high = (
                chance + (most - chance) * signal / (signal + half)
                for most, half in ((max(lowest, chance), 2.0), (highest, 0.5))
            )
            return Forecast(low=float(low), high=float(high), num_labels=self.asked.pool_size)
        is_of_votes = method != FEATURE_SUMS
        outlooks = self.plan.candidates[0].outlooks if is_of_votes else self.outlooks
        if not outlooks:
            return None
        shares = [one.expected_right / max(one.expected_labels, 1.0) for one in outlooks]
        return Forecast(
            low=max(chance, lowest * min(shares)),
            high=highest * max(shares),
            num_labels=outlooks[1].expected_labels,
        )

    def commands(self, method: str) -> tuple[str, ...]:
        """Returns what to type for a method, a line for each command."""
        asked = self.asked
        data = f"--dataset={asked.dataset or 'NAME'}"
        cost = f"--epsilon={asked.epsilon:.12g} --delta={asked.delta:.12g}"
        if method == FEATURE_SUMS:
            return (f"pate student {data} --method=feature_sums {cost}",)
        chosen = f"--mechanism={self.plan.mechanism.name} --queries={self.plan.num_queries}"
        teachers = f"{data} --nb_teachers={asked.num_teachers}"
        return f"pate teachers {teachers}", f"pate student {teachers} {cost} {chosen}"

    def in_words(self) -> str:
        """Returns the comparison as text: methods, commands, mechanisms, what is assumed."""
        asked, best = self.asked, self.plan.candidates[0]
        rows = [(PATE, self.plan.mechanism.name, best.epsilon, best.outlooks)]
        if asked.mechanism is None and self.sums is not None:
            rows.append((FEATURE_SUMS, _noise_of(self.sums), self.sums_epsilon, self.outlooks))
        width = max(len(noise) for _, noise, _, _ in rows)
        heads = "".join(f"  {head:>16}" for head in ("as assumed", "half the margin", "a quarter"))
        lines = [
            f"Methods for epsilon {asked.epsilon:g} at delta {asked.delta:g}, "
            f"for every {asked.unit}",
            "",
            "Expected labels that arrive, and the share of them that noise leaves right:",
            "",
            f"  {'method':12}  {'noise'.ljust(width)}  epsilon{heads}",
        ]
        for method, noise, epsilon, outlooks in rows:
            cells = "".join(f"  {outlook_in_words(one):>16}" for one in outlooks) or (
                "  not known without the number of records"
            )
            shown = min(rounded_up(epsilon), f"{asked.epsilon:g}", key=float)
            lines.append(f"  {method:12}  {noise.ljust(width)}  {shown:>7}{cells}")
        lines += ["", f"Recommended: {self.method}"]
        lines += [f"  {line}" for line in self.commands(self.method)]
        if asked.mechanism is None and self.sums is None:
            lines += ["", *textwrap.wrap(f"feature_sums is refused: {self.refusal}", WIDTH)]
        elif asked.mechanism is None:
            other = PATE if self.method == FEATURE_SUMS else FEATURE_SUMS
            lines += ["", f"Or {other}", *(f"  {line}" for line in self.commands(other))]
            lines += ["", *textwrap.wrap(self._of_sums(), WIDTH)]
        return "\n".join([*lines, "", "", self.plan.in_words(with_flags=False)])

    __str__ = in_words

    def _of_sums(self) -> str:
        """Returns what is released, from how many records on, and what its forecast assumes."""
        asked = self.asked
        if self.sums is not None and self.sums.num_clusters is not None:
            return (
                f"feature_sums asks no teacher: it counts the records of each class in "
                f"{self.sums.num_clusters} clusters of the pool, adds noise, and labels the whole "
                f"pool. Its guarantee has no delta. Its forecast is a guess from one data set: "
                f"the first class of a cluster leads the second by {CLUSTER_MARGIN:g} of its "
                f"records."
            )
        features = planned_features(asked)
        fewest = ceil(features.fewest_of_class * asked.num_classes)
        fewer = " Of fewer, counts in clusters are planned." if asked.has_augmentation else ""
        in_rounds = ""
        if self.sums is not None and self.sums.num_rounds > 1:
            in_rounds = (
                f" It does so in {self.sums.num_rounds} rounds, charged together; each later one "
                f"sums what a linear model of the earlier ones misses."
            )
        return (
            f"feature_sums asks no teacher: it adds noise to the sum of clipped feature vectors of "
            f"each class, and labels the whole pool.{in_rounds} It is worth its cost from about "
            f"{fewest:,} private {asked.unit}s on.{fewer} Its forecast is a guess from one data "
            f"set: an input's features are nearer to those of its own class by {FEATURE_MARGIN:g} "
            f"of their length."
        )

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        return {
            "target_epsilon": self.asked.epsilon,
            "delta": self.asked.delta,
            "method": self.method,
            "commands": {method: list(self.commands(method)) for method in (PATE, FEATURE_SUMS)},
            "plan": self.plan.to_dict(),
            "feature_sums": {
                "mechanism": self.sums.to_dict(),
                "epsilon": self.sums_epsilon,
                "delta": 0.0 if self.sums.pure_epsilon is not None else self.asked.delta,
                "outlooks": [dataclasses.asdict(one) for one in self.outlooks],
            }
            if self.sums is not None
            else {"refused": self.refusal},
        }

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(self.in_words())}</pre>"


def compare_methods(settings: PlanSettings) -> MethodComparison:
    """Compares both methods, and all mechanisms, within an epsilon, and recommends one.

    >>> import pate_tf
    >>> found = pate_tf.compare_methods(pate_tf.PlanSettings(
    ...     epsilon=0.1, num_teachers=100, num_records=60_000, pool_size=9_000))
    >>> found.method
    'feature_sums'
    >>> print(found)
    Methods for epsilon 0.1 at delta 1e-06, for every record
    ...

    Raises:
        ValueError: if a number is out of range, or no mechanism can be planned for.
    """
    plan = recommend(
        target_epsilon=settings.epsilon,
        delta=settings.delta or 0.0,
        num_teachers=settings.num_teachers,
        num_classes=settings.num_classes,
        num_queries=settings.num_queries,
        pool_size=settings.pool_size,
        unit=settings.unit,
        margin=settings.margin,
        num_exceptions=settings.num_exceptions,
        mechanism=settings.mechanism,
    )
    target = _target(settings)
    sums, refusal = None, ""
    try:
        sums = planned_sums(
            target,
            settings.num_records if settings.unit == "record" else None,
            settings.num_classes,
            cluster_numbers(settings.pool_size, settings.num_classes)
            if settings.has_augmentation
            else (),
            None if settings.unit == "record" else 1,
        )
    except ValueError as error:
        refusal = str(error).removeprefix("epsilon: ").removeprefix("delta: ")
    return MethodComparison(
        asked=settings,
        plan=plan,
        sums=sums,
        sums_epsilon=inf if sums is None else target.epsilon_of(sums),
        outlooks=() if sums is None else sums_outlooks(sums, settings),
        refusal=refusal,
    )


def _target(settings: PlanSettings) -> Target:
    return Target(
        epsilon=settings.epsilon,
        delta=settings.delta or 0.0,
        num_queries=1,
        unit=settings.unit,
    )


def planned_features(settings: PlanSettings) -> GaussianFeatureSums:
    """Returns sums of feature vectors with the least noise within an epsilon."""
    return _target(settings).least_noise(GaussianFeatureSums.of_scale)


def _noise_of(sums: ReleasesFeatureSums) -> str:
    if sums.num_clusters is not None:
        (scale,) = sums.noise_scales.values()
        return f"scale {scale:.4g}, {sums.num_clusters} clusters"
    in_rounds = f", {sums.num_rounds} rounds" if sums.num_rounds > 1 else ""
    return f"sigma {sums.standard_deviation:.4g}{in_rounds}"


def sums_outlooks(sums: ReleasesFeatureSums, settings: PlanSettings) -> tuple[Outlook, ...]:
    """Returns what is expected of the labels that feature sums give a pool, by falling margins.

    An input's score of a class is its product with the noisy sum of that class: of its own class it
    is larger by margin times the records of a class, in the mean, and noise of standard deviation
    sigma is added to each score, as the input's vector has at most norm 1. Of several rounds it is
    what the first alone would leave. Of counts, the score is
    that of its cluster: larger by margin times the records of a cluster, with Laplace noise.
    """
    if settings.num_records is None:
        return ()
    scale, assumed, of_scores = sums.standard_deviation, FEATURE_MARGIN, settings.num_classes
    law: GaussianNoisyMax | LaplaceNoisyMax = GaussianNoisyMax(sigma=_SCALE)
    if sums.num_clusters is not None:
        (scale,) = sums.noise_scales.values()
        assumed, of_scores = CLUSTER_MARGIN, sums.num_clusters
        law = LaplaceNoisyMax(scale=_SCALE)
    found = []
    for share in MARGINS:
        lead = assumed * share * settings.num_records / of_scores / scale
        counts = np.zeros((1, settings.num_classes), np.int64)
        counts[0, 0] = round(min(lead, 100.0) * _SCALE)
        right = float(law.outcome_probabilities(counts)[0, 0])
        found.append(
            Outlook(
                margin=assumed * share,
                expected_labels=float(settings.pool_size),
                expected_right=right * settings.pool_size,
            )
        )
    return tuple(found)


def calibrate(
    mechanism: Mechanism | type[Mechanism],
    *,
    epsilon: float,
    num_queries: int | None = None,
    delta: float = DEFAULT_DELTA,
) -> TablesReport:
    """Finds the least noise for a number of queries, or the most queries for a noise.

    Args:
        mechanism: its kind, to find the least noise; with its noise, to find the most queries.
        epsilon: the target, data-independent.
        num_queries: how many labels; None to find the most.
        delta: of the target.

    Raises:
        ValueError: if the target can't be met, or both or neither of noise and number are given.
    """
    if isinstance(mechanism, type):
        if num_queries is None:
            raise ValueError("num_queries: expected it where the noise is to be found, got none")
        mechanism = least_noise(mechanism, num_queries=num_queries, epsilon=epsilon, delta=delta)
    elif num_queries is not None:
        raise ValueError("num_queries: expected none with the noise given, got both")
    else:
        num_queries = most_queries(mechanism, epsilon=epsilon, delta=delta)
    cost, _ = mechanism.data_independent_epsilon(num_queries=num_queries, delta=delta)
    rows = [("mechanism", mechanism.name)]
    typed: dict[str, float | None] = {"lap_scale": None}
    for parameter in mechanism.parameters:
        value = getattr(mechanism, parameter.field)
        for flag in parameter.flags:
            is_own = flag.is_inverse or flag.name == parameter.field
            name = flag.name if is_own else f"{flag.name} ({parameter.field})"
            rows.append((name, f"{flag.shown(value):f} {flag.unit}".rstrip()))
            typed[flag.name] = float(flag.shown(value))
    rows += [
        ("queries", f"{num_queries:,}"),
        (
            "epsilon, data-independent",
            f"{shown(cost)} at delta {delta:g}, both directions; target {epsilon:g}",
        ),
    ]
    values: dict[str, object] = {
        **typed,
        "queries": num_queries,
        "mechanism": mechanism.to_dict(),
        "delta": delta,
        "target_epsilon": epsilon,
        "epsilon_data_independent": cost,
        "sensitive": [],
    }
    return TablesReport(tables=[Table(title="Calibration, publishable", rows=rows)], values=values)
