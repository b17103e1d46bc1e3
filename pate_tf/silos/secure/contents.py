"""The content of parties' messages, step by step, and what all parties conclude from them.

Every party concludes the same from the same messages: which silos are summed up, which challenge
they face, which of them pass.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

from pate_tf.silos.secure import checks, field
from pate_tf.silos.secure.field import Elements
from pate_tf.silos.secure.messages import (
    DIGEST_BYTES,
    PartyMessage,
    ProtocolError,
    Step,
    check_messages,
    split,
)
from pate_tf.silos.secure.terms import BatchTerms, joined
from pate_tf.values.names import check_name


@dataclasses.dataclass(frozen=True, kw_only=True)
class Commitment:
    """What a party commits to.

    Attributes:
      silos: names of the silos whose shares it could open, in order.
      received: digest of its task with all shares that it got, 32 bytes.
      seed: digest of its seed, 32 bytes.
      noise: its noise in shares, each sealed to a party; empty for itself.
    """

    silos: tuple[str, ...]
    received: bytes
    seed: bytes
    noise: tuple[bytes, ...] = dataclasses.field(repr=False)

    def to_bytes(self) -> bytes:
        """Returns the content of a message."""
        silos = joined(*(silo.encode() for silo in self.silos))
        return joined(silos, self.received, self.seed, joined(*self.noise))

    @classmethod
    def of(cls, message: PartyMessage, terms: BatchTerms) -> Commitment:
        """Returns what a message says.

        Raises:
          ProtocolError: if it says nothing of the kind.
        """
        parts = _parts(message, 4)
        if len(parts[1]) != DIGEST_BYTES or len(parts[2]) != DIGEST_BYTES:
            raise ProtocolError("commit: expected digests of 32 bytes, got others")
        noise = tuple(split(parts[3]))
        try:
            silos = tuple(check_name(silo.decode(), "silo") for silo in split(parts[0]))
        except ValueError:
            raise ProtocolError("commit: expected names of silos, got something else") from None
        if list(silos) != sorted(set(silos)) or len(noise) != len(terms.parties):
            raise ProtocolError("commit: expected silos in order and noise for each party")
        return cls(silos=silos, received=parts[1], seed=parts[2], noise=noise)


def seed_digest(seed: bytes, party: int, terms: BatchTerms) -> bytes:
    """Returns what a party commits to of its seed, 32 bytes."""
    return hashlib.sha256(joined(terms.digest, str(party).encode(), seed)).digest()


def commitments(messages: Sequence[PartyMessage], terms: BatchTerms) -> list[Commitment]:
    """Returns what all parties committed to, after checking their signatures.

    Raises:
      ProtocolError: if a message is not as it should be.
    """
    check_messages(messages, Step.COMMIT, terms)
    return [Commitment.of(message, terms) for message in messages]


def common_silos(committed: Sequence[Commitment]) -> tuple[str, ...]:
    """Returns the silos whose shares every party could open, in order."""
    common = set(committed[0].silos).intersection(*(each.silos for each in committed[1:]))
    return tuple(sorted(common))


def reveal_content(committed: bytes, seed: bytes) -> bytes:
    """Returns the content of a party's message on `Step.REVEAL`.

    Args:
      committed: `round_digest` of all commitments, as this party saw them.
      seed: the party's seed, 32 bytes.
    """
    return joined(committed, seed)


def challenge_of(
    messages: Sequence[PartyMessage],
    terms: BatchTerms,
    *,
    committed: bytes,
    seed_digests: Sequence[bytes],
) -> checks.Challenge:
    """Returns the challenge that revealed seeds give.

    Raises:
      ProtocolError: if a seed is not the one committed to, or a party saw other commitments.
    """
    check_messages(messages, Step.REVEAL, terms)
    seeds = []
    for message, expected in zip(messages, seed_digests, strict=True):
        seen, seed = _parts(message, 2)
        if seen != committed or seed_digest(seed, message.party, terms) != expected:
            name = terms.parties[message.party - 1].name
            raise ProtocolError(f"reveal: expected the seed that {name} committed to")
        seeds.append(seed)
    return checks.Challenge.of_seeds(seeds, terms, committed)


def check_content(revealed: bytes, values: Elements) -> bytes:
    """Returns the content of a party's message on `Step.CHECK`.

    Args:
      revealed: `round_digest` of all revelations, as this party saw them.
      values: what it opens of each silo's shares, `[num_silos, NUM_CHECKS]`.
    """
    return joined(revealed, field.to_bytes(values))


def passing_silos(
    messages: Sequence[PartyMessage],
    terms: BatchTerms,
    *,
    silos: Sequence[str],
    revealed: bytes,
) -> tuple[str, ...]:
    """Returns the silos that pass the checks, in order.

    Raises:
      ProtocolError: if a party saw other seeds, or opened something else.
    """
    check_messages(messages, Step.CHECK, terms)
    opened = {}
    for message in messages:
        seen, values = _parts(message, 2)
        if seen != revealed:
            raise ProtocolError("check: expected all parties to see the same seeds")
        try:
            opened[message.party] = field.from_bytes(
                values, (len(silos), checks.NUM_CHECKS), "check"
            )
        except ValueError as error:
            raise ProtocolError(str(error)) from None
    passed = checks.passing(opened, threshold=terms.threshold)
    return tuple(silo for silo, passes in zip(silos, passed, strict=True) if passes)


def agreed_content(checked: bytes, silos: Sequence[str]) -> bytes:
    """Returns the content of a party's message on `Step.AGREE`.

    Args:
      checked: `round_digest` of all checks, as this party saw them.
      silos: that pass.
    """
    return joined(checked, *(silo.encode() for silo in silos))


def check_agreed(messages: Sequence[PartyMessage], terms: BatchTerms, content: bytes) -> None:
    """Checks that all parties agree with this one on which silos are summed up.

    Raises:
      ProtocolError: if one does not.
    """
    check_messages(messages, Step.AGREE, terms)
    for message in messages:
        if message.content != content:
            name = terms.parties[message.party - 1].name
            raise ProtocolError(f"agree: expected the silos that {name} agreed to, got others")


def release_content(agreed: bytes, sums: Elements) -> bytes:
    """Returns the content of a party's message on `Step.RELEASE`.

    Args:
      agreed: `round_digest` of all agreements.
      sums: the party's share of the noisy histogram, `[num_queries, num_classes]`.
    """
    return joined(agreed, field.to_bytes(sums))


def released_sums(message: PartyMessage, terms: BatchTerms, *, agreed: bytes) -> Elements:
    """Returns a party's share of the noisy histogram, `[num_queries, num_classes]`.

    Raises:
      ProtocolError: if the message holds none, or is about other silos.
    """
    seen, sums = _parts(message, 2)
    if seen != agreed:
        raise ProtocolError("release: expected sums over the silos that all agreed to")
    try:
        return field.from_bytes(sums, terms.shape, "release")
    except ValueError as error:
        raise ProtocolError(str(error)) from None


def _parts(message: PartyMessage, number: int) -> list[bytes]:
    parts = message.parts
    if len(parts) != number:
        raise ProtocolError(f"{message.step.value}: expected {number} parts, got {len(parts)}")
    return parts
