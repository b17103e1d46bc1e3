"""Two keys of a party, or of a silo: one that shares are sealed to, one that it signs with.

`cryptography` is imported with the first key that is used: a silo that randomises its own votes
uses none.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re

from pate_tf.core import artifacts
from pate_tf.core.validation import Fields, check_name

_KEY_BYTES = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartyIdentity:
    """What is public of a party; silos and parties get it from each other, not from a coordinator.

    Attributes:
        name: of the party, as in its certificate.
        sealing_key: X25519 public key, 32 bytes.
        signing_key: Ed25519 public key, 32 bytes.

    Raises ValueError if the name is none or a key has not 32 bytes.
    """

    name: str
    sealing_key: bytes
    signing_key: bytes

    def __post_init__(self) -> None:
        check_name(self.name, "party")
        for key in (self.sealing_key, self.signing_key):
            if not isinstance(key, bytes) or len(key) != _KEY_BYTES:
                raise ValueError(f"party {self.name}: expected keys of 32 bytes, got others")

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Whether this party signed a message."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.signing_key).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True

    @classmethod
    def of_keys(cls, name: str, keys: str) -> PartyIdentity:
        """Returns the identity with both keys in 128 hexadecimal digits, as in a list of parties.

        Raises ValueError if they are something else.
        """
        both = _from_hex(keys)
        if both is None:
            raise ValueError(f"party {name}: expected keys in 128 hexadecimal digits, got others")
        return cls(name=name, sealing_key=both[:_KEY_BYTES], signing_key=both[_KEY_BYTES:])


class PartyKeys:
    """A party's private keys. They are in no repr and leave in no message.

    Args:
        name: of the party.
        private: X25519 and Ed25519 private keys, 32 secret random bytes each.

    Attributes:
        identity: what is public of them.
        sealing: private key that opens what is sealed to this party.
    """

    def __init__(self, name: str, private: bytes) -> None:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self.sealing = X25519PrivateKey.from_private_bytes(private[:_KEY_BYTES])
        self._signing = Ed25519PrivateKey.from_private_bytes(private[_KEY_BYTES:])
        self.identity = PartyIdentity(
            name=name,
            sealing_key=self.sealing.public_key().public_bytes_raw(),
            signing_key=self._signing.public_key().public_bytes_raw(),
        )

    @classmethod
    def generate(cls, name: str) -> PartyKeys:
        """Returns new keys from the operating system's entropy."""
        return cls(name, os.urandom(2 * _KEY_BYTES))

    @classmethod
    def load_or_create(cls, path: pathlib.Path, name: str) -> PartyKeys:
        """Returns the keys of a file, which only its owner can read; makes it if there is none.

        Raises ValueError if the file holds something else, or another party's keys.
        """
        if not path.exists():
            private = os.urandom(2 * _KEY_BYTES)
            artifacts.make_sensitive_folder(path.parent)
            artifacts.write_json(path, {"party": name, "keys": private.hex()}, private=True)
            return cls(name, private)
        fields = artifacts.read_json(path)
        both = _from_hex(fields.get("keys"))
        if both is None or "party" not in fields:
            raise ValueError(f"{path}: expected the keys of a party, got something else")
        if fields["party"] != name:
            raise ValueError(f"{path}: expected the keys of {name}, got those of another party")
        return cls(name, both)

    def sign(self, message: bytes) -> bytes:
        """Returns this party's signature of a message, 64 bytes."""
        return self._signing.sign(message)


def _from_hex(text: object) -> bytes | None:
    """Returns the bytes of two keys in hexadecimal digits; None if they are none."""
    is_hex = isinstance(text, str) and re.fullmatch(f"[0-9a-f]{{{4 * _KEY_BYTES}}}", text)
    return bytes.fromhex(str(text)) if is_hex else None


# The list of parties: a small TOML file that every silo, party and the coordinator gets from the
# person who sets the run up. Silos and parties never take it from a coordinator, which could put
# keys of its own in it. Silos that add feature sums stand in it, too.
#
#     [[party]]
#     name = "party-1"
#     keys = "..."
#
#     [[silo]]
#     name = "silo-1"
#     keys = "..."


def party_entry(party: PartyIdentity, kind: str = "party") -> str:
    """Returns what stands in the list for a party, or for a silo."""
    keys = (party.sealing_key + party.signing_key).hex()
    return f'[[{kind}]]\nname = "{party.name}"\nkeys = "{keys}"\n'


def read_list(path: pathlib.Path) -> tuple[tuple[PartyIdentity, ...], tuple[PartyIdentity, ...]]:
    """Returns the parties of a list, party 1 first, and the silos, of which there may be none.

    Raises:
        ValueError: if the file holds no parties, or one name twice; one line that says what was
            expected.
        OSError: if it can't be read.
    """
    fields = Fields.read(path)
    listed: dict[str, tuple[PartyIdentity, ...]] = {"party": (), "silo": ()}
    for kind in ("party", "silo") if fields.has("silo") else ("party",):
        for entry in fields.tables(kind):
            name = check_name(entry.text("name"), f"{path}: name")
            try:
                listed[kind] += (PartyIdentity.of_keys(name, entry.text("keys")),)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from None
            entry.end()
    fields.end()
    parties, silos = listed.values()
    if len({identity.name for identity in parties + silos}) < len(parties + silos):
        raise ValueError(f"{path}: expected parties of different names, got one twice")
    return parties, silos
