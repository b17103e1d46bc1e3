"""The coordinator's part of secure aggregation, and what silos and simulations need of it."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from pate_tf.core.sensitive import SumsByClass
from pate_tf.core.validation import IntArray
from pate_tf.silos.messages import QueryBatch, SealedShares
from pate_tf.silos.secure import shamir
from pate_tf.silos.secure.keys import PartyIdentity, PartyKeys
from pate_tf.silos.secure.party import Party
from pate_tf.silos.secure.protocol import (
    STEPS,
    PartyMessage,
    PartyTask,
    ProtocolError,
    Step,
    Transcript,
)
from pate_tf.silos.secure.shares import seal_sums, seal_votes
from pate_tf.silos.secure.terms import BatchTerms

# Asks one party; raises ConnectionError or TimeoutError while it can't be reached.
Ask = Callable[[PartyTask], PartyMessage]


class PartyMissingError(ConnectionError):
    """A party could not be reached. The batch goes on from there once it is back."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class OpenedHistogram:
    """What opens of a batch, and nothing else does. Publishable.

    Attributes:
        noisy_counts: int64 `[num_queries, num_classes]`, in units of 1 / LATTICE votes; of feature
            sums `[1, size]`, in units of 1 / LATTICE.
        silos: those whose votes or sums are in it, in order.
        left_out: the others, with what is known of why; their budgets stay spent.
    """

    noisy_counts: IntArray
    silos: tuple[str, ...]
    left_out: Mapping[str, str]


def open_histogram(
    terms: BatchTerms, sealed: Mapping[str, Sequence[bytes]], parties: Mapping[int, Ask]
) -> OpenedHistogram:
    """Has the parties add up the silos' votes and returns the noisy histogram.

    Relays what parties say; what it relayed wrongly, the parties would refuse. May be repeated
    after any failure, with the same arguments: every party gives the answers that it gave before.
    The last step needs `2 * threshold + 1` parties; the others need all.

    Args:
        terms: of the batch.
        sealed: by silo, its sealed shares, party 1 first. Keep them until the histogram is there.
        parties: how to ask each party, by its number.

    Raises:
        PartyMissingError: if a party can't be reached; nothing has opened.
        ProtocolError: if a party says what it can't say.
        TooFewSilosError: if too few silos' shares fit; nothing will ever open of these terms.
        ValueError: as a party refuses.
    """
    for silo, shares in sealed.items():
        if len(shares) != len(terms.parties):
            raise ValueError(f"sealed: expected shares for {len(terms.parties)} parties of {silo}")
    transcript, messages = Transcript(terms), tuple[PartyMessage, ...]()

    def ask(party: int) -> PartyMessage | None:
        """Returns a party's message on the step; None if it can't be reached."""
        dealt = sealed if step is Step.COMMIT else {}
        task = PartyTask(
            step=step,
            terms=terms,
            sealed={silo: shares[party - 1] for silo, shares in dealt.items()},
            messages=messages,
        )
        try:
            message = parties[party](task)
        except (ConnectionError, TimeoutError, KeyError):
            return None
        if message.party != party:
            raise ProtocolError(f"{step.value}: expected a message of party {party}")
        return message

    with ThreadPoolExecutor(len(terms.parties)) as pool:
        for step in STEPS:
            answers = list(pool.map(ask, terms.numbers))
            messages = tuple(message for message in answers if message is not None)
            is_last = step is Step.RELEASE
            if len(messages) < (2 * terms.threshold + 1 if is_last else len(terms.parties)):
                raise PartyMissingError(
                    f"party {terms.parties[answers.index(None)].name} could not be reached at the "
                    f"step {step.value}: start it again on its own folder and repeat; nothing has "
                    "opened"
                )
            transcript = transcript.after(step, messages)
    left_out = {}
    for silo in sorted(set(sealed) - set(transcript.passing)):
        left_out[silo] = "a party could not open its share"
        if silo in transcript.silos:
            left_out[silo] = "votes are not one for each query, or shares don't fit each other"
        elif all(silo in each.dealings for each in transcript.committed):
            left_out[silo] = "parties hold shares of different dealings: one was replaced"
    return OpenedHistogram(
        noisy_counts=shamir.to_integers(transcript.total),
        silos=transcript.passing,
        left_out=left_out,
    )


class PartySealer:
    """Seals a silo's votes or feature sums to parties, in the order of their numbers.

    All are known from the silo's own files, never from a coordinator.

    Args:
        parties: of secure aggregation.
        silos: that may add feature sums; none for votes.
        keys: of this silo, which is one of them; None for votes.
    """

    def __init__(
        self,
        parties: Sequence[PartyIdentity],
        *,
        silos: Sequence[PartyIdentity] = (),
        keys: PartyKeys | None = None,
    ) -> None:
        self._parties, self._silos, self._keys = tuple(parties), tuple(silos), keys

    def with_keys(self, keys: PartyKeys) -> PartySealer:
        """Returns the sealer of the silo whose keys these are."""
        return PartySealer(self._parties, silos=self._silos, keys=keys)

    def fits(self, batch: QueryBatch) -> bool:
        """Whether a batch names as many parties as the silo knows, and can be shared at all."""
        try:
            terms = self._terms(batch)
        except ValueError:
            return False
        return not terms.are_sums or (self._keys is not None and self._keys.identity in terms.silos)

    def seal(self, votes: IntArray, batch: QueryBatch, *, silo: str) -> tuple[bytes, ...]:
        """Returns the sealed shares of votes, one for each party; see `seal_votes`.

        Raises ValueError if the batch names another number of parties, or votes are none.
        """
        return seal_votes(votes, self._terms(batch), silo=silo)

    def seal_sums(self, sums: SumsByClass, batch: QueryBatch) -> tuple[bytes, ...]:
        """Returns the sealed shares of feature sums, to which noise was added; see `seal_sums`.

        Raises ValueError if the batch is for other silos, parties or sums.
        """
        terms = self._terms(batch)
        if self._keys is None or sums.values.shape[1] != batch.num_classes:
            raise ValueError("sums: expected keys of the silo, and sums of the batch's classes")
        return seal_sums(sums.values, terms, keys=self._keys)

    def _terms(self, batch: QueryBatch) -> BatchTerms:
        return BatchTerms.of_batch(batch, self._parties, self._silos)


class PartySums:
    """Has the parties add up sealed shares, wherever they run.

    Args:
        parties: in the order of their numbers, as silos know them.
        party_clients: how to ask each party, in the same order.
        silos: that may add feature sums, as parties and silos know them; none for votes.
        on_opened: called with every histogram and the silos that were left out.
    """

    def __init__(
        self,
        parties: Sequence[PartyIdentity],
        party_clients: Sequence[Ask],
        *,
        silos: Sequence[PartyIdentity] = (),
        on_opened: Callable[[OpenedHistogram], None] = lambda opened: None,
    ) -> None:
        self._parties, self._silos = tuple(parties), tuple(silos)
        self._party_clients = dict(zip(range(1, len(parties) + 1), party_clients, strict=True))
        self._on_opened = on_opened

    def histogram(self, batch: QueryBatch, shares: Mapping[str, SealedShares]) -> IntArray:
        """Returns noisy counts int64 `[num_queries, num_classes]` in units of 1 / LATTICE votes.

        Of feature sums `[1, size]`, in units of 1 / LATTICE. May be repeated with the same
        arguments after any failure; raises as `open_histogram`.
        """
        terms = BatchTerms.of_batch(batch, self._parties, self._silos)
        sealed = {silo: each.sealed for silo, each in shares.items()}
        opened = open_histogram(terms, sealed, self._party_clients)
        self._on_opened(opened)
        return opened.noisy_counts


def simulated_parties(
    folder: str | os.PathLike[str],
    *,
    num_parties: int = 4,
    silos: Sequence[PartyIdentity] = (),
) -> tuple[PartySealer, PartySums]:
    """Returns what silos and a coordinator need of parties that work in this process.

    For simulations: who runs all parties could learn every vote. Keys and journals lie in a
    sensitive folder; a run that goes on needs the same one. `silos` may add feature sums, each by
    the sealer's `with_keys`.

    Raises LedgerError if a party's journal can't be used.
    """
    parties = []
    for name in [f"party-{number}" for number in range(1, num_parties + 1)]:
        keys = PartyKeys.load_or_create(pathlib.Path(folder) / name / "keys.json", name)
        parties.append(Party(keys, pathlib.Path(folder) / name / "journal"))
    identities = [party.identity for party in parties]
    sums = PartySums(identities, [party.answer for party in parties], silos=silos)
    return PartySealer(identities, silos=silos), sums
