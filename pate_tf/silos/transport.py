"""Connects silos, aggregators and their coordinator over gRPC.

Silos and aggregators connect to the coordinator. The coordinator reads the name of a caller from
the caller's certificate.
"""

from __future__ import annotations

import functools
import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from pate_tf.net.calls import Caller, Connection, Service, with_retries
from pate_tf.net.credentials import OVER, Limits, TlsFiles
from pate_tf.net.wire_values import digest
from pate_tf.silos.aggregator import Aggregator
from pate_tf.silos.coordinator import Ask
from pate_tf.silos.messages import Answer, QueryBatch, Refusal, Reply
from pate_tf.silos.protocol import AggregatorMessage, AggregatorTask, ProtocolError
from pate_tf.silos.roster import SiloRoster
from pate_tf.silos.round_journal import CoordinatorJournal

_log = logging.getLogger(__name__)
SILOS: Final = "pate_tf.silos.v2.Silos"
AGGREGATORS: Final = "pate_tf.silos.v2.Aggregators"
# The limit is high because a message to an aggregator contains the shares of all silos.
AGGREGATOR_LIMITS: Final = Limits(message_bytes=2**30)
MAX_REFUSAL_LENGTH: Final = 1000  # characters


# An aggregator's result: the digest of the task, and either the aggregator's message or the reason
# for refusing the task. The reason reveals nothing about shares or noise.
TaskResult = tuple[bytes, str | AggregatorMessage]


class TaskConnection(Connection):
    """A silo's or an aggregator's connection to its coordinator.

    A silo receives a `QueryBatch` and submits a `Reply`. An aggregator receives an
    `AggregatorTask`; see `task_result`.

    Args:
        address: `host:port` of the coordinator.
        files: files with this client's certificate and key, and the certificate of the authority.
        is_aggregator: True for an aggregator, False for a silo.
        wait_seconds: maximum time in seconds for which a poll waits for a task.

    Raises OSError if a file can't be read.
    """

    def __init__(
        self,
        address: str,
        *,
        files: TlsFiles,
        is_aggregator: bool = False,
        wait_seconds: float = 20.0,
    ) -> None:
        service = AGGREGATORS if is_aggregator else SILOS
        limits = AGGREGATOR_LIMITS if is_aggregator else Limits()
        super().__init__(address, service=service, files=files, limits=limits)
        self._task: Any = AggregatorTask if is_aggregator else QueryBatch
        self._wait_seconds = wait_seconds

    def poll(self) -> Any:
        """Asks the coordinator for the next task; returns None if there is no task.

        Raises:
            ConnectionError: if the coordinator can't be reached, or sends an invalid task.
            PermissionError: if the coordinator doesn't know this client.
        """
        return self.call("Poll", None, self._task | None, wait_seconds=self._wait_seconds)

    def submit(self, result: Reply | TaskResult) -> Answer:
        """Sends the result of a task to the coordinator. You can send the same result again.

        Raises:
            ConnectionError: if the coordinator can't be reached.
            PermissionError: if the coordinator doesn't know this client, or the reply has the name
                of another silo.
        """
        answer: Answer = self.call("Submit", result, Answer)
        return answer

    def serve(
        self,
        answer: Callable[[Any], tuple[Reply | TaskResult, str]],
        *,
        on_event: Callable[[str], None] = lambda event: None,
        sleep: Callable[[float], None] = time.sleep,
        give_up_after: float = math.inf,
    ) -> None:
        """Answers tasks until the coordinator ends the run.

        If a result can't be submitted, the client asks for the task again and submits the same
        result.

        Args:
            answer: function that returns the result of a task, and a description of the result.
            on_event: function that is called with each log message; messages contain nothing
                about the data.
            sleep: see `with_retries`.
            give_up_after: see `with_retries`.

        Raises:
            PermissionError: if the coordinator doesn't know this client.
            ConnectionError: if the coordinator could not be reached for `give_up_after` seconds.
        """

        def step() -> bool | None:
            task = self.poll()
            if task is None:
                return None
            result, event = answer(task)
            said = result[1] if isinstance(result, tuple) else result
            self.num_refused += isinstance(said, Refusal | str)
            taken = self.submit(result)
            on_event(f"{event}: {taken.value}")
            return taken in (Answer.OK, Answer.SAME)

        until = functools.partial(self.call, OVER, None, bool)
        with_retries(step, until=until, sleep=sleep, give_up_after=give_up_after)


def task_result(
    aggregator: Aggregator, roster: SiloRoster, task: AggregatorTask
) -> tuple[TaskResult, str]:
    """Returns an aggregator's answer to a task, and a description of the answer for the log.

    Args:
        aggregator: aggregator with its keys and journal.
        roster: roster with the keys of all silos and aggregators, which the coordinator can't
            change.
        task: the task that the coordinator sent.
    """
    known = {*roster.aggregators, *roster.identities}
    try:
        if not known.issuperset((*task.terms.aggregators, *task.terms.silos)):
            raise ValueError("terms must contain only names and keys from the roster")
        return (digest(task), aggregator.answer(task)), task.step.value
    except ValueError as error:
        return (digest(task), str(error)), f"{task.step.value} was refused: {error}"


class AggregatorService:
    """Hands out tasks to aggregators that connect to the coordinator.

    An aggregator that was killed and restarted gets the same task again and repeats its answer.
    Objects of this class are safe to use from several threads.

    Args:
        names: names of the aggregators, in the order of their numbers.
        seconds: time limit in seconds for an aggregator's message in one step.

    Attributes:
        asks: functions that send a task to an aggregator and return its message, one for each
            aggregator; `Coordinator` takes them as `aggregators`.
    """

    def __init__(self, names: Sequence[str], *, seconds: float = 120.0) -> None:
        self.names = tuple(names)
        self.asks: list[Ask] = [functools.partial(self._ask, name) for name in self.names]
        self._seconds = seconds
        self._changed = threading.Condition()
        self._tasks: dict[str, AggregatorTask] = {}
        self._results: dict[str, str | AggregatorMessage] = {}

    def _ask(self, name: str, task: AggregatorTask) -> AggregatorMessage:
        """Waits until an aggregator has answered a task; each aggregator has one task at a time."""
        with self._changed:
            self._results.pop(name, None)
            self._tasks[name] = task
            self._changed.notify_all()
            try:
                if not self._changed.wait_for(lambda: name in self._results, self._seconds):
                    raise TimeoutError(f"{name} did not answer within {self._seconds:g} seconds")
                result = self._results.pop(name)
            finally:
                del self._tasks[name]
        if isinstance(result, str):
            raise ProtocolError(f"{name} refuses: {result}")
        return result

    def poll(self, request: None, caller: Caller) -> AggregatorTask | None:
        """Waits for a task for the caller and returns it; None if the wait ends without a task."""
        return caller.wait_for(lambda: self._tasks.get(caller.name), self._changed)

    def submit(self, request: TaskResult, caller: Caller) -> Answer:
        """Accepts or rejects the result of the caller's task; see `Answer`."""
        task_digest, result = request
        if isinstance(result, str):
            result = result[:MAX_REFUSAL_LENGTH]
        with self._changed:
            task = self._tasks.get(caller.name)
            if task is None or digest(task) != task_digest:
                return Answer.LATE
            taken = self._results.setdefault(caller.name, result)
            self._changed.notify_all()
        return Answer.OK if taken == result else Answer.CONFLICT


def coordinator_services(
    journal: CoordinatorJournal, aggregators: AggregatorService | None = None
) -> list[Service]:
    """Returns the services that the coordinator offers: one for silos, and one for aggregators.

    Only the named silos and aggregators may call them. `TlsServer` serves them over gRPC;
    `pate_tf.flower` serves them over Flower.

    Args:
        journal: hands out batches to silos and accepts their replies.
        aggregators: hands out tasks to aggregators; None without secure aggregation.
    """

    def submit(reply: Reply, caller: Caller) -> Answer:
        if reply.silo != caller.name:
            raise PermissionError("the silo of a reply must be the name in the certificate")
        if isinstance(reply, Refusal):
            _log.warning("%s refused %s: %s", reply.silo, reply.batch_id, reply.reason.value)
        return journal.submit(reply)

    def poll(request: None, caller: Caller) -> QueryBatch | None:
        return caller.wait_for(lambda: journal.poll(caller.name), journal.changed)

    methods: dict[str, Any] = {"Poll": (None, poll), "Submit": (Reply, submit)}
    services = [Service(name=SILOS, callers=journal.names, methods=methods)]
    if aggregators is not None:
        methods = {"Poll": (None, aggregators.poll), "Submit": (TaskResult, aggregators.submit)}
        services.append(Service(name=AGGREGATORS, callers=aggregators.names, methods=methods))
    return services
