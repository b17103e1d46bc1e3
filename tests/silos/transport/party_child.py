"""A party in a process of its own: `party_child.py CERTIFICATES FOLDER PORT NAME KEYS`.

KEYS is the list of parties.
"""

import pathlib
import sys

from pate_tf.net.credentials import TlsFiles
from pate_tf.silos.clients import PartyConnection
from pate_tf.silos.secure.keys import PartyKeys, read_list
from pate_tf.silos.secure.party import Party

if __name__ == "__main__":
    certificates, folder, port, name, keys = sys.argv[1:]
    known = {one.name: one for one in read_list(pathlib.Path(keys))[0]}
    own = PartyKeys.load_or_create(pathlib.Path(folder) / "keys.json", name)
    connection = PartyConnection(
        Party(own, pathlib.Path(folder) / "journal"),
        known,
        f"localhost:{port}",
        files=TlsFiles.of(pathlib.Path(certificates), name),
        wait_seconds=1.0,
    )
    print("ready", flush=True)
    connection.serve()
