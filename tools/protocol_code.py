"""Generates the code of the .proto files beside them: `python tools/protocol_code.py [FOLDER]`.

Needs grpcio-tools. With a folder it writes there instead; a test compares.
"""

import pathlib
import sys

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
PROTOCOLS = (
    "pate_tf/net/array.proto",
    "pate_tf/silos/silos.proto",
)


def generate(folder: pathlib.Path) -> None:
    """Writes the modules of all protocols below a folder."""
    import grpc_tools
    from grpc_tools import protoc

    included = pathlib.Path(grpc_tools.__file__).parent / "_proto"
    code = protoc.main(
        [
            "protoc",
            f"-I{REPOSITORY}",
            f"-I{included}",
            f"--python_out={folder}",
            f"--pyi_out={folder}",
            f"--grpc_python_out={folder}",
            *PROTOCOLS,
        ]
    )
    if code:
        raise SystemExit(code)


if __name__ == "__main__":
    generate(pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else REPOSITORY)
