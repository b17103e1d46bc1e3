"""The coordinator's part of secure aggregation, and what silos and simulations need of it."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from pate_tf.accounting.local.secure_histogram import SecureHistogram
from pate_tf.core.validation import IntArray
from pate_tf.silos.messages import QueryBatch, SealedShares
from pate_tf.silos.secure import protocol
from pate_tf.silos.secure import shamir as field
from pate_tf.silos.secure.keys import PartyIdentity, PartyKeys
from pate_tf.silos.secure.messages import (
    STEPS,
    PartyMessage,
    PartyTask,
    ProtocolError,
    Step,
    check_message,
    round_digest,
)
from pate_tf.silos.secure.party import Party
from pate_tf.silos.secure.shares import seal_votes
from pate_tf.silos.secure.terms import BatchTerms

# The coordinator's part: relays the parties' messages until the noisy histogram opens.
#
# It sees what everybody may see. What it relays wrongly is refused by the parties.


# Asks one party; raises ConnectionError or TimeoutError while it can't be reached.
Ask = Callable[[PartyTask], PartyMessage]


class PartyMissingError(ConnectionError):
    """A party could not be reached. The batch goes on from there once it is back.

    Attributes:
      party: number of the party.
      step: what it was asked.
      can_do_without: whether the other parties are enough to ask the queries again as another
        batch, which silos pay for again.
    """

    def __init__(self, party: int, step: Step, terms: BatchTerms) -> None:
        self.party, self.step = party, step
        self.can_do_without = len(terms.parties) > SecureHistogram.least_parties(terms.threshold)
        others = (
            "the others can be asked again, as another batch that silos pay for"
            if self.can_do_without
            else f"{len(terms.parties)} parties are needed, so the others can't go on alone"
        )
        super().__init__(
            f"party {terms.parties[party - 1].name} could not be reached at the step "
            f"{step.value}: start it again on its own folder and repeat; nothing has opened; "
            f"{others}"
        )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class OpenedHistogram:
    """What opens of a batch, and nothing else does. Publishable.

    Attributes:
      noisy_counts: int64 `[num_queries, num_classes]`, in units of 1 / LATTICE votes.
      silos: those whose votes are in it, in order.
      left_out: the others, with what is known of why; their budgets stay spent.
    """

    noisy_counts: IntArray
    silos: tuple[str, ...]
    left_out: Mapping[str, str]


def open_histogram(
    terms: BatchTerms, sealed: Mapping[str, Sequence[bytes]], parties: Mapping[int, Ask]
) -> OpenedHistogram:
    """Has the parties add up the silos' votes and returns the noisy histogram.

    May be repeated after any failure, with the same arguments: every party gives the answers that
    it gave before. The last step needs `2 * threshold + 1` parties; the others need all.

    Args:
      terms: of the batch.
      sealed: by silo, its sealed shares, party 1 first. Keep them until the histogram is there.
      parties: how to ask each party, by its number.

    Raises:
      PartyMissingError: if a party can't be reached; nothing has opened.
      ProtocolError: if a party says what it can't say, or no silo passes the checks.
      ValueError: as a party refuses.
    """
    for silo, shares in sealed.items():
        if len(shares) != len(terms.parties):
            raise ValueError(f"sealed: expected shares for {len(terms.parties)} parties of {silo}")
    messages: tuple[PartyMessage, ...] = ()
    rounds: dict[Step, tuple[PartyMessage, ...]] = {}
    with ThreadPoolExecutor(len(terms.parties)) as pool:
        for step in STEPS:
            tasks = {
                party: PartyTask(
                    step=step,
                    terms=terms,
                    sealed={
                        silo: shares[party - 1]
                        for silo, shares in sealed.items()
                        if step is Step.COMMIT
                    },
                    messages=messages,
                )
                for party in terms.numbers
            }
            answered = pool.map(lambda each: _ask(each[0], each[1], parties), tasks.items())
            messages = _complete(step, terms, dict(zip(tasks, answered, strict=True)))
            rounds[step] = messages
    return _opened(terms, sealed, rounds)


def _ask(party: int, task: PartyTask, parties: Mapping[int, Ask]) -> PartyMessage | None:
    """Returns a party's checked message; None if it can't be reached."""
    try:
        message = parties[party](task)
    except (ConnectionError, TimeoutError, KeyError):
        return None
    if message.party != party:
        raise ProtocolError(f"{task.step.value}: expected a message of party {party}")
    check_message(message, task.step, task.terms)
    return message


def _complete(
    step: Step, terms: BatchTerms, answered: Mapping[int, PartyMessage | None]
) -> tuple[PartyMessage, ...]:
    there = tuple(message for message in answered.values() if message is not None)
    # 2 t + 1 sums name the total even where t of them lie; fewer would let the last one choose it.
    needed = 2 * terms.threshold + 1 if step is Step.RELEASE else len(terms.parties)
    if len(there) < needed:
        missing = next(party for party, message in answered.items() if message is None)
        raise PartyMissingError(missing, step, terms)
    return there


def _opened(
    terms: BatchTerms,
    sealed: Mapping[str, Sequence[bytes]],
    rounds: Mapping[Step, tuple[PartyMessage, ...]],
) -> OpenedHistogram:
    committed = protocol.commitments(rounds[Step.COMMIT], terms)
    common = protocol.common_silos(committed)
    masked, checked = (
        protocol.opened_values(
            rounds[step], terms, step, num_silos=len(common), seen=round_digest(rounds[before])
        )
        for before, step in ((Step.REVEAL, Step.MASK), (Step.MASK, Step.CHECK))
    )
    silos = protocol.passing_silos(common, [y is not None for y in masked], checked)
    if not silos:
        raise ProtocolError("expected the shares of at least one silo to pass the checks")
    agreed = round_digest(rounds[Step.AGREE])
    sums = {
        message.party: protocol.released_sums(message, terms, agreed=agreed)
        for message in rounds[Step.RELEASE]
    }
    try:
        total = field.reconstruct(sums, degree=terms.threshold)
    except field.InconsistentSharesError:
        raise ProtocolError(
            "release: expected sums that fit each other; a party added wrongly, and it can't be "
            "said which"
        ) from None
    left_out = {}
    for silo in sorted(set(sealed) - set(silos)):
        if silo in common:
            left_out[silo] = "votes are not one for each query, or shares don't fit each other"
        elif all(silo in each.dealings for each in committed):
            left_out[silo] = "parties hold shares of different dealings: one was replaced"
        else:
            left_out[silo] = "a party could not open its share"
    return OpenedHistogram(
        noisy_counts=np.asarray(field.to_integers(total)), silos=silos, left_out=left_out
    )


# Secure aggregation as silos and a coordinator use it: a sealer, and sums.


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


# Parties in this process, for simulations: whoever runs them all could learn every vote.


def simulated_parties(
    folder: pathlib.Path, *, num_parties: int = 4
) -> tuple[PartySealer, PartySums]:
    """Returns what silos and a coordinator need of parties that work in this process.

    Args:
      folder: sensitive; keys and journals of the parties. A run that goes on needs the same one.
      num_parties: how many there are.

    Raises:
      ValueError: if another process has the folder open.
    """
    parties = []
    for number in range(1, num_parties + 1):
        name = f"party-{number}"
        keys = PartyKeys.load_or_create(folder / name / "keys.json", name)
        parties.append(Party(keys, folder / name / "journal"))
    identities = [one.identity for one in parties]
    return PartySealer(identities), PartySums(identities, [one.answer for one in parties])
