"""Mechanisms that add noise to every count and take the largest sum."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import ceil, exp, inf, log2, nextafter, sqrt
from typing import ClassVar, Self

import numpy as np
import scipy
from numpy.typing import NDArray

from pate_tf.accounting import noisy_max_costs as costs
from pate_tf.accounting.composition import Charge
from pate_tf.accounting.conversions import DEFAULT_MOMENTS, LATTICE, FloatArray, gaussian_dp_epsilon
from pate_tf.accounting.mechanisms.base import (
    Answers,
    Bound,
    DataDependent,
    Mechanism,
    NoiseDraws,
    OfSigma,
    OneScale,
    OutcomeLaw,
    Target,
    largest_sums,
    parameter,
    register,
)
from pate_tf.accounting.noisy_max_costs import NeighbourLaws
from pate_tf.core.checks import IntArray, between


class AdditiveNoisyMax(Mechanism):
    """A mechanism whose label is the class with the largest count after noise on each."""

    @abstractmethod
    def additive_noise(self, noise: NoiseDraws, num_queries: int, num_classes: int) -> IntArray:
        """Returns noise in units of 1 / LATTICE votes, int64 `[num_queries, num_classes]`."""

    def draw(self, counts: IntArray, noise: NoiseDraws) -> Answers:
        """Draws noise for every count and returns the classes with the largest sums."""
        winners = largest_sums(counts, self.additive_noise(noise, *counts.shape))
        return Answers(winners.tolist())


class CertifiedNoisyMax(AdditiveNoisyMax, DataDependent):
    """One whose cost at the worst counts was searched for, at `DEFAULT_MOMENTS`.

    Attributes:
        certified: the field that has the scale of the noise; 1 where more of it costs more, -1
            where it costs less; the least and the largest number that is searched at; and the
            search.
    """

    certified: ClassVar[tuple[str, int, float, float, Callable[[float], tuple[float, ...]]]]

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns the cost of the worst counts (docs/proofs/worst_case.md, Theorems W4 and W6).

        The scale is rounded to a geometric grid, toward less noise: more noise never costs more
        (Lemmas W3 and W7). The cost of every pair of laws is convex in l and 0 at l = 0, and so is
        the largest of them: chords bound it from above. Beyond the last moment, and outside of
        what is searched, `cost_cap` alone does.
        """
        field, sign, lowest, highest, search = self.certified
        number = getattr(self, field)
        if not lowest <= number <= highest:
            return self.cost_cap(moments)
        rounded = 2.0 ** (
            sign * ceil(sign * log2(number) * costs.PER_DOUBLING) / costs.PER_DOUBLING
        )
        searched = search(sign * max(sign * rounded, sign * number))
        bounds = np.minimum(searched, self.cost_cap(DEFAULT_MOMENTS))
        grid = np.append(0.0, DEFAULT_MOMENTS)
        chords = np.interp(moments, grid, np.append(0.0, bounds), right=np.inf)
        return np.asarray(np.minimum(chords, self.cost_cap(moments)))


LARGEST_SUM = (
    "The class with the largest sum is the label, and nothing else of the votes is released."
)


# Laplace noise on every count: the mechanism of Papernot et al. 2017.


def laplace_tail(gaps: FloatArray, gamma: float) -> FloatArray:
    """Returns Pr[a class `gaps` votes behind overtakes] under continuous Laplace noise.

    (2 + gamma D) / (4 e^{gamma D}) for D >= 0: Lemma 4 of Papernot et al. 2017. At
    least what the discrete law has if ties go by random priority (Proposition D1).
    """
    scaled = gamma * np.abs(gaps)
    ahead = (2.0 + scaled) * np.exp(-scaled) / 4.0
    return np.where(gaps >= 0, ahead, 1.0 - ahead)


@register
@dataclass(frozen=True, init=False)
class LaplaceNoisyMax(OneScale, CertifiedNoisyMax):
    """The class with most votes after discrete Laplace noise is added to every count.

    Pr[noise = k] = (1 - p)/(1 + p) p^|k| with p = e^-gamma: the integer form of Equation 1 of
    Papernot et al. 2017; docs/proofs/theory.md, Proposition D1. One label is 2 gamma differentially
    private. The pairwise tail F satisfies F(D - s) <= e^{gamma s} F(D) for s >= 0, which Lemma 1
    rests on, and the noise is as Theorem T3 demands.

    >>> import pate_tf
    >>> mechanism = pate_tf.LaplaceNoisyMax(scale=20.0)
    >>> epsilon, _ = mechanism.data_independent_epsilon(num_queries=100, delta=1e-5)
    >>> round(epsilon, 2)
    2.14

    Attributes:
        gamma: inverse scale of the noise, per vote.
    """

    gamma: float = parameter(
        flag="noise_eps",
        above=0.0,
        help="gamma of the mechanism, the inverse scale of its noise, per vote: Lap(1/gamma).",
    )
    name: ClassVar[str] = "laplace_noisy_max"
    bounds: ClassVar[tuple[str, ...]] = ("paper", "tight", "two_sided", "class_aware", "exact")
    noise_law = ("gamma", costs.discrete_laplace)  # ties go by random priority
    certified = ("gamma", 1, costs.MIN_GAMMA, costs.MAX_GAMMA, costs.laplace_noisy_max_alphas)
    words: ClassVar[str] = (
        "To every class's number of votes a random whole number is added, from the discrete "
        "Laplace law of scale {self.scale:.3g} votes. " + LARGEST_SUM
    )

    def __init__(self, *, gamma: float | None = None, scale: float | None = None) -> None:
        """Takes the noise by either of its two names.

        Args:
            gamma: inverse scale, per vote.
            scale: in votes; gamma is 1 / scale.

        Raises:
            ValueError: if both or neither are given, or the number is not above 0 and finite.
        """
        if (gamma is None) == (scale is None):
            got = "both" if scale is not None else "neither"
            raise ValueError(f"{self.name}: expected gamma or scale, got {got}")
        if scale is not None:
            between(0.0, inf, scale=scale)
            gamma = 1.0 / scale
        object.__setattr__(self, "gamma", gamma)
        self.__post_init__()
        object.__setattr__(self, "pure_epsilon", 2.0 * self.gamma)

    @property
    def scale(self) -> float:
        """1 / gamma, in votes."""
        return 1.0 / self.gamma

    @property
    def noise_scales(self) -> Mapping[str, float]:
        """1 / gamma, rounded up: the noise drawn is never smaller than what is accounted for."""
        return {"1/gamma": nextafter(1.0 / self.gamma, inf)}

    def additive_noise(self, noise: NoiseDraws, num_queries: int, num_classes: int) -> IntArray:
        """Returns discrete Laplace variables times LATTICE, plus each class's place in an order.

        The order is uniformly random, one for each query, and breaks ties.
        """
        drawn = noise.laplace_integers(self.noise_scales["1/gamma"], num_queries * num_classes)
        priorities = noise.random_orders(num_queries, num_classes)
        return drawn.reshape(num_queries, num_classes) * LATTICE + priorities

    def pairwise_tail(self, gaps: FloatArray) -> FloatArray:
        """Returns Pr[difference of two discrete Laplace variables >= gaps].

        Ties count for the class behind, so that every rule of breaking ties is covered
        (docs/proofs/theory.md, Proposition D1).
        """
        fall = np.exp(-self.gamma)
        distance = np.where(gaps >= 0, gaps, 1.0 - gaps)
        spread = (1.0 + fall + 2.0 * fall**2) / (1.0 + fall)
        linear = (spread - np.expm1(-self.gamma) * distance) / (1.0 + fall) ** 2
        reached = np.exp(-self.gamma * distance) * linear
        return np.asarray(np.where(gaps >= 0, reached, 1.0 - reached))

    # D*(l) of 2 gamma (docs/proofs/theory.md, Proposition C2).
    cost_cap = Charge.alphas

    def bound(self, name: str) -> Bound:
        """Returns the costs of Theorems T0 to T3, for q up to 1/(E+1), E = e^{2 gamma}.

        For `paper` with the tail of continuous noise, which holds because ties go by random
        priority (Proposition D1, d).
        """

        def formula(q: FloatArray, u: FloatArray, moments: FloatArray) -> FloatArray:
            values = np.full((len(q), len(moments)), inf)
            applies = q <= 1.0 / (1.0 + exp(min(2.0 * self.gamma, 700.0)))
            values[applies] = costs.pure_costs(name, self.gamma, q[applies], u[applies], moments)
            return values

        def paper_cap(moments: FloatArray) -> FloatArray:
            """Papernot et al. 2017: min(2 gamma^2 l (l+1), 2 gamma l)."""
            return 2.0 * self.gamma * moments * np.minimum(self.gamma * (moments + 1.0), 1.0)

        if name == "paper":
            return Bound(partial(laplace_tail, gamma=self.gamma), formula, paper_cap)
        return Bound(self.pairwise_tail, formula, self.cost_cap)

    def neighbour_laws(self, row: IntArray) -> NeighbourLaws:
        """Returns the exact laws, which do not depend on the order of the classes."""
        noise = partial(costs.discrete_laplace, self.gamma)
        laws = costs.neighbour_outcomes(noise, *np.unique(row, return_counts=True))
        rare = costs.MIN_PROBABILITY * exp(min(self.gamma, 700.0))
        return dataclasses.replace(laws, limit=2.0 * self.gamma, rare=rare)

    def summary(self) -> str:
        """Returns name and parameters, such as `laplace_noisy_max, gamma 0.05 (scale 20 votes)`."""
        return f"{super().summary()} (scale {self.scale:g} votes)"


# Gaussian noise on every count: GNMax of Papernot et al. 2018.


@dataclass(frozen=True, kw_only=True)
class GaussianCounts(OfSigma, OutcomeLaw):
    """A mechanism with Gaussian noise on every count: discrete, on multiples of 1 / LATTICE votes.

    One vote of a query moves two counts by one, which is a sensitivity of sqrt(2). The noise lies
    between the continuous variable minus and plus one step in stochastic order, so that a
    difference of two is below the continuous difference plus two steps: `pairwise_tail` lowers gaps
    by two steps.

    Attributes:
        sigma: standard deviation of the noise on each count, in votes.
    """

    noise_law = ("sigma", costs.gaussian)  # continuous

    def additive_noise(self, noise: NoiseDraws, num_queries: int, num_classes: int) -> IntArray:
        """Returns discrete Gaussian variables of scale sigma * LATTICE."""
        drawn = noise.gaussian_integers(self.sigma * LATTICE, num_queries * num_classes)
        return drawn.reshape(num_queries, num_classes)

    def pairwise_tail(self, gaps: FloatArray) -> FloatArray:
        """Returns erfc(D / (2 sigma)) / 2 with D lowered by two lattice steps."""
        return np.asarray(scipy.special.erfc((gaps - 2.0 / LATTICE) / (2.0 * self.sigma)) / 2.0)


@register
@dataclass(frozen=True, kw_only=True)
class GaussianNoisyMax(GaussianCounts, CertifiedNoisyMax):
    """The class with most votes after Gaussian noise is added to every count.

    >>> import pate_tf
    >>> mechanism = pate_tf.GaussianNoisyMax(sigma=40.0)
    >>> epsilon, _ = mechanism.data_independent_epsilon(num_queries=100, delta=1e-5)
    >>> round(epsilon, 2)
    1.17

    Attributes:
        sigma: standard deviation of the noise on each count, in votes.
    """

    name: ClassVar[str] = "gaussian_noisy_max"
    bounds: ClassVar[tuple[str, ...]] = ("paper", "two_sided", "exact")
    certified = ("sigma", -1, costs.MIN_SIGMA, costs.MAX_SIGMA, costs.gaussian_noisy_max_alphas)
    words: ClassVar[str] = (
        "To every class's number of votes Gaussian noise of standard deviation {self.sigma:.3g} "
        "votes is added. " + LARGEST_SUM
    )

    alphas = CertifiedNoisyMax.alphas
    cost_cap = OfSigma.alphas  # of the noisy counts themselves

    def bound(self, name: str) -> Bound:
        """Returns the costs of arXiv 1802.08908, for q below 1; `two_sided` one vote away."""

        def formula(q: FloatArray, u: FloatArray, moments: FloatArray) -> FloatArray:
            del u
            values = np.full((len(q), len(moments)), inf)
            values[q < 1.0] = costs.gaussian_costs(self.sigma, q[q < 1.0], moments)
            return values

        return Bound(self.pairwise_tail, formula, self.cost_cap, reach=int(name == "two_sided"))

    def neighbour_laws(self, row: IntArray) -> NeighbourLaws:
        """Returns the laws of continuous noise.

        The sampler's lattice and its ties move a log ratio by at most about one step in LATTICE
        relative to one vote, which a relative margin of 16 steps covers.
        """
        step = 1.0 / self.sigma
        laws = costs.neighbour_outcomes(
            partial(costs.gaussian, self.sigma), *np.unique(row, return_counts=True)
        )
        rare = costs.MIN_PROBABILITY * exp(min(80.0 * step + step**2, 700.0))
        return dataclasses.replace(laws, rare=rare, excess=16.0 / LATTICE)


@register
@dataclass(frozen=True, kw_only=True)
class GaussianHistogram(GaussianCounts):
    """Releases all counts of a query with Gaussian noise; its label is the largest one's class.

    Several queries are sqrt(2 num_queries) / sigma Gaussian differentially private. A label says
    which class is ahead; the counts also say by how much, which a mean over nearest neighbors
    uses.

    >>> import pate_tf
    >>> mechanism = pate_tf.mechanisms.GaussianHistogram(sigma=40.0)
    >>> epsilon, _ = mechanism.data_independent_epsilon(num_queries=100, delta=1e-5)
    >>> round(epsilon, 2)
    1.36

    Attributes:
        sigma: standard deviation of the noise on each count, in votes.
    """

    name: ClassVar[str] = "gaussian_histogram"
    releases_counts: ClassVar[bool] = True
    lacks: ClassVar[Mapping[str, str]] = {
        "bounds": "the noisy counts are released, too, which costs the same for all votes"
    }
    words: ClassVar[str] = (
        "To every class's number of votes Gaussian noise of standard deviation {self.sigma:.3g} "
        "votes is added. All these sums are released, and the class with the largest one is the "
        "label."
    )

    def draw(self, counts: IntArray, noise: NoiseDraws) -> Answers:
        """Draws noise for every count; all sums are released."""
        drawn = self.additive_noise(noise, *counts.shape)
        return Answers(largest_sums(counts, drawn).tolist(), counts * LATTICE + drawn)


# Gaussian noise on every count, asked only where teachers agree: Confident-GNMax.


@register
@dataclass(frozen=True, kw_only=True)
class ConfidentGaussianNoisyMax(DataDependent):
    """`GaussianNoisyMax`, asked only where the largest count plus noise reaches a threshold.

    Test and label are always charged, also where the label is withheld, because how many there
    were is itself an output (Papernot et al. 2018, arXiv 1802.08908, Algorithm 1).
    `outcome_probabilities` are those of a query that passed the test. Both noises are discrete
    Gaussians as in `GaussianNoisyMax`.

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

    threshold: float = parameter(
        above=-inf,
        help="Votes that the leading class must reach, with noise, for a query to be answered.",
    )
    sigma_threshold: float = parameter(
        above=0.0, help="Standard deviation of the noise of that test, in votes."
    )
    sigma: float = parameter(above=0.0, help="Standard deviation of the Gaussian noise, in votes.")
    name: ClassVar[str] = "confident_gaussian_noisy_max"
    withholds: ClassVar[bool] = True
    noise_fields: ClassVar[tuple[str, ...]] = ("sigma", "sigma_threshold")
    bounds: ClassVar[tuple[str, ...]] = GaussianNoisyMax.bounds
    noise_law = GaussianNoisyMax.noise_law
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
        threshold = round((int(counts.max()) + int(counts[0].sum()) / 2.0) / 2.0, 1)
        return target.least_noise(
            lambda scale: cls(threshold=threshold, sigma_threshold=2.0 * scale, sigma=scale)
        )

    def expected_correct(self, counts: IntArray) -> float:
        """Returns the expected number of queries that pass the test and get class 0.

        Both noises as the continuous ones; they are independent.
        """
        rows, number = np.unique(counts, axis=0, return_counts=True)
        passes = scipy.special.ndtr((rows.max(axis=1) - self.threshold) / self.sigma_threshold)
        return float(number @ (passes * self.outcome_probabilities(rows)[:, 0]))

    @property
    def answering(self) -> GaussianNoisyMax:
        """The mechanism that chooses the label of a query that passed the test."""
        return GaussianNoisyMax(sigma=self.sigma)

    def drawn_passes(self, scores: IntArray, noise: NoiseDraws) -> NDArray[np.bool_]:
        """Draws which queries pass the test, [num_queries].

        Args:
            scores: what is compared, in units of 1 / LATTICE votes, [num_queries]. Sensitive.
            noise: what everything random is drawn from.
        """
        test = noise.gaussian_integers(self.sigma_threshold * LATTICE, len(scores))
        threshold = ceil(Fraction(self.threshold) * LATTICE)
        return np.asarray(scores + test >= threshold)

    def test_alphas(self, moments: FloatArray) -> FloatArray:
        """Returns the cost l (l+1) / (2 sigma_threshold^2) of one test, [num_moments]."""
        return moments * (moments + 1.0) / (2.0 * self.sigma_threshold**2)

    @property
    def noise_multipliers(self) -> tuple[float, ...]:
        """Of the test, whose sensitivity is 1, and of the label."""
        return (self.sigma_threshold, *self.answering.noise_multipliers)

    def draw(self, counts: IntArray, noise: NoiseDraws) -> Answers:
        """Draws a label for each query, and withholds those whose test fails."""
        labels = self.answering.draw(counts, noise).labels
        passes = self.drawn_passes(counts.max(axis=1) * LATTICE, noise)
        return Answers(
            [label if passed else None for label, passed in zip(labels, passes, strict=True)]
        )

    def pairwise_tail(self, gaps: FloatArray) -> FloatArray:
        """Returns the tail of `answering`."""
        return self.answering.pairwise_tail(gaps)

    def cost_cap(self, moments: FloatArray) -> FloatArray:
        """Returns the cost of one test and of the noisy counts of one label, [num_moments]."""
        return self.test_alphas(moments) + self.answering.cost_cap(moments)

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns the cost of one test and one label, [num_moments]."""
        return self.test_alphas(moments) + self.answering.alphas(moments)

    def composed_epsilon(self, number: int, *, delta: float) -> float:
        """Returns the epsilon of Gaussian differential privacy of tests and labels.

        With the lattice's share, as of `OfSigma.composed_epsilon`.
        """
        squared = number / self.sigma_threshold**2 + 2.0 * number / self.sigma**2
        return gaussian_dp_epsilon(sqrt(squared), delta) + squared / LATTICE

    def bound(self, name: str) -> Bound:
        """Returns that of `answering`."""
        return self.answering.bound(name)

    def neighbour_laws(self, row: IntArray) -> NeighbourLaws:
        """Returns those of `answering`."""
        return self.answering.neighbour_laws(row)
