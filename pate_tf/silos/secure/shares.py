"""Votes or feature sums as shares: dealt, bound to each other, and each sealed to its party.

With the shares of its votes each party gets, for each query, shares of a random number and of its
square, which the checks use up (`pate_tf.silos.secure.protocol`). A table of feature sums goes as
the votes on one query, signed by its silo: parties add no noise to it, so that a total in which
made-up silos stand for honest ones would lack theirs.

Each sealed share holds the blinded digests of all of a silo's shares. Parties compare these before
they use any, so that a share which another sealed in a silo's name is never used with genuine ones.

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
from pate_tf.silos.secure import shamir
from pate_tf.silos.secure.keys import PartyIdentity, PartyKeys
from pate_tf.silos.secure.shamir import Elements
from pate_tf.silos.secure.terms import DIGEST_BYTES, BatchTerms, joined, share_size

OVERHEAD: Final = 48  # bytes that sealing adds
BLIND_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64

_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.AES_256_GCM)


class SealingError(ValueError):
    """Sealed bytes were altered, or are of another batch, sender or party."""


def seal(secret: bytes, terms: BatchTerms, *, sender: str, kind: str, party: int) -> bytes:
    """Returns bytes that only a party can read, `OVERHEAD` longer.

    Args:
        secret: what is sealed.
        terms: of the batch.
        sender: name of the silo or party that it comes from.
        kind: "votes" or "noise".
        party: number of the party that it is for.
    """
    key = X25519PublicKey.from_public_bytes(terms.parties[party - 1].sealing_key)
    return _SUITE.encrypt(secret, key, _info(terms, sender, kind, terms.parties[party - 1]))


def unseal(sealed: bytes, terms: BatchTerms, *, sender: str, kind: str, keys: PartyKeys) -> bytes:
    """Returns what was sealed; the arguments are those of `seal`, `keys` the party's own.

    Raises SealingError if anything differs.
    """
    info = _info(terms, sender, kind, keys.identity)
    try:
        return _SUITE.decrypt(sealed, keys.sealing, info)
    except (InvalidTag, ValueError):
        raise SealingError(
            f"shares of {sender}: expected ones sealed for this batch and party, got others"
        ) from None


def _info(terms: BatchTerms, sender: str, kind: str, party: PartyIdentity) -> bytes:
    return joined(terms.digest, kind.encode(), sender.encode(), party.name.encode())


def seal_votes(
    labels: IntArray, terms: BatchTerms, *, silo: str, noise: NoiseSource | None = None
) -> tuple[bytes, ...]:
    """Returns a silo's votes in shares, one for each party, each sealed to it.

    Args:
        labels: one vote for each query, int64 `[num_queries]`. Sensitive.
        terms: of the batch.
        silo: name of the silo.
        noise: entropy; None for the operating system's.

    Raises ValueError unless there is a class for every query.
    """
    num_queries, num_classes = terms.shape
    if labels.shape != (num_queries,) or labels.dtype.kind not in "iu":
        raise ValueError(f"labels: expected one class for each of {num_queries} queries")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise ValueError(f"labels: expected classes 0 to {num_classes - 1}, got others")
    one_hot = np.zeros(terms.shape, np.uint64)
    one_hot[np.arange(num_queries), labels] = 1
    return seal_shares(vote_shares(one_hot, terms, noise or SystemNoise()), terms, silo=silo)


def seal_sums(
    sums: IntArray, terms: BatchTerms, *, keys: PartyKeys, noise: NoiseSource | None = None
) -> tuple[bytes, ...]:
    """Returns a silo's feature sums with its noise in shares, each sealed to its party.

    Args:
        sums: int64 `[num_features + 1, num_classes]`, in steps of 1 / LATTICE. Sensitive. Numbers
            beyond `terms.largest_sum` are cut off, so that a total can't wrap around; that takes
            sums no further apart.
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
    name = keys.identity.name
    return seal_shares(vote_shares(table, terms, source), terms, silo=name, keys=keys)


def vote_shares(one_hot: Elements, terms: BatchTerms, noise: NoiseSource) -> Elements:
    """Returns each party's shares of what a silo shares, `[num_parties, share_size(terms)]`.

    Args:
        one_hot: 1 for the class that has the vote and else 0, `[num_queries, num_classes]`; or a
            table of sums, `[1, size]`.
        terms: of the batch.
        noise: entropy.
    """
    a = shamir.uniform((terms.num_queries,), noise.words)
    return shamir.share(
        np.concatenate([a, shamir.multiply(a, a), one_hot.reshape(-1)]),
        num_parties=len(terms.parties),
        degree=terms.threshold,
        words=noise.words,
    )


def seal_shares(
    shares: Elements, terms: BatchTerms, *, silo: str, keys: PartyKeys | None = None
) -> tuple[bytes, ...]:
    """Returns the rows of `vote_shares`, bound to each other and each sealed to its party.

    `keys` are the silo's where it signs what it deals.
    """
    rows = [shamir.to_bytes(row) for row in shares]
    blinds = [os.urandom(BLIND_BYTES) for _ in rows]
    digests = b"".join(
        _share_digest(row, blind, terms, silo, party)
        for party, row, blind in zip(terms.numbers, rows, blinds, strict=True)
    )
    signature = (
        b""
        if keys is None
        else keys.sign(joined(b"pate_tf dealing", terms.digest, silo.encode(), digests))
    )
    return tuple(
        seal(blind + digests + signature + row, terms, sender=silo, kind="votes", party=party)
        for party, row, blind in zip(terms.numbers, rows, blinds, strict=True)
    )


def open_share(
    sealed: bytes, terms: BatchTerms, *, silo: str, keys: PartyKeys
) -> tuple[Elements, bytes]:
    """Returns a party's shares of a silo `[share_size(terms)]`, and the digest of all parties'.

    The digest, 32 bytes, says nothing of the shares, which are sensitive.

    Raises:
        ValueError: if it was sealed for anything else, the share is not the one that its digests
            name, or a silo that must sign did not.
    """
    whole = unseal(sealed, terms, sender=silo, kind="votes", keys=keys)
    signed = BLIND_BYTES + DIGEST_BYTES * len(terms.parties)
    start = signed + SIGNATURE_BYTES * terms.are_sums
    blind, digests, row = whole[:BLIND_BYTES], whole[BLIND_BYTES:signed], whole[start:]
    shares = shamir.from_bytes(row, (share_size(terms),), "votes")
    party = terms.parties.index(keys.identity) + 1
    digest = digests[DIGEST_BYTES * (party - 1) : DIGEST_BYTES * party]
    if _share_digest(row, blind, terms, silo, party) != digest:
        raise ValueError(f"shares of {silo}: expected the one that its digests name, got another")
    if terms.are_sums:
        identity = next((each for each in terms.silos if each.name == silo), None)
        dealing = joined(b"pate_tf dealing", terms.digest, silo.encode(), digests)
        if identity is None or not identity.verifies(whole[signed:start], dealing):
            raise ValueError(f"shares of {silo}: expected its signature, got another")
    return shares, hashlib.sha256(joined(b"pate_tf dealing", digests)).digest()


def _share_digest(row: bytes, blind: bytes, terms: BatchTerms, silo: str, party: int) -> bytes:
    """Returns a commitment to a share; without the blind it confirms no guess at it."""
    parts = [b"pate_tf share", terms.digest, silo.encode(), str(party).encode(), blind, row]
    return hashlib.sha256(joined(*parts)).digest()
