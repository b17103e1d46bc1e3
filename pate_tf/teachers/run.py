"""A whole training run: partition, train what is missing, export, evaluate."""

import dataclasses
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import tensorflow as tf

from pate_tf import artifacts
from pate_tf.models import catalogue, classifier
from pate_tf.partition import Partition
from pate_tf.records import PrivateExamples, PublicExamples
from pate_tf.teachers import classifiers, logs
from pate_tf.teachers import ensemble as ensembles
from pate_tf.teachers.cluster import Cluster
from pate_tf.teachers.config import TeacherConfig
from pate_tf.teachers.store import TeacherStore, load_finished, read_finished
from pate_tf.teachers.training import (
    DataParallelTrainer,
    EnsembleParallelTrainer,
    TeacherData,
    TeacherState,
    Trainer,
)

SECONDS_A_CALL = 5.0  # of the training loop: how often a long training can be saved
SECONDS_BETWEEN_SAVES = 10.0

PARALLELISMS = ("ensemble", "data")

Progress = Callable[[int], object]


def ensemble_folder(run_directory: artifacts.RunDirectory) -> pathlib.Path:
    """Where a run keeps its ensemble: `sensitive/teachers/ensemble`."""
    return run_directory.sensitive / "teachers" / "ensemble"


def load_ensemble(folder: pathlib.Path) -> ensembles.Ensemble | classifiers.ClassifierEnsemble:
    """Loads the ensemble that `train` exported to a folder.

    Raises:
      ValueError: if there is none, or it is broken.
    """
    if classifiers.holds_classifiers(folder):
        return classifiers.ClassifierEnsemble(folder)
    return ensembles.Ensemble(folder)


def train(
    *,
    config: TeacherConfig,
    examples: PrivateExamples,
    partition: Partition,
    teachers: Sequence[int],
    run_directory: artifacts.RunDirectory,
    devices: tf.distribute.Strategy | Cluster,
    parallelism: str = "ensemble",
    merge_from: Sequence[artifacts.RunDirectory] = (),
    progress: Progress,
) -> bool:
    """Trains the teachers asked for that are not trained yet, and exports a complete ensemble.

    Every call with the same configuration and data ends in the same ensemble, however often it
    was stopped in between.

    Args:
      config: how they are trained.
      examples: the private records of all teachers.
      partition: who gets which record.
      teachers: the teachers to train in this process; none for a mere merge.
      run_directory: everything goes below its `sensitive/`.
      devices: a strategy over devices of this host, or a cluster of workers.
      parallelism: "ensemble" if each replica trains teachers of its own, "data" if all replicas
        train one teacher at a time; a cluster knows "ensemble" alone.
      merge_from: runs that trained other teachers of the same ensemble; theirs are taken over
        first.
      progress: called with the number of teachers that got done since its last call; at first
        with those found done.

    Returns:
      Whether the ensemble is complete and exported.

    Raises:
      ValueError: if a folder holds teachers of another configuration, one teacher twice, a mere
        merge leaves a gap, a teacher is out of range, or the parallelism is unknown.
    """
    if not (teachers or merge_from) or not set(teachers) <= set(range(config.num_teachers)):
        raise ValueError(f"teacher_id: expected teachers from 0 to {config.num_teachers - 1}")
    if parallelism not in PARALLELISMS:
        raise ValueError(f"parallelism: expected one of {PARALLELISMS}, got {parallelism!r}")
    if parallelism == "data" and isinstance(devices, Cluster):
        raise ValueError("parallelism: expected 'ensemble' on a cluster, got 'data'")
    are_classifiers = classifier.is_classifier(config.model, config.dataset)
    if are_classifiers and isinstance(devices, Cluster):
        raise ValueError(
            f"model: expected a Keras model on a cluster, got {config.model}; share others out by "
            f"--teacher_id and --merge_from"
        )
    if not are_classifiers:
        catalogue.build(config.model, config.dataset)  # a model that does not fit leaves no trace
    folder = run_directory.sensitive / "teachers"
    artifacts.remove_abandoned(run_directory.root)
    identity = {
        **config.to_dict(),
        "records": artifacts.digest_array(examples.inputs),
        "labels": artifacts.digest_array(examples.labels),
        "partition": artifacts.digest_array(partition.assignment),
    }
    store = TeacherStore(folder, identity)
    artifacts.write_arrays(
        folder / "partition.npz", {"assignment": partition.assignment}, private=True
    )
    store.merge([run.sensitive / "teachers" for run in merge_from])
    finished = store.finished()
    progress(len(finished.intersection(teachers)))
    missing = [teacher for teacher in teachers if teacher not in finished]
    if missing:
        data = TeacherData(config, examples, partition)
        if are_classifiers:
            trained = classifiers.train(config, examples, partition, missing)
        elif isinstance(devices, Cluster):
            trained = devices.train(data, missing, lambda one: _states(data, store, [one])[0])
        else:
            kind = DataParallelTrainer if parallelism == "data" else EnsembleParallelTrainer
            trained = _train_here(kind(data, devices), store, missing)
        with logs.throughput(run_directory, len(finished)) as log:
            _save(trained, store, lambda count: (progress(count), log(count)))
    done = store.finished()
    if not teachers and len(done) < config.num_teachers:
        gap = set(range(config.num_teachers)) - done
        raise ValueError(
            f"merge_from: expected all {config.num_teachers} teachers, {len(gap)} are missing, the "
            f"first is {min(gap)}"
        )
    if len(done) < config.num_teachers:
        return False
    target = ensemble_folder(run_directory)
    if missing or not target.exists():
        if are_classifiers:
            classifiers.save(target, config, read_finished(folder, config.num_teachers)[0])
        else:
            stacked, losses = load_finished(folder, config.num_teachers)
            ensembles.save(target, config, stacked)
            logs.write_losses(run_directory, losses)
    return True


def export_each(run_directory: artifacts.RunDirectory, config: TeacherConfig) -> pathlib.Path:
    """Writes every teacher as a SavedModel of its own; returns the folder that holds them.

    Raises:
      ValueError: if a teacher is not trained yet, or the teachers are scikit-learn's.
    """
    if classifier.is_classifier(config.model, config.dataset):
        raise ValueError("export_each: expected Keras teachers, got others, kept in one file")
    folder = run_directory.sensitive / "teachers"
    stacked, _ = load_finished(folder, config.num_teachers)
    target = folder / "each"
    with artifacts.atomic_folder(target) as temporary:
        ensembles.save_each(temporary, config, stacked)
    return target


def _save(
    trained: Iterator[tuple[int, TeacherState]], store: TeacherStore, progress: Progress
) -> None:
    """Saves finished teachers, several to a file, at most every few seconds."""
    unsaved: dict[int, TeacherState] = {}
    last_save = time.monotonic()
    for teacher, state in trained:
        unsaved[teacher] = state
        progress(1)
        if time.monotonic() - last_save > SECONDS_BETWEEN_SAVES:
            store.save_finished(unsaved)
            unsaved = {}
            last_save = time.monotonic()
    store.save_finished(unsaved)


def _train_here(
    trainer: Trainer, store: TeacherStore, missing: list[int]
) -> Iterator[tuple[int, TeacherState]]:
    """Yields finished teachers; keeps the state of those that take long."""
    num_steps = 1  # the first call traces the graph; later ones adapt to its speed
    for start in range(0, len(missing), trainer.group_size):
        group = missing[start : start + trainer.group_size]
        states = _states(trainer.data, store, group)
        last_save = time.monotonic()
        while states[0].step < trainer.data.config.max_steps:
            began = time.monotonic()
            states = trainer.advance(group, states, num_steps)
            now = time.monotonic()
            speed = num_steps / max(now - began, 1e-3)
            most = min(100.0 * num_steps, float(trainer.data.config.max_steps))
            num_steps = max(1, round(min(SECONDS_A_CALL * speed, most)))
            if now - last_save > SECONDS_BETWEEN_SAVES:
                for teacher, state in zip(group, states, strict=True):
                    store.save_training(teacher, state)
                last_save = now
        yield from zip(group, states, strict=True)


def _states(data: TeacherData, store: TeacherStore, group: Sequence[int]) -> list[TeacherState]:
    begun = [store.load_training(teacher) for teacher in group]
    steps = {state.step for state in begun if state is not None}
    if len(steps) == 1 and None not in begun:
        return [state for state in begun if state is not None]
    return [data.initial_state(teacher) for teacher in group]


@dataclasses.dataclass(frozen=True)
class Accuracies:
    """Sensitive: accuracy of each teacher on public samples, float64 `[num_teachers]`."""

    values: np.ndarray = dataclasses.field(repr=False)

    @property
    def mean(self) -> float:
        """Mean over the teachers."""
        return float(self.values.mean())


def evaluate(
    ensemble: ensembles.Ensemble | classifiers.ClassifierEnsemble,
    public: PublicExamples,
    run_directory: artifacts.RunDirectory,
    progress: Progress | None = None,
) -> Accuracies:
    """Compares every teacher's votes with the public labels; logs percentiles to TensorBoard."""
    votes = ensemble.votes(public.inputs, progress)
    values = (votes.labels == public.labels).mean(axis=1)
    logs.write_accuracies(run_directory, ensemble.config, values)
    return Accuracies(values)
