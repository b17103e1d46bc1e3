"""The committed code of the protocol is what its .proto gives."""

import pathlib
import subprocess
import sys

import pytest
from script_processes import REPOSITORY

from pate_tf.silos import silos_pb2 as wire

TOOL = REPOSITORY / "tools" / "protocol_code.py"
PROTOCOLS = (
    pathlib.Path("pate_tf", "net", "array"),
    pathlib.Path("pate_tf", "silos", "silos"),
)


def test_generated_code_is_that_of_the_protocol(tmp_path):
    pytest.importorskip("grpc_tools")
    subprocess.run([sys.executable, TOOL, tmp_path], check=True, timeout=120)
    for protocol in PROTOCOLS:
        for ending in ("_pb2.py", "_pb2.pyi", "_pb2_grpc.py"):
            path = protocol.with_name(protocol.name + ending)
            generated = (tmp_path / path).read_text()
            assert generated == (REPOSITORY / path).read_text(), f"run: python {TOOL.name}"


def test_the_protocol_is_the_one_that_strangers_rely_on():
    services = wire.DESCRIPTOR.services_by_name
    assert {name: [method.name for method in one.methods] for name, one in services.items()} == {
        "Silos": ["Poll", "Submit"],
        "Parties": ["Poll", "Submit"],
    }
    numbers = {field.name: field.number for field in wire.QueryBatch.DESCRIPTOR.fields}
    assert numbers == {
        **{"run_id": 1, "batch_id": 2, "queries": 3, "digests": 4},
        **{"num_classes": 5, "mechanism": 6, "deadline": 7, "witness": 8},
    }
