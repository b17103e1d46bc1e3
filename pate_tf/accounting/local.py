"""What silos are charged for: answers that each randomizes itself, and noisy secure aggregates."""

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

ABSENT: Final = -1  # in place of an answer that a silo did not give
MIN_EPSILON: Final = 2.0**-20
MAX_EPSILON: Final = 40.0
MAX_CLASSES: Final = 2**16
MAX_LOSSES: Final = 2**15  # sums of more different losses are left to other theorems
LOST: Final = 1e-290  # above all that underflow can take away from the sum's law


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomisedResponse(Charge):
    """k-ary: keeps a vote with probability e^epsilon / (e^epsilon + num_classes - 1).

    Else the answer is one of the other classes, each as likely. The sampler compares a uniform
    64-bit word with a whole threshold, rounded down, so that what it really does costs at most
    epsilon (docs/proofs/local.md, Theorem L1). Adjacency: everything that an owner holds is
    replaced, so any vote may become any other. That protects each of its records, too.

    Attributes:
        num_classes: votes and answers are whole numbers from 0 to num_classes - 1; at least 2.
        epsilon: what one answer costs at most, with delta 0, in natural logarithms; from 2**-20 to
            40. The sampler's own exact epsilon is at most this.
    """

    num_classes: int
    epsilon: float
    name: ClassVar[str] = "randomised_response"
    answers: ClassVar[bool] = True
    chosen_by_answers: ClassVar[bool] = True
    counted: ClassVar[tuple[str, str]] = ("answer", "answers")

    def __post_init__(self) -> None:
        """Raises ValueError if a parameter is out of its range."""
        checks.whole(2, MAX_CLASSES, num_classes=self.num_classes)
        checks.between(MIN_EPSILON, MAX_EPSILON, ends="[]", epsilon=self.epsilon)
        object.__setattr__(self, "pure_epsilon", self.epsilon)  # of one answer, with delta 0

    @property
    def threshold(self) -> int:
        """The vote is kept if a uniform 64-bit word is below this number.

        Of an e^epsilon that is rounded down, and itself rounded down: the ratio of the two
        probabilities is at most e^epsilon, exactly.
        """
        with decimal.localcontext(prec=60):
            below = decimal.Decimal(self.epsilon).exp().next_minus()
        power = Fraction(below)
        return int(2**64 * power // (power + self.num_classes - 1))

    @property
    def kept(self) -> float:
        """Probability that the vote is the answer."""
        return exp(self.epsilon) / (exp(self.epsilon) + self.num_classes - 1)

    @property
    def other(self) -> float:
        """Probability of each other class."""
        return 1.0 / (exp(self.epsilon) + self.num_classes - 1)

    @property
    def losses(self) -> FloatArray:
        """Probabilities of the privacy losses -epsilon, 0 and epsilon; the same for all votes."""
        return np.array([self.other, (self.num_classes - 2) * self.other, self.kept])

    def draw(self, votes: IntArray, noise: NoiseDraws) -> IntArray:
        """Draws the answers to votes.

        Args:
            votes: int64 `[num_votes]`, from 0 to num_classes - 1. Sensitive.
            noise: what everything random is drawn from.

        Returns:
            int64 `[num_votes]`; may be released once it is charged.

        Raises:
            ValueError: if a vote is no class; the message carries no vote.
        """
        if votes.ndim != 1 or votes.dtype.kind not in "iu":
            raise ValueError("votes: expected whole numbers [num_votes], got something else")
        if votes.size and not (votes.min() >= 0 and votes.max() < self.num_classes):
            raise ValueError(f"votes: expected 0 to {self.num_classes - 1}, got others")
        votes = votes.astype(np.int64)
        is_kept = noise.words(len(votes)) < np.uint64(self.threshold)
        others = noise.uniform_integers(np.full(len(votes), self.num_classes - 1))
        return np.where(is_kept, votes, others + (others >= votes))

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns l times the Renyi divergence of order l + 1 of two votes, [num_moments]."""
        exponents = np.outer(moments, self.epsilon * np.array([-1.0, 0.0, 1.0]))
        excess = np.expm1(np.minimum(exponents, 700.0)) @ self.losses
        largest = exponents.max(axis=1)
        scaled = np.log(np.exp(exponents - largest[:, None]) @ self.losses) + largest
        costs = np.where(largest < 500.0, np.log1p(np.maximum(excess, 0.0)), scaled)
        return np.asarray(costs * (1.0 + SAFETY_MARGIN))

    def composed_epsilon(self, number: int, *, delta: float) -> float:
        """Returns epsilon of so many adaptive answers (docs/proofs/local.md, Theorem L3).

        delta(epsilon) is the sum over losses above epsilon of Pr[loss] (1 - e^(epsilon - loss)),
        where the loss is a sum of independent ones; rounded up. Of too many to convolve, what holds
        for all mechanisms of this pure epsilon.
        """
        checks.between(0, 1, ends="[)", delta=delta)
        checks.whole(0, number=number)
        if number == 0:
            return 0.0
        if 2 * number + 1 > MAX_LOSSES:
            return super().composed_epsilon(number, delta=delta)
        # The law of the sum, by squaring; all terms are positive, so nothing cancels.
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
        # But for rounding, what holds for all mechanisms of this pure epsilon is no less.
        epsilon = least(holds, 0.0, most, within=SAFETY_MARGIN) * (1.0 + SAFETY_MARGIN)
        return min(epsilon, most)

    def in_words(self) -> str:
        """Returns what is done with a vote, in sentences for a privacy statement."""
        return (
            f"A silo's vote leaves as it is with probability {self.kept:.3g}; else one of the "
            f"other classes leaves, each as likely. One answer costs the silo epsilon "
            f"{self.epsilon:.3g} with delta 0."
        )


def class_scores(answers: IntArray, randomisers: Sequence[RandomisedResponse]) -> FloatArray:
    """Returns how much speaks for each class, `[num_queries, num_classes]`.

    ln(p/q) of every silo that answered the class, which is its epsilon: the log likelihood that all
    silos would vote for it. Post-processing, which costs nothing.

    Args:
        answers: int64 `[num_silos, num_queries]`, `ABSENT` where a silo gave none.
        randomisers: of each silo, all of the same classes.

    Raises:
        ValueError: if numbers of silos or classes do not fit each other.
    """
    classes = {randomiser.num_classes for randomiser in randomisers}
    if answers.ndim != 2 or len(answers) != len(randomisers) or len(classes) != 1:
        raise ValueError(
            f"answers: expected [num_silos, num_queries] with a randomizer of the same classes for "
            f"each silo, got {list(answers.shape)} and {len(randomisers)} randomizers"
        )
    (num_classes,) = classes
    if answers.size and not (answers.min() >= ABSENT and answers.max() < num_classes):
        raise ValueError(f"answers: expected classes 0 to {num_classes - 1} or none, got others")
    scores = np.zeros((answers.shape[1], num_classes))
    for row, randomiser in zip(answers, randomisers, strict=True):
        queries = np.flatnonzero(row != ABSENT)
        scores[queries, row[queries]] += randomiser.epsilon
    return scores


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecureHistogram(Charge):
    """A vote in a histogram to which each party adds discrete Gaussian noise of its own.

    Each party's noise has variance sigma^2 / (num_parties - threshold), in votes: those that keep
    to the protocol reach sigma. Holds against anyone who sees the histogram and all that up to
    `threshold` parties know (docs/proofs/local.md, Theorem L5).

    Attributes:
        sigma: standard deviation of the noise that is counted on, in votes.
        num_parties: m, at least 2 `threshold` + 2.
        threshold: t, how many parties may pool what they know; at least 1.
    """

    sigma: float
    num_parties: int
    threshold: int
    name: ClassVar[str] = "secure_histogram"
    answers: ClassVar[bool] = True
    chosen_by_answers: ClassVar[bool] = True
    counted: ClassVar[tuple[str, str]] = ("query", "queries")

    def __post_init__(self) -> None:
        """Raises ValueError if a parameter is out of its range."""
        checks.between(0, 2.0**30, ends="(]", sigma=self.sigma)
        check_parties(self.num_parties, self.threshold)

    @property
    def num_honest(self) -> int:
        """How many parties are counted on."""
        return self.num_parties - self.threshold

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns l (l+1) (1 + h^2 / (4 LATTICE^2)) / sigma^2, h honest parties, [num_moments]."""
        lattice = 1.0 + self.num_honest**2 / (4.0 * LATTICE**2)
        costs = moments * (moments + 1.0) * lattice / self.sigma**2
        return np.asarray(costs * (1.0 + SAFETY_MARGIN))

    def composed_epsilon(self, number: int, *, delta: float) -> float:
        """Returns the epsilon of Gaussian differential privacy, and the lattice's share.

        (docs/proofs/secure.md, Theorem V6.) Infinite where a party's scale is below a lattice step.
        """
        if self.sigma * LATTICE < sqrt(self.num_honest) * (1.0 + SAFETY_MARGIN):
            return inf
        votes_moved = 2.0 * number / self.sigma**2 * (1.0 + SAFETY_MARGIN)
        squared_distance = votes_moved * (1.0 + self.num_honest**2 / (4.0 * LATTICE**2))
        smooth = gaussian_dp_epsilon(sqrt(squared_distance), delta)
        return smooth + votes_moved * self.num_honest / LATTICE

    def in_words(self) -> str:
        """Returns what is done with the votes, in sentences for a privacy statement."""
        return (
            f"A silo's vote is split into secret shares for {self.num_parties} aggregators, of "
            f"which any {self.threshold} together learn nothing from theirs. The aggregators add "
            "up all silos' shares, each adds Gaussian noise of its own, and the noisy numbers of "
            f"votes of all classes open, nothing else. The noise of {self.num_honest} honest "
            f"aggregators together has standard deviation {self.sigma:.3g} votes on each number."
        )


def check_parties(num_parties: int, threshold: int) -> None:
    """Raises ValueError unless there are 2 t + 2 parties: honest shares alone show if they fit."""
    if threshold < 1 or num_parties < 2 * threshold + 2:
        raise ValueError(
            "threshold: expected t of at least 1 and at least 2 t + 2 parties, got "
            f"{threshold} of {num_parties}"
        )


# Feature sums of many silos under secure aggregation: each silo adds a part of the noise.


MIN_STEPS: Final = 8.0  # scale of a silo's part of the noise, in lattice steps
MAX_NUMBERS: Final = 2**24  # of a table of sums
MAX_SILOS: Final = 100_000


def log_ratio_of_sum(scale: float, number: int) -> float:
    """Returns how far a sum of discrete Gaussians is from the discrete Gaussian of its variance.

    The law of a sum of `number` independent discrete Gaussians of one scale, and the discrete
    Gaussian of scale `scale * sqrt(number)`, differ nowhere by more than a factor of e to what is
    returned: 5 sum_k e^(-2 pi^2 scale^2 k / (k + 1)), k from 1 to number - 1 (Kairouz, Liu and
    Steinke 2021, arXiv 2102.06387, Theorem 6; docs/proofs/secure.md, Lemma V7).

    >>> log_ratio_of_sum(1.0, 10) < 0.003
    True

    Args:
        scale: of each, at least 1/2, in steps of their lattice.
        number: how many are summed, at least 1.

    Raises:
        ValueError: if the scale is below 1/2 or the number below 1.
    """
    if not scale >= 0.5 or number < 1:
        raise ValueError(f"expected a scale of 1/2 or more and a number, got {scale} and {number}")
    few = min(number - 1, 1_000)
    total = sum(exp(-2.0 * pi**2 * scale**2 * k / (k + 1)) for k in range(1, few + 1))
    # Terms fall with k.
    total += (number - 1 - few) * exp(-2.0 * pi**2 * scale**2 * few / (few + 1))
    return 5.0 * total


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecureFeatureSums(ProtectedUnit, Charge):
    """The sum of all silos' feature sums, to which each silo added a part of the noise.

    Each silo adds discrete Gaussian noise of variance sigma^2 / (least_silos - colluding) to each
    number before it secret-shares its sums among parties. These open the total of at least
    `least_silos` silos and nothing else, so that at least `least_silos - colluding` honest parts of
    the noise are in it, which reach sigma. A record's vector has an L2 norm of at most 1, so a
    record replaced moves the total by at most 2, as does an owner replaced whose records have a
    norm of at most 1 together; with second moments, as of `GaussianMoments`, by at most sqrt(2). An
    owner added or removed moves it by at most 1. Holds against anyone who sees the total, all that
    `threshold` parties and `colluding` silos know, and where silos drop out (docs/proofs/secure.md,
    Theorems V8 and V9).

    Attributes:
        sigma: standard deviation of the noise that is counted on, in L2 norms of a record.
        num_features: of the public representation; a table of sums has one row more.
        least_silos: fewest silos whose total opens.
        colluding: how many of these may add no noise, or pool what they know with parties; at
            least 1 and fewer than `least_silos`.
        num_parties: m, at least 2 `threshold` + 2.
        threshold: how many parties may pool what they know; at least 1.
        has_moments: whether second moments stand beside the sums, as there is no public pool.
        unit: as of `GaussianFeatureSums`.
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
        """Raises ValueError if a parameter is out of its range."""
        checks.between(0, 2.0**30, ends="(]", sigma=self.sigma)
        checks.whole(1, MAX_NUMBERS - 1, num_features=self.num_features)
        checks.one_of(("record", "owner"), unit=self.unit)
        object.__setattr__(self, "replaced_steps", self.of_one_holder.replaced_steps)
        check_parties(self.num_parties, self.threshold)
        if not 1 <= self.colluding < self.least_silos <= MAX_SILOS:
            raise ValueError(
                f"least_silos: expected more than the {self.colluding} that may collude, 1 or "
                f"more, and up to {MAX_SILOS:,}, got {self.least_silos}"
            )
        if self.share_scale < MIN_STEPS:
            raise ValueError(
                f"sigma: expected parts of noise of at least {MIN_STEPS:g} steps of "
                f"1 / {LATTICE:,}, got sigma {self.sigma}"
            )

    @property
    def of_one_holder(self) -> GaussianFeatureSums:
        """What releases the same sums, with the same noise, where one holder has all records."""
        kind = GaussianMoments if self.has_moments else GaussianFeatureSums
        return kind(sigma=self.sigma, unit=self.unit)

    @property
    def num_honest(self) -> int:
        """How many silos' parts of the noise are counted on."""
        return self.least_silos - self.colluding

    @property
    def share_scale(self) -> float:
        """Scale of the discrete Gaussian that each silo draws, in steps of 1 / LATTICE.

        So many of `num_honest` have the variance (sigma LATTICE)^2 + 64, rounded up.
        """
        total = (self.sigma * LATTICE) ** 2 + MIN_STEPS**2
        return sqrt(total / self.num_honest) * (1.0 + 2.0**-50)

    @property
    def sensitivity(self) -> float:
        """L2 norms by which a record replaced, or an owner added or removed, moves the total."""
        return sqrt(self.of_one_holder.squared_distance)

    @property
    def noise_multipliers(self) -> tuple[float, ...]:
        """Sigma over the sensitivity; what lattice and sum add lies below all rounding."""
        return (self.sigma / self.sensitivity,)

    def shape(self, num_classes: int) -> tuple[int, int]:
        """Returns rows and columns of a table: those of sums, then those of second moments."""
        num_rows = self.num_features + 1
        return num_rows, num_classes + self.has_moments * num_rows

    @property
    def log_ratio(self) -> float:
        """How far the noise is from one discrete Gaussian on every number, at most."""
        return MAX_NUMBERS * log_ratio_of_sum(self.share_scale, self.num_honest)

    def total_sigma(self, num_silos: int) -> float:
        """Returns the standard deviation of the noise of so many silos on each number."""
        return sqrt(num_silos) * self.share_scale / LATTICE

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns l (l+1) (sensitivity / sigma)^2 / 2 and what a sum of Gaussians adds."""
        gaussian = self.sensitivity**2 * moments * (moments + 1.0) / (2.0 * self.sigma**2)
        added = (2.0 * moments + 1.0) * self.log_ratio
        return np.asarray((gaussian + added) * (1.0 + SAFETY_MARGIN))

    def composed_epsilon(self, number: int, *, delta: float) -> float:
        """Returns the epsilon of Gaussian differential privacy with the sum's part, rounded up."""
        moved = self.sensitivity * number**0.5 / self.sigma
        checks.between(0, 1, ends="[)", delta=delta)
        smooth = gaussian_dp_epsilon(moved, delta * exp(-number * self.log_ratio))
        return (smooth + 2.0 * number * self.log_ratio) * (1.0 + SAFETY_MARGIN)

    @classmethod
    def for_epsilon(cls, epsilon: float, *, delta: float, **others: Any) -> SecureFeatureSums:
        """Returns the charge with the least noise whose one release costs at most epsilon.

        Args:
            epsilon: for every record of every silo, above 0.
            delta: that it holds at.
            **others: all fields but sigma.

        Raises:
            ValueError: if epsilon or a field is out of its range.
        """
        checks.positive(epsilon=epsilon)

        def holds(sigma: float) -> bool:
            return cls(sigma=sigma, **others).composed_epsilon(1, delta=delta) <= epsilon

        highest = 1.0
        while not holds(highest) and highest < 2.0**30:
            highest *= 2.0
        if not holds(highest):
            raise ValueError(
                f"epsilon: expected one that noise reaches at delta {delta:g}, got {epsilon}"
            )
        lowest = MIN_STEPS * sqrt(others["least_silos"] - others["colluding"]) / LATTICE
        return cls(sigma=least(holds, lowest, highest, within=1e-6), **others)

    def in_words(self) -> str:
        """Returns what is done with the records, in sentences for a privacy statement."""
        products = ", and the products of any two numbers of a vector" * self.has_moments
        return (
            "Each record was mapped to a vector of L2 norm at most 1 by a public function. Each "
            f"silo added the vectors up by class{products}, added Gaussian noise of standard "
            f"deviation {self.share_scale / LATTICE:.3g} to each number, and split the result into "
            f"secret shares for {self.num_parties} aggregators, of which any {self.threshold} "
            "together learn nothing from theirs. The aggregators opened the total of "
            f"{self.least_silos} silos or more, nothing else. The noise of {self.num_honest} of "
            f"these silos together has standard deviation {self.sigma:.3g} "
            f"({self.of_one_holder.sensitivity})."
        )


SILO_CHARGES: Final[dict[str, type[Charge]]] = {
    kind.name: kind for kind in (SecureHistogram, RandomisedResponse, SecureFeatureSums)
}
