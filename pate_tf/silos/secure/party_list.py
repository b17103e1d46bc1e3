"""The list of parties: a small TOML file that every silo, party and the coordinator has.

    [[party]]
    name = "party-1"
    keys = "..."

Whoever sets a run up hands it out. Silos and parties never take it from a coordinator, who could
put keys of its own in it.
"""

import pathlib
from collections.abc import Sequence

from pate_tf import artifacts
from pate_tf.silos.secure.keys import PartyIdentity
from pate_tf.values.names import check_name
from pate_tf.values.toml_fields import Fields, read_toml


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
