"""What silos and parties agree on before a batch is shared: its terms.

Every sealed share names the digest of its terms, so that no party treats it under others: other
noise, other parties, another batch.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from math import sqrt
from typing import Final

import numpy as np

from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.local import SecureFeatureSums, SecureHistogram, silo_charge_from_dict
from pate_tf.core import validation
from pate_tf.core.validation import check_name
from pate_tf.silos.messages import SHARED, QueryBatch
from pate_tf.silos.secure.keys import PartyIdentity
from pate_tf.silos.secure.shamir import PRIME, Elements

MOST_SILOS: Final = 100_000
# Of honest silos' sums and of all noise, each; less than half of the field together.
_MOST_TOTAL: Final = 2**58
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
    """The public terms of one batch of shared votes or feature sums.

    Attributes:
        run_id: name of the run.
        batch_id: name of the batch; a batch opens once, so another opening needs another name.
        queries_digest: SHA-256 over the digests of the queries, 32 bytes.
        num_queries: number of queries, at least 1; 1 of feature sums.
        num_classes: number of classes, at least 2; of feature sums how many numbers a table has.
        mechanism: noise, number of parties and threshold; what is charged for it.
        parties: the parties in the order of their numbers, which count from 1.
        silos: of feature sums the silos, which sign what they share; none of votes, of whom any may
            be made up, as parties add the noise.

    Raises ValueError if values don't fit each other, or a sum could wrap around in the field.
    """

    run_id: str
    batch_id: str
    queries_digest: bytes
    num_queries: int
    num_classes: int
    mechanism: SecureHistogram | SecureFeatureSums
    parties: tuple[PartyIdentity, ...]
    silos: tuple[PartyIdentity, ...] = ()

    def __post_init__(self) -> None:
        check_name(self.run_id, "run_id")
        check_name(self.batch_id, "batch_id")
        if len(self.queries_digest) != DIGEST_BYTES:
            raise ValueError("queries_digest: expected 32 bytes, got another number")
        most = MOST_COUNTS if self.are_sums else MOST_CLASSES
        validation.whole(2, most, num_classes=self.num_classes)
        validation.whole(1, MOST_COUNTS // self.num_classes, num_queries=self.num_queries)
        if len(self.parties) != self.mechanism.num_parties:
            raise ValueError(
                f"parties: expected {self.mechanism.num_parties}, got {len(self.parties)}"
            )
        everyone = (*self.parties, *self.silos)
        for what in ("name", "sealing_key", "signing_key"):
            if len({getattr(identity, what) for identity in everyone}) < len(everyone):
                raise ValueError(f"parties: expected another {what} of each, got one twice")
        least = self.least_silos if self.are_sums else 0
        if len(self.silos) < least or (self.silos and not least):
            raise ValueError(
                f"silos: expected {least} or more with keys for feature sums and none for votes, "
                f"got {len(self.silos)}"
            )
        if isinstance(self.mechanism, SecureFeatureSums):
            largest = _DEVIATIONS * LATTICE * self.mechanism.total_sigma(len(self.silos))
            bound = float(_MOST_TOTAL)
        else:
            # All parties' noise on a count.
            sigma = self.mechanism.sigma * sqrt(len(self.parties) / self.mechanism.num_honest)
            largest, bound = LATTICE * (MOST_SILOS + _DEVIATIONS * sigma), PRIME / 2.0
        if not largest < bound:
            raise ValueError(
                f"sigma: expected noise that can't wrap around in the field, got "
                f"{self.mechanism.sigma}"
            )

    @classmethod
    def of_batch(
        cls,
        batch: QueryBatch,
        parties: tuple[PartyIdentity, ...],
        silos: tuple[PartyIdentity, ...] = (),
    ) -> BatchTerms:
        """Returns the terms of a batch that a coordinator asks.

        Args:
            batch: with a mechanism of `SHARED`.
            parties: as the caller knows them; never from the coordinator.
            silos: that may add feature sums, as the caller knows them.

        Raises ValueError if the batch is not to be shared, or names another number of parties.
        """
        if batch.mechanism["name"] not in SHARED:
            raise ValueError(f"mechanism: expected {' or '.join(SHARED)}, got another")
        mechanism = silo_charge_from_dict(batch.mechanism)
        num_classes = batch.num_classes
        if isinstance(mechanism, SecureFeatureSums):
            num_classes *= mechanism.num_features + 1
        else:
            silos = ()
        return cls(
            run_id=batch.run_id,
            batch_id=batch.batch_id,
            queries_digest=hashlib.sha256(b"".join(batch.digests)).digest(),
            num_queries=len(batch),
            num_classes=num_classes,
            mechanism=mechanism,  # type: ignore[arg-type]
            parties=parties,
            silos=silos,
        )

    @property
    def are_sums(self) -> bool:
        """Whether feature sums are shared, to which silos added noise; else votes."""
        return isinstance(self.mechanism, SecureFeatureSums)

    @property
    def least_silos(self) -> int:
        """Fewest silos that open together."""
        return self.mechanism.least_silos if isinstance(self.mechanism, SecureFeatureSums) else 1

    @property
    def largest_sum(self) -> int:
        """Most that a silo shares as a number of its sums, in lattice steps."""
        return _MOST_TOTAL // max(len(self.silos), 1)

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
        fields = [self.run_id, self.batch_id, self.shape, self.mechanism.to_dict()]
        parts = [
            b"pate_tf secure aggregation 5",
            json.dumps(fields, sort_keys=True).encode(),
            self.queries_digest,
            str(len(self.parties)).encode(),
        ]
        for identity in (*self.parties, *self.silos):
            parts += [identity.name.encode(), identity.sealing_key, identity.signing_key]
        return hashlib.sha256(joined(*parts)).digest()


def party_scale(mechanism: SecureHistogram) -> float:
    """Returns the scale of one party's discrete Gaussian, in lattice steps, rounded up.

    num_parties - threshold of them have a variance of at least sigma^2 together.
    """
    return mechanism.sigma * LATTICE / sqrt(mechanism.num_honest) * _ROUNDED_UP


def share_size(terms: BatchTerms) -> int:
    """Returns how many numbers a silo shares: two for each query, and its votes."""
    return 2 * terms.num_queries + terms.size


def split_shares(shares: Elements, shape: tuple[int, int]) -> tuple[Elements, Elements, Elements]:
    """Returns the shares of a, b `[num_queries]` and of votes `[num_queries, num_classes]`."""
    num_queries = shape[0]
    a, b, votes = np.split(shares, [num_queries, 2 * num_queries])
    return a, b, votes.reshape(shape)
