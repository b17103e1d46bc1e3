"""Teachers that are scikit-learn estimators, stored in one file.

Estimators are fitted in parallel processes, because fitting a small classifier is mostly Python
code, which threads can't run in parallel. Estimators vote in threads, because prediction is
compiled code.
"""

import collections
import concurrent.futures
import multiprocessing
import os
import pathlib
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts, checks, environment
from pate_tf.core.sensitive import Votes
from pate_tf.models import estimators, forest
from pate_tf.teachers.teacher_kinds import TeacherKind, TrainedTeacher, TrainedTeachers, TrainingJob
from pate_tf.teachers.teacher_settings import TeacherConfig
from pate_tf.teachers.voters import Ensemble, Progress

FILE = "classifiers.npz"
AHEAD = 4  # number of queued tasks per process, so that no process waits
ENCODER = "encoder"  # subfolder for the encoder's SavedModel, if classifiers learn from features

Result = TypeVar("Result")


class ClassifierEnsemble(Ensemble):
    """SENSITIVE: a stored ensemble of teachers that are scikit-learn estimators."""

    def __init__(self, folder: pathlib.Path, config: TeacherConfig) -> None:
        """Loads the folder that `Classifiers.save` wrote.

        Raises:
            ValueError: if the folder does not contain classifiers, or their encoder is missing.
        """
        arrays = artifacts.read_arrays(folder / FILE)
        parts: list[list[npt.NDArray[Any]]] = [[] for _ in range(config.num_teachers)]
        for name, array in arrays.items():  # in the order in which they were written
            parts[int(name.partition("/")[0])].append(array)
        self._classifiers = [estimators.from_arrays(of_teacher) for of_teacher in parts]
        learnt = artifacts.digest_arrays(arrays[name] for name in sorted(arrays))
        self._encoder: Any = None
        if config.representation is not None:
            # Imported here, so that training processes start without TensorFlow.
            from pate_tf.models.encoder import SavedEncoder

            self._encoder = SavedEncoder(folder / ENCODER, config.dataset)
            learnt += self._encoder.digest
            self.encoder_digest = self._encoder.digest
            self.encoder_weights = tuple(self._encoder.loaded.learnt)
        super().__init__(config, learnt)

    def votes(self, inputs: npt.NDArray[Any], progress: Progress = lambda count: None) -> Votes:
        """See `Voter.votes`."""
        checks.shape(["num_queries", *self.dataset.input_shape], queries=inputs)
        rows = inputs if self._encoder is None else self._encoder.features(inputs)
        with (
            warnings.catch_warnings(),
            concurrent.futures.ThreadPoolExecutor(num_cores()) as threads,
        ):
            warnings.simplefilter("ignore")  # warnings can depend on private records
            labels = list(
                threads.map(lambda fitted: fitted.predict(rows, self.dataset), self._classifiers)
            )
        progress(len(inputs))
        return Votes(np.stack(labels), self.dataset.num_classes, self.dataset)


class Classifiers(TeacherKind):
    """Teachers that are random forests, or scikit-learn estimators from a user's function."""

    name = "scikit_learn"
    features = "optional"
    load = ClassifierEnsemble

    def takes(self, built: Any) -> bool:
        """See `TeacherKind.takes`."""
        return estimators.is_storable(built)

    def check(self, job: TrainingJob) -> None:
        """See `TeacherKind.check`."""
        estimators.check_learns(job.config.model, job.learns_on)

    def definition(self, job: TrainingJob) -> dict[str, Any]:
        """See `TeacherKind.definition`."""
        from pate_tf.models.architectures import definition_of

        estimator = definition_of(forest.unfitted(job.config.model, job.learns_on))
        parts = {f"estimator {name}": value for name, value in estimator.items()}
        return {**super().definition(job), **parts}

    def train(self, job: TrainingJob, teachers: Sequence[int]) -> TrainedTeachers:
        """See `TeacherKind.train`. The result does not depend on the number of processes.

        If there are several processes, every process must be able to import the model.
        """
        config = job.config
        arguments = (
            (
                config.model,
                job.learns_on,
                inputs,
                labels,
                int(np.random.SeedSequence([config.seed, teacher]).generate_state(1)[0]),
            )
            for teacher, inputs, labels in job.shards(teachers)
        )
        num_processes = min(job.num_processes or num_cores(), len(teachers))
        fitted = in_order(estimators.fit, arguments, num_processes=num_processes)
        for teacher in sorted(teachers):
            yield teacher, TrainedTeacher(next(fitted))

    def save(
        self, folder: pathlib.Path, job: TrainingJob, teachers: Sequence[TrainedTeacher]
    ) -> None:
        """See `TeacherKind.save`."""
        arrays = {
            f"{place}/{part}": array
            for place, teacher in enumerate(teachers)
            for part, array in enumerate(teacher.arrays)
        }
        artifacts.write_arrays(folder / FILE, arrays, private=True)
        if job.encoder is not None:
            from pate_tf.models.encoder import save_encoder

            save_encoder(folder / ENCODER, job.encoder)


def num_cores() -> int:
    """Returns the number of CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(
    function: Callable[..., Result], arguments: Iterable[tuple[Any, ...]], *, num_processes: int
) -> Iterator[Result]:
    """Calls a function in parallel processes, and yields its results in the order of arguments.

    New arguments are taken only when results are consumed, so that few of them are in memory at a
    time. The processes end with the calling process, even if the calling process is killed.

    Args:
        function: function of a module that every process imports. The import should be fast.
        arguments: iterable of tuples of arguments.
        num_processes: number of processes; 1 to use only the calling process.
    """
    if num_processes == 1:
        for each in arguments:
            yield function(*each)
        return
    processes = concurrent.futures.ProcessPoolExecutor(
        num_processes,
        mp_context=multiprocessing.get_context("spawn"),  # TensorFlow can't be used after a fork
        initializer=environment.start_worker,
    )
    waiting: collections.deque[concurrent.futures.Future[Result]] = collections.deque()
    try:
        for each in arguments:
            waiting.append(processes.submit(function, *each))
            if len(waiting) == AHEAD * num_processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        processes.shutdown(cancel_futures=True)


SCIKIT_LEARN = Classifiers()
