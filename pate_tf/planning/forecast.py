"""What to expect of labels before they are paid for: a forecast, from public values alone."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from math import inf, sqrt
from typing import Any, Final, NamedTuple

import numpy as np

from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.core.checks import ITEM, IntArray
from pate_tf.core.dataset import CLASS
from pate_tf.core.public import MEASURES
from pate_tf.core.settings import EpsilonDelta

WITHOUT_NOISE: Final = (0.6, 0.97)  # lowest and highest accuracy of labels without noise
UNEVEN_SHARE: Final = 0.8  # of the most frequent class, above which ranking counts
NOISE: Final = "the noise leaves too few correct labels"
HELPS: Final = (
    "What helps: more private records, a larger epsilon, fewer classes, or an encoder "
    "(docs/how-to/pretrained_encoder.md)."
)
NOTHING_CHARGED: Final = ITEM.join(
    ("Nothing was charged.", HELPS, "To continue anyway: `accept_forecast`.")
)
ENCODER_HELPS: Final = (
    "For photographs above 32 x 32 pixels use a pre-trained encoder, such as "
    "--representation=EfficientNetV2B0 (docs/how-to/pretrained_encoder.md)."
)
TEXT_ENCODER_HELPS: Final = (
    "For texts use a pre-trained text encoder, such as --representation=hub:FOLDER with a preset "
    "of keras-hub (docs/how-to/pretrained_encoder.md)."
)


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


def compared_in_words(majority: float | None) -> str:
    """Returns what the accuracy of labels compares with, the pool's majority share, as a sentence.

    Args:
        majority: share of the pool's most frequent class; None if the pool has no labels.
    """
    if majority is None:
        return "The pool has no labels: no comparison with the share of its most frequent class."
    return f"The most frequent class of the pool has a share of {majority:.1%}."


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
        lead: how much more often labels of all of the pool are correct than the most frequent class
            on the same samples; None where it was not measured.
        auc: as of `core.public.area_under_curve`; None where it was not measured.
        balanced: mean recall of the classes; None where it was not measured.
        public_accuracy: what a student reaches by the public labels only; None where it does not
            learn from them.
        gain: what the private data are expected to add to that.
        gain_error: standard error of that gain.
        target: what is predicted. Of a "number" and of "labels" the range is that of their measure
            in `core.public.MEASURES`, and not of an accuracy.
    """

    low: float
    high: float
    num_labels: float
    is_measured: bool = False
    is_noise: bool = False
    lead: float | None = None
    auc: float | None = None
    target: str = CLASS
    balanced: float | None = None
    public_accuracy: float | None = None
    gain: float = 0.0
    gain_error: float = 0.0

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
        is_correct = np.atleast_2d(predictions == truth)
        number = len(truth)
        accuracy = float(is_correct.mean())
        between = 0.0
        variance = max(accuracy * (1.0 - accuracy), 1.0 / number)
        if folds is not None:
            sizes = np.bincount(folds)
            of_noise = np.array([np.bincount(folds, each) / sizes for each in is_correct])
            between = max(float(of_noise.var(ddof=1)) - variance / float(sizes.mean()), 0.0)
        error = 2.0 * sqrt(variance / number + between)
        low = max(accuracy - error, 0.0)
        high = min(accuracy + error, 1.0)
        leads = is_correct.mean(axis=0) - (truth == np.bincount(truth).argmax())
        recall = [is_correct[:, truth == label].mean() for label in np.unique(truth)]
        return cls(
            low,
            high,
            num_labels,
            is_measured=True,
            lead=float(leads.mean()),
            balanced=float(np.mean(recall)),
        )

    @classmethod
    def of_scores(cls, scores: Sequence[float], num_labels: int, target: str) -> Forecast:
        """Returns the forecast of numbers or several labels, by how good trials were.

        Two standard deviations of the trials to each side: each has noise and samples of its own,
        as the release will have.
        """
        middle = float(np.mean(scores))
        error = 2.0 * float(np.std(scores, ddof=1)) if len(scores) > 1 else inf
        low = middle - error
        high = min(middle + error, 1.0)
        return cls(low, high, num_labels, is_measured=True, target=target)

    def with_private(self, gain: float, gain_error: float) -> Forecast:
        """Returns the forecast with private data, of one with the public labels only."""
        return self._replace(
            low=self.low + gain,
            high=min(self.high + gain, 1.0),
            lead=None if self.lead is None else self.lead + gain,
            public_accuracy=self.accuracy,
            gain=gain,
            gain_error=gain_error,
        )

    @property
    def accuracy(self) -> float:
        """The middle of the range."""
        return (self.low + self.high) / 2.0

    def excludes(self, reached: float | None) -> bool | None:
        """Whether an accuracy is more than four standard errors from the middle of the range.

        None where it is unknown, or the range is that of other data sets.
        """
        if reached is None or not self.is_measured:
            return None
        return abs(reached - self.accuracy) > self.high - self.low

    def in_words(self, majority: float | None) -> str:
        """Returns the forecast beside the share of the pool's most frequent class, in sentences."""
        if self.target != CLASS:
            measure, constant = MEASURES[self.target]
            return (
                f"{measure} of about {self.accuracy:.2f} ({self.low:.2f} to {self.high:.2f}, by a "
                f"trial on labels of the pool). A constant answer reaches {constant:g}."
                f"{self._with_public_labels(1.0, '.3f', '', '')}"
            )
        ranking = ""
        if majority is not None and majority > UNEVEN_SHARE and self.auc is not None:
            ranking = (
                f" As that is more than {UNEVEN_SHARE:.0%}, ranking counts: the area under the "
                f"curve is about {self.auc:.0%}, and 50% for a constant answer."
            )
        by = "a trial on labels of the pool" if self.is_measured else "what other data sets had"
        compared = compared_in_words(majority)
        if self.public_accuracy is not None:
            compared += self._with_public_labels(100.0, ".1f", "%", " points")
        elif self.balanced is not None:
            curve = "" if self.auc is None else f", area under the curve about {self.auc:.0%}"
            compared += f" Balanced accuracy about {self.balanced:.0%}{curve}."
        return (
            f"about {self.num_labels:,.0f} labels, about {self.accuracy:.0%} of them correct "
            f"({self.low:.0%} to {self.high:.0%}, by {by}). {compared}{ranking}"
        )

    def _with_public_labels(self, factor: float, form: str, unit: str, points: str) -> str:
        """Returns what the private data add to public labels, in sentences; empty without these."""
        if self.public_accuracy is None:
            return ""
        values = (self.public_accuracy, self.gain, self.gain_error)
        public, gain, error = (format(factor * value, form) for value in values)
        may = " Warning: the private data may add nothing." * (self.gain <= self.gain_error)
        return (
            f" The public labels only reach about {public}{unit}. The private data are expected to "
            f"add {gain}{points}, with a standard error of {error}.{may}"
        )

    @property
    def adds_nothing(self) -> bool:
        """Whether private data add nothing to public labels, even one standard error higher."""
        return self.public_accuracy is not None and self.gain + self.gain_error <= 0.0

    def is_worth(self, majority: float | None) -> bool:
        """Whether labels are more likely than not to be better than a constant answer.

        Better is a higher accuracy than the share of the most frequent class. Where that class has
        more than `UNEVEN_SHARE`, few labels of another class can be expected at all: what counts is
        whether the labels rank inputs better than a constant does, an area under the curve above
        1/2. A measured mean has equal chances to be too high and too low, so it is compared itself.
        So is the measure of numbers and several labels. For a student that also learns from public
        labels, the private data are not worth it if they add nothing, by one standard error.

        Args:
            majority: share of the pool's most frequent class; None where the pool has no labels.
        """
        if self.adds_nothing:
            return False
        if self.target != CLASS:
            return self.accuracy > MEASURES[self.target][1]
        if self.is_noise or majority is None:
            return not self.is_noise
        if majority > UNEVEN_SHARE and self.auc is not None:
            return self.auc > 0.5
        return (self.accuracy - majority if self.lead is None else self.lead) > 0.0

    def check(self, majority: float | None) -> None:
        """Checks that labels are expected to be worth their cost.

        Args:
            majority: share of the pool's most frequent class; None where the pool has no labels.

        Raises:
            ForecastError: if the planned labels are noise, or a constant answer is expected to be
                as good (`is_worth`).
        """
        if self.is_worth(majority):
            return
        why = NOISE if self.is_noise else "a constant answer is expected to be as good"
        if self.adds_nothing:
            why = "the private data are not expected to add anything to the public labels"
        raise ForecastError(
            f"forecast: expected labels that are worth their cost, got "
            f"{self.in_words(majority)} So {why}. {NOTHING_CHARGED}"
        )


# Fractions of the assumed margin that a plan is judged at; the last is the worst reasonable case.
MARGINS: Final = (1.0, 0.5, 0.25)


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
        chance = 1.0 / num_classes
        number = max(self.expected_labels, 1.0)
        return self.accuracy <= chance + 2.0 * sqrt(chance * (1.0 - chance) / number)

    def in_words(self) -> str:
        """Returns labels that arrive, and their accuracy in per cent, rounded down."""
        if self.expected_labels < 0.05:
            return "none"
        share = self.expected_correct / self.expected_labels
        accuracy = f"{int(share * 1000.0 + 1e-6) / 10.0:.1f} %"
        return f"{self.expected_labels:,.1f} {accuracy:>8}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate(EpsilonDelta):
    """One mechanism, with the least noise that keeps to the target. Public.

    Attributes:
        mechanism: with its noise.
        epsilon: what the labels cost, whatever the votes; never above the target.
        delta: that epsilon holds at; 0 of a mechanism with a pure epsilon.
        outlooks: at the assumed margin, and at the lower ones of `MARGINS`; empty for sums where
            the number of records is not known.
        refusal: of sums: why labels would be noise, by the number of records alone; empty if not.
    """

    mechanism: Mechanism
    outlooks: tuple[Outlook, ...]
    refusal: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        return {
            "mechanism": self.mechanism.to_dict(),
            "epsilon": self.epsilon,
            "outlooks": [outlook._asdict() for outlook in self.outlooks],
        }
