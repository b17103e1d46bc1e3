"""Teachers on several hosts: independent of each other, so scheduled rather than synchronized.

TensorFlow's `ClusterCoordinator` hands "train teacher i" to whichever worker is free, and again to
another if a worker dies. `TF_CONFIG` names the workers:

    {"cluster": {"worker": ["host1:2222", "host2:2222"]}, "task": {"type": "worker", "index": 0}}

with `"task": {"type": "chief", "index": 0}` for the process that coordinates, saves and exports.
Records and weights travel between chief and workers unencrypted: keep them on a trusted network.
"""

import collections
import functools
import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from pate_tf.teachers.kinds import TrainedTeacher
from pate_tf.teachers.training import TeacherData, TrainingLoop, trained_teacher

ATTEMPTS = 3  # for each worker, to compute what was lost with workers that died
AHEAD = 3  # teachers scheduled for each worker, so that none waits for the chief


def of_tf_config() -> "Cluster | None":
    """Returns the cluster whose chief `TF_CONFIG` names; None where it is not set.

    Where it names a worker, this process serves as that worker until it is ended.

    Raises:
        ValueError: if it names neither.
    """
    text = os.environ.get("TF_CONFIG")
    if not text:
        return None
    try:
        config = json.loads(text)
        workers, task = config["cluster"]["worker"], config["task"]
        if not workers or task["type"] not in ("chief", "worker") or int(task["index"]) < 0:
            raise ValueError("no worker, or a task that is neither chief nor worker")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"TF_CONFIG: expected cluster.worker and a task of type chief or worker, got {error}"
        ) from error
    if task["type"] == "worker":
        server = tf.distribute.Server(
            tf.train.ClusterSpec({"worker": workers}),
            job_name="worker",
            task_index=int(task["index"]),
        )
        server.join()
    return Cluster(config)


class Cluster:
    """The chief's side of a cluster.

    Attributes:
        num_workers: number of workers.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        """Connects to the workers of `TF_CONFIG`; waits until they have started."""
        workers = list(config["cluster"]["worker"])
        self.num_workers = len(workers)
        # The strategy wants a parameter server, and nothing here has parameters to serve.
        chief = config["cluster"].get("chief", [_free_address("127.0.0.1")])[0]
        own_host = chief.rpartition(":")[0]
        spec = tf.train.ClusterSpec(
            {"worker": workers, "chief": [chief], "ps": [_free_address(own_host)]}
        )
        self._parameter_server = tf.distribute.Server(spec, job_name="ps", task_index=0)
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            spec, task_type="chief", task_id=0, rpc_layer="grpc"
        )
        self._coordinator = tf.distribute.coordinator.ClusterCoordinator(
            tf.distribute.ParameterServerStrategy(resolver)
        )

    def train(
        self, data: TeacherData, teachers: Sequence[int]
    ) -> Iterator[tuple[int, TrainedTeacher]]:
        """Yields trained teachers, in the order of `teachers`."""
        run = tf.function(TrainingLoop(data.config).run, autograph=False)
        # What workers compute, and hold until it is fetched.
        waiting: collections.deque[tuple[int, Callable[[], Any], Any]] = collections.deque()
        for teacher in teachers:
            arguments = data.arguments(teacher)
            schedule: Callable[[], Any] = functools.partial(
                self._coordinator.schedule, run, args=arguments
            )
            waiting.append((teacher, schedule, schedule()))
            if len(waiting) == AHEAD * self.num_workers:
                first, schedule, promised = waiting.popleft()
                yield first, trained_teacher(*self._fetched(schedule, promised))
        for teacher, schedule, promised in waiting:
            yield teacher, trained_teacher(*self._fetched(schedule, promised))

    def _fetched(self, schedule: Callable[[], Any], promised: Any) -> Any:
        """Returns what a worker computed; has it computed anew where its worker died."""
        for _ in range(ATTEMPTS * self.num_workers - 1):
            try:
                return promised.fetch()
            except (tf.errors.UnavailableError, tf.errors.AbortedError):
                promised = schedule()
        return promised.fetch()


def _free_address(host: str) -> str:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return f"{host}:{probe.getsockname()[1]}"
