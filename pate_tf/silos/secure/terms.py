"""What silos and parties agree on before a batch is shared: its terms.

Every sealed share names the digest of its terms, so that no party treats it under others: other
noise, other parties, another batch.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from math import sqrt
from typing import Final

import numpy as np

from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.local.base import SecureHistogram
from pate_tf.core import validation
from pate_tf.core.validation import check_name
from pate_tf.silos.messages import SECURE_HISTOGRAM, QueryBatch
from pate_tf.silos.secure.keys import PartyIdentity
from pate_tf.silos.secure.shamir import PRIME, Elements

MOST_SILOS: Final = 100_000
MOST_CLASSES: Final = 2**16
DIGEST_BYTES: Final = 32
MOST_COUNTS: Final = 2**24  # of a batch: 128 MiB of shares from every silo
# A sum of noise beyond so many standard deviations has a probability below e^-198.
_DEVIATIONS: Final = 20.0
_ROUNDED_UP: Final = 1.0 + 2.0**-50


def joined(*parts: bytes) -> bytes:
    """Returns parts in a row, each with its length before it: others never give the same."""
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchTerms:
    """The public terms of one batch of shared votes.

    Attributes:
      run_id: name of the run.
      batch_id: name of the batch; a batch opens once, so another opening needs another name.
      queries_digest: SHA-256 over the digests of the queries, 32 bytes.
      num_queries: number of queries, at least 1.
      num_classes: number of classes, at least 2.
      mechanism: noise, number of parties and threshold; what is charged for it.
      parties: the parties in the order of their numbers, which count from 1.

    Raises ValueError if values don't fit each other, or a sum could wrap around in the field.
    """

    run_id: str
    batch_id: str
    queries_digest: bytes
    num_queries: int
    num_classes: int
    mechanism: SecureHistogram
    parties: tuple[PartyIdentity, ...]

    def __post_init__(self) -> None:
        check_name(self.run_id, "run_id")
        check_name(self.batch_id, "batch_id")
        if len(self.queries_digest) != DIGEST_BYTES:
            raise ValueError("queries_digest: expected 32 bytes, got another number")
        validation.whole(2, MOST_CLASSES, num_classes=self.num_classes)
        validation.whole(1, MOST_COUNTS // self.num_classes, num_queries=self.num_queries)
        if len(self.parties) != self.mechanism.num_parties:
            raise ValueError(
                f"parties: expected {self.mechanism.num_parties}, got {len(self.parties)}"
            )
        for what in ("name", "sealing_key", "signing_key"):
            if len({getattr(party, what) for party in self.parties}) < len(self.parties):
                raise ValueError(f"parties: expected another {what} of each, got one twice")
        largest = LATTICE * (MOST_SILOS + _DEVIATIONS * total_sigma(self.mechanism))
        if not 2.0 * largest < PRIME:
            raise ValueError(
                f"sigma: expected noise that can't wrap around in the field, got "
                f"{self.mechanism.sigma}"
            )

    @classmethod
    def of_batch(cls, batch: QueryBatch, parties: tuple[PartyIdentity, ...]) -> BatchTerms:
        """Returns the terms of a batch that a coordinator asks.

        Args:
          batch: with the mechanism `secure_histogram`.
          parties: as the caller knows them; never from the coordinator.

        Raises ValueError if the batch is not to be shared, or names another number of parties.
        """
        values = dict(batch.mechanism)
        if values.pop("name") != SECURE_HISTOGRAM:
            raise ValueError(f"mechanism: expected {SECURE_HISTOGRAM}, got another")
        return cls(
            run_id=batch.run_id,
            batch_id=batch.batch_id,
            queries_digest=hashlib.sha256(b"".join(batch.digests)).digest(),
            num_queries=len(batch),
            num_classes=batch.num_classes,
            mechanism=SecureHistogram(**values),
            parties=parties,
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(num_queries, num_classes)."""
        return (self.num_queries, self.num_classes)

    @property
    def size(self) -> int:
        """How many numbers are summed up: num_queries * num_classes."""
        return self.num_queries * self.num_classes

    @property
    def threshold(self) -> int:
        """How many parties may pool what they know."""
        return self.mechanism.threshold

    @property
    def numbers(self) -> range:
        """The numbers of the parties, from 1."""
        return range(1, len(self.parties) + 1)

    @functools.cached_property
    def digest(self) -> bytes:
        """What the terms are known by, 32 bytes."""
        mechanism = self.mechanism
        parts = [
            b"pate_tf secure histogram 3",
            self.run_id.encode(),
            self.batch_id.encode(),
            self.queries_digest,
            *(str(number).encode() for number in self.shape),
            float(mechanism.sigma).hex().encode(),
            str(mechanism.threshold).encode(),
        ]
        for party in self.parties:
            parts += [party.name.encode(), party.sealing_key, party.signing_key]
        return hashlib.sha256(joined(*parts)).digest()


def party_scale(mechanism: SecureHistogram) -> float:
    """Returns the scale of one party's discrete Gaussian, in lattice steps, rounded up.

    num_parties - threshold of them have a variance of at least sigma^2 together.
    """
    return mechanism.sigma * LATTICE / sqrt(mechanism.num_honest) * _ROUNDED_UP


def total_sigma(mechanism: SecureHistogram) -> float:
    """Returns the standard deviation of all parties' noise on a count, in votes."""
    return mechanism.sigma * sqrt(mechanism.num_parties / mechanism.num_honest)


def share_size(terms: BatchTerms) -> int:
    """Returns how many numbers a silo shares: two for each query, and its votes."""
    return 2 * terms.num_queries + terms.size


def split_shares(shares: Elements, shape: tuple[int, int]) -> tuple[Elements, Elements, Elements]:
    """Returns the shares of a, b `[num_queries]` and of votes `[num_queries, num_classes]`."""
    num_queries = shape[0]
    a, b, votes = np.split(shares, [num_queries, 2 * num_queries])
    return a, b, votes.reshape(shape)
