"""A parameter server in a process of its own, without TensorFlow.

`parameter_server_child.py CERTIFICATES FOLDER PORT DIES`: kills itself at its third upload, where
DIES says; "never" if it does not.
"""

import pathlib
import sys
import time

from pate_tf.net.credentials import TlsFiles

if __name__ == "__main__":
    sys.path[:0] = [str(pathlib.Path(__file__).parent), str(pathlib.Path(__file__).parents[1])]
    from parameter_helpers import SERVER_DIES, die_at, made_up_server, serve

    certificates, folder, port, dies = sys.argv[1:]
    server = made_up_server(pathlib.Path(folder))
    if dies != "never":
        die_at(*SERVER_DIES[dies], 2)
    files = TlsFiles.of(pathlib.Path(certificates), "coordinator")
    with serve(server, files, address=f"localhost:{port}"):
        print("ready", flush=True)
        time.sleep(600.0)
