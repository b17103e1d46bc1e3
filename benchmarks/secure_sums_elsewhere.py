"""One secure sum of five silos' tables by other libraries, in one process.

    python benchmarks/secure_sums_elsewhere.py flower --json=runs/benchmarks/round.json
    python benchmarks/secure_sums_elsewhere.py nvflare --json=runs/benchmarks/round.json

Needs `flwr`, or `nvflare` and `tenseal`, each in an environment of its own, and nothing of pate_tf.
Made-up tables of 11,530 numbers are masked or encrypted, added up and read. Messages are written
and read again as for a network, which is not used. Bytes are those that one silo sends. Neither
adds noise.
"""

import argparse
import importlib.metadata
import json
import pathlib
import time
from typing import Any

import numpy as np

NUM_SILOS, NUM_NUMBERS = 5, 11_530


def tables() -> list[np.ndarray]:
    """Made-up numbers of each silo, float32 `[NUM_NUMBERS]`."""
    random = np.random.default_rng(0)
    return [random.uniform(-1.0, 1.0, NUM_NUMBERS).astype(np.float32) for _ in range(NUM_SILOS)]


def flower() -> tuple[np.ndarray, int]:
    """SecAgg+ with a share of each key for every silo, of which three open it."""
    from flwr.app import ConfigRecord, Context, Message, RecordDict
    from flwr.client.mod import secaggplus_mod
    from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
    from flwr.common.serde import message_from_proto, message_to_proto
    from flwr.compat.common import recorddict_compat
    from flwr.proto.message_pb2 import Message as ProtoMessage
    from flwr.server import LegacyContext
    from flwr.server.client_manager import SimpleClientManager
    from flwr.server.compat.grid_client_proxy import GridClientProxy
    from flwr.server.strategy import FedAvg
    from flwr.server.workflow import SecAggPlusWorkflow
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1

    def context(node: int) -> Any:
        return Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})

    def over_the_wire(message: Any) -> tuple[Any, int]:
        written = message_to_proto(message).SerializeToString()
        return message_from_proto(ProtoMessage.FromString(written)), len(written)

    class InProcess:
        """What the workflow asks of a `Grid`."""

        def __init__(self) -> None:
            self.contexts = {node: context(node) for node in range(1, NUM_SILOS + 1)}
            self.sent = dict.fromkeys(self.contexts, 0)

        def send_and_receive(self, messages: Any, *, timeout: Any = None) -> list[Any]:
            del timeout
            return [self._answer(each) for each in messages]

        def _answer(self, message: Any) -> Any:
            node = message.metadata.dst_node_id
            asked, _ = over_the_wire(message)
            reply, size = over_the_wire(secaggplus_mod(asked, self.contexts[node], fit))
            self.sent[node] += size
            return reply

    def fit(message: Any, own: Any) -> Any:
        result = FitRes(
            Status(Code.OK, ""), ndarrays_to_parameters([own_tables[own.node_id - 1]]), 1, {}
        )
        content = recorddict_compat.fitres_to_recorddict(result, keep_input=False)
        return Message(content, reply_to=message)

    own_tables, grid, manager = tables(), InProcess(), SimpleClientManager()
    for node in grid.contexts:
        manager.register(GridClientProxy(node, grid, run_id=1))
    strategy = FedAvg(min_fit_clients=NUM_SILOS, min_available_clients=NUM_SILOS)
    server = LegacyContext(context(0), strategy=strategy, client_manager=manager)
    server.state.config_records["config"] = ConfigRecord({"current_round": 1})
    empty = ndarrays_to_parameters([np.zeros(NUM_NUMBERS, np.float32)])
    server.state.array_records["parameters"] = recorddict_compat.parameters_to_arrayrecord(
        empty, keep_input=False
    )
    SecAggPlusWorkflow(num_shares=NUM_SILOS, reconstruction_threshold=3)(grid, server)
    found = recorddict_compat.arrayrecord_to_parameters(
        server.state.array_records["parameters"], keep_input=True
    )
    return NUM_SILOS * parameters_to_ndarrays(found)[0], max(grid.sent.values())


def nvflare() -> tuple[np.ndarray, int]:
    """CKKS by TenSEAL with what NVFlare provisions; the silos have one secret key together."""
    import tenseal
    from nvflare.lighter.impl.he import HEBuilder

    builder = HEBuilder()
    builder.initialize(None, None)
    of_silos = tenseal.context_from(builder.get_serialized_context(is_client=True))
    of_server = tenseal.context_from(builder.get_serialized_context())
    written = [tenseal.ckks_vector(of_silos, table).serialize() for table in tables()]
    first, *rest = (tenseal.ckks_vector_from(of_server, each) for each in written)
    for each in rest:
        first += each
    read = tenseal.ckks_vector_from(of_silos, first.serialize())
    return np.array(read.decrypt()), max(map(len, written))


def main() -> None:
    """Prints what a round takes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", choices=("flower", "nvflare"))
    parser.add_argument("--json", type=pathlib.Path)
    flags = parser.parse_args()
    measure, packages = {
        "flower": (flower, ("flwr",)),
        "nvflare": (nvflare, ("nvflare", "tenseal")),
    }[flags.library]
    measure()  # loads libraries
    began, processor = time.monotonic(), time.process_time()
    total, sent = measure()
    row = {
        "seconds": f"{time.monotonic() - began:.2f}",
        "of a processor": f"{time.process_time() - processor:.2f}",
        "bytes from a silo": f"{sent:,}",
        "off by at most": f"{np.abs(total - sum(tables())).max():.1g}",
        "versions": ", ".join(f"{name} {importlib.metadata.version(name)}" for name in packages),
    }
    print(row)
    if flags.json is not None:
        flags.json.parent.mkdir(parents=True, exist_ok=True)
        others = json.loads(flags.json.read_text()) if flags.json.exists() else {}
        flags.json.write_text(json.dumps({**others, flags.library: row}))


if __name__ == "__main__":
    main()
