"""The protocol of secure aggregation between silos, aggregators and the coordinator.

Aggregators are servers that jointly compute a noisy sum of the silos' secret values. The protocol
has several steps. In each step, an aggregator sends a message and signs it together with the
public terms of the computation. The coordinator relays the messages and can't change them. The
coordinator and every aggregator compute the same public results from these messages, a
`Transcript`.
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
    """The name and public keys of an aggregator or a silo.

    Name and keys must come from the roster, the file that lists all silos and aggregators of a run.

    Attributes:
        name: name of the aggregator or silo, as in its certificate.
        sealing_key: X25519 public key, 32 bytes.
        signing_key: Ed25519 public key, 32 bytes.

    Raises ValueError if the name is invalid or a key does not have 32 bytes.
    """

    name: str
    sealing_key: bytes
    signing_key: bytes

    def __post_init__(self) -> None:
        check_name(self.name, "name")
        if {len(self.sealing_key), len(self.signing_key)} != {_KEY_BYTES}:
            raise ValueError(f"{self.name}: each key must have 32 bytes")

    @classmethod
    def of_hex(cls, name: str, keys: str) -> Identity:
        """Returns an identity from the name and the hexadecimal keys of a roster entry.

        Raises ValueError if `keys` does not consist of 128 hexadecimal digits.
        """
        both = _from_hex(name, keys)
        return cls(name=name, sealing_key=both[:_KEY_BYTES], signing_key=both[_KEY_BYTES:])

    def entry(self, role: str) -> str:
        """Returns the entry of this identity in the roster file: a TOML table named `role`."""
        keys = (self.sealing_key + self.signing_key).hex()
        return f'[[{role}]]\nname = "{self.name}"\nkeys = "{keys}"\n'

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Whether `signature` is a valid signature of `message` with this identity's key."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.signing_key).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


class Keys:
    """SENSITIVE: the private keys of an aggregator or a silo.

    No `repr` and no error message shows private keys.

    Args:
        name: name of the silo or aggregator.
        private: X25519 and Ed25519 private keys, 32 secret random bytes each. Default: new keys
            from the operating system's entropy.

    Attributes:
        identity: the public identity.
        sealing: private key that opens sealed messages.
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
        """Returns the keys from a private file; creates the file with new keys if it is missing.

        Raises ValueError if the file is invalid or belongs to another name.
        """
        if not path.exists():
            new = {"name": name, "keys": os.urandom(2 * _KEY_BYTES).hex()}
            artifacts.make_sensitive_folder(path.parent)
            artifacts.write_json(path, new, private=True)
        fields = artifacts.read_json(path)
        if fields.get("name") != name:
            raise ValueError(f"{path} does not contain the keys of {name}")
        return cls(name, _from_hex(str(path), fields.get("keys")))


def _from_hex(what: str, text: object) -> bytes:
    """Returns both keys as bytes, from hexadecimal digits; no error message shows the digits."""
    if not isinstance(text, str) or not re.fullmatch(f"[0-9a-f]{{{4 * _KEY_BYTES}}}", text):
        raise ValueError(f"{what}: keys must have 128 hexadecimal digits")
    return bytes.fromhex(text)


MAX_COUNTS: Final = 2**24  # maximum size of a sum; a silo then sends 128 MiB to each aggregator
DIGEST_BYTES: Final = 32
# Limit for the sums of all honest silos, and for all noise. This limit keeps the absolute value of
# a total below half the prime of the finite field.
_MAX_TOTAL: Final = 2**58
# Noise exceeds this many of its standard deviations with a probability below e^-198.
_DEVIATIONS: Final = 20.0


class Step(enum.Enum):
    """The steps in which aggregators open one noisy sum, in order.

    Each step needs the messages that all aggregators sent in the previous step.

    Attributes:
        COMMIT: the aggregator decrypts its shares, draws noise and a seed, and secret-shares the
            noise.
        REVEAL: the aggregator reveals its seed, after every aggregator has committed.
        MASK: for each silo, the aggregator sends its shares of weighted sums of the votes. Each sum
            is masked by a secret random number.
        CHECK: the aggregator sends, for each silo, its share of a value that is 0 if the silo's
            votes are valid.
        AGREE: the aggregator sends the names of the silos that pass the check.
        RELEASE: the aggregator sends its share of the noisy sum.
    """

    COMMIT = "commit"
    REVEAL = "reveal"
    MASK = "mask"
    CHECK = "check"
    AGREE = "agree"
    RELEASE = "release"


STEPS = tuple(Step)


class ProtocolError(ValueError):
    """Raised if a message violates the protocol; nothing was released in response."""


class TooFewSilosError(ProtocolError):
    """Raised if too few silos have valid shares, so that this sum can never be opened."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class BatchTerms:
    """The public terms of one secure sum, such as its size, its noise and the aggregators.

    Silos and aggregators know the terms before they share anything. Every encrypted share is bound
    to the digest of the terms, so it can't be used with different noise, with other aggregators or
    in another sum.

    Attributes:
        question: `QueryBatch.question`, the digest of the queries. Each batch of queries is opened
            only once.
        shape: for votes, the number of queries, at least 1, and the number of classes, at least 2;
            for feature sums, 1 and the number of values in a silo's table of sums.
        mechanism: the privacy mechanism that silos charge. It defines the noise, the number of
            aggregators and the threshold.
        aggregators: identities of the aggregators in the order of their numbers, starting at 1.
        silos: for feature sums, the identities of the silos, which sign their shares. Empty for
            votes: aggregators add the noise to votes, so an invented silo does not weaken privacy.
        are_sums: True if silos share noisy feature sums, False if silos share votes.
        size: number of values in the sum that is opened.
        share_size: number of values that a silo shares: its votes or sums, plus two numbers for
            each query.
        threshold: number of aggregators that may collude.
        numbers: the numbers of the aggregators, which start at 1.
        least_silos: minimum number of silos that must contribute to a sum before it is opened.
        largest_sum: maximum absolute value of each of a silo's sums, in units of 1 / LATTICE.

    Raises ValueError if attributes contradict each other, or a sum could overflow the finite field.
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
            "largest_sum": _MAX_TOTAL // max(len(self.silos), 1),
        }
        for name, value in derived.items():
            object.__setattr__(self, name, value)
        if len(self.question) != DIGEST_BYTES:
            raise ValueError(f"question must have 32 bytes, got {len(self.question)}")
        most = MAX_COUNTS if self.are_sums else MAX_CLASSES
        checks.whole(2, most, num_classes=num_classes)
        checks.whole(1, MAX_COUNTS // num_classes, num_queries=num_queries)
        number = self.mechanism.num_parties
        if len(self.aggregators) != number:
            raise ValueError(f"aggregators must have {number} entries, got {len(self.aggregators)}")
        everyone = (*self.aggregators, *self.silos)
        for what in ("name", "sealing_key", "signing_key"):
            if len({getattr(identity, what) for identity in everyone}) < len(everyone):
                raise ValueError(f"aggregators: two silos or aggregators have the same {what}")
        least = self.least_silos if self.are_sums else 0
        if len(self.silos) < least or (self.silos and not least):
            raise ValueError(
                f"silos: sums need at least {least}, votes need 0, got {len(self.silos)}"
            )
        if isinstance(self.mechanism, SecureFeatureSums):
            largest = _DEVIATIONS * LATTICE * self.mechanism.total_sigma(len(self.silos))
            bound = float(_MAX_TOTAL)
        else:
            # Standard deviation of the noise of all aggregators on one count.
            sigma = self.mechanism.sigma * sqrt(number / self.mechanism.num_honest)
            largest = LATTICE * (MAX_SILOS + _DEVIATIONS * sigma)
            bound = PRIME / 2.0
        if not largest < bound:
            raise ValueError(f"sigma {self.mechanism.sigma} is too large: sums could overflow")

    @classmethod
    def of_batch(
        cls, batch: QueryBatch, aggregators: tuple[Identity, ...], silos: tuple[Identity, ...] = ()
    ) -> BatchTerms:
        """Returns the terms for a batch of queries from the coordinator.

        Args:
            batch: the queries, for votes or for feature sums.
            aggregators: the aggregators on the caller's own roster. Never take them from the
                coordinator.
            silos: silos that may share feature sums, from the same roster.

        Raises ValueError if the batch does not use secure aggregation, or does not match the
        roster.
        """
        mechanism = batch.mechanism
        num_classes = batch.num_classes
        if isinstance(mechanism, SecureFeatureSums):
            num_classes = prod(mechanism.shape(num_classes))
        elif isinstance(mechanism, SecureHistogram):
            silos = ()
        else:
            raise ValueError("mechanism must be SecureHistogram or SecureFeatureSums")
        return cls(
            question=batch.question,
            shape=(len(batch.queries), num_classes),
            mechanism=mechanism,
            aggregators=aggregators,
            silos=silos,
        )

    @functools.cached_property
    def digest(self) -> bytes:
        """SHA-256 digest (32 bytes) of these terms."""
        return digest(("pate_tf secure aggregation 7", self))


@dataclasses.dataclass(frozen=True, kw_only=True)
class AggregatorMessage:
    """One aggregator's message in one step.

    Messages are public: all of them together reveal the noisy sum.

    Attributes:
        terms_digest: digest of the batch's terms, 32 bytes.
        step: step of the protocol.
        aggregator: number of the sending aggregator, from 1.
        seen: digest of all messages of the previous step; empty in the first step. The digest
            prevents aggregators that saw different messages from continuing together.
        content: encoded content; its type depends on the step.
        signature: signature of all fields above, 64 bytes.
    """

    terms_digest: bytes
    step: Step
    aggregator: int
    seen: bytes
    content: bytes = dataclasses.field(repr=False)
    signature: bytes = dataclasses.field(default=b"", repr=False)

    @property
    def signed_bytes(self) -> bytes:
        """The bytes that the signature covers."""
        return encode(("aggregator", dataclasses.replace(self, signature=b"")))

    def signed(self, keys: Keys) -> AggregatorMessage:
        """Returns the message with a signature; `keys` are the private keys of its sender."""
        return dataclasses.replace(self, signature=keys.signing.sign(self.signed_bytes))


@dataclasses.dataclass(frozen=True, kw_only=True)
class AggregatorTask:
    """The coordinator's request that an aggregator perform one step of the protocol.

    Attributes:
        step: step of the protocol.
        terms: public terms of the secure sum. The aggregator checks that the terms list its name
            and keys.
        sealed: only for `COMMIT`: maps each silo's name to its encrypted shares for this
            aggregator.
        messages: all messages of the previous step, ordered by the number of the aggregator; empty
            for `COMMIT`.
    """

    step: Step
    terms: BatchTerms
    sealed: Mapping[str, bytes] = dataclasses.field(default_factory=dict, repr=False)
    messages: tuple[AggregatorMessage, ...] = ()


# The following check proves that shares contain one vote for each query, without revealing votes.
#
# In addition to its votes v, a silo shares a random number `a` and its square `b` for each query.
# After the aggregators have committed to all shares, they draw public random weights rho, tau and
# chi. Then they open two results for each silo, one after the other. To open a result, they compute
# the value at 0 of polynomials of degree t from their shares. The first result is a number y for
# each query, where sum_k is the sum over the classes:
#
#     y = a + sum_k rho v
#
# The second result is one number, which is 0 if the votes are valid. It is a sum over all queries:
#
#     sum tau (y^2 - 2 y a + b - sum_k rho^2 v) + sum chi (sum_k v - 1)
#
# Let z = sum_k rho v. Then the expression in brackets after tau equals
# z^2 - sum_k rho^2 v + (b - a^2). This expression is 0 only for one-hot votes (Boneh et al. 2021,
# "Lightweight techniques for private heavy hitters").
# The shares of honest aggregators determine every opened value, so
# colluding aggregators can prevent an opening but can't change the opened value
# (docs/proofs/secure.md, Theorems V2 and V3).
#
# The rest of the protocol works for sums of any integer vectors, such as feature sums. A malicious
# silo can add any vector, but this harms only the accuracy of the labels. So for feature sums, the
# aggregators open only y, which shows whether the shares are consistent.


@dataclasses.dataclass(frozen=True, eq=False)
class Challenge:
    """Random weights for checking that each silo's votes are valid.

    The weights become public only after every aggregator has committed to its shares.

    Attributes:
        rho: weights of the votes, `[num_queries, num_classes]`.
        tau: weight of each query in the first term of the check value, `[num_queries]`.
        chi: weight of each query in the second term of the check value, `[num_queries]`.
        are_votes: whether silos share votes; if False, `check_value` always returns 0.
    """

    rho: Elements
    tau: Elements
    chi: Elements
    are_votes: bool = True

    @classmethod
    def of_seed(cls, seed: bytes, terms: BatchTerms) -> Challenge:
        """Returns the weights that are computed from a public seed."""
        drawn = shamir.from_seed(seed, terms.share_size)
        rho, tau, chi = np.split(drawn, [terms.size, terms.size + terms.shape[0]])
        return cls(rho.reshape(terms.shape), tau, chi, not terms.are_sums)

    def masked(self, shares: Elements) -> Elements:
        """Returns shares of a silo's masked sums `y`: weighted sums of votes plus random numbers.

        Args:
            shares: an aggregator's shares from the silo, `[share_size]`.
        """
        a, _, votes = split_shares(shares, self.rho.shape)
        return shamir.add(a, shamir.total(shamir.multiply(self.rho, votes), axis=1))

    def check_value(self, shares: Elements, opened: Elements) -> np.uint64:
        """Returns a share of a silo's check value; this value is 0 if the silo's votes are valid.

        Args:
            shares: an aggregator's shares from the silo, `[share_size]`.
            opened: the opened masked sums `y` of this silo, `[num_queries]`.
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
    """Splits the shares that a silo sent to an aggregator into shares of `a`, of `b` and of votes.

    Args:
        shares: the shares, `[share_size]`.
        shape: `BatchTerms.shape`, such as `[num_queries, num_classes]`.
    """
    a, b, votes = np.split(shares, [shape[0], 2 * shape[0]])
    return a, b, votes.reshape(shape)


def seed_digest(seed: bytes, aggregator: int, terms: BatchTerms) -> bytes:
    """Returns the digest (32 bytes) by which an aggregator commits to a random seed."""
    return digest(("seed", terms.digest, aggregator, seed))


def opened(values: Mapping[int, Elements], *, threshold: int) -> list[Elements | None]:
    """Returns each silo's values `[num_values]`, computed from the shares of all aggregators.

    For a silo with inconsistent shares, the list contains None.

    Args:
        values: maps the number of each aggregator to its shares, `[num_silos, num_values]`.
        threshold: degree of the secret-sharing polynomials.
    """
    return [
        shamir.reconstruct(dict(zip(values, shares, strict=True)), degree=threshold)
        for shares in zip(*values.values(), strict=True)
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Commitment:
    """The content of an aggregator's first message, which fixes shares, seed and noise.

    Attributes:
        dealings: maps the name of each silo to the digest of the silo's shares for all
            aggregators, 32 bytes. Silos whose share this aggregator can't decrypt are missing.
        part_digest: digest of the aggregator's random seed, 32 bytes.
        noise: secret shares of the aggregator's noise, each encrypted for one aggregator; empty
            for feature sums.

    Raises ValueError if a name or digest is invalid.
    """

    dealings: Mapping[str, bytes]
    part_digest: bytes
    noise: tuple[bytes, ...] = dataclasses.field(repr=False)

    def __post_init__(self) -> None:
        digests = (*self.dealings.values(), self.part_digest)
        if any(len(digest) != DIGEST_BYTES for digest in digests):
            raise ValueError("each digest must have 32 bytes")
        for silo in self.dealings:
            check_name(silo, "silo")

    @classmethod
    def of(cls, content: bytes, terms: BatchTerms) -> Commitment:
        """Decodes the content of a first message; raises ValueError if it is invalid."""
        commitment: Commitment = decode(cls, content)
        if len(commitment.noise) != (0 if terms.are_sums else len(terms.aggregators)):
            raise ValueError("the commitment must contain a share of the noise for each aggregator")
        return commitment


def common_silos(committed: Sequence[Commitment]) -> tuple[str, ...]:
    """Returns the sorted names of silos for which all aggregators committed to the same digest."""
    dealings = [set(commitment.dealings.items()) for commitment in committed]
    return tuple(sorted(silo for silo, _ in dealings[0].intersection(*dealings[1:])))


def passing_silos(
    silos: Sequence[str], masked: Sequence[Elements | None], checked: Sequence[Elements | None]
) -> tuple[str, ...]:
    """Returns the names of the silos whose shares are consistent and whose check value is 0.

    Args:
        silos: names of the silos, from `common_silos`.
        masked: masked sums of each silo, opened in `Step.MASK`; None for inconsistent shares.
        checked: check value of each silo, opened in `Step.CHECK`; None for inconsistent shares.
    """
    return tuple(
        silo
        for silo, y, value in zip(silos, masked, checked, strict=True)
        if y is not None and value is not None and not value.any()
    )


class Transcript:
    """The public results of the protocol steps that are complete so far.

    Attributes:
        terms: public terms of the secure sum.
        place: number of completed steps.
        seen: digest of the last step's messages; every message of the next step contains it.
        committed: after `COMMIT`, the commitment of each aggregator.
        silos: after `COMMIT`, the result of `common_silos`.
        challenge: after `REVEAL`, the random weights of the checks.
        masked: after `MASK`, each silo's opened masked sums `y`, `[num_queries]`; None for
            inconsistent shares.
        passing: after `CHECK`, names of the silos that pass the check.
        total: after `RELEASE`, the noisy sum, with the shape `terms.shape`.
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
        """Returns a new transcript that also contains the results of the next step.

        Args:
            messages: the messages of the next step, ordered by the number of the aggregator.

        Raises:
            ProtocolError: if a message is missing or forged, or contradicts an earlier message.
            TooFewSilosError: if the shares of too few silos are valid.
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
        """Checks that every aggregator sent one validly signed message for a step.

        In `RELEASE`, 2 t + 1 messages are enough if the threshold is t: they determine the total
        even if t of them are false. With fewer messages, the last aggregator to answer could
        choose the total.

        Raises ProtocolError if a message is missing or invalid.
        """
        terms = self.terms
        numbers = [message.aggregator for message in messages]
        is_enough = step is Step.RELEASE and len(numbers) > 2 * terms.threshold
        if numbers != [number for number in terms.numbers if number in numbers or not is_enough]:
            raise ProtocolError(f"{step.value} needs one message of each aggregator, in order")
        for message in messages:
            identity = terms.aggregators[message.aggregator - 1]
            if (
                message.step is not step
                or message.terms_digest != terms.digest
                or not identity.verifies(message.signature, message.signed_bytes)
            ):
                raise ProtocolError(f"{step.value}: {identity.name} did not sign its message")
            if message.seen != self.seen:
                raise ProtocolError(f"{step.value}: {identity.name} did not see the same messages")

    def _conclude(self, step: Step, contents: Mapping[int, bytes]) -> None:
        """Computes the results of a step; `contents` maps aggregators' numbers to their content."""
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
                    raise ProtocolError(f"reveal: {name} had committed to a different seed")
            # If at least one aggregator is honest, the challenge is random, because this aggregator
            # drew its seed before anyone knew all commitments.
            seeds = ("challenge", terms.digest, self.seen, tuple(contents.values()))
            self.challenge = Challenge.of_seed(digest(seeds), terms)
        elif step is Step.MASK:
            self.masked = opened_values(len(self.silos), terms.shape[0])
        elif step is Step.CHECK:
            checked = opened_values(len(self.silos), 1)
            self.passing = passing_silos(self.silos, self.masked, checked)
            if len(self.passing) < terms.least_silos:
                raise TooFewSilosError(
                    f"{len(self.passing)} silos sent valid shares, {terms.least_silos} are needed"
                )
        elif step is Step.AGREE:
            for number, content in contents.items():
                if content != encode(self.passing):
                    name = terms.aggregators[number - 1].name
                    raise ProtocolError(f"agree: {name} did not list exactly the passing silos")
        else:
            (total,) = opened_values(1, terms.size)
            if total is None:
                raise ProtocolError("release: an aggregator sent a wrong sum; which one is unknown")
            self.total = total.reshape(terms.shape)
