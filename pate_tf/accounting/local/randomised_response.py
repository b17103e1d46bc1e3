"""k-ary randomised response: the truth with one probability, else any other class as likely."""

from __future__ import annotations

import decimal
from dataclasses import dataclass
from fractions import Fraction
from math import exp, expm1
from typing import ClassVar

import numpy as np

from pate_tf.accounting.conversions import FloatArray
from pate_tf.accounting.local.base import LocalNoise, LocalRandomiser, WorstPair, register
from pate_tf.accounting.outcomes import IntArray

_WORD = 2**64


@register
@dataclass(frozen=True, kw_only=True)
class RandomisedResponse(LocalRandomiser):
    """Keeps a vote with probability e^epsilon / (e^epsilon + num_classes - 1).

    Else the answer is one of the other classes, each as likely. The sampler compares a uniform
    64-bit word with a whole threshold, rounded down, so that what it really does costs at most
    epsilon (docs/proofs/local.md, Theorem L1).
    """

    name: ClassVar[str] = "randomised_response"
    help: ClassVar[str] = "The default: of one epsilon nothing keeps a vote more often."
    words: ClassVar[str] = (
        "A silo's vote leaves as it is with probability {kept}; else one of the other classes "
        "leaves, each as likely. One answer costs the silo epsilon {epsilon} with delta 0."
    )

    @property
    def threshold(self) -> int:
        """The vote is kept if a uniform 64-bit word is below this number.

        Of an e^epsilon that is rounded down, and itself rounded down: the ratio of the two
        probabilities is at most e^epsilon, exactly.
        """
        with decimal.localcontext(prec=60):
            below = decimal.Decimal(self.epsilon).exp().next_minus()
        power = Fraction(below)
        return int(_WORD * power // (power + self.num_classes - 1))

    @property
    def kept(self) -> float:
        """Probability that the vote is the answer."""
        return exp(self.epsilon) / (exp(self.epsilon) + self.num_classes - 1)

    @property
    def other(self) -> float:
        """Probability of each other class."""
        return 1.0 / (exp(self.epsilon) + self.num_classes - 1)

    @property
    def gap(self) -> float:
        """How much likelier a class is as the answer if it is the vote, `kept` - `other`."""
        return expm1(self.epsilon) * self.other

    def channel(self) -> FloatArray:
        """Returns Pr[answer = column | vote = row]."""
        found = np.full((self.num_classes, self.num_classes), self.other)
        np.fill_diagonal(found, self.kept)
        return found

    def worst_pair(self) -> WorstPair:
        """Losses of -epsilon, 0 and epsilon; all pairs of votes have the same."""
        neither = (self.num_classes - 2) * self.other
        return WorstPair(
            self.epsilon, np.array([-1, 0, 1]), np.array([self.other, neither, self.kept])
        )

    def draw(self, votes: IntArray, noise: LocalNoise) -> IntArray:
        """Draws an answer to each vote; see `LocalRandomiser.draw`."""
        votes = self.checked_votes(votes)
        is_kept = noise.words(len(votes)) < np.uint64(self.threshold)
        others = noise.uniform_integers(np.full(len(votes), self.num_classes - 1))
        return np.where(is_kept, votes, others + (others >= votes))
