"""What parties say to each other, relayed by a coordinator that can't change a word of it.

Each message is signed with its party's key, over the batch's terms, the step and the content.
"""

from __future__ import annotations

import dataclasses
import enum
import hashlib
from collections.abc import Mapping, Sequence

from pate_tf.silos.secure.keys import PartyKeys
from pate_tf.silos.secure.terms import BatchTerms, joined


class Step(enum.Enum):
    """The steps of a batch, in their order; each takes all parties' messages of the one before.

    Attributes:
      COMMIT: shares were received; noise and a seed are drawn, noise is shared among the parties.
      REVEAL: the seed, once every party is committed.
      MASK: shares of masked sums of each silo's votes under the challenge.
      CHECK: shares of what is 0 for each silo whose votes are votes, given the masked sums.
      AGREE: which silos pass.
      RELEASE: the party's share of the noisy histogram.
    """

    COMMIT = "commit"
    REVEAL = "reveal"
    MASK = "mask"
    CHECK = "check"
    AGREE = "agree"
    RELEASE = "release"


STEPS = tuple(Step)


class ProtocolError(ValueError):
    """A message is not what the protocol has in its place; nothing was given out for it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartyMessage:
    """One party's word on one step. Public: whoever reads all of them learns the histogram.

    Attributes:
      terms_digest: of the batch, 32 bytes.
      step: which step.
      party: number of the party, from 1.
      content: what it says; its form depends on the step.
      signature: of all of the above, 64 bytes.
    """

    terms_digest: bytes
    step: Step
    party: int
    content: bytes = dataclasses.field(repr=False)
    signature: bytes = dataclasses.field(repr=False)

    @property
    def parts(self) -> list[bytes]:
        """The parts that the content joins.

        Raises:
          ProtocolError: if it joins none.
        """
        return split(self.content)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartyTask:
    """What a party is asked.

    Attributes:
      step: which step.
      terms: of the batch; a party checks that it is in them.
      sealed: only to `COMMIT`: by silo, what it sealed to this party.
      messages: of all parties on the step before, by their numbers; none to `COMMIT`.
    """

    step: Step
    terms: BatchTerms
    sealed: Mapping[str, bytes] = dataclasses.field(default_factory=dict, repr=False)
    messages: Sequence[PartyMessage] = ()

    @property
    def digest(self) -> bytes:
        """What tells two tasks apart, 32 bytes."""
        parts = [self.terms.digest, self.step.value.encode()]
        for silo in sorted(self.sealed):
            parts += [silo.encode(), self.sealed[silo]]
        parts.append(round_digest(self.messages))
        return hashlib.sha256(joined(*parts)).digest()


def split(content: bytes) -> list[bytes]:
    """Returns the parts that `joined` put in a row.

    Raises:
      ProtocolError: if there are none such.
    """
    parts, place = [], 0
    while place < len(content):
        start = place + 8
        end = start + int.from_bytes(content[place:start], "big")
        if start > len(content) or end > len(content):
            raise ProtocolError("expected a message in parts, got something else")
        parts.append(content[start:end])
        place = end
    return parts


def signed(
    content: bytes, *, step: Step, terms: BatchTerms, party: int, keys: PartyKeys
) -> PartyMessage:
    """Returns a party's message with its signature."""
    return PartyMessage(
        terms_digest=terms.digest,
        step=step,
        party=party,
        content=content,
        signature=keys.sign(_signed_bytes(terms.digest, step, party, content)),
    )


def check_messages(messages: Sequence[PartyMessage], step: Step, terms: BatchTerms) -> None:
    """Checks that there is one message of every party on a step, each signed by it.

    Raises:
      ProtocolError: if not; names the party.
    """
    if [message.party for message in messages] != list(terms.numbers):
        raise ProtocolError(
            f"{step.value}: expected a message of each of {len(terms.numbers)} parties in order"
        )
    for message in messages:
        check_message(message, step, terms)


def check_message(message: PartyMessage, step: Step, terms: BatchTerms) -> None:
    """Checks one message likewise."""
    identity = terms.parties[message.party - 1]
    signed_bytes = _signed_bytes(terms.digest, step, message.party, message.content)
    if (
        message.step is not step
        or message.terms_digest != terms.digest
        or not identity.verifies(message.signature, signed_bytes)
    ):
        raise ProtocolError(
            f"{step.value}: expected a message of {identity.name} on this batch with its "
            "signature, got another"
        )


def round_digest(messages: Sequence[PartyMessage]) -> bytes:
    """Returns what all parties' messages on a step are known by, 32 bytes."""
    parts = []
    for message in messages:
        parts += [str(message.party).encode(), message.step.value.encode(), message.content]
    return hashlib.sha256(joined(*parts)).digest()


def _signed_bytes(terms_digest: bytes, step: Step, party: int, content: bytes) -> bytes:
    return joined(b"pate_tf party", terms_digest, step.value.encode(), str(party).encode(), content)
