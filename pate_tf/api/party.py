"""A whole party of secure aggregation: its keys, and its work for a coordinator."""

import dataclasses
import pathlib
from collections.abc import Callable

from pate_tf.net.credentials import COORDINATOR, TlsFiles
from pate_tf.silos.party_connection import PartyConnection
from pate_tf.silos.secure.keys import PartyKeys, party_entry, read_parties
from pate_tf.silos.secure.party import Party

KEYS, JOURNAL = "keys.json", "journal"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartyRun:
    """What a party needs to work.

    Attributes:
      index: which party of the list, from 1.
      parties: the list of parties.
      folder: keys and journal of the party; nobody else's business, never copied back.
      coordinator: address, `host:port`.
      certificates: folder with `authority.pem`, and `NAME.pem` and `NAME.key` of the party.
      coordinator_name: in the coordinator's certificate.
    """

    index: int
    parties: pathlib.Path
    folder: pathlib.Path
    coordinator: str
    certificates: pathlib.Path
    coordinator_name: str = COORDINATOR


def party_keys(name: str, folder: pathlib.Path) -> str:
    """Makes a party's keys, unless there are some, and returns its entry in the list of parties.

    Raises:
      ValueError: if the folder has another party's keys.
    """
    return party_entry(PartyKeys.load_or_create(folder / KEYS, name).identity)


def serve(run: PartyRun, *, on_event: Callable[[str], None] = lambda event: None) -> None:
    """Works until the process is stopped.

    Raises:
      ValueError: if the party is not the list's, or its folder is another process's.
      PermissionError: if the coordinator doesn't know the party.
      OSError: if a file can't be read.
    """
    parties = read_parties(run.parties)
    if not 1 <= run.index <= len(parties):
        raise ValueError(f"index: expected 1 to {len(parties)}, got {run.index}")
    identity = parties[run.index - 1]
    if not (run.folder / KEYS).exists():
        raise ValueError(f"folder: expected keys of {identity.name} in {run.folder}, got none")
    keys = PartyKeys.load_or_create(run.folder / KEYS, identity.name)
    if keys.identity != identity:
        raise ValueError(f"parties: expected the keys of {run.folder}, got other keys")
    party = Party(keys, run.folder / JOURNAL)
    try:
        connection = PartyConnection(
            party,
            {one.name: one for one in parties},
            run.coordinator,
            files=TlsFiles.of(run.certificates, identity.name),
            coordinator=run.coordinator_name,
        )
        on_event(f"{identity.name} dials {run.coordinator}")
        try:
            connection.serve(on_event=on_event)
        finally:
            connection.close()
    finally:
        party.close()
