"""Mechanisms that add noise to vote counts and return the class with the largest noisy count."""

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
    parameter,
    register,
)
from pate_tf.accounting.noisy_max_costs import NeighbourLaws
from pate_tf.core.checks import IntArray, between


class AdditiveNoisyMax(Mechanism):
    """A mechanism that adds noise to each count and returns the class with the largest result."""

    @abstractmethod
    def additive_noise(self, noise: NoiseDraws, num_queries: int, num_classes: int) -> IntArray:
        """Returns noise in units of 1 / LATTICE votes, int64 `[num_queries, num_classes]`."""

    def draw(self, counts: IntArray, noise: NoiseDraws) -> Answers:
        """Returns the class with the largest noisy count for each query."""
        winners = noise.noisy_winners(counts, self.additive_noise(noise, *counts.shape))
        return Answers(winners.tolist())


class CertifiedNoisyMax(AdditiveNoisyMax, DataDependent):
    """An additive mechanism whose worst-case cost is computed by a search over all counts.

    Attributes:
        certified: five entries: the name of the noise field; 1 if larger values of this field cost
            more, or -1 if they cost less; the smallest and the largest value that the search
            accepts; and the search, a function that takes a value and returns the costs at
            `DEFAULT_MOMENTS`.
    """

    certified: ClassVar[tuple[str, int, float, float, Callable[[float], tuple[float, ...]]]]

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns the worst-case cost over all counts, [num_moments].

        See docs/proofs/worst_case.md, Theorems W4 and W6. The scale is first rounded to a geometric
        grid, toward less noise, because more noise never costs more (Lemmas W3 and W7). For every
        pair of distributions, the cost is convex in l and 0 at l = 0. The maximum over all pairs
        has the same properties, so linear interpolation between moments is an upper bound. Above
        the last moment and outside the range of the search, `cost_cap` is used.
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
    "The class with the largest sum becomes the label. Nothing else about the votes is released."
)


# Laplace noise on every count (Papernot et al. 2017).


def laplace_tail(gaps: FloatArray, gamma: float) -> FloatArray:
    """Returns the probability that a class wins with Laplace noise although it is `gaps` behind.

    The noise is continuous. For D = gaps >= 0 votes, the probability is (2 + gamma D) / (4 e^{gamma
    D}) (Papernot et al. 2017, Lemma 4). With discrete noise and ties broken by random priority, the
    probability is at most this value (Proposition D1).
    """
    scaled = gamma * np.abs(gaps)
    ahead = (2.0 + scaled) * np.exp(-scaled) / 4.0
    return np.where(gaps >= 0, ahead, 1.0 - ahead)


@register
@dataclass(frozen=True, init=False)
class LaplaceNoisyMax(OneScale, CertifiedNoisyMax):
    """Returns the class with the most votes after adding discrete Laplace noise to every count.

    The noise has the distribution Pr[noise = k] = (1 - p)/(1 + p) p^|k| with p = e^-gamma. This is
    the integer form of Equation 1 of Papernot et al. 2017 (docs/proofs/theory.md, Proposition D1).
    One label is 2 gamma differentially private. The pairwise tail F satisfies F(D - s) <= e^{gamma
    s} F(D) for s >= 0, as Lemma 1 requires. The noise also satisfies the condition of Theorem T3.

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
        help="gamma, the inverse scale of the Laplace noise, per vote: Lap(1/gamma).",
    )
    name: ClassVar[str] = "laplace_noisy_max"
    bounds: ClassVar[tuple[str, ...]] = ("paper", "tight", "two_sided", "class_aware", "exact")
    noise_law = ("gamma", costs.discrete_laplace)  # ties are broken by random priority
    certified = ("gamma", 1, costs.MIN_GAMMA, costs.MAX_GAMMA, costs.laplace_noisy_max_alphas)
    words: ClassVar[str] = (
        "A random whole number from the discrete Laplace distribution of scale {self.scale:.3g} "
        "votes is added to the number of votes of every class. " + LARGEST_SUM
    )

    def __init__(self, *, gamma: float | None = None, scale: float | None = None) -> None:
        """Sets the amount of noise, from either gamma or scale.

        Args:
            gamma: inverse scale of the noise, per vote.
            scale: scale of the noise, in votes; gamma is 1 / scale.

        Raises:
            ValueError: unless exactly one of `gamma` and `scale` is passed, and its value is above
                0 and finite.
        """
        if (gamma is None) == (scale is None):
            given = "not both" if scale is not None else "such as scale=20.0"
            raise ValueError(f"{self.name} needs either gamma or scale, {given}")
        if scale is not None:
            between(0.0, inf, scale=scale)
            gamma = 1.0 / scale
        object.__setattr__(self, "gamma", gamma)
        self.__post_init__()
        object.__setattr__(self, "pure_epsilon", 2.0 * self.gamma)

    @property
    def scale(self) -> float:
        """Scale of the noise, 1 / gamma, in votes."""
        return 1.0 / self.gamma

    @property
    def noise_scales(self) -> Mapping[str, float]:
        """The scale 1 / gamma, rounded up, so the noise is never less than the cost assumes."""
        return {"1/gamma": nextafter(1.0 / self.gamma, inf)}

    def additive_noise(self, noise: NoiseDraws, num_queries: int, num_classes: int) -> IntArray:
        """Returns discrete Laplace variables times LATTICE, plus the priority of each class.

        The priorities of a query are a uniformly random permutation, which breaks ties.
        """
        drawn = noise.laplace_integers(self.noise_scales["1/gamma"], num_queries * num_classes)
        priorities = noise.random_orders(num_queries, num_classes)
        return drawn.reshape(num_queries, num_classes) * LATTICE + priorities

    def pairwise_tail(self, gaps: FloatArray) -> FloatArray:
        """Returns Pr[difference of two discrete Laplace variables >= gaps].

        If there is a tie, the class that is behind is assumed to win. The result therefore holds
        for every rule that breaks ties (docs/proofs/theory.md, Proposition D1).
        """
        fall = np.exp(-self.gamma)
        distance = np.where(gaps >= 0, gaps, 1.0 - gaps)
        spread = (1.0 + fall + 2.0 * fall**2) / (1.0 + fall)
        linear = (spread - np.expm1(-self.gamma) * distance) / (1.0 + fall) ** 2
        reached = np.exp(-self.gamma * distance) * linear
        return np.asarray(np.where(gaps >= 0, reached, 1.0 - reached))

    # The cap is D*(l) at epsilon 2 gamma (docs/proofs/theory.md, Proposition C2), which the default
    # method `Charge.alphas` computes.
    cost_cap = Charge.alphas

    def bound(self, name: str) -> Bound:
        """Returns the bound of Theorems T0 to T3, for q up to 1/(E+1), where E = e^{2 gamma}.

        The bound `paper` uses the tail of continuous noise. This bound holds because ties are
        broken by random priority (Proposition D1, d).
        """

        def formula(q: FloatArray, u: FloatArray, moments: FloatArray) -> FloatArray:
            values = np.full((len(q), len(moments)), inf)
            applies = q <= 1.0 / (1.0 + exp(min(2.0 * self.gamma, 700.0)))
            values[applies] = costs.pure_costs(name, self.gamma, q[applies], u[applies], moments)
            return values

        def paper_cap(moments: FloatArray) -> FloatArray:
            """Returns the cap of Papernot et al. 2017, min(2 gamma^2 l (l+1), 2 gamma l)."""
            return 2.0 * self.gamma * moments * np.minimum(self.gamma * (moments + 1.0), 1.0)

        if name == "paper":
            return Bound(partial(laplace_tail, gamma=self.gamma), formula, paper_cap)
        return Bound(self.pairwise_tail, formula, self.cost_cap)

    def neighbour_laws(self, row: IntArray) -> NeighbourLaws:
        """Returns the exact label distributions. The order of the classes does not matter."""
        noise = partial(costs.discrete_laplace, self.gamma)
        laws = costs.neighbour_outcomes(noise, *np.unique(row, return_counts=True))
        rare = costs.MIN_PROBABILITY * exp(min(self.gamma, 700.0))
        return dataclasses.replace(laws, limit=2.0 * self.gamma, rare=rare)

    def summary(self) -> str:
        """Returns name and parameters, such as `laplace_noisy_max, gamma 0.05 (scale 20 votes)`."""
        return f"{super().summary()} (scale {self.scale:g} votes)"


# Gaussian noise on every count (GNMax, Papernot et al. 2018).


@dataclass(frozen=True, kw_only=True)
class GaussianCounts(OfSigma, OutcomeLaw):
    """A mechanism with discrete Gaussian noise on every count, in multiples of 1 / LATTICE votes.

    A vote that moves from one class to another changes two counts by one, so the sensitivity is
    sqrt(2). The discrete noise exceeds continuous noise by at most one lattice step (in stochastic
    order). So the difference of two discrete noise variables exceeds the difference of continuous
    variables by at most two steps. `pairwise_tail` therefore reduces each gap by two steps.

    Attributes:
        sigma: standard deviation of the noise on each count, in votes.
    """

    noise_law = ("sigma", costs.gaussian)  # for continuous noise

    def additive_noise(self, noise: NoiseDraws, num_queries: int, num_classes: int) -> IntArray:
        """Returns discrete Gaussian variables of scale sigma * LATTICE."""
        drawn = noise.gaussian_integers(self.sigma * LATTICE, num_queries * num_classes)
        return drawn.reshape(num_queries, num_classes)

    def pairwise_tail(self, gaps: FloatArray) -> FloatArray:
        """Returns erfc(D / (2 sigma)) / 2, where D is the gap minus two lattice steps."""
        return np.asarray(scipy.special.erfc((gaps - 2.0 / LATTICE) / (2.0 * self.sigma)) / 2.0)


@register
@dataclass(frozen=True, kw_only=True)
class GaussianNoisyMax(GaussianCounts, CertifiedNoisyMax):
    """Returns the class with the most votes after adding Gaussian noise to every count.

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
        "Gaussian noise of standard deviation {self.sigma:.3g} votes is added to the number of "
        "votes of every class. " + LARGEST_SUM
    )

    alphas = CertifiedNoisyMax.alphas
    cost_cap = OfSigma.alphas  # cost of releasing all noisy counts

    def bound(self, name: str) -> Bound:
        """Returns the bound of arXiv 1802.08908 for q below 1.

        For the bound `two_sided`, one vote is assumed to move (see `Bound.reach`).
        """

        def formula(q: FloatArray, _: FloatArray, moments: FloatArray) -> FloatArray:
            values = np.full((len(q), len(moments)), inf)
            values[q < 1.0] = costs.gaussian_costs(self.sigma, q[q < 1.0], moments)
            return values

        return Bound(self.pairwise_tail, formula, self.cost_cap, reach=int(name == "two_sided"))

    def neighbour_laws(self, row: IntArray) -> NeighbourLaws:
        """Returns the label distributions under continuous noise, with a margin for the lattice.

        The real noise is drawn on a lattice, so noisy counts can be equal. The relative effect of
        such ties on a log ratio is at most about 1 / LATTICE. A relative margin of 16 / LATTICE
        covers it.
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
    """Releases all counts of a query with Gaussian noise. The largest noisy count gives the label.

    The answers to all queries together have mu-Gaussian differential privacy with mu = sqrt(2
    num_queries) / sigma. The noisy counts also show the vote margins, which make averages over
    nearest neighbors more accurate.

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
        "bounds": "it also releases the noisy counts, which costs the same for all votes"
    }
    words: ClassVar[str] = (
        "Gaussian noise of standard deviation {self.sigma:.3g} votes is added to the number of "
        "votes of every class. All these sums are released. The class with the largest sum becomes "
        "the label."
    )

    def draw(self, counts: IntArray, noise: NoiseDraws) -> Answers:
        """Draws all noisy counts of each query, and the labels that follow from them."""
        drawn = self.additive_noise(noise, *counts.shape)
        return Answers(noise.noisy_winners(counts, drawn).tolist(), counts * LATTICE + drawn)


# Confident-GNMax: Gaussian noise on every count. A query gets a label only if its largest count,
# plus noise, reaches a threshold.


@register
@dataclass(frozen=True, kw_only=True)
class ConfidentGaussianNoisyMax(DataDependent):
    """`GaussianNoisyMax` that answers only queries whose largest noisy count reaches a threshold.

    Every query is charged for the test and the label, even if the label is withheld, because the
    number of withheld labels is itself an output (Papernot et al. 2018, arXiv 1802.08908, Algorithm
    1). `outcome_probabilities` are conditional on passing the test. The noise of the test and of
    the label is discrete Gaussian, as in `GaussianNoisyMax`.

    >>> import pate_tf
    >>> mechanism = pate_tf.ConfidentGaussianNoisyMax(
    ...     threshold=200.0, sigma_threshold=150.0, sigma=40.0)
    >>> epsilon, _ = mechanism.data_independent_epsilon(num_queries=100, delta=1e-5)
    >>> round(epsilon, 2)
    1.2

    Attributes:
        threshold: a query is answered only if its largest count plus noise is at least this number
            of votes.
        sigma_threshold: standard deviation of the noise of the test, in votes.
        sigma: standard deviation of the noise of the label, in votes.
    """

    threshold: float = parameter(above=-inf, help="Minimum top noisy count of an answered query.")
    sigma_threshold: float = parameter(
        above=0.0, help="Standard deviation of the noise in the threshold test, in votes."
    )
    sigma: float = parameter(above=0.0, help="Standard deviation of the Gaussian noise, in votes.")
    name: ClassVar[str] = "confident_gaussian_noisy_max"
    withholds: ClassVar[bool] = True
    noise_fields: ClassVar[tuple[str, ...]] = ("sigma", "sigma_threshold")
    bounds: ClassVar[tuple[str, ...]] = GaussianNoisyMax.bounds
    noise_law = GaussianNoisyMax.noise_law
    words: ClassVar[str] = (
        "Gaussian noise of standard deviation {self.sigma_threshold:.3g} votes is added to the "
        "largest number of votes of a query. The query is answered only if this sum reaches "
        "{self.threshold:.3g} votes, and it is charged in both cases. For an answered query, "
        "Gaussian noise of standard deviation {self.sigma:.3g} votes is added to the number of "
        "votes of every class. " + LARGEST_SUM
    )

    @classmethod
    def for_target(cls, target: Target, counts: IntArray) -> Self:
        """Returns the mechanism with the least noise that meets the target.

        The noise of the test is twice the noise of the label, so that the test causes about a sixth
        of the cost. The threshold is halfway between the largest assumed count and half of all
        votes. Half of all votes is the largest count if the votes are evenly divided between two
        classes.
        """
        threshold = round((int(counts.max()) + int(counts[0].sum()) / 2.0) / 2.0, 1)
        return target.least_noise(
            lambda scale: cls(threshold=threshold, sigma_threshold=2.0 * scale, sigma=scale)
        )

    def expected_correct(self, counts: IntArray) -> float:
        """Returns the expected number of queries that pass the test and get class 0.

        The computation assumes continuous noise. The test and the label have independent noise.
        """
        rows, number = np.unique(counts, axis=0, return_counts=True)
        passes = scipy.special.ndtr((rows.max(axis=1) - self.threshold) / self.sigma_threshold)
        return float(number @ (passes * self.outcome_probabilities(rows)[:, 0]))

    @property
    def answering(self) -> GaussianNoisyMax:
        """The mechanism that draws the label of a query that passed the test."""
        return GaussianNoisyMax(sigma=self.sigma)

    def drawn_passes(self, scores: IntArray, noise: NoiseDraws) -> NDArray[np.bool_]:
        """Draws the results of the threshold test.

        Returns whether each query passes, [num_queries].

        Args:
            scores: SENSITIVE; largest count of each query in units of 1 / LATTICE votes,
                [num_queries].
            noise: source of all random draws.
        """
        test = noise.gaussian_integers(self.sigma_threshold * LATTICE, len(scores))
        threshold = ceil(Fraction(self.threshold) * LATTICE)
        return np.asarray(scores + test >= threshold)

    def test_alphas(self, moments: FloatArray) -> FloatArray:
        """Returns the cost l (l+1) / (2 sigma_threshold^2) of one test, [num_moments]."""
        return moments * (moments + 1.0) / (2.0 * self.sigma_threshold**2)

    @property
    def noise_multipliers(self) -> tuple[float, ...]:
        """Noise multipliers of the threshold test (its sensitivity is 1) and of the noisy label."""
        return (self.sigma_threshold, *self.answering.noise_multipliers)

    def draw(self, counts: IntArray, noise: NoiseDraws) -> Answers:
        """Draws a label for each query, and withholds labels of queries that fail the test."""
        labels = self.answering.draw(counts, noise).labels
        passes = self.drawn_passes(counts.max(axis=1) * LATTICE, noise)
        return Answers(
            [label if passed else None for label, passed in zip(labels, passes, strict=True)]
        )

    def pairwise_tail(self, gaps: FloatArray) -> FloatArray:
        """Returns the pairwise tail of the mechanism that draws the label."""
        return self.answering.pairwise_tail(gaps)

    def cost_cap(self, moments: FloatArray) -> FloatArray:
        """Returns the cost of one test and of the noisy counts of one label, [num_moments]."""
        return self.test_alphas(moments) + self.answering.cost_cap(moments)

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns the cost of one test and one label, [num_moments]."""
        return self.test_alphas(moments) + self.answering.alphas(moments)

    def composed_epsilon(self, number: int, *, delta: float) -> float:
        """Returns the epsilon of Gaussian differential privacy for all tests and labels.

        It includes the surcharge for the lattice; see `OfSigma.composed_epsilon`.
        """
        squared = number / self.sigma_threshold**2 + 2.0 * number / self.sigma**2
        return gaussian_dp_epsilon(sqrt(squared), delta) + squared / LATTICE

    def bound(self, name: str) -> Bound:
        """Returns the data-dependent bound for the label of an answered query."""
        return self.answering.bound(name)

    def neighbour_laws(self, row: IntArray) -> NeighbourLaws:
        """Returns the distributions of the label of an answered query."""
        return self.answering.neighbour_laws(row)
