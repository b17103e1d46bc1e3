"""Teachers on several hosts: independent of each other, so scheduled rather than synchronised.

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

from pate_tf.teachers.store import TrainedTeacher
from pate_tf.teachers.training import TeacherData, TrainingLoop, trained_teacher

# The `tf.distribute` strategy that suits the machine.


def choose_strategy() -> tf.distribute.Strategy:
    """All GPUs of this host, one replica each; else the one GPU, else the CPU."""
    gpus = tf.config.list_logical_devices("GPU")
    if len(gpus) > 1:
        return tf.distribute.MirroredStrategy([device.name for device in gpus])
    return tf.distribute.OneDeviceStrategy(gpus[0].name if gpus else "/CPU:0")


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


class _Result:
    """What a worker computes, and holds until it is fetched."""

    def __init__(self, schedule: Callable[[], Any]) -> None:
        """Has it computed: `schedule` hands it to some worker and returns a promise."""
        self._schedule = schedule
        self._promised = schedule()

    def fetch(self, *, attempts: int) -> Any:
        """Returns it; has it computed anew, `attempts` times at most, where its worker died."""
        for _ in range(attempts - 1):
            try:
                return self._promised.fetch()
            except (tf.errors.UnavailableError, tf.errors.AbortedError):
                self._promised = self._schedule()
        return self._promised.fetch()


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
        waiting: collections.deque[tuple[int, _Result]] = collections.deque()
        for teacher in teachers:
            arguments = data.arguments(teacher)
            schedule = functools.partial(self._coordinator.schedule, run, args=arguments)
            waiting.append((teacher, _Result(schedule)))
            if len(waiting) == AHEAD * self.num_workers:
                yield self._fetched(*waiting.popleft())
        while waiting:
            yield self._fetched(*waiting.popleft())

    def _fetched(self, teacher: int, result: _Result) -> tuple[int, TrainedTeacher]:
        return teacher, trained_teacher(*result.fetch(attempts=ATTEMPTS * self.num_workers))


def _free_address(host: str) -> str:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return f"{host}:{probe.getsockname()[1]}"
