"""A whole run of the teachers: settings, shares, training, accuracy, report.

`pate_tf.Teachers.fit` and `train_teachers.py` both go through `train_teachers`.
"""

import contextlib
import dataclasses
import pathlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core import artifacts, event_files
from pate_tf.core import partition as partitions
from pate_tf.core.dataset import Dataset
from pate_tf.core.partition import Partition
from pate_tf.core.public import Pool, PublicExamples
from pate_tf.core.record_set import keyed_sum, record_digests
from pate_tf.core.reporting import NOT_MEASURED, QUIET, UNEVEN, Reporting, Row, RunReport
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.data.named_function import Named, name_of
from pate_tf.ledger.rollback_guard import warn_of_same_records
from pate_tf.models import catalogue as models
from pate_tf.models.encoder import Encoder
from pate_tf.representations import catalogue as representations
from pate_tf.students.evaluation import true_labels
from pate_tf.teachers import cluster, kinds, voters
from pate_tf.teachers.kinds import Engine, TeacherKind, Work, load_ensemble
from pate_tf.teachers.run_folder import (
    DEFAULT_NUM_TEACHERS,
    DataSource,
    RunDescription,
    TeacherRun,
    default_folder,
    ensemble_folder,
)
from pate_tf.teachers.settings import TeacherConfig, TeacherSettings
from pate_tf.teachers.store import Finished, TeacherStore, check_folders
from pate_tf.teachers.voters import Ensemble, Voter

OF_IMAGES = "ridge"  # the model of a teacher of images, where none is named
REPORT = "teachers_report.json"
PATIENCE = 600.0  # seconds until workers that never answer are an error

Progress = Callable[[int], object]


# Shares.


def shares_of(
    examples: PrivateExamples,
    *,
    num_teachers: int,
    seed: int,
    partition_file: pathlib.Path | None = None,
) -> Partition:
    """Shares out records: by a file (`assigned_partition`), by owners, or at random.

    Raises:
        ValueError: if the file is broken or does not fit.
    """
    if partition_file is not None:
        given = artifacts.read_array(partition_file)
        if given.ndim == 1 and len(given) != len(examples):
            raise ValueError(
                "partition: expected the teacher of each record, got another number of them"
            )
        shares = partitions.assigned_partition(given, num_teachers=num_teachers)
        if shares.num_records != len(examples):
            raise ValueError("partition: expected the teacher of each record, got others")
        return shares
    if examples.owners is not None:
        return partitions.owner_partition(examples.owners, num_teachers=num_teachers, seed=seed)
    return partitions.random_partition(
        num_records=len(examples), num_teachers=num_teachers, seed=seed
    )


# Settings with all gaps filled.

RECORDS_A_TEACHER = 30
RECORDS_A_CLASS = 3


def chosen_model(
    settings: TeacherSettings, dataset: Dataset, *, has_pool: bool = True, on_cluster: bool = False
) -> Named:
    """Returns the model of a teacher; where none is named, what the guide recommends.

    Of images that is ridge regression on features of the public pool. A small network it is for
    other data, without a pool, on a cluster, and with settings that only networks have.
    """
    if settings.model is not None:
        return settings.model
    wants_network = any(getattr(settings, name) is not None for name in kinds.OF_STEPS)
    if settings.representation is not None:
        return OF_IMAGES
    if dataset.kind == "image" and has_pool and not (on_cluster or wants_network):
        return OF_IMAGES
    return models.default_model(dataset)


def recommended_num_teachers(num_records: int, dataset: Dataset) -> int:
    """Recommends how many teachers learn from features, by public values alone.

    The number of private records counts as public here, as it does in the partition, the ledger and
    every statement, where records are protected. Where owners are it is private.
    """
    # Half as many, for twice the teachers: votes were a point better on the pools of MNIST and
    # Fashion-MNIST at an epsilon of .1, no better at .25, and up to two points worse at 1.
    each = max(RECORDS_A_TEACHER, RECORDS_A_CLASS * dataset.num_classes)
    return max(1, num_records // each)


def complete_settings(
    settings: TeacherSettings,
    dataset: Dataset,
    shares: Partition,
    *,
    has_pool: bool = True,
    on_cluster: bool = False,
) -> tuple[TeacherKind, TeacherConfig]:
    """Fills in what follows from the data.

    Raises:
        ValueError: if a setting is out of range, or the model does not have it.
    """
    model = chosen_model(settings, dataset, has_pool=has_pool, on_cluster=on_cluster)
    kind = kinds.find_kind(model, dataset)
    kinds.check_settings(kind, settings, model)
    representation = representations.source_of(settings.representation)
    if representation is None and kind.representation == "required":
        representation = representations.default_of_teachers(dataset)
    given = {
        field.name: value
        for field in dataclasses.fields(TeacherSettings)
        if (value := getattr(settings, field.name)) is not None
    }
    facts = {"dataset": dataset, "num_teachers": shares.num_teachers, "unit": shares.unit}
    config = TeacherConfig(**{**given, **facts, "model": model, "representation": representation})
    return kind, config


def encoder_for(config: TeacherConfig, pool: Pool | None, reporting: Reporting) -> Encoder | None:
    """Returns what teachers take for an input; None for the raw input.

    Raises:
        ValueError: if a representation is to be trained and there is no pool, or it does not fit.
    """
    if config.representation is None:
        return None
    if pool is None:
        raise ValueError(
            f"pool: expected public inputs with teachers of {name_of(config.model)}, got none: "
            f"their representation comes from there"
        )
    with reporting.clock("training a representation on the pool"):
        return representations.encoder_of(pool, config.representation, config.seed)


# Training.


def check_places(directory: artifacts.RunDirectory) -> None:
    """Raises ValueError unless all can be written that teachers write."""
    sensitive = artifacts.SENSITIVE
    directory.check(
        files=[f"{sensitive}/{REPORT}"],
        folders=[
            *(sensitive, f"{sensitive}/teachers", f"{sensitive}/teachers/ensemble"),
            *(f"{sensitive}/logs", f"{sensitive}/logs/teachers"),
        ],
    )


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """SENSITIVE: what `train_teachers` made.

    Attributes:
        directory: of the run.
        kind: of the teachers.
        config: what they were trained with.
        encoder: what makes features, for teachers on them.
        is_complete: whether all teachers are trained, and their ensemble is saved.
    """

    directory: artifacts.RunDirectory
    kind: TeacherKind
    config: TeacherConfig
    encoder: Encoder | None
    is_complete: bool

    def load(self) -> Ensemble:
        """Returns the ensemble."""
        return load_ensemble(ensemble_folder(self.directory))


def train_teachers(
    settings: TeacherSettings,
    examples: PrivateExamples,
    shares: Partition,
    *,
    pool: Pool | None,
    folder: pathlib.Path | None = None,
    teachers: Sequence[int] | None = None,
    merge_from: Sequence[artifacts.RunDirectory] = (),
    engine: Engine,
    source: DataSource | None = None,
    pool_size: int | None = None,
    reporting: Reporting = QUIET,
) -> Trained:
    """Trains what is missing of an ensemble, and saves a complete one.

    Args:
        settings: how the teachers learn.
        examples: the private records of all teachers.
        shares: who gets which record.
        pool: public inputs, for teachers on features; None for no such default.
        folder: of the run; None for `runs/DATASET-NUM_TEACHERS`.
        teachers: to train in this process; None for all.
        merge_from: see `train`.
        engine: what trains them.
        source: where the data came from, for `run.json`; None for arrays.
        pool_size: of the pool, where it is not the data set's own, for `run.json`.
        reporting: how progress is shown.

    Raises:
        ValueError: if something does not fit.
    """
    dataset, num_teachers = examples.dataset, shares.num_teachers
    kind, config = complete_settings(
        settings, dataset, shares, has_pool=pool is not None, on_cluster=engine.is_cluster
    )
    if settings.model is None:
        reporting.note(f"Teachers of {_in_words(kind, config)}, the default for these data")
    encoder = encoder_for(config, pool, reporting)
    directory = artifacts.RunDirectory(folder or default_folder(dataset.name, num_teachers))
    check_places(directory)
    asked = range(num_teachers) if teachers is None else teachers
    representation = config.representation
    description = RunDescription(
        data_name=dataset.name,
        num_classes=dataset.num_classes,
        unit=config.unit,
        num_teachers=num_teachers,
        model=name_of(config.model),
        representation=None if representation is None else name_of(representation),
        pool_size=pool_size,
        source={} if source is None else source.flags,
    )
    with reporting.progress_bar("training teachers", len(asked), "teacher") as advance:
        is_complete = train(
            kind=kind,
            config=config,
            examples=examples,
            partition=shares,
            teachers=asked,
            run_directory=directory,
            engine=engine,
            merge_from=merge_from,
            encoder=encoder,
            description=description,
            progress=advance,
        )
    return Trained(
        directory=directory, kind=kind, config=config, encoder=encoder, is_complete=is_complete
    )


def train(
    *,
    config: TeacherConfig,
    examples: PrivateExamples,
    partition: Partition,
    teachers: Sequence[int],
    run_directory: artifacts.RunDirectory,
    kind: TeacherKind | None = None,
    engine: Engine = Engine(),  # noqa: B008 (frozen)
    merge_from: Sequence[artifacts.RunDirectory] = (),
    encoder: Encoder | None = None,
    description: RunDescription | None = None,
    progress: Progress,
) -> bool:
    """Trains the teachers asked for that are not trained yet, and saves a complete ensemble.

    Every call with the same configuration and data ends in the same ensemble, however often it
    was stopped in between.

    Args:
        config: how they are trained.
        examples: the private records of all teachers.
        partition: who gets which record.
        teachers: the teachers to train in this process; none to merge alone.
        run_directory: everything goes below its `sensitive/`.
        kind: of the teachers; None to look it up.
        engine: what trains them.
        merge_from: runs that trained other teachers of the same ensemble; theirs are taken over
            first.
        encoder: what teachers on features take for an input.
        description: of the run; None for none.
        progress: called with the number of teachers that got done since its last call; at first
            with those that were done before.

    Returns:
        Whether the ensemble is complete and saved.

    Raises:
        ValueError: if something does not fit, a folder holds teachers of another configuration, one
            teacher twice, or a merge alone leaves a gap.
    """
    number = config.num_teachers
    if not (teachers or merge_from) or not set(teachers) <= set(range(number)):
        raise ValueError(f"teachers: expected teachers from 0 to {number - 1}")
    kind = kind or kinds.find_kind(config.model, config.dataset)
    work = Work(
        config=config, examples=examples, partition=partition, encoder=encoder, engine=engine
    )
    # Before anything is written: what does not fit leaves no trace.
    others = [run.teachers for run in merge_from]
    check_folders(others)
    kinds.check_work(kind, work)
    artifacts.remove_abandoned(run_directory.root)
    settings = {**config.to_dict(), "kind": kind.name, **kind.definition(work)}
    if encoder is not None:
        settings["encoder"] = encoder.digest
    store = TeacherStore(run_directory.teachers, settings, private_arrays(examples, partition))
    if description is not None:
        description.write(run_directory)
    folder = run_directory.teachers
    artifacts.write_arrays(
        folder / "partition.npz", {"assignment": partition.assignment}, private=True
    )
    stored = voters.records_in(folder)
    if stored is not None and examples.source is not None and examples.source.is_named:
        voters.store_records(folder, examples)  # a ledger of another source refuses this one
    elif stored is None:
        voters.store_records(folder, examples)
        content = keyed_sum(b"", record_digests(examples.inputs), examples.labels).tobytes()
        warn_of_same_records(examples.source, content, run_directory.sensitive)
    store.merge(others)
    finished = store.finished()
    progress(len(finished.intersection(teachers)))
    missing = [teacher for teacher in teachers if teacher not in finished]
    if missing:
        with throughput(run_directory, len(finished)) as log:
            store.save_all(
                kind.train(work, missing, store), lambda count: (progress(count), log(count))
            )
    gap = set(range(number)) - store.finished()
    if gap and not teachers:
        raise ValueError(
            f"merge_from: expected all {number} teachers, {len(gap)} are missing, the first is "
            f"{min(gap)}"
        )
    target = ensemble_folder(run_directory)
    if not gap and (missing or not target.exists()):
        done = Finished(folder, number)
        kinds.save_ensemble(kind, target, config, done, encoder)
        write_losses(run_directory, done.losses())
    return not gap


def private_arrays(examples: PrivateExamples, partition: Partition) -> list[npt.NDArray[Any]]:
    """SENSITIVE: returns all that teachers depend on besides public settings.

    Raises:
        ValueError: if owners are protected and one has records with two teachers.
    """
    arrays: list[npt.NDArray[Any]] = [examples.inputs, examples.labels, partition.assignment]
    if partition.unit == "owner" and examples.owners is not None:
        arrays.append(partition.numbered(examples.owners))
    return arrays


def export_each(
    kind: TeacherKind, directory: artifacts.RunDirectory, config: TeacherConfig
) -> pathlib.Path:
    """Writes every teacher as a SavedModel of its own; returns the folder that holds them.

    Raises:
        ValueError: if a teacher is not trained yet, or teachers of this kind have none.
    """
    target = directory.teachers / "each"
    with artifacts.atomic_folder(target) as temporary:
        kind.save_each(temporary, config, Finished(directory.teachers, config.num_teachers))
        artifacts.make_private(temporary)
    return target


# How often each teacher is right on public samples. SENSITIVE.

VOTES_A_PART = 2**18  # that are in memory at a time
# Of all teachers: asking thousands of them about all samples would take longer than training them,
# and show no more.
MOST_VOTES = 2**22
FEWEST_SAMPLES = 256


@dataclasses.dataclass(frozen=True)
class Accuracies:
    """SENSITIVE: how each teacher asked did on public samples.

    Attributes:
        values: accuracy of each, float64 `[num_asked]`.
        balanced: mean recall of the classes, float64 `[num_asked]`.
        num_constant: how many give all samples the same answer.
    """

    values: np.ndarray = dataclasses.field(repr=False)
    balanced: np.ndarray = dataclasses.field(repr=False)
    num_constant: int = dataclasses.field(repr=False)


def enough(public: PublicExamples, num_teachers: int) -> PublicExamples:
    """Returns samples enough to measure teachers by: all, or fewer, evenly spaced among them.

    Args:
        public: samples with labels.
        num_teachers: together they give `MOST_VOTES` votes at most, or on `FEWEST_SAMPLES` samples.
    """
    number = max(FEWEST_SAMPLES, MOST_VOTES // num_teachers)
    if len(public) <= number:
        return public
    places = np.linspace(0, len(public) - 1, number).astype(np.int64)
    labels = None if public.labels is None else public.labels[places]
    return PublicExamples(public.dataset, public.inputs[places], labels)


def evaluate(
    trained: Trained, public: PublicExamples, progress: Progress | None = None
) -> Accuracies:
    """Compares the votes of the teachers that are trained with public labels.

    Of a complete ensemble TensorBoard gets percentiles.

    Raises:
        ValueError: if a file of the run is broken, or a sample has no label.
    """
    directory = trained.directory
    if trained.is_complete:
        accuracies, gaps = measured(trained.load(), public, progress)
        write_accuracies(directory, trained.config, accuracies.values, gaps)
        return accuracies
    folder = directory.teachers / "incomplete"
    finished = Finished(directory.teachers)
    config = dataclasses.replace(trained.config, num_teachers=len(finished.teachers))
    try:
        kinds.save_ensemble(trained.kind, folder, config, finished, trained.encoder)
        return measured(load_ensemble(folder), public, progress)[0]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def measured(
    teachers: Voter, public: PublicExamples, progress: Progress | None = None
) -> tuple[Accuracies, npt.NDArray[np.float64]]:
    """SENSITIVE: accuracies `[num_teachers]`, and gaps `[num_samples]` between first and second.

    A gap is a share of the teachers. Votes on few samples are in memory at a time.
    """
    truth, number = true_labels(public), teachers.num_teachers
    num_classes = public.dataset.num_classes
    # By teacher and class: how many samples were given the class, and how many of them rightly.
    given = np.zeros((number, num_classes), np.int64)
    right = np.zeros_like(given)
    gaps = np.empty(len(truth))
    size = max(1, VOTES_A_PART // number)
    for start in range(0, len(truth), size):
        part = slice(start, start + size)
        votes = teachers.votes(public.inputs[part], progress)
        for one in range(num_classes):
            is_given = votes.labels == one
            given[:, one] += is_given.sum(axis=1)
            right[:, one] += is_given[:, truth[part] == one].sum(axis=1)
        first_two = np.sort(votes.counts().values, axis=1)[:, -2:]
        gaps[part] = (first_two[:, 1] - first_two[:, 0]) / number
    sizes = np.bincount(truth, minlength=num_classes)
    accuracies = Accuracies(
        values=right.sum(axis=1) / len(truth),
        balanced=(right[:, sizes > 0] / sizes[sizes > 0]).mean(axis=1),
        num_constant=int((given.max(axis=1) == len(truth)).sum()),
    )
    return accuracies, gaps


# The whole run of train_teachers.py.

AUGMENTATION_WORDS = {
    "none": "images as they are",
    "shift": "small shifts",
    "affine": "small shifts, rotations, scaling and shear",
    "flip": "small shifts, left for right",
}


def serve_worker() -> None:
    """Serves as the worker that TF_CONFIG names, until ended."""
    cluster.serve_worker()


def run(settings: TeacherSettings, asked: TeacherRun, *, reporting: Reporting = QUIET) -> RunReport:
    """Trains teachers, saves a complete ensemble, measures it; stores and returns the report.

    Args:
        settings: how they learn.
        asked: the rest of the run.
        reporting: how progress is shown.

    Raises:
        ValueError: if something does not fit.
    """
    if asked.owners_file and asked.partition_file:
        raise ValueError("partition: expected owners_file or partition_file, got both")
    teachers = asked.asked_teachers
    cluster_config = cluster.read_tf_config()
    if cluster_config is not None:
        wait_for_workers(cluster_config, reporting)
    if asked.folder is not None:
        check_places(artifacts.RunDirectory(asked.folder))
    others = [artifacts.RunDirectory(path) for path in asked.merge_from or ()]
    check_folders([other.teachers for other in others])
    examples, public = asked.load_private(reporting), asked.load_public(reporting)
    check_data(examples, public, asked.num_classes)
    number = asked.num_teachers or _num_teachers(
        settings, asked, examples, reporting, on_cluster=cluster_config is not None
    )
    if teachers is not None and not 0 <= teachers.start < teachers.stop <= number:
        raise ValueError(
            f"teachers: expected teachers from 0 to {number - 1}, got {asked.teachers}"
        )
    if teachers is None:
        teachers = range(0 if others else number)
    trained = train_teachers(
        settings,
        examples,
        shares_of(
            examples,
            num_teachers=number,
            seed=settings.seed,
            partition_file=asked.partition_file,
        ),
        pool=public.split(asked.pool_size or public.dataset.pool_size).pool,
        folder=asked.folder,
        teachers=teachers,
        merge_from=others,
        engine=Engine(
            parallelism=asked.parallelism,
            devices=cluster.Cluster(cluster_config) if cluster_config else None,
        ),
        source=asked,
        pool_size=asked.pool_size,
        reporting=reporting,
    )
    samples, accuracies = public.labelled(), None
    if samples is not None:
        samples = enough(samples, number)
        with reporting.progress_bar("asking teachers", len(samples), "sample") as advance:
            accuracies = evaluate(trained, samples, advance)
    values = _values(
        trained,
        num_trained=len(teachers),
        accuracies=accuracies,
        majority=public.majority_share,
    )
    if trained.is_complete and asked.export_each:
        with reporting.clock("exporting each teacher"):
            values["each"] = str(export_each(trained.kind, trained.directory, trained.config))
    values["seconds"] = reporting.seconds
    artifacts.write_json(trained.directory.sensitive / REPORT, values, private=True)
    num_samples = 0 if samples is None else len(samples)
    return RunReport(values=values, rows=_rows(trained, values, len(examples), num_samples))


def _num_teachers(
    settings: TeacherSettings,
    asked: TeacherRun,
    examples: PrivateExamples,
    reporting: Reporting,
    *,
    on_cluster: bool,
) -> int:
    """Returns how many teachers there are to be where none was asked for, and notes it.

    Where owners are protected one must be asked for: nothing that follows from the records may take
    its place, since one owner more or less would change it, and all teachers with it.
    """
    if examples.owners is not None and asked.partition_file is None:
        raise ValueError(
            "num_teachers: expected it with owners, got none: how many records they have is "
            "private, so no number of teachers can follow from it"
        )
    dataset = examples.dataset
    model = chosen_model(settings, dataset, on_cluster=on_cluster)
    if kinds.find_kind(model, dataset).representation != "required":
        return DEFAULT_NUM_TEACHERS
    number = recommended_num_teachers(len(examples), dataset)
    reporting.note(
        f"{number} teachers, as recommended: {len(examples) // number} records for each of them: "
        f"epsilon falls with their number, and on features these are enough for votes that agree; "
        f"the number of private records counts as public"
    )
    return number


def _values(
    trained: Trained, *, num_trained: int, accuracies: Accuracies | None, majority: float | None
) -> dict[str, Any]:
    """Returns the JSON values of the report; None where there are no public labels."""
    config = trained.config
    measured_values: dict[str, Any] = dict.fromkeys(
        (
            *("teachers_evaluated", "teacher_accuracy_mean", "teacher_accuracy_lowest"),
            *("teacher_accuracy_highest", "teacher_balanced_accuracy_mean", "teachers_constant"),
        )
    )
    if accuracies is not None:
        found = accuracies.values
        measured_values = {
            "teachers_evaluated": len(found),
            "teacher_accuracy_mean": float(found.mean()),
            "teacher_accuracy_lowest": float(found.min()),
            "teacher_accuracy_highest": float(found.max()),
            "teacher_balanced_accuracy_mean": float(accuracies.balanced.mean()),
            "teachers_constant": accuracies.num_constant,
        }
    return {
        "dataset": config.dataset.name,
        "nb_teachers": config.num_teachers,
        "model": name_of(config.model),
        "representation": None if config.representation is None else name_of(config.representation),
        "teachers_trained": num_trained,
        **measured_values,
        "constant_answer_accuracy": majority,
        "augmentation": config.dataset.augmentation,
        "ensemble": str(ensemble_folder(trained.directory)) if trained.is_complete else None,
    }


def _rows(
    trained: Trained, values: Mapping[str, Any], num_records: int, num_samples: int
) -> list[Row]:
    """Returns the rows of the table. SENSITIVE."""
    config, kind, dataset = trained.config, trained.kind, trained.config.dataset
    sensitive = "; sensitive" if config.unit == "owner" else ""
    asked, done = values["teachers_trained"], values["teachers_evaluated"]
    teachers = f"{config.num_teachers} of {_in_words(kind, config)}"
    if not trained.is_complete:
        of_them = "" if done is None else f" so far, {asked} of them asked for"
        some = asked if done is None else done
        teachers = f"{some} of {config.num_teachers} trained{of_them}; the rest is missing still"
    accuracy = NOT_MEASURED
    if done is not None:
        mean, lowest, highest = (
            values[f"teacher_accuracy_{name}"] for name in ("mean", "lowest", "highest")
        )
        accuracy = (
            f"{mean:.2%} (lowest {lowest:.2%}, highest {highest:.2%}) on {num_samples:,} public "
            f"samples; sensitive"
        )
    rows = [
        ("data set", f"{dataset.name}, {num_records:,} private records{sensitive}"),
        *([("each teacher apart", f"{values['each']} (sensitive)")] if "each" in values else []),
        ("teachers", teachers),
        ("mean teacher accuracy", accuracy),
    ]
    if kind.augments and dataset.kind == "image":
        words = AUGMENTATION_WORDS[dataset.augmentation]
        rows.append(("augmentation", f"{dataset.augmentation}: {words}"))
    majority = values["constant_answer_accuracy"]
    if (majority or 0.0) * dataset.num_classes > UNEVEN:
        balanced = values["teacher_balanced_accuracy_mean"]
        rows.append(("mean balanced accuracy", f"{balanced:.2%}; sensitive"))
    if values["teachers_constant"]:
        constant = (
            f"{values['teachers_constant']} of {done} teachers always give the same answer, which "
            f"says nothing (a network's training may have diverged: try a lower learning rate); "
            f"sensitive"
        )
        rows.append(("WARNING", constant))
    name, place = "ensemble", values["ensemble"]
    if not trained.is_complete:
        name, place = "stored in", trained.directory.teachers
    return [
        *rows,
        ("majority-class baseline", NOT_MEASURED if majority is None else f"{majority:.2%}"),
        (name, f"{place} (sensitive)"),
        ("time", f"{values['seconds']:.1f} s"),
    ]


def _in_words(kind: TeacherKind, config: TeacherConfig) -> str:
    """Returns what each teacher is; it says nothing about the sizes of shares."""
    words = name_of(config.model)
    if config.representation is not None:
        words += f", on {name_of(config.representation)} features of the pool"
    return words + (f", {config.steps_in_words}" if "max_steps" in kind.settings else "")


# What TensorBoard shows. SENSITIVE: all of it lies below `sensitive/logs`.

PERCENTILES = {"lowest": 0, "10th": 10, "median": 50, "90th": 90, "highest": 100}
SECONDS_BETWEEN_SCALARS = 1.0


def logs_of(run_directory: artifacts.RunDirectory) -> pathlib.Path:
    """Returns the folder that TensorBoard reads, made if it is missing: `sensitive/logs/teachers`.

    Percentiles of the loss have folders of their own in it, so that they share a chart.
    """
    return artifacts.make_sensitive_folder(run_directory.sensitive / "logs") / "teachers"


@contextlib.contextmanager
def throughput(
    run_directory: artifacts.RunDirectory, num_done: int
) -> Iterator[Callable[[int], None]]:
    """Writes how many teachers are done, and how many a second, about once a second.

    `num_done` are done before. Yields a function to call with how many more are done.
    """
    writer = tf.summary.create_file_writer(str(logs_of(run_directory)))
    last_done, last_time = num_done, time.monotonic()

    def write() -> None:
        nonlocal last_done, last_time
        now = time.monotonic()
        speed = (num_done - last_done) / max(now - last_time, 1e-9)
        with writer.as_default(step=num_done):
            tf.summary.scalar("progress/teachers_done", num_done)
            tf.summary.scalar("progress/teachers_per_second", speed)
        writer.flush()
        last_done, last_time = num_done, now

    def add(count: int) -> None:
        nonlocal num_done
        num_done += count
        if time.monotonic() - last_time > SECONDS_BETWEEN_SCALARS:
            write()

    try:
        yield add
        if num_done > last_done:
            write()
    finally:
        writer.close()
        artifacts.make_private(logs_of(run_directory))


def write_losses(
    run_directory: artifacts.RunDirectory, losses: Sequence[npt.NDArray[np.float32]]
) -> None:
    """Writes percentiles over the ensemble of the loss at each step, of `[step]` of each teacher.

    At a step count those teachers that do one, with a finite loss.
    """
    longest = max(map(len, losses))
    padded = np.full((len(losses), longest), np.nan, np.float32)
    for row, values in zip(padded, losses, strict=True):
        row[: len(values)] = np.where(np.isfinite(values), values, np.nan)
    steps = np.flatnonzero(~np.isnan(padded).all(axis=0))
    for name, percentile in PERCENTILES.items():
        writer = tf.summary.create_file_writer(str(logs_of(run_directory) / name))
        with writer.as_default():
            values = np.nanpercentile(padded[:, steps], percentile, axis=0)
            for step, value in zip(steps.tolist(), values, strict=True):
                tf.summary.scalar("loss", value, step=step + 1)
        writer.close()
    artifacts.make_private(logs_of(run_directory))


def write_accuracies(
    run_directory: artifacts.RunDirectory,
    config: TeacherConfig,
    accuracies: npt.NDArray[np.float64],
    gaps: npt.NDArray[np.float64],
) -> None:
    """Writes every percentile of accuracies and of the votes' gaps, and the settings.

    The percentile takes the place of the step. A gap, between the class with most votes and the
    next, is a share of the teachers, `[num_samples]`: how much noise the labels of such inputs
    stand.
    """
    folder = logs_of(run_directory)
    writer = tf.summary.create_file_writer(str(folder))
    with writer.as_default():
        for percentile in range(101):
            for name, values in (
                ("accuracy/by_percentile", accuracies),
                ("votes/gap_by_percentile", gaps),
            ):
                tf.summary.scalar(name, np.percentile(values, percentile), step=percentile)
    writer.close()
    settings = {**config.to_dict(), "dataset": config.dataset.name}
    results = {
        "result/mean_accuracy": float(accuracies.mean()),
        "result/lowest_accuracy": float(accuracies.min()),
        "result/highest_accuracy": float(accuracies.max()),
    }
    event_files.write_result(folder, settings, results)
    artifacts.make_private(folder)
