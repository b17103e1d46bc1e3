"""Secure aggregation as silos and a coordinator use it: a sealer, and sums."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from pate_tf.silos.messages import QueryBatch, SealedShares
from pate_tf.silos.secure.keys import PartyIdentity
from pate_tf.silos.secure.opening import Ask, OpenedHistogram, open_histogram
from pate_tf.silos.secure.terms import BatchTerms
from pate_tf.silos.secure.votes import seal_votes
from pate_tf.values.arrays import IntArray


class PartySealer:
    """Seals a silo's votes to the parties that the silo itself knows.

    Args:
      parties: in the order of their numbers; from the silo's own files, never from a coordinator.
    """

    def __init__(self, parties: Sequence[PartyIdentity]) -> None:
        self._parties = tuple(parties)

    def fits(self, batch: QueryBatch) -> bool:
        """Whether a batch names as many parties as the silo knows, and can be shared at all."""
        try:
            BatchTerms.of_batch(batch, self._parties)
        except ValueError:
            return False
        return True

    def seal(self, votes: IntArray, batch: QueryBatch, *, silo: str) -> tuple[bytes, ...]:
        """Returns the sealed shares of votes, one for each party.

        Args:
          votes: one for each query, int64 `[num_queries]`. Sensitive.
          batch: that is answered.
          silo: name of the silo.

        Raises:
          ValueError: if the batch names another number of parties, or votes are none.
        """
        return seal_votes(votes, BatchTerms.of_batch(batch, self._parties), silo=silo)


class PartySums:
    """Has the parties add up sealed shares, wherever they run.

    Args:
      parties: in the order of their numbers, as silos know them.
      ways: how to ask each party, in the same order.
      on_opened: told of every histogram, with the silos that were left out.
    """

    def __init__(
        self,
        parties: Sequence[PartyIdentity],
        ways: Sequence[Ask],
        *,
        on_opened: Callable[[OpenedHistogram], None] = lambda opened: None,
    ) -> None:
        if len(parties) != len(ways):
            raise ValueError(f"ways: expected {len(parties)}, got {len(ways)}")
        self._parties = tuple(parties)
        self._ways = dict(enumerate(ways, start=1))
        self._on_opened = on_opened

    def histogram(self, batch: QueryBatch, shares: Mapping[str, SealedShares]) -> IntArray:
        """Returns noisy counts int64 `[num_queries, num_classes]` in units of 1 / LATTICE votes.

        May be repeated with the same arguments after any failure.

        Args:
          batch: that was asked.
          shares: of each silo that sent some, by its name.

        Raises:
          PartyMissingError: if a party can't be reached; nothing has opened.
          ProtocolError: if a party refuses or says what it can't say, or no silo's votes are votes.
        """
        terms = BatchTerms.of_batch(batch, self._parties)
        sealed = {silo: one.sealed for silo, one in shares.items()}
        opened = open_histogram(terms, sealed, self._ways)
        self._on_opened(opened)
        return opened.noisy_counts
