"""A whole party of secure aggregation: its keys, and its work for a coordinator."""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable

from pate_tf.core.settings import Settings, setting
from pate_tf.net.credentials import COORDINATOR, TlsFiles

KEYS, JOURNAL = "keys.json", "journal"


@dataclasses.dataclass(frozen=True, kw_only=True)
class PartyRun(Settings):
    """What a party needs to work."""

    index: int = setting(least=1, help="Which party of the list this is, from 1.")
    parties: pathlib.Path = setting(pathlib.Path("parties.toml"), help="The list of parties.")
    folder: pathlib.Path = setting(
        flag="party_dir",
        help="Folder of the party: its keys and its journal; never restored from a copy.",
    )
    coordinator: str = setting(help="Address of the coordinator, HOST:PORT.")
    certificates: pathlib.Path = setting(
        pathlib.Path("certificates"),
        help="Folder with authority.pem, and NAME.pem and NAME.key of this party.",
    )
    coordinator_name: str = setting(
        COORDINATOR, advanced=True, help="Name in the coordinator's certificate."
    )


def serve(run: PartyRun, *, on_event: Callable[[str], None] = lambda event: None) -> None:
    """Works until the process is stopped.

    Raises:
        ValueError: if the party is not the list's.
        PermissionError: if the coordinator doesn't know the party.
        LedgerError: if the party's journal can't be used.
        OSError: if a file can't be read.
    """
    from pate_tf.silos.clients import PartyConnection  # needs grpcio
    from pate_tf.silos.secure.keys import PartyKeys, read_list
    from pate_tf.silos.secure.party import Party

    parties, silos = read_list(run.parties)
    if not 1 <= run.index <= len(parties):
        raise ValueError(f"index: expected 1 to {len(parties)}, got {run.index}")
    identity = parties[run.index - 1]
    if not (run.folder / KEYS).exists():
        raise ValueError(f"folder: expected keys of {identity.name} in {run.folder}, got none")
    keys = PartyKeys.load_or_create(run.folder / KEYS, identity.name)
    if keys.identity != identity:
        raise ValueError(f"parties: expected the keys of {run.folder}, got other keys")
    with (
        contextlib.closing(Party(keys, run.folder / JOURNAL)) as party,
        PartyConnection(
            party,
            {each.name: each for each in (*parties, *silos)},
            run.coordinator,
            files=TlsFiles.of(run.certificates, identity.name),
            coordinator=run.coordinator_name,
        ) as connection,
    ):
        on_event(f"{identity.name} dials {run.coordinator}")
        connection.serve(on_event=on_event)
