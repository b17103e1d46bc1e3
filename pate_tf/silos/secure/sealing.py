"""Seals bytes to a party so that nobody else reads them and no other place takes them.

Hybrid public key encryption (RFC 9180) with X25519, HKDF-SHA256 and AES-256-GCM. What the bytes are
for goes into `info`: whoever opens them for anything else gets nothing.
"""

from __future__ import annotations

from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite

from pate_tf.silos.secure.keys import PartyIdentity, PartyKeys
from pate_tf.silos.secure.terms import BatchTerms, joined

OVERHEAD: Final = 48  # bytes

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

    Raises:
      SealingError: if anything differs.
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
