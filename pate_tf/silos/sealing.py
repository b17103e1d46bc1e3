"""Splits votes or feature sums into secret shares, and encrypts ("seals") them for aggregators.

For each query, an aggregator gets secret shares of the votes, of a random number, and of the square
of this number. The check of votes needs the random number and its square
(`pate_tf.silos.protocol`). A table of feature sums is sent like the votes on one query. The silo
also signs this table, because aggregators add no noise to feature sums: if invented silos replaced
honest silos in a total, the total would have too little noise.

Each encrypted share contains the blinded digests of all shares of the silo. Aggregators compare the
digests before they use any share. So they never combine a genuine share with a share that somebody
else encrypted in the silo's name.

Sealing is hybrid public key encryption (RFC 9180) with X25519, HKDF-SHA256 and AES-256-GCM. `info`
contains the purpose of the sealed bytes, so they can't be opened for another purpose.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Final

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from pate_tf.accounting.local import SecureFeatureSums
from pate_tf.core.checks import IntArray
from pate_tf.net.wire_values import decode, digest, encode
from pate_tf.release.noise import NoiseSource, SystemNoise
from pate_tf.silos import shamir
from pate_tf.silos.protocol import BatchTerms, Keys
from pate_tf.silos.shamir import Elements

BLIND_BYTES: Final = 32

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SilosShare:
    """The content of the sealed message from a silo to one aggregator.

    Attributes:
        row: the secret share for this aggregator, a row of `deal`, as bytes. SENSITIVE.
        blind: secret random bytes that are hashed together with `row`. Without them, the digest of
            `row` could be used to test guesses of `row`.
        digests: commitments to the shares for all aggregators, in the order of the aggregators'
            numbers.
        signature: the silo's signature of the digests; empty for votes, which need no signature.
    """

    row: bytes = dataclasses.field(repr=False)
    blind: bytes = dataclasses.field(repr=False)
    digests: tuple[bytes, ...]
    signature: bytes


def seal(secret: bytes, terms: BatchTerms, *, sender: str, kind: str, aggregator: int) -> bytes:
    """Encrypts bytes so that only one aggregator can read them.

    Args:
        secret: the bytes to encrypt.
        terms: public terms of the secure sum; the result can only be decrypted with the same terms.
        sender: name of the sending silo or aggregator.
        kind: purpose of the bytes, "votes" or "noise".
        aggregator: number of the receiving aggregator, from 1.
    """
    receiver = terms.aggregators[aggregator - 1]
    info = encode((terms.digest, kind, sender, receiver.name))
    return _SUITE.encrypt(secret, X25519PublicKey.from_public_bytes(receiver.sealing_key), info)


def seal_each(
    secrets: Sequence[bytes], terms: BatchTerms, *, sender: str, kind: str
) -> tuple[bytes, ...]:
    """Encrypts one secret for each aggregator, in the order of their numbers; see `seal`."""
    return tuple(
        seal(secret, terms, sender=sender, kind=kind, aggregator=number)
        for number, secret in zip(terms.numbers, secrets, strict=True)
    )


def unseal(sealed: bytes, terms: BatchTerms, *, sender: str, kind: str, keys: Keys) -> bytes:
    """Decrypts a secret that `seal` encrypted with the same terms, sender and kind.

    Raises ValueError if terms, sender, kind or recipient differ from the arguments of `seal`.
    """
    info = encode((terms.digest, kind, sender, keys.identity.name))
    try:
        return _SUITE.decrypt(sealed, keys.sealing, info)
    except (InvalidTag, ValueError):
        raise ValueError(f"shares of {sender} are for another batch or aggregator") from None


def seal_votes(labels: IntArray, terms: BatchTerms, *, silo: str) -> tuple[bytes, ...]:
    """Returns secret shares of a silo's votes, each encrypted for one aggregator.

    Args:
        labels: the class that the silo votes for on each query, int64 `[num_queries]`. SENSITIVE.
        terms: public terms of the secure sum.
        silo: name of the silo.

    Raises ValueError if `labels` does not contain one valid class for each query.
    """
    num_queries, num_classes = terms.shape
    if labels.shape != (num_queries,) or labels.dtype.kind not in "iu":
        raise ValueError(f"labels: each of the {num_queries} queries needs one class")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise ValueError(f"labels must be classes from 0 to {num_classes - 1}")
    one_hot = np.zeros(terms.shape, np.uint64)
    one_hot[np.arange(num_queries), labels] = 1
    return seal_shares(deal(one_hot, terms, SystemNoise()), terms, silo=silo)


def seal_sums(
    sums: IntArray, terms: BatchTerms, *, keys: Keys, noise: NoiseSource | None = None
) -> tuple[bytes, ...]:
    """Adds noise to a silo's feature sums; returns secret shares, each encrypted for an aggregator.

    Args:
        sums: int64 in the mechanism's `shape`, in units of 1 / LATTICE. SENSITIVE. Absolute values
            are clipped to `terms.largest_sum`, so that a total can't overflow the finite field.
            Clipping does not increase the distance between the sums of neighboring data sets.
        terms: public terms of the secure sum.
        keys: private keys of the silo. `terms.silos` must contain the silo with the matching public
            keys.
        noise: noise source; None for the operating system's entropy.

    Raises ValueError if `sums` or `keys` do not match the terms.
    """
    if not isinstance(terms.mechanism, SecureFeatureSums) or sums.size != terms.size:
        raise ValueError("sums must have the size that the terms of the batch define")
    if keys.identity not in terms.silos:
        raise ValueError(f"silos: the terms do not list {keys.identity.name} with its keys")
    source = noise or SystemNoise()
    most = terms.largest_sum
    drawn = source.gaussian_integers(terms.mechanism.share_scale, terms.size)
    noisy = np.clip(sums.reshape(-1), -most, most) + drawn
    table = shamir.reduced(shamir.from_integers(noisy)).reshape(terms.shape)
    return seal_shares(deal(table, terms, source), terms, silo=keys.identity.name, keys=keys)


def deal(table: Elements, terms: BatchTerms, noise: NoiseSource) -> Elements:
    """Splits a table into secret shares for each aggregator, `[num_aggregators, share_size]`.

    Args:
        table: one-hot votes `[num_queries, num_classes]`, or feature sums `[1, size]`. SENSITIVE.
        terms: public terms of the secure sum.
        noise: source of the random numbers that hide the secrets in the shares.
    """
    a = shamir.uniform((terms.shape[0],), noise.words)
    return shamir.share(
        np.concatenate([a, shamir.multiply(a, a), table.reshape(-1)]),
        num_parties=len(terms.aggregators),
        degree=terms.threshold,
        words=noise.words,
    )


def seal_shares(
    shares: Elements, terms: BatchTerms, *, silo: str, keys: Keys | None = None
) -> tuple[bytes, ...]:
    """Encrypts each aggregator's secret shares together with the digests of all shares.

    Args:
        shares: result of `deal`, `[num_aggregators, share_size]`.
        terms: public terms of the secure sum.
        silo: name of the silo.
        keys: keys that sign the digests; None for votes, which need no signature.
    """
    rows = [shamir.to_bytes(row) for row in shares]
    blinds = [os.urandom(BLIND_BYTES) for _ in rows]
    digests = tuple(
        _share_digest(row, blind, terms, silo, number)
        for number, row, blind in zip(terms.numbers, rows, blinds, strict=True)
    )
    signature = b"" if keys is None else keys.signing.sign(_dealing(digests, terms, silo))
    dealt = [
        encode(SilosShare(row=row, blind=blind, digests=digests, signature=signature))
        for row, blind in zip(rows, blinds, strict=True)
    ]
    return seal_each(dealt, terms, sender=silo, kind="votes")


def open_share(
    sealed: bytes, terms: BatchTerms, *, silo: str, keys: Keys
) -> tuple[Elements, bytes]:
    """Decrypts the shares that a silo sent to an aggregator.

    Returns:
        The shares, `[share_size]`, which are sensitive; and a digest of the silo's shares for all
        aggregators, 32 bytes, which reveals nothing about them.

    Raises:
        ValueError: if `sealed` was encrypted for another purpose, if the share does not match its
            digest, or if a required signature is missing or wrong.
    """
    share: SilosShare = decode(
        SilosShare, unseal(sealed, terms, sender=silo, kind="votes", keys=keys)
    )
    shares = shamir.from_bytes(share.row, (terms.share_size,), "votes")
    number = terms.aggregators.index(keys.identity) + 1
    commitment = _share_digest(share.row, share.blind, terms, silo, number)
    if len(share.digests) != len(terms.numbers) or share.digests[number - 1] != commitment:
        raise ValueError(f"shares of {silo}: the share does not match its digest")
    dealing = _dealing(share.digests, terms, silo)
    if terms.are_sums:
        identity = next((each for each in terms.silos if each.name == silo), None)
        if identity is None or not identity.verifies(share.signature, dealing):
            raise ValueError(f"shares of {silo}: the silo's signature is missing or wrong")
    return shares, digest(dealing)


def _dealing(digests: tuple[bytes, ...], terms: BatchTerms, silo: str) -> bytes:
    """Returns the bytes that a silo signs: the digests of its shares, its name and the terms."""
    return encode(("dealing", terms.digest, silo, digests))


def _share_digest(row: bytes, blind: bytes, terms: BatchTerms, silo: str, number: int) -> bytes:
    """Returns a digest that commits to a share; `blind` prevents anyone from testing guesses."""
    return digest(("share", terms.digest, silo, number, blind, row))
