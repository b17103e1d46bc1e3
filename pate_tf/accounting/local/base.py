"""What a local randomiser is: a charge that turns one vote into one answer that may leave."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Mapping
from math import inf, sqrt
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from pate_tf.accounting.charge import Charge, from_fields
from pate_tf.accounting.conversions import (
    LATTICE,
    SAFETY_MARGIN,
    FloatArray,
    gaussian_dp_epsilon,
    least,
)
from pate_tf.accounting.outcomes import IntArray
from pate_tf.core import validation


@dataclasses.dataclass(frozen=True, kw_only=True)
class SecureHistogram(Charge):
    """A vote in a histogram to which each party adds discrete Gaussian noise of its own.

    Each party's noise has variance sigma^2 / (num_parties - threshold), in votes: those that keep
    to the protocol reach sigma. Holds against anyone who sees the histogram and all that up to
    `threshold` parties know (docs/proofs/local.md, Theorem L5).

    Attributes:
        sigma: standard deviation of the noise that is counted on, in votes.
        num_parties: m, at least `least_parties(threshold)`.
        threshold: t, how many parties may pool what they know; at least 1.
    """

    sigma: float
    num_parties: int
    threshold: int
    name: ClassVar[str] = "secure_histogram"
    answers: ClassVar[bool] = True
    counted: ClassVar[tuple[str, str]] = ("query", "queries")
    lacks: ClassVar[Mapping[str, str]] = {
        "dp event": "a sum of several discrete Gaussians is none that dp-accounting knows"
    }

    def __post_init__(self) -> None:
        """Raises ValueError if a parameter is out of its range."""
        validation.between(0, 2.0**30, ends="(]", sigma=self.sigma)
        if self.threshold < 1 or self.num_parties < self.least_parties(self.threshold):
            raise ValueError(
                "threshold: expected t of at least 1 and at least 2 t + 2 parties, got "
                f"{self.threshold} of {self.num_parties}"
            )

    @staticmethod
    def least_parties(threshold: int) -> int:
        """Returns 2 t + 2: honest parties' shares alone show whether they fit each other."""
        return 2 * threshold + 2

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

    def number_charged(self, num_queries: int) -> int:
        """Returns num_queries."""
        return num_queries

    def to_dict(self) -> dict[str, object]:
        """Returns the JSON-able fields with the name."""
        return {"name": self.name, **dataclasses.asdict(self)}

    def summary(self) -> str:
        """Returns name and parameters in a few words."""
        return (
            f"{self.name}, sigma {self.sigma:g}, {self.num_parties} aggregators of which "
            f"{self.threshold} may pool what they know"
        )

    def in_words(self) -> str:
        """Returns what is done with the votes, in sentences for a privacy statement."""
        return (
            f"A silo's vote is split into secret shares for {self.num_parties} aggregators, of "
            f"which any {self.threshold} together learn nothing from theirs. The aggregators add "
            "up all silos' shares, each adds Gaussian noise of its own, and the noisy numbers of "
            f"votes of all classes open, nothing else. The noise of {self.num_honest} honest "
            f"aggregators together has standard deviation {self.sigma:.3g} votes on each number."
        )


# Exact composition: the privacy loss of many answers is a sum of independent whole multiples.
#
# Every result errs upward.


# Sums of more different losses than this are left to other theorems.
MOST_LOSSES = 2**15

# Above all that underflow can take away from the sum's law.
LOST = 1e-290


def composed_epsilon(
    step: float, multiples: IntArray, here: FloatArray, *, number: int, delta: float
) -> float:
    """Returns the epsilon at delta of so many adaptive answers (docs/proofs/local.md, Theorem L3).

    delta(epsilon) is the sum over losses above epsilon of Pr[loss] (1 - e^(epsilon - loss)), where
    the loss is a sum of independent ones.

    Args:
        step: losses are multiples of it.
        multiples: of one answer, ascending by equal steps, int64 `[num_losses]`.
        here: their probabilities, `[num_losses]`.
        number: of answers.
        delta: in [0, 1).

    Returns:
        Epsilon, rounded up; infinite if the sum takes more than `MOST_LOSSES` values.
    """
    validation.between(0, 1, ends="[)", delta=delta)
    validation.whole(0, number=number)
    if number == 0:
        return 0.0
    if number * (len(multiples) - 1) + 1 > MOST_LOSSES:
        return inf
    weights = _power(here, number)
    width = int(multiples[1] - multiples[0])
    losses = step * (number * int(multiples[0]) + width * np.arange(len(weights)))
    most = float(losses[-1])

    def exceeds(epsilon: float) -> bool:
        above = losses > epsilon
        spent = float(weights[above] @ -np.expm1(epsilon - losses[above]))
        return spent * (1.0 + SAFETY_MARGIN) + LOST > delta

    low, high = 0.0, most
    if not exceeds(low):
        return 0.0
    high = least(lambda epsilon: not exceeds(epsilon), low, high, within=SAFETY_MARGIN)
    return min(high * (1.0 + SAFETY_MARGIN), most * (1.0 + SAFETY_MARGIN))


def _power(weights: FloatArray, number: int) -> FloatArray:
    """Returns the law of a sum of so many, by squaring. All terms are positive: nothing cancels."""
    total, square = np.ones(1), weights
    while True:
        if number % 2:
            total = np.convolve(total, square)
        number //= 2
        if not number:
            return total
        square = np.convolve(square, square)


LEAST_EPSILON, MOST_EPSILON = 2.0**-20, 40.0
MOST_CLASSES = 2**16


class LocalNoise(Protocol):
    """The draws that local randomisers are composed of; `pate_tf.release.noise` has them."""

    def words(self, size: int) -> NDArray[np.uint64]:
        """Returns independent uniform 64-bit words, uint64 `[size]`."""

    def uniform_integers(self, bounds: IntArray) -> IntArray:
        """Returns exactly uniform whole numbers from 0 to bounds - 1, same shape as bounds."""

    def laplace_integers(self, scale: float, size: int) -> IntArray:
        """Returns integers k with probability proportional to e^(-|k|/scale), `[size]`."""


class WorstPair(NamedTuple):
    """The answers' laws at the two votes that are easiest to tell apart, by privacy loss.

    No other two votes are easier to tell apart, in either direction and however many answers there
    are (docs/proofs/local.md, Theorems L1, L2 and L3).

    Attributes:
        step: losses are whole multiples of it, in natural logarithms.
        multiples: int64 `[num_losses]`, ascending by equal steps.
        here: probability of each loss under the first vote, `[num_losses]`; those under the second
            are e^-loss times these.
    """

    step: float
    multiples: IntArray
    here: FloatArray


@dataclasses.dataclass(frozen=True, kw_only=True)
class LocalRandomiser(Charge):
    """A randomised rule that turns one vote into one answer, and its cost.

    Adjacency: everything that an owner holds is replaced, so any vote may become any other. That
    protects each of its records, too.

    Attributes:
        num_classes: votes and answers are whole numbers from 0 to num_classes - 1; at least 2.
        epsilon: what one answer costs at most, with delta 0, in natural logarithms; from 2**-20 to
            40. The sampler's own exact epsilon is at most this.
        name: in records, messages and policies.
        is_recommended: whether there is a use for it beside comparison.
        help: when to take it, in a sentence.
    """

    num_classes: int
    epsilon: float
    name: ClassVar[str]
    answers: ClassVar[bool] = True
    counted: ClassVar[tuple[str, str]] = ("answer", "answers")
    is_recommended: ClassVar[bool] = True
    help: ClassVar[str]
    words: ClassVar[str]

    def __post_init__(self) -> None:
        """Raises ValueError if a parameter is out of its range."""
        validation.whole(2, MOST_CLASSES, num_classes=self.num_classes)
        validation.between(LEAST_EPSILON, MOST_EPSILON, ends="[]", epsilon=self.epsilon)

    @abstractmethod
    def channel(self) -> FloatArray:
        """Returns Pr[answer = column | vote = row], `[num_classes, num_classes]`."""

    @abstractmethod
    def worst_pair(self) -> WorstPair:
        """Returns the two votes' laws that no other two exceed."""

    @abstractmethod
    def draw(self, votes: IntArray, noise: LocalNoise) -> IntArray:
        """Draws the answers to votes.

        Args:
            votes: int64 `[num_votes]`, from 0 to num_classes - 1. Sensitive.
            noise: what everything random is drawn from.

        Returns:
            int64 `[num_votes]`; may be released once it is charged.

        Raises:
            ValueError: if a vote is no class; the message carries no vote.
        """

    @property
    def pure_epsilon(self) -> float:
        """Epsilon: what one answer costs with delta 0."""
        return self.epsilon

    def alphas(self, moments: FloatArray) -> FloatArray:
        """Returns l times the Renyi divergence of order l + 1 of the worst pair, [num_moments]."""
        step, multiples, here = self.worst_pair()
        exponents = np.outer(moments, step * multiples)
        with np.errstate(over="ignore"):
            excess = np.expm1(np.minimum(exponents, 700.0)) @ here
        largest = exponents.max(axis=1)
        scaled = np.log(np.exp(exponents - largest[:, None]) @ here) + largest
        costs = np.where(largest < 500.0, np.log1p(np.maximum(excess, 0.0)), scaled)
        return np.asarray(costs * (1.0 + SAFETY_MARGIN))

    def composed_epsilon(self, number: int, *, delta: float) -> float:
        """Returns epsilon of so many answers by exact convolution of their privacy losses.

        Infinite where there are too many to convolve; moments then say what they cost. Rounded up.
        """
        pair = self.worst_pair()
        exact = composed_epsilon(pair.step, pair.multiples, pair.here, number=number, delta=delta)
        # But for rounding, what holds for all mechanisms of this pure epsilon is no less.
        if exact < inf:
            return min(exact, number * self.epsilon)
        return super().composed_epsilon(number, delta=delta)

    def to_dict(self) -> dict[str, object]:
        """Returns the JSON-able fields with the name."""
        return {"name": self.name, **dataclasses.asdict(self)}

    def summary(self) -> str:
        """Returns name and parameters in a few words."""
        return f"{self.name}, epsilon {self.epsilon:g}, {self.num_classes} classes"

    def in_words(self) -> str:
        """Returns what is done with a vote, in sentences for a privacy statement."""
        numbers: Mapping[str, str] = {
            "epsilon": f"{self.epsilon:.3g}",
            "num_classes": f"{self.num_classes:,}",
            "kept": f"{self.channel().diagonal().min():.3g}",
        }
        return self.words.format(**numbers)

    def checked_votes(self, votes: IntArray) -> IntArray:
        """Returns votes; raises ValueError, which carries none, unless all are classes."""
        if votes.ndim != 1 or votes.dtype.kind not in "iu":
            raise ValueError("votes: expected whole numbers [num_votes], got something else")
        if votes.size and not (votes.min() >= 0 and votes.max() < self.num_classes):
            raise ValueError(f"votes: expected 0 to {self.num_classes - 1}, got others")
        return votes.astype(np.int64)


# Every local randomiser by its name, and whatever else a silo can be charged for.


LOCAL_RANDOMISERS: dict[str, type[LocalRandomiser]] = {}
SILO_CHARGES: dict[str, type[Charge]] = {SecureHistogram.name: SecureHistogram}

Kind = TypeVar("Kind", bound=type[LocalRandomiser])


def register(kind: Kind) -> Kind:
    """Makes a local randomiser known: to ledgers of silos, policies and statements.

    Raises:
        ValueError: if its name is taken, or it lacks words or help.
    """
    if kind.name in SILO_CHARGES:
        raise ValueError(f"expected a new name for a local randomiser, got {kind.name!r} again")
    lacking = [what for what in ("help", "words") if not getattr(kind, what, "")]
    if lacking:
        raise ValueError(f"{kind.name}: expected {' and '.join(lacking)}, got none")
    LOCAL_RANDOMISERS[kind.name] = kind
    SILO_CHARGES[kind.name] = kind
    return kind


def silo_charge_from_dict(fields: Mapping[str, Any]) -> Charge:
    """Returns the charge of a silo that its `to_dict` described.

    Raises:
        ValueError: if the name is unknown or the fields are not exactly the charge's own.
    """
    values = dict(fields)
    name = values.pop("name", None)
    if name not in SILO_CHARGES:
        raise ValueError(f"expected a charge of {sorted(SILO_CHARGES)}, got {name!r}")
    return from_fields(SILO_CHARGES[name], values)
