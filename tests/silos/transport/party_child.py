"""A party in a process of its own: `party_child.py CERTIFICATES FOLDER PORT NAME KEYS`.

KEYS has the public keys of all parties, one `name keys` a line.
"""

import pathlib
import sys

from pate_tf.net.credentials import TlsFiles
from pate_tf.silos.clients import PartyConnection
from pate_tf.silos.secure.keys import PartyIdentity, PartyKeys
from pate_tf.silos.secure.party import Party

if __name__ == "__main__":
    certificates, folder, port, name, keys = sys.argv[1:]
    lines = pathlib.Path(keys).read_text().splitlines()
    known = {line.split()[0]: PartyIdentity.of_text(*line.split()) for line in lines}
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
