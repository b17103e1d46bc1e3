"""Aggregation mechanisms as frozen values.

One value draws the noise and accounts for it, so the two can't drift apart. What is fixed here is
the law of the released label given the counts; nothing may change it without changing the
accounting with it.

Ties. The additive samplers give every class of every query an independent, uniformly random
priority that is drawn without looking at the counts; equal noisy counts go to the higher priority.
In integers: score = counts * LATTICE + noise, where the noise of `LaplaceNoisyMax` is
(discrete Laplace) * LATTICE + (random permutation of 0 .. num_classes - 1), and the noise of
`GaussianNoisyMax` is a discrete Gaussian of scale sigma * LATTICE. Exact outcome probabilities
follow that rule and so do not depend on the order of the classes; every other bound counts a tie
against the plurality and holds for any rule that does not look at the counts.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any, ClassVar

import numpy as np

from pate_tf.accounting import outcomes
from pate_tf.accounting.conversions import (
    DEFAULT_MOMENTS,
    check_num_queries,
    epsilon_from_alphas,
    gaussian_dp_epsilon,
    pure_composition_epsilon,
)
from pate_tf.accounting.divergences import FloatArray, pure_alpha
from pate_tf.accounting.quadrature import DiscreteLaplaceNoise, GaussianNoise, IntArray

LATTICE = 2**20


def _check_positive(name: str, value: float) -> None:
    if not 0.0 < value < inf:
        raise ValueError(f"expected {name} > 0 and finite, got {value}")


def _check_num_answered(num_queries: int, num_answered: int | None) -> tuple[int, int]:
    queries = check_num_queries(num_queries)
    answered = queries if num_answered is None else check_num_queries(num_answered)
    if answered > queries:
        raise ValueError(f"expected num_answered <= {queries}, got {answered}")
    return queries, answered


@dataclass(frozen=True)
class Mechanism(ABC):
    """A randomised rule that turns the counts of one query into one label.

    Adjacency: one training record is replaced, so at most one teacher changes, and at most one
    vote of every query moves from one class to another (privacy.md, section 0).
    """

    name: ClassVar[str]
    bounds: ClassVar[tuple[str, ...]] = ()

    def to_dict(self) -> dict[str, object]:
        """Returns the JSON-able fields, with the mechanism's name; see `mechanism_from_dict`."""
        return {"name": self.name, **dataclasses.asdict(self)}

    @abstractmethod
    def pairwise_tail(self, gaps: FloatArray) -> FloatArray:
        """Returns F(D), at least Pr[a class with D votes fewer is preferred], same shape as gaps.

        F is nonincreasing, and convex on D >= 0 for every mechanism that adds noise.
        """

    @abstractmethod
    def query_alpha(self, moments: FloatArray) -> FloatArray:
        """Returns the largest cost of one label, [num_moments], whatever the counts."""

    @abstractmethod
    def outcome_probabilities(self, counts: IntArray) -> FloatArray:
        """Returns the exact law of the label, [num_queries, num_classes]."""

    def data_independent_alpha(
        self, moments: FloatArray, *, num_queries: int, num_answered: int | None = None
    ) -> FloatArray:
        """Returns the total cost of num_queries labels, [num_moments], whatever the counts.

        num_answered (default: all) matters only where a query can go unanswered.
        """
        queries, _ = _check_num_answered(num_queries, num_answered)
        if queries == 0:
            return np.zeros_like(moments)
        return queries * self.query_alpha(moments)

    def data_independent_epsilon(
        self, *, num_queries: int, delta: float, num_answered: int | None = None
    ) -> tuple[float, float | None]:
        """Returns the smallest known data-independent epsilon at delta, and its moment.

        The moment is None where a composition theorem other than moments gives the result.
        """
        alphas = self.data_independent_alpha(
            DEFAULT_MOMENTS, num_queries=num_queries, num_answered=num_answered
        )
        epsilon, moment = epsilon_from_alphas(alphas, DEFAULT_MOMENTS, delta)
        composed = self._composed_epsilon(
            *_check_num_answered(num_queries, num_answered), delta=delta
        )
        return (composed, None) if composed < epsilon else (epsilon, moment)

    def _composed_epsilon(self, queries: int, answered: int, *, delta: float) -> float:
        return inf


@dataclass(frozen=True)
class PureNoisyMax(Mechanism):
    """A mechanism whose label is 2 gamma differentially private, whatever the counts.

    Its pairwise tail F satisfies F(D - s) <= e^{gamma s} F(D) for s >= 0, which Theorems T1 to T3
    and Lemma 1 of privacy.md rest on.

    Attributes:
        gamma: inverse scale of the noise, per vote.
    """

    gamma: float
    bounds: ClassVar[tuple[str, ...]] = ("tight", "two_sided", "class_aware", "exact")

    def __post_init__(self) -> None:
        """Raises ValueError unless gamma is positive and finite."""
        _check_positive("gamma", self.gamma)

    def query_alpha(self, moments: FloatArray) -> FloatArray:
        """Returns D*(l) of 2 gamma (privacy.md, section 1), [num_moments]."""
        return pure_alpha(2.0 * self.gamma, moments)

    def _composed_epsilon(self, queries: int, answered: int, *, delta: float) -> float:
        return pure_composition_epsilon(2.0 * self.gamma, queries, delta)


@dataclass(frozen=True)
class LaplaceNoisyMax(PureNoisyMax):
    """The class with most votes after discrete Laplace noise is added to every count.

    Pr[noise = k] = (1 - p)/(1 + p) p^|k| with p = e^-gamma: the integer form of Equation 1 of
    Papernot et al. 2017; privacy.md, part D 1.
    """

    name: ClassVar[str] = "laplace_noisy_max"
    bounds: ClassVar[tuple[str, ...]] = ("paper", *PureNoisyMax.bounds)

    @property
    def noise(self) -> DiscreteLaplaceNoise:
        """The law of the noise on one count."""
        return DiscreteLaplaceNoise(self.gamma)

    def pairwise_tail(self, gaps: FloatArray) -> FloatArray:
        """Returns Pr[difference of two discrete Laplace variables >= gaps]."""
        return outcomes.discrete_laplace_tail(gaps, self.gamma)

    def outcome_probabilities(self, counts: IntArray) -> FloatArray:
        """Returns the exact law of the label, ties broken by random priority."""
        return outcomes.additive_outcomes(counts, self.noise)


@dataclass(frozen=True)
class PermuteAndFlip(PureNoisyMax):
    """Visits classes in random order and accepts one with probability e^{-gamma (max - count)}.

    The same law as adding exponential noise of rate gamma (privacy.md, part D 2).
    """

    name: ClassVar[str] = "permute_and_flip"

    def pairwise_tail(self, gaps: FloatArray) -> FloatArray:
        """Returns e^{-gamma D}/2 for D >= 0, and one minus its mirror image below."""
        return outcomes.exponential_noise_tail(gaps, self.gamma)

    def outcome_probabilities(self, counts: IntArray) -> FloatArray:
        """Returns the exact law of the label."""
        return outcomes.permute_and_flip_outcomes(counts, self.gamma)


@dataclass(frozen=True)
class ExponentialMechanism(PureNoisyMax):
    """Draws a class with probability proportional to e^{gamma count} (privacy.md, part D 3)."""

    name: ClassVar[str] = "exponential_mechanism"

    def pairwise_tail(self, gaps: FloatArray) -> FloatArray:
        """Returns 1 / (1 + e^{gamma D})."""
        return outcomes.gumbel_tail(gaps, self.gamma)

    def query_alpha(self, moments: FloatArray) -> FloatArray:
        """Returns min(D*, gamma^2 l (l+1) / 2): the log ratio spans at most 2 gamma."""
        bounded_range = self.gamma**2 * moments * (moments + 1.0) / 2.0
        return np.minimum(super().query_alpha(moments), bounded_range)

    def outcome_probabilities(self, counts: IntArray) -> FloatArray:
        """Returns the exact law of the label."""
        return outcomes.exponential_mechanism_outcomes(counts, self.gamma)


def _gaussian_epsilon(squared_distance: float, delta: float) -> float:
    """Returns epsilon of discrete Gaussians whose means are sqrt(squared_distance) scales apart.

    A discrete Gaussian is stochastically at most one lattice step above the continuous one, so
    with k shifted coordinates the privacy loss is that of the continuous one plus at most
    k / (LATTICE sigma^2): squared_distance / LATTICE when every shift is one vote.
    """
    return gaussian_dp_epsilon(sqrt(squared_distance), delta) + squared_distance / LATTICE


@dataclass(frozen=True)
class GaussianNoisyMax(Mechanism):
    """The class with most votes after Gaussian noise is added to every count.

    The noise is a discrete Gaussian on multiples of 1 / LATTICE votes. Its Renyi divergence
    between shifts by whole votes is at most the continuous one's, l (l+1) / sigma^2 per label
    (Canonne, Kamath and Steinke 2020, Proposition 5). It lies between the continuous variable
    minus and plus one step in stochastic order, so that a difference of two is below the
    continuous difference plus two steps: `pairwise_tail` lowers gaps by two steps.

    Attributes:
        sigma: standard deviation of the noise, in votes.
    """

    sigma: float
    name: ClassVar[str] = "gaussian_noisy_max"
    bounds: ClassVar[tuple[str, ...]] = ("paper", "two_sided", "exact")

    def __post_init__(self) -> None:
        """Raises ValueError unless sigma is positive and finite."""
        _check_positive("sigma", self.sigma)

    @property
    def noise(self) -> GaussianNoise:
        """The law of the noise on one count, without its lattice."""
        return GaussianNoise(self.sigma)

    def pairwise_tail(self, gaps: FloatArray) -> FloatArray:
        """Returns erfc(D / (2 sigma)) / 2 with D lowered by two lattice steps."""
        return outcomes.gaussian_tail(gaps - 2.0 / LATTICE, self.sigma)

    def query_alpha(self, moments: FloatArray) -> FloatArray:
        """Returns l (l+1) / sigma^2, [num_moments]."""
        return moments * (moments + 1.0) / self.sigma**2

    def outcome_probabilities(self, counts: IntArray) -> FloatArray:
        """Returns the law of the label, by quadrature of the continuous noise."""
        return outcomes.additive_outcomes(counts, self.noise)

    def _composed_epsilon(self, queries: int, answered: int, *, delta: float) -> float:
        return _gaussian_epsilon(2.0 * queries / self.sigma**2, delta)


@dataclass(frozen=True)
class ConfidentGaussianNoisyMax(Mechanism):
    """`GaussianNoisyMax`, asked only where the largest count plus noise reaches a threshold.

    The threshold test is always paid, the label only where it is given (Papernot et al. 2018,
    arXiv 1802.08908, Algorithm 1). Both noises are discrete Gaussians as in `GaussianNoisyMax`.
    `query_alpha` and `outcome_probabilities` are those of a test that is answered.

    Attributes:
        threshold: in votes.
        sigma_threshold: standard deviation of the noise of the test, in votes.
        sigma: standard deviation of the noise of the label, in votes.
    """

    threshold: float
    sigma_threshold: float
    sigma: float
    name: ClassVar[str] = "confident_gaussian_noisy_max"
    bounds: ClassVar[tuple[str, ...]] = GaussianNoisyMax.bounds

    def __post_init__(self) -> None:
        """Raises ValueError unless both scales are positive and the threshold is finite."""
        _check_positive("sigma_threshold", self.sigma_threshold)
        _check_positive("sigma", self.sigma)
        if not abs(self.threshold) < inf:
            raise ValueError(f"expected a finite threshold, got {self.threshold}")

    @property
    def answering(self) -> GaussianNoisyMax:
        """The mechanism that chooses the label of a query that passed the test."""
        return GaussianNoisyMax(self.sigma)

    def pairwise_tail(self, gaps: FloatArray) -> FloatArray:
        """Returns the tail of `answering`."""
        return self.answering.pairwise_tail(gaps)

    def threshold_alpha(self, moments: FloatArray) -> FloatArray:
        """Returns the cost l (l+1) / (2 sigma_threshold^2) of one test, [num_moments]."""
        return moments * (moments + 1.0) / (2.0 * self.sigma_threshold**2)

    def query_alpha(self, moments: FloatArray) -> FloatArray:
        """Returns the cost of one test and one label, [num_moments]."""
        return self.threshold_alpha(moments) + self.answering.query_alpha(moments)

    def outcome_probabilities(self, counts: IntArray) -> FloatArray:
        """Returns the law of the label of a query that passed the test."""
        return self.answering.outcome_probabilities(counts)

    def data_independent_alpha(
        self, moments: FloatArray, *, num_queries: int, num_answered: int | None = None
    ) -> FloatArray:
        """Returns num_queries tests and num_answered labels (default: all), [num_moments]."""
        queries, answered = _check_num_answered(num_queries, num_answered)
        return queries * self.threshold_alpha(moments) + answered * self.answering.query_alpha(
            moments
        )

    def _composed_epsilon(self, queries: int, answered: int, *, delta: float) -> float:
        squared = queries / self.sigma_threshold**2 + 2.0 * answered / self.sigma**2
        return _gaussian_epsilon(squared, delta)


@dataclass(frozen=True)
class Plurality(Mechanism):
    """The class with most votes and no noise: a baseline that nothing private may come from."""

    name: ClassVar[str] = "plurality"

    def pairwise_tail(self, gaps: FloatArray) -> FloatArray:
        """Returns 1 where gaps <= 0, and 0 elsewhere."""
        return np.where(gaps <= 0, 1.0, 0.0)

    def query_alpha(self, moments: FloatArray) -> FloatArray:
        """Returns infinity, [num_moments]."""
        return np.full_like(moments, inf)

    def outcome_probabilities(self, counts: IntArray) -> FloatArray:
        """Returns 1 for the class with most votes, the lowest index among equals."""
        return np.asarray(np.eye(counts.shape[1])[np.argmax(counts, axis=1)])


_MECHANISMS: dict[str, type[Mechanism]] = {
    kind.name: kind
    for kind in (
        LaplaceNoisyMax,
        PermuteAndFlip,
        ExponentialMechanism,
        GaussianNoisyMax,
        ConfidentGaussianNoisyMax,
        Plurality,
    )
}


def mechanism_from_dict(fields: Mapping[str, Any]) -> Mechanism:
    """Returns the mechanism that `Mechanism.to_dict` described.

    Raises:
        ValueError: if the name is unknown or the fields are not exactly the mechanism's own.
    """
    values = dict(fields)
    name = values.pop("name", None)
    if name not in _MECHANISMS:
        raise ValueError(f"expected a mechanism of {sorted(_MECHANISMS)}, got {name!r}")
    kind = _MECHANISMS[name]
    expected = {field.name for field in dataclasses.fields(kind)}
    if set(values) != expected:
        raise ValueError(f"expected fields {sorted(expected)} of {name}, got {sorted(values)}")
    return kind(**values)
