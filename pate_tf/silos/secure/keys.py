"""Two keys of an aggregator, or of a silo: one that is sealed to, one that it signs with.

`cryptography` is imported with the first key that is used: a silo that randomises its own votes
uses none.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re

from pate_tf.core import artifacts
from pate_tf.core.validation import check_name

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

    def to_hex(self) -> str:
        """Returns both keys in 128 hexadecimal digits."""
        return (self.sealing_key + self.signing_key).hex()

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
        private: X25519 and Ed25519 private keys, 32 secret random bytes each.

    Attributes:
        identity: what is public of them.
        sealing: private key that opens what is sealed to the owner.
    """

    def __init__(self, name: str, private: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self.sealing = X25519PrivateKey.from_private_bytes(private[:_KEY_BYTES])
        self._signing = Ed25519PrivateKey.from_private_bytes(private[_KEY_BYTES:])
        self.identity = Identity(
            name=name,
            sealing_key=self.sealing.public_key().public_bytes_raw(),
            signing_key=self._signing.public_key().public_bytes_raw(),
        )

    @classmethod
    def generate(cls, name: str) -> Keys:
        """Returns new keys from the operating system's entropy."""
        return cls(name, os.urandom(2 * _KEY_BYTES))

    @classmethod
    def load_or_create(cls, path: pathlib.Path, name: str) -> Keys:
        """Returns the keys of a file, which only its owner can read; makes it if there is none.

        Raises ValueError if the file holds something else, or another name's keys.
        """
        if not path.exists():
            private = os.urandom(2 * _KEY_BYTES)
            artifacts.make_sensitive_folder(path.parent)
            artifacts.write_json(path, {"name": name, "keys": private.hex()}, private=True)
            return cls(name, private)
        fields = artifacts.read_json(path)
        if fields.get("name") != name:
            raise ValueError(f"{path}: expected the keys of {name}, got something else")
        return cls(name, _from_hex(str(path), fields.get("keys")))

    def sign(self, message: bytes) -> bytes:
        """Returns the owner's signature of a message, 64 bytes."""
        return self._signing.sign(message)


def _from_hex(what: str, text: object) -> bytes:
    """Returns two keys of hexadecimal digits; raises ValueError, which shows none of them."""
    if not isinstance(text, str) or not re.fullmatch(f"[0-9a-f]{{{4 * _KEY_BYTES}}}", text):
        raise ValueError(f"{what}: expected keys in 128 hexadecimal digits, got others")
    return bytes.fromhex(text)
