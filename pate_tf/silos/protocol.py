"""The protocol of secure aggregation: terms, messages, the check of votes, what all conclude.

Aggregators sign what they say on each step, over the batch's terms, the step and the content. A
coordinator relays it and can't change a word. Every aggregator, and the coordinator, concludes the
same from the same messages: `Transcript`.
"""

from __future__ import annotations

import copy
import dataclasses
import enum
import functools
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from math import prod, sqrt
from typing import Final

import numpy as np

from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.local import MAX_CLASSES, MAX_SILOS, SecureFeatureSums, SecureHistogram
from pate_tf.core import artifacts, checks
from pate_tf.core.checks import check_name
from pate_tf.net.wire_values import decode, digest, encode
from pate_tf.silos import shamir
from pate_tf.silos.messages import QueryBatch
from pate_tf.silos.shamir import PRIME, Elements

_KEY_BYTES = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class Identity:
    """What is public of an aggregator or a silo; others get it from the roster alone.

    Attributes:
        name: as in its certificate.
        sealing_key: X25519 public key, 32 bytes.
        signing_key: Ed25519 public key, 32 bytes.

    Raises ValueError if the name is none or a key has not 32 bytes.
    """

    name: str
    sealing_key: bytes
    signing_key: bytes

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        if {len(self.sealing_key), len(self.signing_key)} != {_KEY_BYTES}:
            raise ValueError(f"{self.name}: expected keys of 32 bytes, got others")

    @classmethod
    def of_hex(cls, name: str, keys: str) -> Identity:
        """Returns the identity with both keys in 128 hexadecimal digits, as on a roster.

        Raises ValueError if they are something else.
        """
        both = _from_hex(name, keys)
        return cls(name=name, sealing_key=both[:_KEY_BYTES], signing_key=both[_KEY_BYTES:])

    def entry(self, role: str) -> str:
        """Returns what stands on a roster for a silo or an aggregator."""
        keys = (self.sealing_key + self.signing_key).hex()
        return f'[[{role}]]\nname = "{self.name}"\nkeys = "{keys}"\n'

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Whether the owner of these keys signed a message."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.signing_key).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


class Keys:
    """SENSITIVE: the private keys of an aggregator or a silo. They are in no repr or message.

    Args:
        name: of the owner.
        private: X25519 and Ed25519 private keys, 32 secret random bytes each. Default: new ones
            from the operating system's entropy.

    Attributes:
        identity: what is public of them.
        sealing: private key that opens what is sealed to the owner.
        signing: private key that signs messages; a signature has 64 bytes.
    """

    def __init__(self, name: str, private: bytes | None = None) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        private = os.urandom(2 * _KEY_BYTES) if private is None else private
        self.sealing = X25519PrivateKey.from_private_bytes(private[:_KEY_BYTES])
        self.signing = Ed25519PrivateKey.from_private_bytes(private[_KEY_BYTES:])
        self.identity = Identity(
            name=name,
            sealing_key=self.sealing.public_key().public_bytes_raw(),
            signing_key=self.signing.public_key().public_bytes_raw(),
        )

    @classmethod
    def load_or_create(cls, path: pathlib.Path, name: str) -> Keys:
        """Returns the keys of a file, which only its owner can read; makes it if there is none.

        Raises ValueError if the file holds something else, or another name's keys.
        """
        if not path.exists():
            new = {"name": name, "keys": os.urandom(2 * _KEY_BYTES).hex()}
            artifacts.make_sensitive_folder(path.parent)
            artifacts.write_json(path, new, private=True)
        fields = artifacts.read_json(path)
        if fields.get("name") != name:
            raise ValueError(f"{path}: expected the keys of {name}, got something else")
        return cls(name, _from_hex(str(path), fields.get("keys")))


def _from_hex(what: str, text: object) -> bytes:
    """Returns two keys of hexadecimal digits; raises ValueError, which shows none of them."""
    if not isinstance(text, str) or not re.fullmatch(f"[0-9a-f]{{{4 * _KEY_BYTES}}}", text):
        raise ValueError(f"{what}: expected keys in 128 hexadecimal digits, got others")
    return bytes.fromhex(text)


MOST_COUNTS: Final = 2**24  # of a batch: 128 MiB of shares from every silo
DIGEST_BYTES: Final = 32
# Of honest silos' sums and of all noise, each; less than half of the field together.
_MOST_TOTAL: Final = 2**58
# A sum of noise beyond so many standard deviations has a probability below e^-198.
_DEVIATIONS: Final = 20.0


class Step(enum.Enum):
    """The steps of a batch, in their order; each takes all messages of the one before.

    Attributes:
        COMMIT: shares were received; noise and a seed are drawn, noise is shared.
        REVEAL: the seed, once every aggregator is committed.
        MASK: shares of masked sums of each silo's votes under the challenge.
        CHECK: shares of what is 0 for each silo whose votes are votes, given the masked sums.
        AGREE: which silos pass.
        RELEASE: the aggregator's share of the noisy sum.
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
class BatchTerms:
    """What silos and aggregators agree on before votes or feature sums are shared. Public.

    Every sealed share names their digest: none is treated under other noise, aggregators, batches.

    Attributes:
        question: of the batch, `QueryBatch.question`; a batch opens once, so another opening needs
            another batch.
        shape: number of queries, at least 1, and of classes, at least 2; of feature sums 1, and how
            many numbers a table has.
        mechanism: noise, number of aggregators and threshold; what is charged for it.
        aggregators: in the order of their numbers, which count from 1.
        silos: of feature sums the silos, which sign what they share; none of votes, of whom any may
            be made up, as aggregators add the noise.
        are_sums: whether feature sums are shared, to which silos added noise; else votes.
        size: how many numbers are summed up.
        share_size: how many numbers a silo shares: two for each query, and its votes.
        threshold: how many aggregators may pool what they know.
        numbers: of the aggregators, from 1.
        least_silos: fewest silos that open together.
        largest_sum: most that a silo shares as a number of its sums, in lattice steps.

    Raises ValueError if values don't fit each other, or a sum could wrap around in the field.
    """

    question: bytes
    shape: tuple[int, int]
    mechanism: SecureHistogram | SecureFeatureSums
    aggregators: tuple[Identity, ...]
    silos: tuple[Identity, ...] = ()
    are_sums: bool = dataclasses.field(init=False, repr=False)
    size: int = dataclasses.field(init=False, repr=False)
    share_size: int = dataclasses.field(init=False, repr=False)
    threshold: int = dataclasses.field(init=False, repr=False)
    numbers: range = dataclasses.field(init=False, repr=False)
    least_silos: int = dataclasses.field(init=False, repr=False)
    largest_sum: int = dataclasses.field(init=False, repr=False)

    def __post_init__(self) -> None:
        num_queries, num_classes = self.shape
        derived = {
            "are_sums": isinstance(self.mechanism, SecureFeatureSums),
            "size": num_queries * num_classes,
            "share_size": 2 * num_queries + num_queries * num_classes,
            "threshold": self.mechanism.threshold,
            "numbers": range(1, len(self.aggregators) + 1),
            "least_silos": getattr(self.mechanism, "least_silos", 1),
            "largest_sum": _MOST_TOTAL // max(len(self.silos), 1),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)
        if len(self.question) != DIGEST_BYTES:
            raise ValueError("question: expected 32 bytes, got another number")
        most = MOST_COUNTS if self.are_sums else MAX_CLASSES
        checks.whole(2, most, num_classes=num_classes)
        checks.whole(1, MOST_COUNTS // num_classes, num_queries=num_queries)
        number = self.mechanism.num_parties
        if len(self.aggregators) != number:
            raise ValueError(f"aggregators: expected {number}, got {len(self.aggregators)}")
        everyone = (*self.aggregators, *self.silos)
        for what in ("name", "sealing_key", "signing_key"):
            if len({getattr(identity, what) for identity in everyone}) < len(everyone):
                raise ValueError(f"aggregators: expected another {what} of each, got one twice")
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
            # All aggregators' noise on a count.
            sigma = self.mechanism.sigma * sqrt(number / self.mechanism.num_honest)
            largest = LATTICE * (MAX_SILOS + _DEVIATIONS * sigma)
            bound = PRIME / 2.0
        if not largest < bound:
            raise ValueError(
                f"sigma: expected noise that can't wrap around in the field, got "
                f"{self.mechanism.sigma}"
            )

    @classmethod
    def of_batch(
        cls, batch: QueryBatch, aggregators: tuple[Identity, ...], silos: tuple[Identity, ...] = ()
    ) -> BatchTerms:
        """Returns the terms of a batch that a coordinator asks.

        Args:
            batch: whose votes or sums are shared.
            aggregators: as the caller's roster has them; never from the coordinator.
            silos: that may add feature sums, from the same roster.

        Raises ValueError if the batch is not to be shared, or for others than these.
        """
        mechanism = batch.mechanism
        num_classes = batch.num_classes
        if isinstance(mechanism, SecureFeatureSums):
            num_classes = prod(mechanism.shape(num_classes))
        elif isinstance(mechanism, SecureHistogram):
            silos = ()
        else:
            raise ValueError("mechanism: expected one of secure aggregation, got another")
        return cls(
            question=batch.question,
            shape=(len(batch.queries), num_classes),
            mechanism=mechanism,
            aggregators=aggregators,
            silos=silos,
        )

    @functools.cached_property
    def digest(self) -> bytes:
        """What the terms are known by, 32 bytes."""
        return digest(("pate_tf secure aggregation 7", self))


@dataclasses.dataclass(frozen=True, kw_only=True)
class AggregatorMessage:
    """One aggregator's message on one step. Public: all of them together tell the noisy sum.

    Attributes:
        terms_digest: of the batch, 32 bytes.
        step: which step.
        aggregator: number of the sender, from 1.
        seen: digest of all messages on the step before, so that aggregators that saw different ones
            never go on together; empty on the first step.
        content: its form depends on the step.
        signature: of all of the above, 64 bytes.
    """

    terms_digest: bytes
    step: Step
    aggregator: int
    seen: bytes
    content: bytes = dataclasses.field(repr=False)
    signature: bytes = dataclasses.field(default=b"", repr=False)

    @property
    def signed_bytes(self) -> bytes:
        """What the signature is of."""
        return encode(("aggregator", dataclasses.replace(self, signature=b"")))

    def signed(self, keys: Keys) -> AggregatorMessage:
        """Returns the message with the signature of its sender, whose keys these are."""
        return dataclasses.replace(self, signature=keys.signing.sign(self.signed_bytes))


@dataclasses.dataclass(frozen=True, kw_only=True)
class AggregatorTask:
    """What an aggregator is asked.

    Attributes:
        step: which step.
        terms: of the batch; an aggregator checks that it is in them.
        sealed: only to `COMMIT`: by silo, what it sealed to this aggregator.
        messages: of all on the step before, by their numbers; none to `COMMIT`.
    """

    step: Step
    terms: BatchTerms
    sealed: Mapping[str, bytes] = dataclasses.field(default_factory=dict, repr=False)
    messages: tuple[AggregatorMessage, ...] = ()


# Whether shares are those of one vote for each query, without a look at the votes.
#
# After all shares are committed to, the aggregators draw public random weights rho, tau and chi.
# With its votes v a silo shares a random number a and its square b for each query. Of each silo the
# aggregators open, one after the other, values of polynomials of degree t:
#
#     y = a + sum_k rho v                                                    for each query
#     sum tau (y^2 - 2 y a + b - sum_k rho^2 v) + sum chi (sum_k v - 1)      0 if votes are
#
# With z = sum_k rho v the bracket of tau is z^2 - sum_k rho^2 v + (b - a^2), which is 0 for
# one-hot votes alone (Boneh et al. 2021, "Lightweight techniques for private heavy hitters").
# Every opened value is determined by the shares of honest aggregators, so that others can spoil an
# opening but not change it (docs/proofs/secure.md, Theorems V2 and V3).
#
# All else here holds for sums of any vectors of whole numbers. Feature sums are such: a silo that
# lies may add what it likes, to the labels' cost alone, so of these only y is opened, which shows
# whether shares fit each other.


@dataclasses.dataclass(frozen=True, eq=False)
class Challenge:
    """The random weights of a batch's checks, public once every aggregator is committed.

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
        """Returns the weights that all seeds together give."""
        drawn = shamir.from_seed(seed, terms.share_size)
        rho, tau, chi = np.split(drawn, [terms.size, terms.size + terms.shape[0]])
        return cls(rho.reshape(terms.shape), tau, chi, not terms.are_sums)

    def masked(self, shares: Elements) -> Elements:
        """Returns shares of y, `[num_queries]`, of shares of one silo, `[share_size]`."""
        a, _, votes = split_shares(shares, self.rho.shape)
        return shamir.add(a, shamir.total(shamir.multiply(self.rho, votes), axis=1))

    def check_value(self, shares: Elements, opened: Elements) -> np.uint64:
        """Returns a share of the number that is 0 if one silo's votes are votes.

        `shares` are an aggregator's of the silo, `[share_size]`, `opened` is y, `[num_queries]`.
        """
        if not self.are_votes:
            return np.uint64(0)
        a, b, votes = split_shares(shares, self.rho.shape)
        weights = shamir.multiply(self.rho, self.rho)
        squares = shamir.total(shamir.multiply(weights, votes), axis=1)
        products = shamir.multiply(np.uint64(2), shamir.multiply(opened, a))
        plus = shamir.add(shamir.multiply(opened, opened), b)
        brackets = shamir.subtract(plus, shamir.add(products, squares))
        missing = shamir.subtract(shamir.total(votes, axis=1), np.uint64(1))
        of_squares = shamir.total(shamir.multiply(self.tau, brackets))
        of_numbers = shamir.total(shamir.multiply(self.chi, missing))
        return np.uint64(shamir.add(of_squares, of_numbers))


def split_shares(shares: Elements, shape: tuple[int, ...]) -> tuple[Elements, Elements, Elements]:
    """Returns the shares of a, b `[num_queries]` and of votes `[num_queries, num_classes]`."""
    a, b, votes = np.split(shares, [shape[0], 2 * shape[0]])
    return a, b, votes.reshape(shape)


def seed_digest(seed: bytes, aggregator: int, terms: BatchTerms) -> bytes:
    """Returns what an aggregator commits to of its seed, 32 bytes."""
    return digest(("seed", terms.digest, aggregator, seed))


def opened(values: Mapping[int, Elements], *, threshold: int) -> list[Elements | None]:
    """Returns what shares open of each silo, `[num_values]`; None where they don't fit.

    `values` are shares `[num_silos, num_values]` by aggregator, `threshold` the polynomials'
    degree.
    """
    return [
        shamir.reconstruct(dict(zip(values, shares, strict=True)), degree=threshold)
        for shares in zip(*values.values(), strict=True)
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Commitment:
    """What an aggregator commits to.

    Attributes:
        dealings: of each silo whose share it could open, by name, the digest of the silo's shares
            for all aggregators, 32 bytes.
        part_digest: of its part of the challenge, 32 bytes.
        noise: its noise in shares, each sealed to an aggregator; empty of feature sums.

    Raises ValueError if it is none.
    """

    dealings: Mapping[str, bytes]
    part_digest: bytes
    noise: tuple[bytes, ...] = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        digests = (*self.dealings.values(), self.part_digest)
        if any(len(digest) != DIGEST_BYTES for digest in digests):
            raise ValueError("expected digests of 32 bytes, got others")
        for silo in self.dealings:
            check_name(silo, "silo")

    @classmethod
    def of(cls, content: bytes, terms: BatchTerms) -> Commitment:
        """Returns what a message's content says; raises ValueError if it is nothing of the kind."""
        commitment: Commitment = decode(cls, content)
        if len(commitment.noise) != (0 if terms.are_sums else len(terms.aggregators)):
            raise ValueError("expected noise for each aggregator")
        return commitment


def common_silos(committed: Sequence[Commitment]) -> tuple[str, ...]:
    """Returns the silos of which every aggregator holds a share of the same dealing, in order."""
    dealings = [set(commitment.dealings.items()) for commitment in committed]
    return tuple(sorted(silo for silo, _ in dealings[0].intersection(*dealings[1:])))


def passing_silos(
    silos: Sequence[str], masked: Sequence[Elements | None], checked: Sequence[Elements | None]
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
    """All messages on the steps of a batch so far, and what follows from them. Public.

    Attributes:
        terms: of the batch.
        place: how many steps are done.
        seen: digest of the last step's messages, which every message on the next step names.
        committed: after `COMMIT`, what each aggregator committed to.
        silos: after `COMMIT`, the silos of which all hold a share of the same dealing.
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
        self.terms = terms
        self.place = 0
        self.seen = b""

    def after(self, messages: Sequence[AggregatorMessage]) -> Transcript:
        """Returns the transcript with the messages of the next step.

        Raises:
            ProtocolError: if a message is missing or forged, or contradicts what was said before.
            TooFewSilosError: if too few silos are left.
        """
        step = STEPS[self.place]
        self._check(step, messages)
        longer = copy.copy(self)
        try:
            longer._conclude(step, {each.aggregator: each.content for each in messages})
        except ProtocolError:
            raise
        except ValueError as error:
            raise ProtocolError(f"{step.value}: {error}") from None
        longer.place += 1
        longer.seen = digest(tuple(messages))
        return longer

    def _check(self, step: Step, messages: Sequence[AggregatorMessage]) -> None:
        """Checks that there is one message of every aggregator on a step, each signed by it.

        On `RELEASE` 2 t + 1 are enough: they name the total even where t of them lie; fewer would
        let the last one choose it.

        Raises ProtocolError if not; names the aggregator.
        """
        terms = self.terms
        numbers = [message.aggregator for message in messages]
        is_enough = step is Step.RELEASE and len(numbers) > 2 * terms.threshold
        if numbers != [number for number in terms.numbers if number in numbers or not is_enough]:
            raise ProtocolError(
                f"{step.value}: expected a message of each of {len(terms.numbers)} aggregators in "
                "order"
            )
        for message in messages:
            identity = terms.aggregators[message.aggregator - 1]
            if (
                message.step is not step
                or message.terms_digest != terms.digest
                or not identity.verifies(message.signature, message.signed_bytes)
            ):
                raise ProtocolError(
                    f"{step.value}: expected a message of {identity.name} on this batch with its "
                    "signature, got another"
                )
            if message.seen != self.seen:
                raise ProtocolError(
                    f"{step.value}: expected {identity.name} to have seen what the others saw, got "
                    "a message on something else"
                )

    def _conclude(self, step: Step, contents: Mapping[int, bytes]) -> None:
        """Takes up what aggregators said on a step, by their numbers; they saw the same before."""
        terms = self.terms

        def opened_values(*shape: int) -> list[Elements | None]:
            values = {
                number: shamir.from_bytes(row, shape, "values") for number, row in contents.items()
            }
            return opened(values, threshold=terms.threshold)

        if step is Step.COMMIT:
            self.committed = [Commitment.of(content, terms) for content in contents.values()]
            self.silos = common_silos(self.committed)
        elif step is Step.REVEAL:
            for (number, seed), committed in zip(contents.items(), self.committed, strict=True):
                if seed_digest(seed, number, terms) != committed.part_digest:
                    name = terms.aggregators[number - 1].name
                    raise ProtocolError(f"reveal: expected the seed that {name} committed to")
            # One random seed is enough, drawn before anyone knew what all committed to.
            seeds = ("challenge", terms.digest, self.seen, tuple(contents.values()))
            self.challenge = Challenge.of_seed(digest(seeds), terms)
        elif step is Step.MASK:
            self.masked = opened_values(len(self.silos), terms.shape[0])
        elif step is Step.CHECK:
            checked = opened_values(len(self.silos), 1)
            self.passing = passing_silos(self.silos, self.masked, checked)
            if len(self.passing) < terms.least_silos:
                raise TooFewSilosError(
                    f"silos: expected {terms.least_silos} or more whose shares open and fit each "
                    f"other, got {len(self.passing)}"
                )
        elif step is Step.AGREE:
            for number, content in contents.items():
                if content != encode(self.passing):
                    name = terms.aggregators[number - 1].name
                    raise ProtocolError(
                        f"agree: expected the silos that pass, got others of {name}"
                    )
        else:
            (total,) = opened_values(1, terms.size)
            if total is None:
                raise ProtocolError(
                    "release: expected sums that fit each other; an aggregator added wrongly, and "
                    "it can't be told which"
                )
            self.total = total.reshape(terms.shape)
