"""Gaussian noise on every count, asked only where teachers agree: Confident-GNMax."""

from __future__ import annotations

import fractions
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from pate_tf.accounting.conversions import LATTICE, FloatArray, ndtr
from pate_tf.accounting.mechanisms.base import (
    Answers,
    Bound,
    DataDependent,
    Mechanism,
    NoiseDraws,
    NoisyWinners,
    Target,
    largest_sums,
    parameter,
    register,
)
from pate_tf.accounting.mechanisms.noisy_max import LARGEST_SUM, GaussianNoisyMax, gaussian_epsilon
from pate_tf.accounting.outcomes import NeighbourLaws
from pate_tf.core.validation import IntArray


@dataclass(frozen=True, kw_only=True)
class ThresholdNoisyMax(Mechanism):
    """A mechanism that asks `GaussianNoisyMax` where a number with noise reaches a threshold.

    Both noises are discrete Gaussians as in `GaussianNoisyMax`.

    Attributes:
        threshold: in votes.
        sigma_threshold: standard deviation of the noise of the test, in votes.
        sigma: standard deviation of the noise of the label, in votes.
    """

    threshold: float = parameter(
        above=-math.inf,
        help="Votes that the leading class must reach, with noise, for a query to be answered.",
    )
    sigma_threshold: float = parameter(
        above=0.0, help="Standard deviation of the noise of that test, in votes."
    )
    sigma: float = parameter(above=0.0, help="Standard deviation of the Gaussian noise, in votes.")
    withholds: ClassVar[bool] = True

    @property
    def answering(self) -> GaussianNoisyMax:
        """The mechanism that chooses the label of a query that passed the test."""
        return GaussianNoisyMax(sigma=self.sigma)

    @property
    def noise_scales(self) -> Mapping[str, float]:
        """Both sigmas."""
        return {"sigma": self.sigma, "sigma_threshold": self.sigma_threshold}

    def drawn_passes(self, scores: IntArray, noise: NoiseDraws) -> NDArray[np.bool_]:
        """Draws which queries pass the test, [num_queries].

        Args:
            scores: what is compared, in units of 1 / LATTICE votes, [num_queries]. Sensitive.
            noise: what everything random is drawn from.
        """
        test = noise.gaussian_integers(self.sigma_threshold * LATTICE, len(scores))
        threshold = math.ceil(fractions.Fraction(self.threshold) * LATTICE)
        return np.asarray(scores + test >= threshold)

    def test_alphas(self, moments: FloatArray) -> FloatArray:
        """Returns the cost l (l+1) / (2 sigma_threshold^2) of one test, [num_moments]."""
        return moments * (moments + 1.0) / (2.0 * self.sigma_threshold**2)


@register
@dataclass(frozen=True, kw_only=True)
class ConfidentGaussianNoisyMax(ThresholdNoisyMax, DataDependent):
    """`GaussianNoisyMax`, asked only where the largest count plus noise reaches a threshold.

    Test and label are always charged, also where the label is withheld, because how many there
    were is itself an output (Papernot et al. 2018, arXiv 1802.08908, Algorithm 1).
    `outcome_probabilities` are those of a query that passed the test.

    >>> import pate_tf
    >>> mechanism = pate_tf.ConfidentGaussianNoisyMax(
    ...     threshold=200.0, sigma_threshold=150.0, sigma=40.0)
    >>> epsilon, _ = mechanism.data_independent_epsilon(num_queries=100, delta=1e-5)
    >>> round(epsilon, 2)
    1.2

    Attributes:
        threshold: in votes.
        sigma_threshold: standard deviation of the noise of the test, in votes.
        sigma: standard deviation of the noise of the label, in votes.
    """

    name: ClassVar[str] = "confident_gaussian_noisy_max"
    bounds: ClassVar[tuple[str, ...]] = GaussianNoisyMax.bounds
    words: ClassVar[str] = (
        "A query is answered only if the largest number of votes, with Gaussian noise of standard "
        "deviation {self.sigma_threshold:.3g} votes, reaches {self.threshold:.3g} votes; it is "
        "charged either way. Then Gaussian noise of standard deviation {self.sigma:.3g} votes is "
        "added to every class's number of votes. " + LARGEST_SUM
    )

    @classmethod
    def for_target(cls, target: Target, counts: IntArray) -> Self:
        """Returns the affordable one with least noise, and a threshold for votes that are assumed.

        The test has twice the noise of the label, which makes it a sixth of the cost or so. The
        threshold lies halfway between the most votes that a class has and half of all votes, which
        is what the larger of two classes has at least where teachers are divided.
        """
        most, total = int(counts.max()), int(counts[0].sum())
        threshold = round((most + total / 2.0) / 2.0, 1)
        return target.least_noise(
            lambda scale: cls(threshold=threshold, sigma_threshold=2.0 * scale, sigma=scale)
        )

    def expected_correct(self, counts: IntArray) -> float:
        """Returns the expected number of queries that pass the test and get class 0.

        Both noises as the continuous ones; they are independent.
        """
        rows, number = np.unique(counts, axis=0, return_counts=True)
        passes = ndtr((rows.max(axis=1) - self.threshold) / self.sigma_threshold)
        return float(number @ (passes * self.outcome_probabilities(rows)[:, 0]))

    @property
    def noise_multipliers(self) -> tuple[float, ...]:
        """Of the test, whose sensitivity is 1, and of the label."""
        return (self.sigma_threshold, *self.answering.noise_multipliers)

    def draw(
        self, counts: IntArray, noise: NoiseDraws, *, noisy_winners: NoisyWinners = largest_sums
    ) -> Answers:
        """Draws a label for each query, and withholds those whose test fails."""
        labels = self.answering.draw(counts, noise, noisy_winners=noisy_winners).labels
        passes = self.drawn_passes(counts.max(axis=1) * LATTICE, noise)
        return Answers(
            [label if passed else None for label, passed in zip(labels, passes, strict=True)]
        )

    def pairwise_tail(self, gaps: FloatArray) -> FloatArray:
        """Returns the tail of `answering`."""
        return self.answering.pairwise_tail(gaps)

    def outcome_probabilities(self, counts: IntArray) -> FloatArray:
        """Returns the law of the label of a query that passed the test."""
        return self.answering.outcome_probabilities(counts)

    def cost_cap(self, moments: FloatArray) -> FloatArray:
        """Returns the cost of one test and of the noisy counts of one label, [num_moments]."""
        return self.test_alphas(moments) + self.answering.cost_cap(moments)

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns the cost of one test and one label, [num_moments]."""
        return self.test_alphas(moments) + self.answering.alphas(moments)

    def composed_epsilon(self, number: int, *, delta: float) -> float:
        """Returns the epsilon of Gaussian differential privacy of tests and labels."""
        squared = number / self.sigma_threshold**2 + 2.0 * number / self.sigma**2
        return gaussian_epsilon(squared, delta)

    def bound(self, name: str, moments: FloatArray) -> Bound:
        """Returns that of `answering`."""
        return self.answering.bound(name, moments)

    def neighbour_laws(self, row: IntArray) -> NeighbourLaws:
        """Returns those of `answering`."""
        return self.answering.neighbour_laws(row)


# Gaussian noise on every count, asked only where a student is wrong: Interactive-GNMax.


@register
@dataclass(frozen=True, kw_only=True)
class InteractiveGaussianNoisyMax(ThresholdNoisyMax):
    """`GaussianNoisyMax`, asked only where teachers contradict a student of earlier labels.

    A query is tested first: does the largest n_j - N p_j, with noise, reach a threshold? n are the
    counts, N the number of teachers and p the student's probabilities. If so, the noisy winner is
    the label; else the student's own class is, if it is confident enough; else there is none
    (Papernot et al. 2018, arXiv 1802.08908, Algorithm 2). Where there is no student yet, p is the
    same for all classes. Of n queries drawn together at most floor(label_share n) get a label of
    their teachers, the first that pass; the test of every query is charged, and label_share of a
    label. What that costs holds whatever p is (docs/proofs/theory.md, Proposition D7).

    >>> import pate_tf
    >>> mechanism = pate_tf.mechanisms.InteractiveGaussianNoisyMax(
    ...     threshold=200.0, sigma_threshold=150.0, sigma=40.0, label_share=0.2)
    >>> epsilon, _ = mechanism.data_independent_epsilon(num_queries=100, delta=1e-5)
    >>> round(epsilon, 2)
    0.56

    Attributes:
        threshold: in votes.
        sigma_threshold: standard deviation of the noise of the test, in votes.
        sigma: standard deviation of the noise of the label, in votes.
        student_confidence: in (0, 1].
        label_share: in (0, 1].
    """

    student_confidence: float = parameter(
        0.9,
        above=0.0,
        most=1.0,
        help="Probability above which a student's own answer is taken where its teachers don't "
        "clearly contradict it.",
    )
    label_share: float = parameter(
        1.0,
        above=0.0,
        most=1.0,
        help="Share of the queries of each round that teachers may label at most; only so many are "
        "charged, besides the test of every query.",
    )
    name: ClassVar[str] = "interactive_gaussian_noisy_max"
    uses_student_predictions: ClassVar[bool] = True
    lacks: ClassVar[Mapping[str, str]] = {
        "calibration": "it has two scales, a threshold and a share of labels",
        "bounds": "its answers depend on a student of earlier noisy labels, for which only the "
        "worst case holds",
        "dp event": "that library has none for a number of labels that depends on answers",
    }
    words: ClassVar[str] = (
        "Queries were answered in rounds, with a student of the labels of earlier rounds. A query "
        "goes to the teachers if one class has so many more votes than the student's probability "
        "would give it that the excess, with Gaussian noise of standard deviation "
        "{self.sigma_threshold:.3g} votes, reaches {self.threshold:.3g} votes; for at most "
        "{self.label_share:.3g} of the queries of a round. Elsewhere the student's own class is "
        "the label if its probability is above {self.student_confidence:.3g}, and otherwise there "
        "is none. For a query of the teachers Gaussian noise of standard deviation "
        "{self.sigma:.3g} votes is added to every class's number of votes. " + LARGEST_SUM
    )

    def draw(
        self, counts: IntArray, noise: NoiseDraws, *, noisy_winners: NoisyWinners = largest_sums
    ) -> Answers:
        """Draws answers where there is no student yet; see `draw_with`."""
        even = np.full(counts.shape, 1.0 / counts.shape[1])
        return self.draw_with(even, counts, noise, noisy_winners=noisy_winners)

    def draw_with(
        self,
        predictions: FloatArray,
        counts: IntArray,
        noise: NoiseDraws,
        *,
        noisy_winners: NoisyWinners = largest_sums,
    ) -> Answers:
        """Draws the answers to a batch of queries, given what a student predicts for them.

        Args:
            predictions: the student's probabilities, [num_queries, num_classes].
            counts: int64, of the same shape. Sensitive.
            noise: what everything random is drawn from.
            noisy_winners: as of `draw`.

        Raises:
            ValueError: if predictions are not probabilities of that shape.
        """
        if predictions.shape != counts.shape:
            raise ValueError(
                f"predictions: expected {list(counts.shape)}, got {list(predictions.shape)}"
            )
        if not ((predictions >= 0.0) & (predictions <= 1.0)).all():
            raise ValueError("predictions: expected probabilities, got others")
        if not len(counts):
            return Answers([])
        winners = self.answering.draw(counts, noise, noisy_winners=noisy_winners).labels
        # In whole steps of the lattice: whatever rounding does to p, it does before any vote.
        expected = np.rint(predictions * (int(counts[0].sum()) * LATTICE)).astype(np.int64)
        passes = self.drawn_passes((counts * LATTICE - expected).max(axis=1), noise)
        # As it is typed: three tenths of ten are three, which a float is a 1e-17 short of.
        most = math.floor(fractions.Fraction(str(self.label_share)) * len(counts))
        is_answered = passes & (np.cumsum(passes) <= most)
        is_confident = ~passes & (predictions.max(axis=1) > self.student_confidence)
        classes = predictions.argmax(axis=1).tolist()
        rows = zip(winners, classes, is_answered, is_confident, strict=True)
        return Answers(
            [
                winner if answered else predicted if confident else None
                for winner, predicted, answered, confident in rows
            ]
        )

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns the cost of one test and of label_share of a label, [num_moments]."""
        return self.test_alphas(moments) + self.label_share * self.answering.alphas(moments)
