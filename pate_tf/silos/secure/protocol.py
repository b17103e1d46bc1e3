"""What parties say on each step, what they conclude from it, and the check of votes."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from pate_tf.core.validation import check_name
from pate_tf.silos.secure import shamir
from pate_tf.silos.secure import shamir as field
from pate_tf.silos.secure.messages import PartyMessage, ProtocolError, Step, check_messages, split
from pate_tf.silos.secure.shamir import Elements
from pate_tf.silos.secure.shares import split_shares
from pate_tf.silos.secure.terms import DIGEST_BYTES, BatchTerms, joined

# Whether shares are those of one vote for each query, without a look at the votes.
#
# After all shares are committed to, the parties draw public random weights rho, tau and chi.
# Beside its votes v a silo shares a random number a and its square b for each query. Of each silo
# the parties open, one after the other, values of polynomials of degree t:
#
#     y = a + sum_k rho v                                                    for each query
#     sum tau (y^2 - 2 y a + b - sum_k rho^2 v) + sum chi (sum_k v - 1)      0 if votes are
#
# With z = sum_k rho v the bracket of tau is z^2 - sum_k rho^2 v + (b - a^2), which is 0 for
# one-hot votes alone (Boneh et al. 2021, "Lightweight techniques for private heavy hitters").
# Every opened value is determined by the shares of honest parties, so that others can spoil an
# opening but not change it (docs/theory_secure.md, Theorems V2 and V3).


def challenge_seed(seeds: Sequence[bytes], terms: BatchTerms, committed: bytes) -> bytes:
    """Returns what all parties' seeds together give, 32 bytes; one random seed is enough.

    Args:
      seeds: one of each party, in their order.
      terms: of the batch.
      committed: digest of what the parties committed to.
    """
    return hashlib.sha256(joined(terms.digest, committed, *seeds)).digest()


@dataclasses.dataclass(frozen=True, eq=False)
class Challenge:
    """The random weights of a batch's checks, public once every party is committed.

    Attributes:
      rho: of votes, `[num_queries, num_classes]`.
      tau: of squares, `[num_queries]`.
      chi: of numbers of votes, `[num_queries]`.
    """

    rho: Elements
    tau: Elements
    chi: Elements

    @classmethod
    def of_seed(cls, seed: bytes, terms: BatchTerms) -> Challenge:
        """Returns the weights that a `challenge_seed` gives."""
        num_queries, num_classes = terms.shape
        num_votes = num_queries * num_classes
        drawn = field.from_seed(seed, num_votes + 2 * num_queries)
        rho, tau, chi = np.split(drawn, [num_votes, num_votes + num_queries])
        return cls(rho.reshape(terms.shape), tau, chi)

    def masked(self, shares: Elements) -> Elements:
        """Returns a party's shares of y of one silo, `[num_queries]`.

        Args:
          shares: the party's shares of the silo's numbers, `[share_size(terms)]`.
        """
        a, _, votes = split_shares(shares, self.rho.shape)
        return field.add(a, field.total(field.multiply(self.rho, votes), axis=1))

    def check_value(self, shares: Elements, opened: Elements) -> np.uint64:
        """Returns a party's share of the number that is 0 if one silo's votes are.

        Args:
          shares: the party's shares of the silo's numbers, `[share_size(terms)]`.
          opened: y of the silo, `[num_queries]`.
        """
        a, b, votes = split_shares(shares, self.rho.shape)
        squares = field.total(field.multiply(field.multiply(self.rho, self.rho), votes), axis=1)
        twice = field.multiply(np.uint64(2), field.multiply(opened, a))
        brackets = field.subtract(
            field.add(field.multiply(opened, opened), b), field.add(twice, squares)
        )
        missing = field.subtract(field.total(votes, axis=1), np.uint64(1))
        return np.uint64(
            field.add(
                field.total(field.multiply(self.tau, brackets)),
                field.total(field.multiply(self.chi, missing)),
            )
        )


def opened(values: Mapping[int, Elements], *, threshold: int) -> list[Elements | None]:
    """Returns what parties' shares open of each silo, `[num_values]`; None where they don't fit.

    Args:
      values: by number of the party, its shares `[num_silos, num_values]`.
      threshold: degree of the polynomials.
    """
    num_silos = len(next(iter(values.values())))
    found: list[Elements | None] = []
    for silo in range(num_silos):
        shares = {party: rows[silo] for party, rows in values.items()}
        try:
            found.append(field.reconstruct(shares, degree=threshold))
        except field.InconsistentSharesError:
            found.append(None)
    return found


# The content of parties' messages, step by step, and what all parties conclude from them.
#
# Every party concludes the same from the same messages: which silos are summed up, which challenge
# they face, which of them pass.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Commitment:
    """What a party commits to.

    Attributes:
      dealings: of each silo whose share it could open, by name and in order, the digest of the
        silo's shares for all parties, 32 bytes.
      received: digest of its task with all shares that it got, 32 bytes.
      seed: digest of its seed, 32 bytes.
      noise: its noise in shares, each sealed to a party; empty for itself.
    """

    dealings: Mapping[str, bytes]
    received: bytes
    seed: bytes
    noise: tuple[bytes, ...] = dataclasses.field(repr=False)

    def to_bytes(self) -> bytes:
        """Returns the content of a message."""
        silos = joined(*(silo.encode() for silo in self.dealings))
        dealings = joined(*self.dealings.values())
        return joined(silos, dealings, self.received, self.seed, joined(*self.noise))

    @classmethod
    def of(cls, message: PartyMessage, terms: BatchTerms) -> Commitment:
        """Returns what a message says.

        Raises:
          ProtocolError: if it says nothing of the kind.
        """
        names, dealings, received, seed, noise = _parts(message, 5)
        digests, shares = split(dealings), tuple(split(noise))
        if any(len(digest) != DIGEST_BYTES for digest in (*digests, received, seed)):
            raise ProtocolError("commit: expected digests of 32 bytes, got others")
        try:
            silos = [check_name(silo.decode(), "silo") for silo in split(names)]
        except ValueError:
            raise ProtocolError("commit: expected names of silos, got something else") from None
        if silos != sorted(set(silos)) or len(silos) != len(digests):
            raise ProtocolError("commit: expected silos in order, each with a digest")
        if len(shares) != len(terms.parties):
            raise ProtocolError("commit: expected noise for each party")
        return cls(
            dealings=dict(zip(silos, digests, strict=True)),
            received=received,
            seed=seed,
            noise=shares,
        )


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
    """Returns the silos of which every party holds a share of the same dealing, in order."""
    common = set(committed[0].dealings.items()).intersection(
        *(each.dealings.items() for each in committed[1:])
    )
    return tuple(sorted(silo for silo, _ in common))


def reveal_content(committed: bytes, seed: bytes) -> bytes:
    """Returns the content of a party's message on `Step.REVEAL`.

    Args:
      committed: `round_digest` of all commitments, as this party saw them.
      seed: the party's seed, 32 bytes.
    """
    return joined(committed, seed)


def challenge_seed_of(
    messages: Sequence[PartyMessage],
    terms: BatchTerms,
    *,
    committed: bytes,
    seed_digests: Sequence[bytes],
) -> bytes:
    """Returns the seed of the challenge that all revealed seeds give, 32 bytes.

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
    return challenge_seed(seeds, terms, committed)


def opening_content(seen: bytes, values: Elements) -> bytes:
    """Returns the content of a party's message on `Step.MASK` and `Step.CHECK`.

    Args:
      seen: `round_digest` of the step before, as this party saw it.
      values: its shares of what opens of each silo, `[num_silos, num_values]`.
    """
    return joined(seen, shamir.to_bytes(values))


def opened_values(
    messages: Sequence[PartyMessage],
    terms: BatchTerms,
    step: Step,
    *,
    num_silos: int,
    seen: bytes,
) -> list[Elements | None]:
    """Returns what opens of each silo; None where parties' shares don't fit each other.

    Args:
      messages: of all parties on the step.
      terms: of the batch.
      step: `Step.MASK`, which opens `[num_queries]`, or `Step.CHECK`, which opens `[1]`.
      num_silos: number of common silos.
      seen: `round_digest` of the step before.

    Raises:
      ProtocolError: if a party saw something else, or opened something else.
    """
    check_messages(messages, step, terms)
    size = terms.num_queries if step is Step.MASK else 1
    values = {}
    for message in messages:
        saw, content = _parts(message, 2)
        if saw != seen:
            raise ProtocolError(f"{step.value}: expected all parties to see the same messages")
        try:
            values[message.party] = shamir.from_bytes(content, (num_silos, size), step.value)
        except ValueError as error:
            raise ProtocolError(str(error)) from None
    return opened(values, threshold=terms.threshold)


def passing_silos(
    silos: Sequence[str], fits: Sequence[bool], checked: Sequence[Elements | None]
) -> tuple[str, ...]:
    """Returns the silos whose shares fit each other and open to 0, in order.

    Args:
      silos: the common ones.
      fits: whether the shares of each fitted each other on `Step.MASK`.
      checked: what opened of each on `Step.CHECK`.
    """
    return tuple(
        silo
        for silo, fitted, value in zip(silos, fits, checked, strict=True)
        if fitted and value is not None and not value.any()
    )


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
    return joined(agreed, shamir.to_bytes(sums))


def released_sums(message: PartyMessage, terms: BatchTerms, *, agreed: bytes) -> Elements:
    """Returns a party's share of the noisy histogram, `[num_queries, num_classes]`.

    Raises:
      ProtocolError: if the message holds none, or is about other silos.
    """
    seen, sums = _parts(message, 2)
    if seen != agreed:
        raise ProtocolError("release: expected sums over the silos that all agreed to")
    try:
        return shamir.from_bytes(sums, terms.shape, "release")
    except ValueError as error:
        raise ProtocolError(str(error)) from None


def _parts(message: PartyMessage, number: int) -> list[bytes]:
    parts = message.parts
    if len(parts) != number:
        raise ProtocolError(f"{message.step.value}: expected {number} parts, got {len(parts)}")
    return parts
