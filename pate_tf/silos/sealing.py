"""Votes or feature sums as secret shares: dealt, bound to each other, sealed to aggregators.

With the shares of its votes each aggregator gets, for each query, shares of a random number and of
its square, which the checks use up (`pate_tf.silos.protocol`). A table of feature sums goes
as the votes on one query, signed by its silo: aggregators add no noise to it, so that a total in
which made-up silos stand for honest ones would lack theirs.

Each sealed share holds the blinded digests of all of a silo's shares. Aggregators compare these
before they use any, so that a share which another sealed in a silo's name is never used with
genuine ones.

Sealing is hybrid public key encryption (RFC 9180) with X25519, HKDF-SHA256 and AES-256-GCM. What
the bytes are for goes into `info`: opened for anything else they give nothing.
"""

from __future__ import annotations

import hashlib
import os
from typing import Final

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from pate_tf.accounting.local import SecureFeatureSums
from pate_tf.core.validation import IntArray
from pate_tf.release.noise import NoiseSource, SystemNoise
from pate_tf.silos import shamir
from pate_tf.silos.protocol import DIGEST_BYTES, BatchTerms, Keys, joined
from pate_tf.silos.shamir import Elements

OVERHEAD: Final = 48  # bytes that sealing adds
BLIND_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


def seal(secret: bytes, terms: BatchTerms, *, sender: str, kind: str, aggregator: int) -> bytes:
    """Returns bytes that only an aggregator can read, `OVERHEAD` longer.

    Args:
        secret: what is sealed.
        terms: of the batch.
        sender: name of the silo or aggregator that it comes from.
        kind: "votes" or "noise".
        aggregator: number of the one that it is for.
    """
    receiver = terms.aggregators[aggregator - 1]
    info = joined(terms.digest, kind.encode(), sender.encode(), receiver.name.encode())
    return _SUITE.encrypt(secret, X25519PublicKey.from_public_bytes(receiver.sealing_key), info)


def unseal(sealed: bytes, terms: BatchTerms, *, sender: str, kind: str, keys: Keys) -> bytes:
    """Returns what was sealed; the arguments are those of `seal`, `keys` the receiver's.

    Raises ValueError if anything differs.
    """
    info = joined(terms.digest, kind.encode(), sender.encode(), keys.identity.name.encode())
    try:
        return _SUITE.decrypt(sealed, keys.sealing, info)
    except (InvalidTag, ValueError):
        raise ValueError(
            f"shares of {sender}: expected ones sealed for this batch and aggregator, got others"
        ) from None


def seal_votes(labels: IntArray, terms: BatchTerms, *, silo: str) -> tuple[bytes, ...]:
    """Returns a silo's votes in shares, each sealed to its aggregator.

    Args:
        labels: one vote for each query, int64 `[num_queries]`. Sensitive.
        terms: of the batch.
        silo: name of the silo.

    Raises ValueError unless there is a class for every query.
    """
    num_queries, num_classes = terms.shape
    if labels.shape != (num_queries,) or labels.dtype.kind not in "iu":
        raise ValueError(f"labels: expected one class for each of {num_queries} queries")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise ValueError(f"labels: expected classes 0 to {num_classes - 1}, got others")
    one_hot = np.zeros(terms.shape, np.uint64)
    one_hot[np.arange(num_queries), labels] = 1
    return seal_shares(deal(one_hot, terms, SystemNoise()), terms, silo=silo)


def seal_sums(
    sums: IntArray, terms: BatchTerms, *, keys: Keys, noise: NoiseSource | None = None
) -> tuple[bytes, ...]:
    """Returns a silo's feature sums with its noise in shares, each sealed to its aggregator.

    Args:
        sums: int64, of the mechanism's `shape`, in steps of 1 / LATTICE. Sensitive. Numbers beyond
            `terms.largest_sum` are cut off, so that a total can't wrap around; that takes sums no
            further apart.
        terms: of the batch.
        keys: of the silo, which the terms name.
        noise: entropy; None for the operating system's.

    Raises ValueError if sums or keys are not those of the terms.
    """
    if not isinstance(terms.mechanism, SecureFeatureSums) or sums.size != terms.size:
        raise ValueError("sums: expected a table of the batch's size, got another")
    if keys.identity not in terms.silos:
        raise ValueError(f"silos: expected {keys.identity.name} with its keys among them")
    source, most = noise or SystemNoise(), terms.largest_sum
    drawn = source.gaussian_integers(terms.mechanism.share_scale, terms.size)
    noisy = np.clip(sums.reshape(-1), -most, most) + drawn
    table = shamir.reduced(shamir.from_integers(noisy)).reshape(terms.shape)
    return seal_shares(deal(table, terms, source), terms, silo=keys.identity.name, keys=keys)


def deal(table: Elements, terms: BatchTerms, noise: NoiseSource) -> Elements:
    """Returns each aggregator's shares of what a silo shares, `[num_aggregators, share_size]`.

    Args:
        table: 1 for the class that has the vote and else 0, `[num_queries, num_classes]`; or sums,
            `[1, size]`.
        terms: of the batch.
        noise: entropy.
    """
    a = shamir.uniform((terms.num_queries,), noise.words)
    return shamir.share(
        np.concatenate([a, shamir.multiply(a, a), table.reshape(-1)]),
        num_parties=len(terms.aggregators),
        degree=terms.threshold,
        words=noise.words,
    )


def seal_shares(
    shares: Elements, terms: BatchTerms, *, silo: str, keys: Keys | None = None
) -> tuple[bytes, ...]:
    """Returns the rows of `deal`, bound to each other and each sealed to its aggregator.

    `keys` are the silo's where it signs what it deals.
    """
    rows = [shamir.to_bytes(row) for row in shares]
    blinds = [os.urandom(BLIND_BYTES) for _ in rows]
    digests = b"".join(
        _share_digest(row, blind, terms, silo, number)
        for number, row, blind in zip(terms.numbers, rows, blinds, strict=True)
    )
    signature = b""
    if keys is not None:
        signature = keys.signing.sign(
            joined(b"pate_tf dealing", terms.digest, silo.encode(), digests)
        )
    return tuple(
        seal(blind + digests + signature + row, terms, sender=silo, kind="votes", aggregator=number)
        for number, row, blind in zip(terms.numbers, rows, blinds, strict=True)
    )


def open_share(
    sealed: bytes, terms: BatchTerms, *, silo: str, keys: Keys
) -> tuple[Elements, bytes]:
    """Returns an aggregator's shares of a silo `[share_size]`, and the digest of all shares.

    The digest, 32 bytes, says nothing of the shares, which are sensitive.

    Raises:
        ValueError: if it was sealed for anything else, the share is not the one that its digests
            name, or a silo that must sign did not.
    """
    whole = unseal(sealed, terms, sender=silo, kind="votes", keys=keys)
    signed = BLIND_BYTES + DIGEST_BYTES * len(terms.aggregators)
    start = signed + SIGNATURE_BYTES * terms.are_sums
    blind, digests, row = whole[:BLIND_BYTES], whole[BLIND_BYTES:signed], whole[start:]
    shares = shamir.from_bytes(row, (terms.share_size,), "votes")
    number = terms.aggregators.index(keys.identity) + 1
    digest = digests[DIGEST_BYTES * (number - 1) : DIGEST_BYTES * number]
    if _share_digest(row, blind, terms, silo, number) != digest:
        raise ValueError(f"shares of {silo}: expected the one that its digests name, got another")
    if terms.are_sums:
        identity = next((each for each in terms.silos if each.name == silo), None)
        dealing = joined(b"pate_tf dealing", terms.digest, silo.encode(), digests)
        if identity is None or not identity.verifies(whole[signed:start], dealing):
            raise ValueError(f"shares of {silo}: expected its signature, got another")
    return shares, hashlib.sha256(joined(b"pate_tf dealing", digests)).digest()


def _share_digest(row: bytes, blind: bytes, terms: BatchTerms, silo: str, number: int) -> bytes:
    """Returns a commitment to a share; without the blind it confirms no guess at it."""
    parts = [b"pate_tf share", terms.digest, silo.encode(), str(number).encode(), blind, row]
    return hashlib.sha256(joined(*parts)).digest()
