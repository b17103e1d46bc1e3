"""A silo's part: its votes as sealed shares, one for each party.

Beside the shares of its votes each party gets two numbers that hide what the checks open
(`pate_tf.silos.secure.checks`): a share of 0 of twice the degree, and a share of a random number.
"""

from __future__ import annotations

import numpy as np

from pate_tf.noise import NoiseSource, SystemNoise
from pate_tf.silos.secure import field, sealing, shamir
from pate_tf.silos.secure.field import Elements
from pate_tf.silos.secure.terms import BatchTerms
from pate_tf.values.arrays import IntArray

NUM_MASKS = 2


def seal_votes(
    labels: IntArray, terms: BatchTerms, *, silo: str, noise: NoiseSource | None = None
) -> tuple[bytes, ...]:
    """Returns a silo's votes in shares, one for each party, each sealed to it.

    Args:
      labels: one vote for each query, int64 `[num_queries]`. Sensitive.
      terms: of the batch.
      silo: name of the silo.
      noise: entropy; None for the operating system's.

    Raises:
      ValueError: unless there is a class for every query.
    """
    num_queries, num_classes = terms.shape
    if labels.shape != (num_queries,) or labels.dtype.kind not in "iu":
        raise ValueError(f"labels: expected one class for each of {num_queries} queries")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise ValueError(f"labels: expected classes 0 to {num_classes - 1}, got others")
    one_hot = np.zeros(terms.shape, np.uint64)
    one_hot[np.arange(num_queries), labels] = 1
    return seal_shares(vote_shares(one_hot, terms, noise or SystemNoise()), terms, silo=silo)


def vote_shares(one_hot: Elements, terms: BatchTerms, noise: NoiseSource) -> Elements:
    """Returns each party's shares of votes and masks, `[num_parties, NUM_MASKS + Q K]`.

    Args:
      one_hot: 1 for the class that has the vote and else 0, `[num_queries, num_classes]`.
      terms: of the batch.
      noise: entropy.
    """
    parties, words = len(terms.parties), noise.words
    shares = shamir.share(
        one_hot.reshape(-1), num_parties=parties, degree=terms.threshold, words=words
    )
    zero = shamir.share(
        np.zeros(1, np.uint64), num_parties=parties, degree=2 * terms.threshold, words=words
    )
    random = shamir.share(
        field.uniform((1,), words), num_parties=parties, degree=terms.threshold, words=words
    )
    return np.concatenate([zero, random, shares], axis=1)


def seal_shares(shares: Elements, terms: BatchTerms, *, silo: str) -> tuple[bytes, ...]:
    """Returns the rows of `vote_shares`, each sealed to its party."""
    return tuple(
        sealing.seal(
            field.to_bytes(shares[party - 1]), terms, sender=silo, kind="votes", party=party
        )
        for party in terms.numbers
    )
