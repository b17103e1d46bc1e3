"""Charges for silos: randomized response, and secure aggregation with noise."""

from __future__ import annotations

import dataclasses
import decimal
from collections.abc import Sequence
from fractions import Fraction
from math import exp, inf, pi, sqrt
from typing import Any, ClassVar, Final

import numpy as np

from pate_tf.accounting.composition import Charge
from pate_tf.accounting.conversions import (
    LATTICE,
    SAFETY_MARGIN,
    FloatArray,
    gaussian_dp_epsilon,
    least,
)
from pate_tf.accounting.mechanisms.base import NoiseDraws
from pate_tf.accounting.mechanisms.charged_once import GaussianFeatureSums, GaussianMoments
from pate_tf.core import checks
from pate_tf.core.checks import IntArray
from pate_tf.core.settings import ProtectedUnit

ABSENT: Final = -1  # value of a missing answer
MIN_EPSILON: Final = 2.0**-20
MAX_EPSILON: Final = 40.0
MAX_CLASSES: Final = 2**16
MAX_LOSSES: Final = 2**15  # if there are more distinct losses, a simpler theorem is used
LOST: Final = 1e-290  # upper bound on the total probability that is lost to underflow


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomisedResponse(Charge):
    """A silo's answer by randomized response with `num_classes` classes.

    With probability e^epsilon / (e^epsilon + num_classes - 1), the answer is the silo's vote.
    Otherwise, it is one of the other classes, with equal probabilities. The sampler compares a
    uniform 64-bit word with an integer threshold. The threshold is rounded down, so the exact cost
    of the sampler is at most epsilon (docs/proofs/local.md, Theorem L1).

    Neighboring data sets differ in all data of one owner, so any vote can become any other vote.
    The guarantee therefore also protects each individual record.

    Attributes:
        num_classes: number of classes, at least 2. Votes and answers are integers from 0 to
            num_classes - 1.
        epsilon: maximum epsilon of one answer at delta 0, in natural logarithms; from 2**-20 to 40.
            The exact epsilon of the sampler is at most this value.
    """

    num_classes: int
    epsilon: float
    name: ClassVar[str] = "randomised_response"
    answers: ClassVar[bool] = True
    chosen_by_answers: ClassVar[bool] = True
    counted: ClassVar[tuple[str, str]] = ("answer", "answers")

    def __post_init__(self) -> None:
        """Raises ValueError if a parameter is out of range."""
        checks.whole(2, MAX_CLASSES, num_classes=self.num_classes)
        checks.between(MIN_EPSILON, MAX_EPSILON, ends="[]", epsilon=self.epsilon)
        object.__setattr__(self, "pure_epsilon", self.epsilon)  # the cost of one answer

    @property
    def threshold(self) -> int:
        """Threshold of the sampler: the answer is the vote if a uniform 64-bit word is below it.

        Both e^epsilon and the threshold are rounded down, so the exact ratio of the probabilities
        of the vote and of another class is at most e^epsilon.
        """
        with decimal.localcontext(prec=60):
            below = decimal.Decimal(self.epsilon).exp().next_minus()
        power = Fraction(below)
        return int(2**64 * power // (power + self.num_classes - 1))

    @property
    def kept(self) -> float:
        """Probability that the answer equals the vote."""
        return exp(self.epsilon) / (exp(self.epsilon) + self.num_classes - 1)

    @property
    def other(self) -> float:
        """Probability that the answer equals any given other class."""
        return 1.0 / (exp(self.epsilon) + self.num_classes - 1)

    @property
    def losses(self) -> FloatArray:
        """Probabilities of the privacy losses -epsilon, 0 and epsilon of one answer.

        The probabilities are the same for every vote.
        """
        return np.array([self.other, (self.num_classes - 2) * self.other, self.kept])

    def draw(self, votes: IntArray, noise: NoiseDraws) -> IntArray:
        """Draws the randomized answer for each vote.

        Args:
            votes: SENSITIVE; int64 `[num_votes]`, from 0 to num_classes - 1.
            noise: source of the random draws.

        Returns:
            int64 `[num_votes]`. The answers may be released after they were charged.

        Raises:
            ValueError: if a vote is not a valid class. The message contains no votes.
        """
        votes = checks.whole_numbers(votes, "votes", below=self.num_classes)
        checks.shape(["num_votes"], votes=votes)
        is_kept = noise.words(len(votes)) < np.uint64(self.threshold)
        others = noise.uniform_integers(np.full(len(votes), self.num_classes - 1))
        return np.where(is_kept, votes, others + (others >= votes))

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns l times the Renyi divergence of order l + 1 between the answers to two votes."""
        exponents = np.outer(moments, self.epsilon * np.array([-1.0, 0.0, 1.0]))
        excess = np.expm1(np.minimum(exponents, 700.0)) @ self.losses
        largest = exponents.max(axis=1)
        scaled = np.log(np.exp(exponents - largest[:, None]) @ self.losses) + largest
        costs = np.where(largest < 500.0, np.log1p(np.maximum(excess, 0.0)), scaled)
        return np.asarray(costs * (1.0 + SAFETY_MARGIN))

    def composed_epsilon(self, number: int, *, delta: float) -> float:
        """Returns the epsilon of `number` adaptive answers (docs/proofs/local.md, Theorem L3).

        The total loss is the sum of the independent privacy losses of all answers. delta(epsilon)
        is the sum of Pr[loss] (1 - e^(epsilon - loss)) over all total losses above epsilon, rounded
        up. If the total loss has too many distinct values, the bound for any mechanism with this
        pure epsilon is used instead.
        """
        checks.between(0, 1, ends="[)", delta=delta)
        checks.whole(0, number=number)
        if number == 0:
            return 0.0
        if 2 * number + 1 > MAX_LOSSES:
            return super().composed_epsilon(number, delta=delta)
        # Computes the distribution of the sum by repeated squaring. All terms are positive, so
        # nothing cancels.
        weights = np.ones(1)
        square = self.losses
        for bit in reversed(f"{number:b}"):
            if bit == "1":
                weights = np.convolve(weights, square)
            if len(weights) < 2 * number + 1:
                square = np.convolve(square, square)
        losses = self.epsilon * np.arange(-number, number + 1)

        def holds(epsilon: float) -> bool:
            above = losses > epsilon
            spent = float(weights[above] @ -np.expm1(epsilon - losses[above]))
            return spent * (1.0 + SAFETY_MARGIN) + LOST <= delta

        if holds(0.0):
            return 0.0
        most = number * self.epsilon
        # Apart from rounding errors, the result is at most the bound for any mechanism with this
        # pure epsilon, so that bound is not computed here.
        epsilon = least(holds, 0.0, most, within=SAFETY_MARGIN) * (1.0 + SAFETY_MARGIN)
        return min(epsilon, most)

    def in_words(self) -> str:
        """Returns a description of the mechanism, in sentences for a privacy statement."""
        return (
            f"A silo sends its true vote with probability {self.kept:.3g}. Otherwise, it sends one "
            f"of the other classes, with equal probabilities. One answer costs the silo epsilon "
            f"{self.epsilon:.3g} with delta 0."
        )


def class_scores(answers: IntArray, randomisers: Sequence[RandomisedResponse]) -> FloatArray:
    """Returns a score of each class for each query, `[num_queries, num_classes]`.

    Let p be the probability that a silo's answer is its vote, and q the probability of each other
    class. The score of a class is the sum of ln(p/q) over all silos whose answer is this class. For
    each silo, ln(p/q) equals its epsilon. Up to a constant, the score is the log likelihood of the
    answers if all silos voted for the class. This post-processing costs no privacy.

    Args:
        answers: answer of each silo, int64 `[num_silos, num_queries]`; `ABSENT` if it is missing.
        randomisers: mechanism of each silo; all have the same number of classes.

    Raises:
        ValueError: if the numbers of silos or classes don't match.
    """
    classes = {randomiser.num_classes for randomiser in randomisers}
    if answers.ndim != 2 or len(answers) != len(randomisers) or len(classes) != 1:
        raise ValueError(
            "answers must have shape [num_silos, num_queries] and a randomizer with the same "
            f"classes for each silo, got {list(answers.shape)} and {len(randomisers)} randomizers"
        )
    (num_classes,) = classes
    answers = checks.whole_numbers(answers, "answers", below=num_classes, lowest=ABSENT)
    scores = np.zeros((answers.shape[1], num_classes))
    for row, randomiser in zip(answers, randomisers, strict=True):
        queries = np.flatnonzero(row != ABSENT)
        scores[queries, row[queries]] += randomiser.epsilon
    return scores


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecureHistogram(Charge):
    """A silo's vote in a securely aggregated histogram, to which each aggregator adds noise.

    Each aggregator adds independent discrete Gaussian noise of variance sigma^2 / (num_parties -
    threshold), in votes. The honest aggregators together therefore add noise of standard deviation
    sigma. The guarantee holds against an attacker who sees the histogram and everything that up to
    `threshold` aggregators know (docs/proofs/local.md, Theorem L5).

    Attributes:
        sigma: standard deviation of the noise that honest aggregators add together, in votes.
        num_parties: number m of aggregators, at least 2 `threshold` + 2.
        threshold: number t of aggregators that may collude, at least 1.
    """

    sigma: float
    num_parties: int
    threshold: int
    name: ClassVar[str] = "secure_histogram"
    answers: ClassVar[bool] = True
    chosen_by_answers: ClassVar[bool] = True
    counted: ClassVar[tuple[str, str]] = ("query", "queries")

    def __post_init__(self) -> None:
        """Raises ValueError if a parameter is out of range."""
        checks.between(0, 2.0**30, ends="(]", sigma=self.sigma)
        check_parties(self.num_parties, self.threshold)

    @property
    def num_honest(self) -> int:
        """Number of aggregators that are assumed to be honest."""
        return self.num_parties - self.threshold

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns l (l+1) (1 + h^2 / (4 LATTICE^2)) / sigma^2, with h = `num_honest`."""
        lattice = 1.0 + self.num_honest**2 / (4.0 * LATTICE**2)
        costs = moments * (moments + 1.0) * lattice / self.sigma**2
        return np.asarray(costs * (1.0 + SAFETY_MARGIN))

    def composed_epsilon(self, number: int, *, delta: float) -> float:
        """Returns the epsilon of Gaussian differential privacy, plus the effect of the lattice.

        See docs/proofs/secure.md, Theorem V6. The result is infinite if the noise scale of an
        aggregator is smaller than a lattice step.
        """
        if self.sigma * LATTICE < sqrt(self.num_honest) * (1.0 + SAFETY_MARGIN):
            return inf
        votes_moved = 2.0 * number / self.sigma**2 * (1.0 + SAFETY_MARGIN)
        squared_distance = votes_moved * (1.0 + self.num_honest**2 / (4.0 * LATTICE**2))
        smooth = gaussian_dp_epsilon(sqrt(squared_distance), delta)
        return smooth + votes_moved * self.num_honest / LATTICE

    def in_words(self) -> str:
        """Returns sentences that describe the aggregation in a privacy statement."""
        return (
            f"A silo's vote is split into secret shares for {self.num_parties} aggregators. Any "
            f"{self.threshold} of them together learn nothing from their shares. The aggregators "
            "add up the shares of all silos, and each aggregator adds Gaussian noise. They reveal "
            f"only the noisy counts of all classes. The noise of {self.num_honest} honest "
            f"aggregators together has standard deviation {self.sigma:.3g} votes on each count."
        )


def check_parties(num_parties: int, threshold: int) -> None:
    """Raises ValueError if there are fewer than 2 t + 2 aggregators, which can't detect errors."""
    if threshold < 1 or num_parties < 2 * threshold + 2:
        raise ValueError(f"threshold must be from 1 to (aggregators - 2) / 2, got {threshold}")


# Secure aggregation of feature sums from many silos. Each silo adds a part of the noise.


MIN_STEPS: Final = 8.0  # minimum noise scale of a silo, in lattice steps
MAX_NUMBERS: Final = 2**24  # maximum number of entries in a table of sums
MAX_SILOS: Final = 100_000


def log_ratio_of_sum(scale: float, number: int) -> float:
    """Returns a bound on the log ratio of probabilities of two kinds of discrete noise.

    One kind is the sum of `number` independent discrete Gaussians of scale `scale`. The other kind
    is one discrete Gaussian of scale `scale * sqrt(number)`. The log ratio of the probabilities of
    any value is at most 5 sum_k e^(-2 pi^2 scale^2 k / (k + 1)), with k from 1 to number - 1
    (Kairouz, Liu and Steinke 2021, arXiv 2102.06387, Theorem 6; docs/proofs/secure.md, Lemma V7).

    >>> log_ratio_of_sum(1.0, 10) < 0.003
    True

    Args:
        scale: scale of each discrete Gaussian, at least 1/2, in lattice steps.
        number: number of summands, at least 1.

    Raises:
        ValueError: if `scale` is below 1/2 or `number` is below 1.
    """
    if not scale >= 0.5 or number < 1:
        raise ValueError(f"scale must be >= 1/2 and number >= 1, got {scale} and {number}")
    few = min(number - 1, 1_000)
    total = sum(exp(-2.0 * pi**2 * scale**2 * k / (k + 1)) for k in range(1, few + 1))
    # The terms decrease with k, so the last computed term bounds each of the remaining terms.
    total += (number - 1 - few) * exp(-2.0 * pi**2 * scale**2 * few / (few + 1))
    return 5.0 * total


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecureFeatureSums(ProtectedUnit, Charge):
    """Secure aggregation of all silos' feature sums. Each silo adds a part of the noise.

    Each silo adds discrete Gaussian noise of variance sigma^2 / (least_silos - colluding) to each
    number. It then distributes secret shares of its noisy sums to the aggregators. The aggregators
    reveal only a total over at least `least_silos` silos. This total therefore contains the noise
    of at least `least_silos - colluding` honest silos. The sum of their noise has a standard
    deviation of at least sigma. The feature vector of a record has L2 norm at most 1. Replacing a
    record moves the total by an L2 distance of at most 2, or at most sqrt(2) with second moments
    (see `GaussianMoments`). The same holds for replacing an owner whose records together have norm
    at most 1. Adding or removing an owner moves the total by at most 1. The guarantee holds against
    an attacker who sees the total and everything that `threshold` aggregators and `colluding` silos
    know, even if silos drop out (docs/proofs/secure.md, Theorems V8 and V9).

    Attributes:
        sigma: guaranteed standard deviation of the noise on each number, for record vectors of L2
            norm at most 1.
        num_features: number of features of the public representation. A table of sums has one
            additional row.
        least_silos: minimum number of silos that must contribute to each revealed total.
        colluding: maximum number of silos in one total that may omit their noise or collude with
            aggregators; at least 1 and less than `least_silos`.
        num_parties: number m of aggregators, at least 2 `threshold` + 2.
        threshold: number of aggregators that may collude, at least 1.
        has_moments: whether the table also contains second moments, which are needed if there is no
            public pool.
        unit: "record" or "owner", see `GaussianFeatureSums`.
    """

    sigma: float
    num_features: int
    least_silos: int
    colluding: int
    num_parties: int
    threshold: int
    has_moments: bool = False
    name: ClassVar[str] = "secure_feature_sums"
    answers: ClassVar[bool] = True
    chosen_by_answers: ClassVar[bool] = True
    releases_feature_sums: ClassVar[bool] = True
    noise_fields: ClassVar[tuple[str, ...]] = ("sigma",)
    counted: ClassVar[tuple[str, str]] = ("release", "releases")
    labels_in_words: ClassVar[str] = "labels computed from noisy feature sums"

    def __post_init__(self) -> None:
        """Raises ValueError if a parameter is out of range."""
        checks.between(0, 2.0**30, ends="(]", sigma=self.sigma)
        checks.whole(1, MAX_NUMBERS - 1, num_features=self.num_features)
        checks.one_of(("record", "owner"), unit=self.unit)
        object.__setattr__(self, "replaced_steps", self.of_one_holder.replaced_steps)
        check_parties(self.num_parties, self.threshold)
        if not 1 <= self.colluding < self.least_silos <= MAX_SILOS:
            raise ValueError(
                f"need 1 <= colluding < least_silos <= {MAX_SILOS:,}, got colluding "
                f"{self.colluding} and least_silos {self.least_silos}"
            )
        if self.share_scale < MIN_STEPS:
            raise ValueError(
                f"sigma {self.sigma} must be larger. Each silo must draw noise of a scale of at "
                f"least {MIN_STEPS:g} / {LATTICE:,}."
            )

    @property
    def of_one_holder(self) -> GaussianFeatureSums:
        """The charge for the same sums and noise if a single data holder has all records."""
        kind = GaussianMoments if self.has_moments else GaussianFeatureSums
        return kind(sigma=self.sigma, unit=self.unit)

    @property
    def num_honest(self) -> int:
        """Number of silos that are assumed to add noise honestly."""
        return self.least_silos - self.colluding

    @property
    def share_scale(self) -> float:
        """Scale of the discrete Gaussian that each silo draws, in steps of 1 / LATTICE.

        The noise of `num_honest` silos together has variance (sigma LATTICE)^2 + 64, rounded up.
        """
        total = (self.sigma * LATTICE) ** 2 + MIN_STEPS**2
        return sqrt(total / self.num_honest) * (1.0 + 2.0**-50)

    @property
    def sensitivity(self) -> float:
        """Maximum L2 distance between the totals of two neighboring data sets (see `unit`)."""
        return sqrt(self.of_one_holder.squared_distance)

    @property
    def noise_multipliers(self) -> tuple[float, ...]:
        """Sigma / sensitivity. This ignores the lattice, whose effect is negligible."""
        return (self.sigma / self.sensitivity,)

    def shape(self, num_classes: int) -> tuple[int, int]:
        """Returns the numbers of rows and columns of the table of sums."""
        num_rows = self.num_features + 1
        return num_rows, num_classes + self.has_moments * num_rows

    @property
    def log_ratio(self) -> float:
        """Maximum log ratio of probabilities with the real noise and with discrete Gaussians."""
        return MAX_NUMBERS * log_ratio_of_sum(self.share_scale, self.num_honest)

    def total_sigma(self, num_silos: int) -> float:
        """Returns the standard deviation of the noise that `num_silos` silos add to each number."""
        return sqrt(num_silos) * self.share_scale / LATTICE

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns l (l+1) (sensitivity / sigma)^2 / 2, plus a surcharge for sums of noise."""
        gaussian = self.sensitivity**2 * moments * (moments + 1.0) / (2.0 * self.sigma**2)
        added = (2.0 * moments + 1.0) * self.log_ratio
        return np.asarray((gaussian + added) * (1.0 + SAFETY_MARGIN))

    def composed_epsilon(self, number: int, *, delta: float) -> float:
        """Returns epsilon by Gaussian differential privacy, plus a surcharge for `log_ratio`."""
        moved = self.sensitivity * number**0.5 / self.sigma
        checks.between(0, 1, ends="[)", delta=delta)
        smooth = gaussian_dp_epsilon(moved, delta * exp(-number * self.log_ratio))
        return (smooth + 2.0 * number * self.log_ratio) * (1.0 + SAFETY_MARGIN)

    @classmethod
    def for_epsilon(cls, epsilon: float, *, delta: float, **others: Any) -> SecureFeatureSums:
        """Returns the charge with the smallest noise for which a release costs at most epsilon.

        Args:
            epsilon: maximum epsilon for each record (or owner) of each silo, above 0.
            delta: delta of the guarantee.
            **others: all fields of this class except `sigma`.

        Raises:
            ValueError: if epsilon or a field is out of range.
        """
        checks.positive(epsilon=epsilon)

        def holds(sigma: float) -> bool:
            return cls(sigma=sigma, **others).composed_epsilon(1, delta=delta) <= epsilon

        highest = 1.0
        while not holds(highest) and highest < 2.0**30:
            highest *= 2.0
        if not holds(highest):
            raise ValueError(
                f"`epsilon` {epsilon} at delta {delta:g} needs too much noise. Raise `epsilon`."
            )
        lowest = MIN_STEPS * sqrt(others["least_silos"] - others["colluding"]) / LATTICE
        return cls(sigma=least(holds, lowest, highest, within=1e-6), **others)

    def in_words(self) -> str:
        """Returns a description of the release, in sentences for a privacy statement."""
        products = ", and the products of any two numbers of a vector" * self.has_moments
        return (
            "A public function mapped each record to a vector of length at most 1. Each silo added "
            f"the vectors up by class{products}, added Gaussian noise of standard deviation "
            f"{self.share_scale / LATTICE:.3g} to each number, and split the result into secret "
            f"shares for {self.num_parties} aggregators. Any {self.threshold} of them together "
            "learn nothing from their shares. The aggregators revealed only the total of "
            f"{self.least_silos} or more silos. The noise of {self.num_honest} of these silos "
            f"together has standard deviation {self.sigma:.3g} ({self.of_one_holder.sensitivity})."
        )


SILO_CHARGES: Final[dict[str, type[Charge]]] = {
    kind.name: kind for kind in (SecureHistogram, RandomisedResponse, SecureFeatureSums)
}
