"""Silos, aggregators and their coordinator over gRPC. Silos and aggregators dial.

A caller is the one that its certificate names.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from pate_tf.net.client import Connection, with_retries
from pate_tf.net.credentials import Limits, TlsFiles
from pate_tf.net.service import Caller, Service, TlsServer
from pate_tf.silos.aggregator import Aggregator
from pate_tf.silos.coordinator import Ask
from pate_tf.silos.journal import CoordinatorJournal
from pate_tf.silos.messages import Answer, QueryBatch, Reply
from pate_tf.silos.protocol import AggregatorMessage, AggregatorTask, Identity, ProtocolError
from pate_tf.silos.roster import SiloRoster

SILOS: Final = "pate_tf.silos.v2.Silos"
AGGREGATORS: Final = "pate_tf.silos.v2.Aggregators"
# Shares of all silos come in one message.
AGGREGATOR_LIMITS: Final = Limits(message_bytes=2**30)
MOST_OF_REFUSAL: Final = 1000  # letters


# What an aggregator says to the task of a digest: a message, or in words why it won't, which say
# nothing about shares or noise.
TASK_RESULT: Final = tuple[bytes, str | AggregatorMessage]


class SiloConnection(Connection):
    """A silo's connection to its coordinator.

    Args:
        address: `host:port` of the coordinator.
        files: certificate and key of this end, and the authority.
        wait_seconds: how long a poll waits at the coordinator.

    Raises OSError if a file can't be read.
    """

    def __init__(self, address: str, *, files: TlsFiles, wait_seconds: float = 20.0) -> None:
        super().__init__(address, service=SILOS, files=files)
        self._wait_seconds = wait_seconds

    def poll(self) -> QueryBatch | None:
        """Returns the next batch that waits for this silo's reply; None if none does.

        Raises:
            ConnectionError: if the coordinator can't be reached, or sends what is no batch.
            PermissionError: if it doesn't know this silo.
        """
        seconds = self._wait_seconds
        batch: QueryBatch | None = self.call("Poll", None, QueryBatch | None, wait_seconds=seconds)
        return batch

    def submit(self, reply: Reply) -> Answer:
        """Hands over a reply; may be repeated.

        Raises:
            ConnectionError: if the coordinator can't be reached.
            PermissionError: if it doesn't know this silo, or the reply names another.
        """
        answer: Answer = self.call("Submit", reply, Answer)
        return answer


class AggregatorConnection(Connection):
    """An aggregator's connection to a coordinator: fetches tasks, answers them, and tries again.

    Args:
        aggregator: with its keys and journal.
        roster: names everyone's keys; none is learned from a coordinator.
        address: `host:port` of the coordinator.
        files: certificate and key of this end, and the authority.
        wait_seconds: how long a poll waits at the coordinator.

    Raises OSError if a file can't be read.
    """

    def __init__(
        self,
        aggregator: Aggregator,
        roster: SiloRoster,
        address: str,
        *,
        files: TlsFiles,
        wait_seconds: float = 20.0,
    ) -> None:
        super().__init__(address, service=AGGREGATORS, files=files, limits=AGGREGATOR_LIMITS)
        self._aggregator, self._wait_seconds = aggregator, wait_seconds
        self._known: set[Identity] = {*roster.aggregators, *roster.identities}

    def step(self) -> tuple[str, Answer] | None:
        """Polls once and answers what there was.

        Returns:
            The step or the refusal, and what the coordinator answered; None if there was no task.

        Raises:
            ConnectionError: if the coordinator can't be reached.
            PermissionError: if it doesn't know this aggregator.
        """
        seconds = self._wait_seconds
        task: AggregatorTask | None = self.call(
            "Poll", None, AggregatorTask | None, wait_seconds=seconds
        )
        if task is None:
            return None
        event = task.step.value
        try:
            if not self._known.issuperset((*task.terms.aggregators, *task.terms.silos)):
                raise ValueError("terms: expected names and keys of the roster, got others")
            answer: str | AggregatorMessage = self._aggregator.answer(task)
        except ValueError as error:
            answer, event = str(error), f"{event} was refused: {error}"
        return event, self.call("Submit", (task.digest, answer), Answer)

    def serve(
        self, *, on_event: Callable[[str], None] = lambda event: None, **waiting: Any
    ) -> None:
        """Answers tasks until it is stopped; for `until` and `sleep` see `with_retries`.

        Raises PermissionError if the coordinator doesn't know this aggregator.
        """

        def step() -> bool | None:
            done = self.step()
            if done is None:
                return None
            on_event(f"{done[0]}: {done[1].value}")
            return done[1] is Answer.OK

        with_retries(step, on_event=on_event, **waiting)


class AggregatorService:
    """Aggregators that dial in and fetch tasks, each put to it by one of `asks`.

    An aggregator that was killed fetches the same task again, and gives the answer that it gave
    before. Safe to use from several threads.

    Args:
        names: of the aggregators, in the order of their numbers.
        seconds: how long to wait for an aggregator's message on one step.

    Attributes:
        asks: how to ask each aggregator, for a `Coordinator`.
    """

    def __init__(self, names: Sequence[str], *, seconds: float = 120.0) -> None:
        self.names = tuple(names)
        self.asks: list[Ask] = [self._ask_of(name) for name in self.names]
        self._seconds = seconds
        self._changed = threading.Condition()
        self._tasks: dict[str, AggregatorTask] = {}
        self._results: dict[str, str | AggregatorMessage] = {}

    def _ask_of(self, name: str) -> Ask:
        asking = threading.Lock()

        def ask(task: AggregatorTask) -> AggregatorMessage:
            with asking, self._changed:
                self._results.pop(name, None)
                self._tasks[name] = task
                self._changed.notify_all()
                try:
                    if not self._changed.wait_for(lambda: name in self._results, self._seconds):
                        raise TimeoutError(
                            f"{name} did not answer within {self._seconds:g} seconds"
                        )
                    result = self._results.pop(name)
                finally:
                    del self._tasks[name]
            if isinstance(result, str):
                raise ProtocolError(f"{name} refuses: {result}")
            return result

        return ask

    def poll(self, request: None, caller: Caller) -> AggregatorTask | None:
        """Returns the caller's task, or none after a while."""
        return caller.wait_for(lambda: self._tasks.get(caller.name), self._changed)

    def submit(self, request: tuple[bytes, str | AggregatorMessage], caller: Caller) -> Answer:
        """Takes the caller's message on its task."""
        task_digest, result = request
        if isinstance(result, str):
            result = result[:MOST_OF_REFUSAL]
        with self._changed:
            task = self._tasks.get(caller.name)
            if task is None or task.digest != task_digest:
                return Answer.LATE
            taken = self._results.setdefault(caller.name, result)
            self._changed.notify_all()
        return Answer.OK if taken == result else Answer.CONFLICT


def serve_coordinator(
    address: str,
    journal: CoordinatorJournal,
    *,
    files: TlsFiles,
    aggregators: AggregatorService | None = None,
    limits: Limits | None = None,
) -> TlsServer:
    """Returns a running server of a coordinator. Its silos and aggregators alone get in.

    Args:
        address: `host:port`; port 0 for any free one.
        journal: what silos see of the coordinator.
        files: certificate and key of the coordinator, and the authority.
        aggregators: of secure aggregation; None without it.
        limits: of every caller.

    Raises:
        ValueError: if the address can't be listened on.
        OSError: if a file can't be read.
    """

    def submit(reply: Reply, caller: Caller) -> Answer:
        if reply.silo != caller.name:
            raise PermissionError("silo: expected the name of the certificate, got another")
        return journal.submit(caller.name, reply)

    methods: dict[str, Any] = {
        "Poll": (
            None,
            lambda _, caller: caller.wait_for(lambda: journal.poll(caller.name), journal.changed),
        ),
        "Submit": (Reply, submit),
    }
    services = [Service(name=SILOS, callers=journal.names, methods=methods)]
    if aggregators is not None:
        methods = {"Poll": (None, aggregators.poll), "Submit": (TASK_RESULT, aggregators.submit)}
        services.append(Service(name=AGGREGATORS, callers=aggregators.names, methods=methods))
    return TlsServer(address, files=files, services=services, limits=limits)
