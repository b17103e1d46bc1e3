"""Forecasts label accuracy from public values only, before privacy budget is spent."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from math import inf, sqrt
from typing import Any, Final, NamedTuple

import numpy as np

from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.core.checks import GUIDE, ITEM, IntArray
from pate_tf.core.dataset import CLASS
from pate_tf.core.public import MEASURES
from pate_tf.core.settings import EpsilonDelta

# Lowest and highest accuracy of labels without noise, on other data sets.
WITHOUT_NOISE: Final = (0.6, 0.97)
# If the most frequent class has a larger fraction, AUC is used instead of accuracy.
UNEVEN_SHARE: Final = 0.8
# With this number of labels, two standard errors of an accuracy are at most 4 points:
# (2 * 0.5 / 0.04)^2.
MIN_PRECISE: Final = 625
NOISE: Final = "the noise leaves too few correct labels"
HELPS: Final = (
    "To improve accuracy, use more private records, a larger epsilon, fewer classes or labels, a "
    f"narrower range of a number, or an encoder ({GUIDE}/how-to/pretrained_encoder.html)."
)
NOTHING_CHARGED: Final = ITEM.join(
    ("Nothing was charged.", HELPS, "To continue anyway: `accept_forecast`.")
)
ENCODER_HELPS: Final = (
    "For photographs, a pre-trained encoder is often more accurate, such as "
    f"--representation=EfficientNetV2B0 ({GUIDE}/how-to/pretrained_encoder.html)."
)
TEXT_ENCODER_HELPS: Final = (
    "A pre-trained text encoder is often more accurate: --representation=hub:FOLDER with a preset "
    f"of keras-hub ({GUIDE}/how-to/pretrained_encoder.html#texts)."
)


class ForecastError(ValueError):
    """Labels are not expected to be worth their privacy cost. No privacy budget was spent.

    >>> import pate_tf
    >>> forecast = pate_tf.plan(0.1, num_teachers=5).forecast("pate")
    >>> try:
    ...     forecast.check(None)
    ... except pate_tf.ForecastError as error:
    ...     print(str(error)[:50])
    The labels are not expected to be worth their cost
    """


def compared_in_words(majority: float | None) -> str:
    """Returns a sentence with the accuracy of a constant answer, as a baseline.

    Args:
        majority: fraction of the pool's most frequent class; None if the pool has no labels.
    """
    if majority is None:
        return "The accuracy of a constant answer is unknown, because there are no public labels."
    return f"A constant answer, the most frequent class of the pool, is correct for {majority:.1%}."


class Forecast(NamedTuple):
    """Public: expected accuracy of the labels of a method, computed from public values.

    Attributes:
        low: lower end of the expected range.
        high: upper end of the expected range.
        num_labels: expected number of labels; 0 without public inputs.
        is_measured: whether the accuracy was measured on labels of the pool. If so, the range is a
            confidence interval. Otherwise, it is the range of accuracies on other data sets.
        is_noise: whether labels are not better than guesses at half the assumed margin: the number
            of correct labels exceeds the number for guesses by at most two standard deviations.
        lead: accuracy on labeled samples of the pool, minus the accuracy of the most frequent class
            on the same samples; None if it was not measured.
        auc: area under the ROC curve, see `core.public.area_under_curve`; None if it was not
            measured.
        balanced: mean recall over all classes; None if it was not measured.
        public_accuracy: accuracy of a linear model of only the public labels; None if it was not
            measured. For images, it is measured only if the student does not learn these labels.
        public_auc: area under the curve of that model, if the gain is measured by it; else None.
        gain: expected increase of `public_accuracy`, or of `public_auc` if the most frequent class
            has more than `UNEVEN_SHARE`, when the private data are added.
        gain_error: standard error of the gain.
        is_precise: whether the gain was measured on enough labels. Only then can a low gain stop a
            run.
        target: type of target. For "number" and "labels", the range is for the quality measure in
            `core.public.MEASURES` instead of the accuracy.
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
    public_auc: float | None = None
    gain: float = 0.0
    gain_error: float = 0.0
    is_precise: bool = True

    @classmethod
    def measured(
        cls, predictions: IntArray, truth: IntArray, num_labels: int, folds: IntArray | None = None
    ) -> Forecast:
        """Returns a forecast from predictions: their accuracy, plus and minus two standard errors.

        A standard error includes the choice of samples and a single draw of the noise.

        Args:
            predictions: `[num_samples]`, or `[num_draws, num_samples]`.
            truth: true labels, `[num_samples]`.
            num_labels: expected number of labels.
            folds: fold of each sample, from 0. The noise of different folds and draws is
                independent. None for predictions without noise.
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
        """Returns a forecast for a target of numbers or several labels, from scores of trials.

        The range is the mean, plus and minus two standard deviations. Each trial has its own noise
        and samples, like the release.
        """
        middle = float(np.mean(scores))
        error = 2.0 * float(np.std(scores, ddof=1)) if len(scores) > 1 else inf
        low = middle - error
        high = min(middle + error, 1.0)
        return cls(low, high, num_labels, is_measured=True, target=target)

    def with_private(
        self, gain: float, gain_error: float, num_labeled: int, *, of_auc: bool
    ) -> Forecast:
        """Adds the gain from private data to this forecast, which is for public labels only.

        Args:
            gain: expected increase of the area under the curve if `of_auc`, else of the accuracy.
            gain_error: standard error of the gain.
            num_labeled: number of labels on which the gain was measured.
            of_auc: whether the gain is measured by the area under the curve. The accuracy then
                does not change.
        """
        added = 0.0 if of_auc else gain
        return self._replace(
            low=self.low + added,
            high=min(self.high + added, 1.0),
            lead=None if self.lead is None else self.lead + added,
            auc=self.auc + gain if of_auc and self.auc is not None else self.auc,
            public_accuracy=self.accuracy,
            public_auc=self.auc if of_auc else None,
            gain=gain,
            gain_error=gain_error,
            is_precise=num_labeled >= MIN_PRECISE,
        )

    @property
    def accuracy(self) -> float:
        """The expected accuracy: the middle of the range."""
        return (self.low + self.high) / 2.0

    def excludes(self, reached: float | None) -> bool | None:
        """Whether an accuracy is more than four standard errors from the middle of the range.

        The result is None if the accuracy is unknown or the range was not measured.
        """
        if reached is None or not self.is_measured:
            return None
        return abs(reached - self.accuracy) > self.high - self.low

    def in_words(self, majority: float | None) -> str:
        """Returns the forecast as sentences, with the accuracy of a constant answer."""
        if self.target != CLASS:
            measure, constant = MEASURES[self.target]
            return (
                f"{measure} of about {self.accuracy:.2f} ({self.low:.2f} to {self.high:.2f}, from "
                f"a trial on labels of the pool). A constant answer has {constant:g}."
                f"{self._with_public_labels(measure, 1.0, '.3f', '', '')}"
            )
        ranking = ""
        if majority is not None and majority > UNEVEN_SHARE and self.auc is not None:
            ranking = (
                f" Because a constant answer has more than {UNEVEN_SHARE:.0%}, compare rankings: "
                f"the area under the curve (AUC) is about {self.auc:.0%}. A constant answer has "
                "an AUC of 50%."
            )
        by = "a trial on labels of the pool" if self.is_measured else "results on other data sets"
        compared = compared_in_words(majority)
        if self.public_accuracy is not None:
            measure = "accuracy" if self.public_auc is None else "AUC"
            ranking += self._with_public_labels(measure, 100.0, ".1f", "%", " points")
        elif self.balanced is not None:
            has_curve = self.auc is not None and not ranking
            curve = f", area under the curve about {self.auc:.0%}" if has_curve else ""
            compared += f" Balanced accuracy about {self.balanced:.0%}{curve}."
        labels = f"{self.num_labels:,.0f} labels, about {self.accuracy:.0%} of them correct"
        if not self.num_labels:
            labels = f"{self.accuracy:.0%} of all inputs predicted correctly"
        return f"about {labels} ({self.low:.0%} to {self.high:.0%}, from {by}). {compared}{ranking}"

    def _with_public_labels(
        self, measure: str, factor: float, form: str, unit: str, points: str
    ) -> str:
        """Returns sentences about the gain from private data.

        The result is empty if no public labels are used.
        """
        if self.public_accuracy is None:
            return ""
        known = self.public_accuracy if self.public_auc is None else self.public_auc
        values = (known, self.gain, self.gain_error)
        public, gain, error = (format(factor * value, form) for value in values)
        warning = f" Warning: the private data may not help, see {GUIDE}/how-to/csv.html."
        warning *= self.gain <= self.gain_error
        return (
            f" With the public labels only, {measure} is about {public}{unit}. The private data "
            f"are expected to add {gain}{points}, with a standard error of {error}.{warning}"
        )

    @property
    def adds_nothing(self) -> bool:
        """Whether private data are not expected to help: gain plus standard error is at most 0.

        The sum is rounded to the printed digits. The result is False if too few labels were
        available to measure the gain.
        """
        is_known = self.public_accuracy is not None and self.is_precise
        return is_known and round(self.gain + self.gain_error, 3) <= 0.0

    def is_worth(self, majority: float | None) -> bool:
        """Whether labels are expected to be better than a constant answer.

        The accuracy must be higher than the fraction of the most frequent class. If this class has
        more than `UNEVEN_SHARE`, few labels of other classes are expected. In this case, the area
        under the curve must be above 1/2 instead. A measured mean is compared directly, without its
        standard error, because the mean is as likely to be too high as too low. The quality
        measures of numbers and of several labels are compared in the same way. If the student also
        learns from public labels, the private data must improve the result (`adds_nothing`).

        Args:
            majority: fraction of the pool's most frequent class; None if the pool has no labels.
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
        """Checks that labels are expected to be worth their privacy cost.

        Args:
            majority: fraction of the pool's most frequent class; None if the pool has no labels.

        Raises:
            ForecastError: if the planned labels are noise, or if a constant answer is expected to
                be as good as the labels (`is_worth`).
        """
        if self.is_worth(majority):
            return
        why = NOISE if self.is_noise else "a constant answer is expected to be as good"
        if self.adds_nothing:
            why = "the private data are not expected to add anything to the public labels"
        raise ForecastError(
            f"The labels are not expected to be worth their cost: {why}. The forecast is "
            f"{self.in_words(majority)} {NOTHING_CHARGED}"
        )


# A plan is evaluated at these fractions of the assumed margin. The last fraction is the worst case.
MARGINS: Final = (1.0, 0.5, 0.25)


class Outlook(NamedTuple):
    """Public: expected labels of a batch of queries, or of a pool, at one vote margin.

    Attributes:
        margin: vote margin as a fraction of the teachers.
        expected_labels: expected number of queries with a label.
        expected_correct: expected number of queries with the correct label.
    """

    margin: float
    expected_labels: float
    expected_correct: float

    @property
    def accuracy(self) -> float:
        """Expected accuracy of the released labels."""
        return self.expected_correct / max(self.expected_labels, 1.0)

    def is_noise(self, num_classes: int) -> bool:
        """Whether labels are at most two standard deviations more accurate than guesses."""
        chance = 1.0 / num_classes
        number = max(self.expected_labels, 1.0)
        return self.accuracy <= chance + 2.0 * sqrt(chance * (1.0 - chance) / number)

    def in_words(self) -> str:
        """Returns the number of released labels, and their accuracy rounded down."""
        if self.expected_labels < 0.05:
            return "none"
        share = self.expected_correct / self.expected_labels
        accuracy = f"{int(share * 1000.0 + 1e-6) / 10.0:.1f} %"
        return f"{self.expected_labels:,.1f} {accuracy:>8}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Candidate(EpsilonDelta):
    """Public: a mechanism with the least noise within the target cost.

    Attributes:
        mechanism: mechanism with its noise scale.
        epsilon: worst-case cost of the labels over all possible votes; at most the target.
        delta: delta at which epsilon holds; 0 for a mechanism with a pure epsilon.
        outlooks: expected labels at each margin of `MARGINS`; empty for feature sums if the number
            of records is unknown.
        refusal: for feature sums, the reason why labels would be noise for this number of records;
            otherwise empty.
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
