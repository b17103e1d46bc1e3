"""Transports messages between a coordinator and its silos and aggregators over Flower.

Flower replaces gRPC. The ServerApp runs `pate coordinator`, and each ClientApp is one silo or one
aggregator. Tasks and replies have the same bytes as over gRPC. The sender signs each reply with its
own key, whose public part is on the roster. The coordinator identifies senders by these signatures,
not by Flower's node ids, so neither the SuperLink nor another node can reply for a silo.

Only this module uses Flower, because Flower's interfaces change often; see the extra `flower` in
setup.py.
"""

import contextlib
import functools
import hashlib
import logging
import os
import shlex
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from pate_tf.cli import aggregator_command, command_line, coordinator_command, silo_command
from pate_tf.core import artifacts
from pate_tf.net.calls import Caller, Service
from pate_tf.net.wire_values import decode, encode
from pate_tf.silos import silo_server
from pate_tf.silos.messages import Answer, QueryBatch
from pate_tf.silos.protocol import AggregatorTask, Keys
from pate_tf.silos.roster import Policy, SiloRoster
from pate_tf.silos.transport import MAX_REFUSAL_LENGTH, task_result

_log = logging.getLogger(__name__)
RECORD: Final = "pate"  # name of Flower's record that contains the task or the reply
LOOK_SECONDS: Final = 1.0
# Number of seconds after which an unanswered task is sent again. A node that has answered before
# repeats its stored answer, so this costs time but no privacy budget.
ANSWER_SECONDS: Final = 300.0
RETRY_SECONDS: Final = 30.0  # time until a node gets its next task after an error

client_app = ClientApp()
server_app = ServerApp()


def signed_bytes(session: bytes, task: bytes, reply: bytes) -> bytes:
    """Returns the bytes that the sender of a reply signs.

    Args:
        session: random bytes of this ServerApp, so that a reply is valid only in this session.
        task: encoded task; empty if the server requested only the sender's name.
        reply: encoded reply to the task.
    """
    return encode(("flower", session, hashlib.sha256(task).digest(), reply))


class FlowerServer(contextlib.ExitStack):
    """Connects a coordinator to Flower: sends tasks to nodes and delivers their replies.

    A node first sends its name with a signature. A task is sent again if its node failed, was
    replaced, or does not answer. If a silo or aggregator has already answered the task, it repeats
    its stored answer.

    Args:
        grid: Flower's connection to the nodes.
        roster: roster with the keys of all silos and aggregators.
        services: services of the coordinator that create tasks and take replies; see
            `coordinator_services`.
        clock: function that returns a time in seconds; only differences matter.

    Raises ValueError if the roster lacks the keys of a silo.
    """

    def __init__(
        self,
        grid: Grid,
        roster: SiloRoster,
        services: Sequence[Service],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__()
        self._grid = grid
        known = (*roster.identities, *roster.aggregators)
        self._identities = {identity.name: identity for identity in known}
        if missing := set(roster.names) - set(self._identities):
            names = ", ".join(sorted(missing))
            raise ValueError(f"roster has no keys of {names}. Add the output of `pate silo keys`.")
        self._services = services
        self._clock = clock
        self._session = os.urandom(32)
        self._nodes: dict[str, int] = {}  # maps each name to the last node that proved this name
        self._due: dict[int, float] = {}  # maps each node to the earliest time of its next task
        # Maps the id of each sent message to its node, its service and its encoded task. The
        # service is None if the message requests the node's name.
        self._sent: dict[str, tuple[int, Service | None, bytes]] = {}
        self._stopped = threading.Event()

    def __enter__(self) -> "FlowerServer":
        """Starts a thread that serves the nodes until the end of the `with` block."""
        thread = threading.Thread(target=self._serve, daemon=True)
        thread.start()
        self.callback(thread.join)
        self.callback(self._stopped.set)
        return self

    def _serve(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            try:
                self.step()
            except Exception:  # Flower raises various errors, for example if SuperLink stops.
                _log.error("Flower failed, trying again: %s", traceback.format_exc())

    def step(self) -> None:
        """Handles the available replies, then sends the next task to every free node."""
        for message in self._grid.pull_messages(list(self._sent)):
            self._take(message)
        now = self._clock()
        free = {node for node in self._grid.get_node_ids() if now >= self._due.get(node, 0.0)}
        asked: list[tuple[int, Service | None, bytes]] = [
            (node, None, b"") for node in free - set(self._nodes.values())
        ]
        for service in self._services:
            _, poll = service.methods["Poll"]
            for name in service.callers:
                node = self._nodes.get(name, -1)
                task = poll(None, Caller(name, 0.0)) if node in free else None
                if task is not None:
                    asked.append((node, service, encode(task)))
        for node, asking, content in asked:
            record = ConfigRecord({"session": self._session, "task": content})
            message = Message(RecordDict({RECORD: record}), node, MessageType.QUERY)
            for identifier in self._grid.push_messages([message]):
                self._sent[identifier] = (node, asking, content)
            self._due[node] = now + ANSWER_SECONDS

    def _take(self, message: Message) -> None:
        """Handles a node's reply. Logs and drops a reply that nobody on the roster signed."""
        sent = self._sent.pop(message.metadata.reply_to_message_id, None)
        if sent is None:
            return
        node, service, task = sent
        who = {number: name for name, number in self._nodes.items()}.get(node, f"node {node}")
        self._due[node] = self._clock() + RETRY_SECONDS
        if message.has_error():
            _log.warning("%s failed: %s", who, str(message.error.reason)[:MAX_REFUSAL_LENGTH])
            return
        try:
            record: Any = message.content[RECORD]
            name, reply, signature = record["name"], record["reply"], record["signature"]
            identity = self._identities[name]
            is_signed = identity.verifies(signature, signed_bytes(self._session, task, reply))
            if not is_signed or not (service is None or name in service.callers):
                raise PermissionError("the signature does not match this name on the roster")
            answer: object = Answer.OK
            if service is None:
                # If two nodes prove the same name, the later node replaces the earlier node, which
                # then gets no requests for some time.
                self._due[self._nodes.get(name, node)] = self._clock() + ANSWER_SECONDS
                self._nodes[name] = node
            else:
                kind, submit = service.methods["Submit"]
                answer = submit(decode(kind, reply), Caller(name, 0.0))
        except (KeyError, TypeError, ValueError, PermissionError) as error:
            _log.warning("the reply of %s was dropped: %s", who, str(error)[:MAX_REFUSAL_LENGTH])
            return
        if answer in (Answer.OK, Answer.SAME):
            self._due[node] = 0.0
        else:
            _log.warning("%s: %s", name, answer)


def run_command(
    command: ModuleType, arguments: str, define: Callable[[], None], main: Callable[[], None]
) -> None:
    """Runs a command of `pate` in this process, which Flower started.

    Args:
        command: module of the command.
        arguments: flags, as in a shell.
        define: function that defines the command's flags.
        main: function that runs the command after the flags were read.

    Raises RuntimeError if the command fails. Flower sends the message of this error to the server,
    so the message contains only the exit code and nothing about the data. The reason is printed
    only on this machine.
    """
    sys.argv = [f"pate {command.__name__}", *shlex.split(arguments)]
    code: Any = 0
    try:
        guarded = command_line.guarded(main, command_line.FLAGS, command.FLAG_OF_ARGUMENT)
        command_line.run(guarded, define, command.__doc__)
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
        code = command_line.USER_ERROR
    if code:
        raise RuntimeError(f"pate ended with exit code {code}; see the log on this machine")


def silo_reply(task: bytes) -> tuple[Keys, bytes]:
    """Runs a silo on an encoded task; returns the silo's keys and its encoded reply.

    An empty task, which requests only the name, gets an empty reply.
    """
    run = silo_command.settings_of_silo()
    policy = Policy.read(run.folder / silo_server.POLICY)
    keys = Keys.load_or_create(run.folder / artifacts.SENSITIVE / silo_server.KEYS, policy.silo)
    if not task:
        return keys, b""
    log, _ = command_line.start_operation("silo", policy.silo)
    with (
        artifacts.only_writer(run.folder),
        silo_server.open_silo(run, policy, on_event=log) as silo,
    ):
        reply, event = silo.result(decode(QueryBatch, task))
    log(event)
    return keys, encode(reply)


def aggregator_reply(task: bytes) -> tuple[Keys, bytes]:
    """Runs an aggregator on an encoded task; returns the aggregator's keys and its encoded reply.

    An empty task, which requests only the name, gets an empty reply.
    """
    run = command_line.read(silo_server.AggregatorRun)
    with artifacts.only_writer(run.folder):
        keys, aggregator, roster = silo_server.open_aggregator(run)
        with aggregator:
            if not task:
                return keys, b""
            log, _ = command_line.start_operation("aggregator", keys.identity.name)
            result, event = task_result(aggregator, roster, decode(AggregatorTask, task))
    log(event)
    return keys, encode(result)


# Maps the role in a node's configuration to the module of its command, the function that defines
# the flags, and the function that computes a reply.
ROLES: Final[dict[str, tuple[ModuleType, Callable[[], None], Any]]] = {
    "silo": (silo_command, functools.partial(silo_command.define, "serve"), silo_reply),
    "aggregator": (aggregator_command, aggregator_command.define, aggregator_reply),
}


@client_app.query()
def reply_to(message: Message, context: Context) -> Message:
    """Returns the reply of this node, whose role is set by the entry `pate` of the node-config."""
    role, _, arguments = str(context.node_config.get("pate", "")).strip().partition(" ")
    if role not in ROLES:
        raise ValueError(f"node-config needs pate='ROLE FLAGS'. The roles are {', '.join(ROLES)}.")
    command, define, reply_of = ROLES[role]
    asked: Any = message.content[RECORD]
    replies: list[tuple[Keys, bytes]] = []
    run_command(command, arguments, define, lambda: replies.append(reply_of(asked["task"])))
    ((keys, reply),) = replies
    signed = signed_bytes(asked["session"], asked["task"], reply)
    record = ConfigRecord(
        {"name": keys.identity.name, "reply": reply, "signature": keys.signing.sign(signed)}
    )
    return Message(RecordDict({RECORD: record}), reply_to=message)


@server_app.main()
def coordinate(grid: Grid, context: Context) -> None:
    """Runs `pate coordinator` with the flags in `coordinator` of the run configuration."""
    main = functools.partial(coordinator_command.main, functools.partial(FlowerServer, grid))
    arguments = str(context.run_config["coordinator"])
    run_command(coordinator_command, arguments, coordinator_command.define, main)
