"""A party's two keys: one that shares are sealed to, one that it signs with.

`cryptography` is imported with the first key that is used: a silo that randomises its own votes
uses none.
"""

from __future__ import annotations

import dataclasses
import pathlib
from typing import TYPE_CHECKING

from pate_tf.core import artifacts
from pate_tf.core.validation import check_name

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from collections.abc import Sequence

from pate_tf.core.validation import Fields, read_toml

_KEY_BYTES = 32


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartyIdentity:
    """What is public of a party; silos and parties get it from each other, not from a coordinator.

    Attributes:
      name: of the party, as in its certificate.
      sealing_key: X25519 public key, 32 bytes.
      signing_key: Ed25519 public key, 32 bytes.
    """

    name: str
    sealing_key: bytes
    signing_key: bytes

    def __post_init__(self) -> None:
        """Raises ValueError if the name is none or a key has not 32 bytes."""
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

    def to_text(self) -> str:
        """Returns both keys in 128 hexadecimal digits, for a roster."""
        return (self.sealing_key + self.signing_key).hex()

    @classmethod
    def of_text(cls, name: str, text: str) -> PartyIdentity:
        """Returns the identity whose keys `to_text` wrote.

        Raises:
          ValueError: if the text is not 128 hexadecimal digits.
        """
        try:
            both = bytes.fromhex(text)
        except (ValueError, TypeError):
            both = b""
        if len(both) != 2 * _KEY_BYTES:
            raise ValueError(f"party {name}: expected keys in 128 hexadecimal digits, got others")
        return cls(name=name, sealing_key=both[:_KEY_BYTES], signing_key=both[_KEY_BYTES:])


class PartyKeys:
    """A party's private keys. They are in no repr and leave in no message.

    Attributes:
      identity: what is public of them.
    """

    def __init__(self, name: str, sealing: X25519PrivateKey, signing: Ed25519PrivateKey) -> None:
        self.sealing = sealing
        self._signing = signing
        self.identity = PartyIdentity(
            name=name,
            sealing_key=sealing.public_key().public_bytes_raw(),
            signing_key=signing.public_key().public_bytes_raw(),
        )

    def __repr__(self) -> str:
        return f"PartyKeys(<{self.identity.name}>)"

    @classmethod
    def generate(cls, name: str) -> PartyKeys:
        """Returns new keys from the operating system's entropy."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        return cls(name, X25519PrivateKey.generate(), Ed25519PrivateKey.generate())

    @classmethod
    def load_or_create(cls, path: pathlib.Path, name: str) -> PartyKeys:
        """Returns the keys of a file, which only its owner can read; makes it if there is none.

        Raises:
          ValueError: if the file holds something else, or another party's keys.
        """
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        if not path.exists():
            keys = cls.generate(name)
            private = keys.sealing.private_bytes_raw() + keys._signing.private_bytes_raw()
            artifacts.make_sensitive_folder(path.parent)
            artifacts.write_json(path, {"party": name, "keys": private.hex()}, private=True)
            return keys
        fields = artifacts.read_json(path)
        try:
            both = bytes.fromhex(fields["keys"])
            owner = fields["party"]
        except (KeyError, TypeError, ValueError):
            both, owner = b"", name
        if len(both) != 2 * _KEY_BYTES:
            raise ValueError(f"{path}: expected the keys of a party, got something else")
        if owner != name:
            raise ValueError(f"{path}: expected the keys of {name}, got those of another party")
        sealing = X25519PrivateKey.from_private_bytes(both[:_KEY_BYTES])
        return cls(name, sealing, Ed25519PrivateKey.from_private_bytes(both[_KEY_BYTES:]))

    def sign(self, message: bytes) -> bytes:
        """Returns this party's signature of a message, 64 bytes."""
        return self._signing.sign(message)


# The list of parties: a small TOML file that every silo, party and the coordinator has.
#
#     [[party]]
#     name = "party-1"
#     keys = "..."
#
# Whoever sets a run up hands it out. Silos and parties never take it from a coordinator, who could
# put keys of its own in it.


def party_entry(party: PartyIdentity) -> str:
    """Returns what stands in the list for a party."""
    return f'[[party]]\nname = "{party.name}"\nkeys = "{party.to_text()}"\n'


def write_parties(path: pathlib.Path, parties: Sequence[PartyIdentity]) -> None:
    """Writes a list; `read_parties` is its inverse."""
    artifacts.write_text(path, "\n".join(party_entry(one) for one in parties))


def read_parties(path: pathlib.Path) -> tuple[PartyIdentity, ...]:
    """Returns the parties of a list, party 1 first.

    Raises:
      ValueError: if the file holds none, or one twice; one line that says what was expected.
      OSError: if it can't be read.
    """
    fields = Fields(str(path), read_toml(path))
    parties = []
    for one in fields.tables("party"):
        name = check_name(one.text("name"), f"{path}: name")
        try:
            parties.append(PartyIdentity.of_text(name, one.text("keys")))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None
        one.end()
    fields.end()
    if len({one.name for one in parties}) < len(parties):
        raise ValueError(f"{path}: expected parties of different names, got one twice")
    return tuple(parties)
