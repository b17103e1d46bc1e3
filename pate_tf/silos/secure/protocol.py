"""The protocol of secure aggregation: its messages, the check of votes, and what all conclude.

Parties sign what they say on each step, over the batch's terms, the step and the content. A
coordinator relays it and can't change a word. Every party, and the coordinator, concludes the same
from the same messages: `Transcript`.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from pate_tf.core.validation import check_name
from pate_tf.silos.secure import shamir
from pate_tf.silos.secure.keys import PartyKeys
from pate_tf.silos.secure.shamir import Elements
from pate_tf.silos.secure.terms import DIGEST_BYTES, BatchTerms, joined, split_shares


class Step(enum.Enum):
    """The steps of a batch, in their order; each takes all parties' messages of the one before.

    Attributes:
        COMMIT: shares were received; noise and a seed are drawn, noise is shared among the parties.
        REVEAL: the seed, once every party is committed.
        MASK: shares of masked sums of each silo's votes under the challenge.
        CHECK: shares of what is 0 for each silo whose votes are votes, given the masked sums.
        AGREE: which silos pass.
        RELEASE: the party's share of the noisy sum.
    """

    COMMIT = "commit"
    REVEAL = "reveal"
    MASK = "mask"
    CHECK = "check"
    AGREE = "agree"
    RELEASE = "release"


STEPS = tuple(Step)


class ProtocolError(ValueError):
    """A message is not what the protocol has in its place; nothing was released for it."""


class TooFewSilosError(ProtocolError):
    """So few silos' shares fit that nothing opens of this batch, however often it is asked."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartyMessage:
    """One party's message on one step. Public: all of them together tell the noisy sum.

    Attributes:
        terms_digest: of the batch, 32 bytes.
        step: which step.
        party: number of the party, from 1.
        content: its form depends on the step.
        signature: of all of the above, 64 bytes.
    """

    terms_digest: bytes
    step: Step
    party: int
    content: bytes = dataclasses.field(repr=False)
    signature: bytes = dataclasses.field(repr=False)

    @property
    def signed_bytes(self) -> bytes:
        """What the signature is of."""
        party = str(self.party).encode()
        step = self.step.value.encode()
        return joined(b"pate_tf party", self.terms_digest, step, party, self.content)


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
    """Returns the parts that `joined` put in a row; raises ProtocolError if there are none such."""
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
    fields = {"terms_digest": terms.digest, "step": step, "party": party, "content": content}
    message = PartyMessage(**fields, signature=b"")  # type: ignore[arg-type]
    return dataclasses.replace(message, signature=keys.sign(message.signed_bytes))


def check_messages(messages: Sequence[PartyMessage], step: Step, terms: BatchTerms) -> None:
    """Checks that there is one message of every party on a step, each signed by it.

    On `RELEASE` 2 t + 1 are enough: they name the total even where t of them lie; fewer would let
    the last one choose it.

    Raises ProtocolError if not; names the party.
    """
    numbers = [message.party for message in messages]
    is_enough = step is Step.RELEASE and len(numbers) > 2 * terms.threshold
    if numbers != [number for number in terms.numbers if number in numbers or not is_enough]:
        raise ProtocolError(
            f"{step.value}: expected a message of each of {len(terms.numbers)} parties in order"
        )
    for message in messages:
        identity = terms.parties[message.party - 1]
        if (
            message.step is not step
            or message.terms_digest != terms.digest
            or not identity.verifies(message.signature, message.signed_bytes)
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


# Whether shares are those of one vote for each query, without a look at the votes.
#
# After all shares are committed to, the parties draw public random weights rho, tau and chi. With
# its votes v a silo shares a random number a and its square b for each query. Of each silo the
# parties open, one after the other, values of polynomials of degree t:
#
#     y = a + sum_k rho v                                                    for each query
#     sum tau (y^2 - 2 y a + b - sum_k rho^2 v) + sum chi (sum_k v - 1)      0 if votes are
#
# With z = sum_k rho v the bracket of tau is z^2 - sum_k rho^2 v + (b - a^2), which is 0 for
# one-hot votes alone (Boneh et al. 2021, "Lightweight techniques for private heavy hitters").
# Every opened value is determined by the shares of honest parties, so that others can spoil an
# opening but not change it (docs/proofs/secure.md, Theorems V2 and V3).
#
# All else here holds for sums of any vectors of whole numbers. Feature sums are such: a silo that
# lies may add what it likes, to the labels' cost alone, so of these only y is opened, which shows
# whether shares fit each other.


@dataclasses.dataclass(frozen=True, eq=False)
class Challenge:
    """The random weights of a batch's checks, public once every party is committed.

    Attributes:
        rho: of votes, `[num_queries, num_classes]`.
        tau: of squares, `[num_queries]`.
        chi: of numbers of votes, `[num_queries]`.
        are_votes: whether votes are checked; else `check_value` is 0.
    """

    rho: Elements
    tau: Elements
    chi: Elements
    are_votes: bool = True

    @classmethod
    def of_seed(cls, seed: bytes, terms: BatchTerms) -> Challenge:
        """Returns the weights that a `challenge_seed` gives."""
        num_queries, num_classes = terms.shape
        num_votes = num_queries * num_classes
        drawn = shamir.from_seed(seed, num_votes + 2 * num_queries)
        rho, tau, chi = np.split(drawn, [num_votes, num_votes + num_queries])
        return cls(rho.reshape(terms.shape), tau, chi, not terms.are_sums)

    def masked(self, shares: Elements) -> Elements:
        """Returns shares of y, `[num_queries]`, of a party's shares of one silo, `[share_size]`."""
        a, _, votes = split_shares(shares, self.rho.shape)
        return shamir.add(a, shamir.total(shamir.multiply(self.rho, votes), axis=1))

    def check_value(self, shares: Elements, opened: Elements) -> np.uint64:
        """Returns a party's share of the number that is 0 if one silo's votes are votes.

        `shares` are the party's of the silo, `[share_size]`, `opened` is y, `[num_queries]`.
        """
        if not self.are_votes:
            return np.uint64(0)
        a, b, votes = split_shares(shares, self.rho.shape)
        weights = shamir.multiply(self.rho, self.rho)
        squares = shamir.total(shamir.multiply(weights, votes), axis=1)
        products = shamir.multiply(np.uint64(2), shamir.multiply(opened, a))
        plus, minus = shamir.multiply(opened, opened), shamir.add(products, squares)
        brackets = shamir.subtract(shamir.add(plus, b), minus)
        missing = shamir.subtract(shamir.total(votes, axis=1), np.uint64(1))
        of_squares = shamir.total(shamir.multiply(self.tau, brackets))
        of_numbers = shamir.total(shamir.multiply(self.chi, missing))
        return np.uint64(shamir.add(of_squares, of_numbers))


def seed_digest(seed: bytes, party: int, terms: BatchTerms) -> bytes:
    """Returns what a party commits to of its seed, 32 bytes."""
    return hashlib.sha256(joined(terms.digest, str(party).encode(), seed)).digest()


def challenge_seed(seeds: Sequence[bytes], terms: BatchTerms, committed: bytes) -> bytes:
    """Returns what all parties' seeds together give, 32 bytes; one random seed is enough.

    `committed` is the digest of what the parties committed to.
    """
    return hashlib.sha256(joined(terms.digest, committed, *seeds)).digest()


def opened(values: Mapping[int, Elements], *, threshold: int) -> list[Elements | None]:
    """Returns what parties' shares open of each silo, `[num_values]`; None where they don't fit.

    `values` are shares `[num_silos, num_values]` by party, `threshold` the polynomials' degree.
    """
    results: list[Elements | None] = []
    for shares in zip(*values.values(), strict=True):
        try:
            of_silo = dict(zip(values, shares, strict=True))
            results.append(shamir.reconstruct(of_silo, degree=threshold))
        except shamir.InconsistentSharesError:
            results.append(None)
    return results


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
        """Returns what a message says; raises ProtocolError if it says nothing of the kind."""
        parts = split(message.content)
        if len(parts) != 5:
            raise ProtocolError(f"commit: expected 5 parts, got {len(parts)}")
        names, dealings, received, seed, noise = parts
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
        dealt = dict(zip(silos, digests, strict=True))
        return cls(dealings=dealt, received=received, seed=seed, noise=shares)


def common_silos(committed: Sequence[Commitment]) -> tuple[str, ...]:
    """Returns the silos of which every party holds a share of the same dealing, in order."""
    common = set(committed[0].dealings.items()).intersection(
        *(each.dealings.items() for each in committed[1:])
    )
    return tuple(sorted(silo for silo, _ in common))


def passing_silos(
    silos: Sequence[str],
    masked: Sequence[Elements | None],
    checked: Sequence[Elements | None],
) -> tuple[str, ...]:
    """Returns those of the common silos whose shares fit each other and open to 0, in order.

    `masked` and `checked` are what opened of each on `Step.MASK` and `Step.CHECK`.
    """
    return tuple(
        silo
        for silo, y, value in zip(silos, masked, checked, strict=True)
        if y is not None and value is not None and not value.any()
    )


class Transcript:
    """All parties' messages on the steps of a batch so far, and what follows from them. Public.

    Attributes:
        terms: of the batch.
        seen: `round_digest` of the last step's messages; every message on the next step begins with
            it, so that parties that saw different messages never go on together.
        committed: after `COMMIT`, what each party committed to.
        silos: after `COMMIT`, the silos of which every party holds a share of the same dealing.
        challenge: after `REVEAL`.
        masked: after `MASK`, of each silo y `[num_queries]`, None where shares don't fit each
            other.
        passing: after `CHECK`, the silos whose votes are votes.
        total: after `RELEASE`, the noisy sum, of the terms' shape.
    """

    committed: list[Commitment]
    silos: tuple[str, ...]
    challenge: Challenge
    masked: list[Elements | None]
    passing: tuple[str, ...]
    total: Elements

    def __init__(self, terms: BatchTerms) -> None:
        self.terms, self.seen = terms, b""

    def after(self, step: Step, messages: Sequence[PartyMessage]) -> Transcript:
        """Returns the transcript with the messages of the next step.

        Raises:
            ProtocolError: if a message is missing or forged, or contradicts what was said before.
            TooFewSilosError: if too few silos are left.
        """
        check_messages(messages, step, self.terms)
        longer = copy.copy(self)
        if step is Step.COMMIT:
            longer.committed = [Commitment.of(message, self.terms) for message in messages]
            longer.silos = common_silos(longer.committed)
        else:
            parts = {}
            for message in messages:
                seen, *parts[message.party] = split(message.content) or [b""]
                if seen != self.seen:
                    raise ProtocolError(
                        f"{step.value}: expected {self._name(message.party)} to have seen what the "
                        "others saw, got a message on something else"
                    )
            getattr(longer, f"_{step.value}")(parts)
        longer.seen = round_digest(messages)
        return longer

    def _reveal(self, parts_of: Mapping[int, list[bytes]]) -> None:
        for (party, parts), committed in zip(parts_of.items(), self.committed, strict=True):
            if len(parts) != 1 or seed_digest(parts[0], party, self.terms) != committed.seed:
                raise ProtocolError(
                    f"reveal: expected the seed that {self._name(party)} committed to"
                )
        seed = challenge_seed([seed for (seed,) in parts_of.values()], self.terms, self.seen)
        self.challenge = Challenge.of_seed(seed, self.terms)

    def _mask(self, parts_of: Mapping[int, list[bytes]]) -> None:
        values = self._values(parts_of, (len(self.silos), self.terms.num_queries), "mask")
        self.masked = opened(values, threshold=self.terms.threshold)

    def _check(self, parts_of: Mapping[int, list[bytes]]) -> None:
        values = self._values(parts_of, (len(self.silos), 1), "check")
        checked = opened(values, threshold=self.terms.threshold)
        self.passing = passing_silos(self.silos, self.masked, checked)
        if len(self.passing) < self.terms.least_silos:
            raise TooFewSilosError(
                f"silos: expected {self.terms.least_silos} or more whose shares open and fit each "
                f"other, got {len(self.passing)}"
            )

    def _agree(self, parts_of: Mapping[int, list[bytes]]) -> None:
        for party, parts in parts_of.items():
            if parts != [silo.encode() for silo in self.passing]:
                raise ProtocolError(
                    f"agree: expected the silos that pass, got others of {self._name(party)}"
                )

    def _release(self, parts_of: Mapping[int, list[bytes]]) -> None:
        sums = self._values(parts_of, self.terms.shape, "release")
        try:
            self.total = shamir.reconstruct(sums, degree=self.terms.threshold)
        except shamir.InconsistentSharesError:
            raise ProtocolError(
                "release: expected sums that fit each other; a party added wrongly, and it can't "
                "be parts_of which"
            ) from None

    def _values(
        self, parts_of: Mapping[int, list[bytes]], shape: tuple[int, ...], what: str
    ) -> dict[int, Elements]:
        if any(len(parts) != 1 for parts in parts_of.values()):
            raise ProtocolError(f"{what}: expected one row of values of each party, got others")
        try:
            return {
                party: shamir.from_bytes(row, shape, what) for party, (row,) in parts_of.items()
            }
        except ValueError as error:
            raise ProtocolError(str(error)) from None

    def _name(self, party: int) -> str:
        return self.terms.parties[party - 1].name
