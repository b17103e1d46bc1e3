"""Trains teachers: checks, checkpoints, training, and loading of what was trained."""

import pathlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from pate_tf.api.reporting import Reporting
from pate_tf.core import artifacts
from pate_tf.core.partition import Partition
from pate_tf.core.public import PublicExamples
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.validation import IntArray
from pate_tf.data.named_function import name_of
from pate_tf.models import catalogue as models
from pate_tf.models import classifier, closed_form
from pate_tf.models import fingerprint as descriptions
from pate_tf.models.catalogue import check_draws
from pate_tf.models.encoder import Encoder
from pate_tf.teachers import classifiers, cluster, keras_fit, logs, on_features, records, store
from pate_tf.teachers import ensemble as ensembles
from pate_tf.teachers.cluster import Cluster
from pate_tf.teachers.on_features import is_on_features
from pate_tf.teachers.settings import TeacherConfig
from pate_tf.teachers.store import TeacherStore, load_finished, read_class_sums, read_finished
from pate_tf.teachers.training import (
    DataParallelTrainer,
    EnsembleParallelTrainer,
    TeacherData,
    TeacherState,
    Trainer,
)

# What is checked before teachers are trained: data, places, workers.


REPORT = "teachers_report.json"
PATIENCE = 600.0  # seconds until workers that never answer are an error


def wait_for_workers(config: dict[str, Any], reporting: Reporting) -> None:
    """Waits until all workers answer, and says once which ones don't.

    Raises:
      ValueError: if an address is none, or some don't answer within ten minutes.
    """
    missing = cluster.missing_workers(config)
    if missing:
        reporting.warn(
            f"TF_CONFIG: waiting for the workers {', '.join(missing)}, which don't answer"
        )
    with reporting.clock("waiting for workers"):
        began = time.monotonic()
        while missing:
            if time.monotonic() - began > PATIENCE:
                raise ValueError(f"TF_CONFIG: expected workers, got none at {', '.join(missing)}")
            time.sleep(1.0)
            missing = cluster.missing_workers(config)


def check_places(directory: artifacts.RunDirectory) -> None:
    """Checks that all can be written that teachers write.

    Raises:
      ValueError: if something can't.
    """
    sensitive = artifacts.SENSITIVE
    directory.check(
        files=[f"{sensitive}/{REPORT}"],
        folders=[
            *(sensitive, f"{sensitive}/teachers", f"{sensitive}/teachers/ensemble"),
            *(f"{sensitive}/logs", f"{sensitive}/logs/teachers"),
        ],
    )


def kept_teachers(runs: Sequence[artifacts.RunDirectory]) -> list[pathlib.Path]:
    """Returns the folders where other runs keep their teachers; creates none.

    Raises:
      ValueError: if one keeps none.
    """
    folders = [run.teachers for run in runs]
    store.check_kept(folders)
    return folders


def check_data(examples: PrivateExamples, public: PublicExamples, num_classes: int | None) -> None:
    """Checks data before anything is trained on them.

    Raises:
      ValueError: if both sides are not of one data set, or the number of classes is not the
        expected one.
    """
    dataset = examples.dataset
    if num_classes not in (None, dataset.num_classes):
        raise ValueError(
            f"num_classes: {dataset.name} has {dataset.num_classes} classes, got {num_classes}"
        )
    if difference := public.dataset.difference(dataset):
        raise ValueError(
            f"dataset: expected public samples of the private records' data set {dataset.name}, "
            f"got others: {difference}"
        )


# Teachers are trained step by step, saved on the way, and go on where they were stopped.


SECONDS_A_CALL = 5.0  # of the training loop: how often a long training can be saved
SECONDS_BETWEEN_SAVES = 10.0
MOST_UNSAVED = 16 * 2**20  # bytes of finished teachers

Progress = Callable[[int], object]


def save_all(
    trained: Iterator[tuple[int, TeacherState]], store: TeacherStore, progress: Progress
) -> None:
    """Saves finished teachers, several to a file: every few seconds, or where they get large."""
    unsaved: dict[int, TeacherState] = {}
    sums: IntArray | None = None
    num_bytes, last_save = 0, time.monotonic()
    for teacher, state in trained:
        if state.class_sums is not None:  # of thousands of teachers one is in memory
            sums = state.class_sums if sums is None else sums + state.class_sums
            state.class_sums = None
        unsaved[teacher] = state
        num_bytes += sum(array.nbytes for array in (*state.weights, *state.buffers))
        progress(1)
        if time.monotonic() - last_save > SECONDS_BETWEEN_SAVES or num_bytes > MOST_UNSAVED:
            store.save_finished(unsaved, class_sums=sums)
            unsaved, sums = {}, None
            num_bytes, last_save = 0, time.monotonic()
    store.save_finished(unsaved, class_sums=sums)


def train_here(
    trainer: Trainer, store: TeacherStore, missing: list[int]
) -> Iterator[tuple[int, TeacherState]]:
    """Yields finished teachers; keeps the state of those that take long."""
    num_steps = 1  # the first call traces the graph; later ones adapt to its speed
    for start in range(0, len(missing), trainer.group_size):
        group = missing[start : start + trainer.group_size]
        states = [going_on(trainer.data, store, teacher) for teacher in group]
        longest = max(trainer.data.num_steps(teacher) for teacher in group)
        last_save = time.monotonic()
        while any(
            state.step < trainer.data.num_steps(teacher)
            for teacher, state in zip(group, states, strict=True)
        ):
            began = time.monotonic()
            states = trainer.advance(group, states, num_steps)
            now = time.monotonic()
            speed = num_steps / max(now - began, 1e-3)
            most = min(100.0 * num_steps, float(longest))
            num_steps = max(1, round(min(SECONDS_A_CALL * speed, most)))
            if now - last_save > SECONDS_BETWEEN_SAVES:
                for teacher, state in zip(group, states, strict=True):
                    store.save_training(teacher, state)
                last_save = now
        yield from zip(group, states, strict=True)


def going_on(data: TeacherData, store: TeacherStore, teacher: int) -> TeacherState:
    """Returns what a teacher goes on from."""
    begun = store.load_training(teacher)
    return data.initial_state(teacher) if begun is None else begun


# A whole training run: partition, train what is missing, export, evaluate.


PARALLELISMS = ("ensemble", "data")


def ensemble_folder(run_directory: artifacts.RunDirectory) -> pathlib.Path:
    """Where a run keeps its ensemble: `sensitive/teachers/ensemble`."""
    return run_directory.teachers / "ensemble"


def load_ensemble(folder: pathlib.Path) -> ensembles.Ensemble | classifiers.ClassifierEnsemble:
    """Loads the ensemble that `train` exported to a folder.

    Raises:
      ValueError: if there is none, or it is broken.
    """
    if classifiers.holds_classifiers(folder):
        return classifiers.ClassifierEnsemble(folder)
    return ensembles.Ensemble(folder)


def needs_encoder(config: TeacherConfig) -> bool:
    """Whether teachers learn from features, which a public pool says what they are."""
    return config.representation is not None


def check_representation(config: TeacherConfig) -> None:
    """Raises ValueError unless model and representation of a configuration fit each other."""
    if config.representation is None or is_on_features(config.model):
        return
    if not classifier.is_classifier(config.model, config.dataset):
        raise ValueError(
            f"representation: expected with {', '.join(closed_form.NAMES)} or a classifier of "
            f"scikit-learn alone, got {name_of(config.representation)} with {name_of(config.model)}"
        )


def is_compiled(config: TeacherConfig) -> bool:
    """Whether teachers are Keras models with an optimizer of their own.

    Raises:
      ValueError: if the model is unknown or does not fit the data set.
    """
    if is_on_features(config.model) or classifier.is_classifier(config.model, config.dataset):
        return False
    return bool(models.build(config.model, config.dataset).compiled)


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
    callbacks: keras_fit.Callbacks | None = None,
    num_processes: int | None = None,
    encoder: Encoder | None = None,
    verbose: bool = False,
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
      callbacks: for `fit` of compiled Keras models; see `keras_fit.new_callbacks`.
      num_processes: how many fit classifiers of scikit-learn side by side; None for one a core.
      encoder: what teachers on features take for an input; see `needs_encoder`.
      verbose: whether Keras draws progress bars of its own.
      progress: called with the number of teachers that got done since its last call; at first
        with those found done.

    Returns:
      Whether the ensemble is complete and exported.

    Raises:
      ValueError: if a folder holds teachers of another configuration, one teacher twice, a mere
        merge leaves a gap, a teacher is out of range, the parallelism is unknown, or an owner that
        is protected has records with two teachers.
    """
    if not (teachers or merge_from) or not set(teachers) <= set(range(config.num_teachers)):
        raise ValueError(f"teachers: expected teachers from 0 to {config.num_teachers - 1}")
    if parallelism not in PARALLELISMS:
        raise ValueError(f"parallelism: expected one of {PARALLELISMS}, got {parallelism!r}")
    if parallelism == "data" and isinstance(devices, Cluster):
        raise ValueError("parallelism: expected 'ensemble' on a cluster, got 'data'")
    check_representation(config)
    if needs_encoder(config) != (encoder is not None):
        raise ValueError("encoder: expected one with a representation alone, and always with one")
    by_formula = is_on_features(config.model)
    are_classifiers = not by_formula and classifier.is_classifier(config.model, config.dataset)
    if (are_classifiers or by_formula) and isinstance(devices, Cluster):
        raise ValueError(
            f"model: expected a Keras model on a cluster, got {name_of(config.model)}; train "
            f"parts of the others on each machine and merge them"
        )
    # Before anything is written: what does not fit leaves no trace.
    others = kept_teachers(merge_from)
    described = None
    if not by_formula:
        describe = descriptions.estimator_of if are_classifiers else descriptions.architecture_of
        learns_on = config.dataset if encoder is None else encoder.feature_dataset
        described = describe(config.model, learns_on)
        if are_classifiers:
            classifier.check_learns(config.model, learns_on)
    built = None if by_formula or are_classifiers else models.build(config.model, config.dataset)
    by_fit = built is not None and bool(built.compiled)
    if built is not None:
        check_draws(built, training=not by_fit)
    if by_fit:
        keras_fit.check_separate(config, callbacks)
        if config.class_weights is not None:
            raise ValueError(
                "class_weights: expected none with a compiled model, whose loss has its own"
            )
    elif callbacks:
        raise ValueError("callbacks: expected with a compiled Keras model alone, got them without")
    if by_fit and (parallelism == "data" or isinstance(devices, Cluster)):
        raise ValueError(
            "model: expected one that is not compiled where several devices or hosts train one "
            "teacher or another, got a compiled one, which Keras trains by itself"
        )
    folder = run_directory.sensitive / "teachers"
    artifacts.remove_abandoned(run_directory.root)
    # In the order in which differences are told: digests, which say little, at last.
    identity = {
        **config.to_dict(),
        "architecture": None if are_classifiers else described,
        "estimator": described if are_classifiers else None,
        "records": artifacts.digest_array(examples.inputs),
        "labels": artifacts.digest_array(examples.labels),
        "partition": artifacts.digest_array(partition.assignment),
    }
    if by_fit:
        identity["callbacks"] = descriptions.certain(
            lambda: {"made": descriptions.plain(keras_fit.new_callbacks(callbacks))}
        )
    if encoder is not None:
        identity["encoder"] = encoder.digest
    if by_formula and partition.unit == "owner":  # class sums go by who belongs together
        owners = None if examples.owners is None else partition.numbered(examples.owners)
        identity["owners"] = None if owners is None else artifacts.digest_array(owners)
    store = TeacherStore(folder, identity)
    artifacts.write_arrays(
        folder / "partition.npz", {"assignment": partition.assignment}, private=True
    )
    records.keep(folder, examples.inputs)
    store.merge(others)
    finished = store.finished()
    progress(len(finished.intersection(teachers)))
    missing = [teacher for teacher in teachers if teacher not in finished]
    if missing:
        if encoder is not None and by_formula:
            trained = on_features.train(config, examples, partition, missing, encoder)
        elif are_classifiers:
            trained = classifiers.train(
                config,
                examples,
                partition,
                missing,
                num_processes=num_processes,
                encoder=encoder,
            )
        elif by_fit:
            trained = keras_fit.train(
                config, examples, partition, missing, callbacks=callbacks, verbose=verbose
            )
        elif isinstance(devices, Cluster):
            data = TeacherData(config, examples, partition)
            trained = devices.train(data, missing, lambda one: going_on(data, store, one))
        else:
            data = TeacherData(config, examples, partition)
            kind = DataParallelTrainer if parallelism == "data" else EnsembleParallelTrainer
            trained = train_here(kind(data, devices), store, missing)
        with logs.throughput(run_directory, len(finished)) as log:
            save_all(trained, store, lambda count: (progress(count), log(count)))
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
            by_teacher, _ = read_finished(folder, config.num_teachers)
            classifiers.save(target, config, by_teacher, encoder=encoder)
        elif encoder is not None:
            # Not named here: saving lets go of what TensorFlow has a copy of.
            ensembles.save(
                target,
                config,
                load_finished(folder, config.num_teachers)[0]
                if closed_form.is_linear(str(config.model))
                else closed_form.stack(
                    str(config.model), read_finished(folder, config.num_teachers)[0]
                ),
                encoder=encoder,
                class_sums=read_class_sums(folder),
            )
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
    if is_on_features(config.model) or classifier.is_classifier(config.model, config.dataset):
        raise ValueError("export_each: expected Keras teachers, got others, kept in one file")
    folder = run_directory.sensitive / "teachers"
    stacked, _ = load_finished(folder, config.num_teachers)
    target = folder / "each"
    with artifacts.atomic_folder(target) as temporary:
        ensembles.save_each(temporary, config, stacked)
    return target
