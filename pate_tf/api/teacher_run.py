"""A whole run of train_teachers.py: features, training, accuracy, report."""

import dataclasses
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.api import teacher_training as runs
from pate_tf.api import teacher_training as teachers
from pate_tf.api.reporting import NOT_MEASURED, QUIET, UNEVEN, Reporting, Row, RunReport
from pate_tf.api.sources import DEFAULT_NUM_TEACHERS, DataSource, run_folder
from pate_tf.api.teacher_settings import PartitionSource, complete_settings
from pate_tf.api.teacher_training import (
    REPORT,
    Progress,
    check_data,
    check_places,
    is_compiled,
    kept_teachers,
    wait_for_workers,
)
from pate_tf.core import artifacts, partition
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PublicExamples
from pate_tf.core.sensitive import PrivateExamples, Votes
from pate_tf.data.named_function import Named, name_of
from pate_tf.models import classifier
from pate_tf.models.encoder import Encoder
from pate_tf.representations import catalogue
from pate_tf.representations.catalogue import encoder_of
from pate_tf.students.evaluation import true_labels
from pate_tf.teachers import classifiers, cluster, keras_fit, logs
from pate_tf.teachers import ensemble as ensembles
from pate_tf.teachers.on_features import is_on_features
from pate_tf.teachers.settings import TeacherConfig, TeacherSettings
from pate_tf.teachers.store import read_all_finished

# How often each teacher is right on public samples. SENSITIVE.


VOTES_A_PART = 2**18  # that are in memory at a time
# Of all teachers: asking thousands of them about all samples would take longer than training them,
# and tell no more.
MOST_VOTES = 2**22
FEWEST_SAMPLES = 256


@dataclasses.dataclass(frozen=True)
class Accuracies:
    """Sensitive: how each teacher asked did on public samples.

    Attributes:
      values: accuracy of each, float64 `[num_asked]`.
      balanced: mean recall of the classes, likewise.
      num_constant: how many give all samples the same answer.
    """

    values: np.ndarray = dataclasses.field(repr=False)
    balanced: np.ndarray = dataclasses.field(repr=False)
    num_constant: int = dataclasses.field(repr=False)

    @property
    def mean(self) -> float:
        """Mean over the teachers."""
        return float(self.values.mean())


def enough(public: PublicExamples, num_teachers: int) -> PublicExamples:
    """Returns samples enough to measure teachers by: all, or fewer, evenly spaced among them.

    Args:
      public: samples with labels.
      num_teachers: which together give `MOST_VOTES` votes at most, or on `FEWEST_SAMPLES` samples.
    """
    number = max(FEWEST_SAMPLES, MOST_VOTES // num_teachers)
    if len(public) <= number:
        return public
    places = np.linspace(0, len(public) - 1, number).astype(np.int64)
    labels = None if public.labels is None else public.labels[places]
    return PublicExamples(public.dataset, public.inputs[places], labels)


def evaluate(
    ensemble: ensembles.Ensemble | classifiers.ClassifierEnsemble,
    public: PublicExamples,
    run_directory: artifacts.RunDirectory,
    progress: Progress | None = None,
) -> Accuracies:
    """Compares every teacher's votes with the public labels; logs percentiles to TensorBoard.

    Raises:
      ValueError: if a sample has no label.
    """
    accuracies, gaps = _measured(
        lambda inputs: ensemble.votes(inputs, progress), public, ensemble.num_teachers
    )
    logs.write_accuracies(run_directory, ensemble.config, accuracies.values)
    logs.write_gaps(run_directory, gaps)
    return accuracies


def evaluate_finished(
    config: TeacherConfig,
    public: PublicExamples,
    run_directory: artifacts.RunDirectory,
    progress: Progress | None = None,
    *,
    encoder: Encoder | None = None,
) -> Accuracies:
    """Compares the votes of those teachers that are trained so far with the public labels.

    Args:
      config: what they were trained with.
      public: the samples.
      run_directory: the run, of which one teacher at least is trained.
      progress: called with the number of samples done since its last call.
      encoder: what teachers on features take for an input.

    Raises:
      ValueError: if a file of the run is broken, or a sample has no label.
    """
    by_teacher, _ = read_all_finished(run_directory.teachers)
    teachers = [by_teacher[teacher] for teacher in sorted(by_teacher)]

    def votes(inputs: npt.NDArray[Any]) -> Votes:
        if classifier.is_classifier(config.model, config.dataset):
            return classifiers.votes_of(config, teachers, inputs, progress, encoder=encoder)
        return ensembles.votes_of(config, teachers, inputs, progress, encoder=encoder)

    return _measured(votes, public, len(teachers))[0]


def _measured(
    votes_on: Callable[[npt.NDArray[Any]], Votes], public: PublicExamples, num_teachers: int
) -> tuple[Accuracies, npt.NDArray[np.float64]]:
    """SENSITIVE: accuracies `[num_teachers]`, and gaps `[num_samples]` between first and second.

    A gap is a share of the teachers. Votes on few samples are in memory at a time.
    """
    truth = true_labels(public)
    num_classes = public.dataset.num_classes
    # By teacher and class: how many samples were given the class, and how many of them rightly.
    given = np.zeros((num_teachers, num_classes), np.int64)
    right = np.zeros_like(given)
    gaps = np.empty(len(truth))
    size = max(1, VOTES_A_PART // num_teachers)
    for start in range(0, len(truth), size):
        part = slice(start, start + size)
        votes = votes_on(public.inputs[part])
        for one in range(num_classes):
            is_given = votes.labels == one
            given[:, one] += is_given.sum(axis=1)
            right[:, one] += is_given[:, truth[part] == one].sum(axis=1)
        first_two = np.sort(votes.counts().values, axis=1)[:, -2:]
        gaps[part] = (first_two[:, 1] - first_two[:, 0]) / num_teachers
    sizes = np.bincount(truth, minlength=num_classes)
    accuracies = Accuracies(
        values=right.sum(axis=1) / len(truth),
        balanced=(right[:, sizes > 0] / sizes[sizes > 0]).mean(axis=1),
        num_constant=int((given.max(axis=1) == len(truth)).sum()),
    )
    return accuracies, gaps


# What a run of the teachers found out, as JSON and as rows of a table. SENSITIVE.


AUGMENTATION_WORDS = {
    "none": "images as they are",
    "shift": "small shifts",
    "affine": "small shifts, rotations, scaling and shear",
    "flip": "small shifts, left for right",
}


def teachers_values(
    config: TeacherConfig,
    *,
    num_trained: int,
    accuracies: Accuracies | None,
    constant_answer: float | None,
    ensemble: pathlib.Path | None,
) -> dict[str, Any]:
    """Returns the JSON values.

    Args:
      config: of the teachers.
      num_trained: how many were asked for.
      accuracies: of those that could be asked; None without public labels.
      constant_answer: accuracy of always answering the commonest class; None likewise.
      ensemble: where the complete one lies; None while teachers are missing.
    """
    found = None if accuracies is None else accuracies.values
    return {
        "dataset": config.dataset.name,
        "nb_teachers": config.num_teachers,
        "representation": None if config.representation is None else name_of(config.representation),
        "teachers_trained": num_trained,
        "teachers_evaluated": None if found is None else len(found),
        "teacher_accuracy_mean": None if found is None else float(found.mean()),
        "teacher_accuracy_lowest": None if found is None else float(found.min()),
        "teacher_accuracy_highest": None if found is None else float(found.max()),
        "teacher_balanced_accuracy_mean": (
            None if accuracies is None else float(accuracies.balanced.mean())
        ),
        "teachers_constant": None if accuracies is None else accuracies.num_constant,
        "constant_answer_accuracy": constant_answer,
        "augmentation": config.dataset.augmentation,
        "ensemble": None if ensemble is None else str(ensemble),
    }


def teachers_rows(
    config: TeacherConfig,
    values: Mapping[str, Any],
    *,
    num_records: int,
    num_samples: int,
    teachers_folder: pathlib.Path,
) -> list[Row]:
    """Returns the rows of the table.

    Args:
      config: of the teachers.
      values: as `teachers_values` returns them, with `seconds`; with `each` where every teacher was
        exported apart.
      num_records: how many private records there are.
      num_samples: how many public samples with labels.
      teachers_folder: where teachers are kept.
    """
    constant, ensemble = values["constant_answer_accuracy"], values["ensemble"]
    each = [("each teacher apart", f"{values['each']} (sensitive)")] if "each" in values else []
    return [
        ("data set", _data_in_words(config, num_records)),
        *each,
        ("teachers", _teachers_in_words(config, values)),
        ("mean teacher accuracy", _accuracy_in_words(values, num_samples)),
        *_augmentation_rows(config),
        *_by_class_rows(values, config.dataset.num_classes),
        ("a constant answer", NOT_MEASURED if constant is None else f"{constant:.2%}"),
        ("kept in", f"{teachers_folder} (sensitive)")
        if ensemble is None
        else ("ensemble", f"{ensemble} (sensitive)"),
        ("time", f"{values['seconds']:.1f} s"),
    ]


def _data_in_words(config: TeacherConfig, num_records: int) -> str:
    sensitive = "; sensitive" if config.unit == "owner" else ""
    return f"{config.dataset.name}, {num_records:,} private records{sensitive}"


def _augmentation_rows(config: TeacherConfig) -> list[Row]:
    """What teachers in the traced loop do to images; others take them as they are."""
    dataset = config.dataset
    if (
        dataset.kind != "image"
        or config.representation is not None
        or classifier.is_classifier(config.model, dataset)
        or is_compiled(config)
    ):
        return []
    return [("augmentation", f"{dataset.augmentation}: {AUGMENTATION_WORDS[dataset.augmentation]}")]


def _by_class_rows(values: Mapping[str, Any], num_classes: int) -> list[Row]:
    """Rows where accuracy says little, or a teacher says nothing."""
    rows = []
    if (values["constant_answer_accuracy"] or 0.0) * num_classes > UNEVEN:
        balanced = values["teacher_balanced_accuracy_mean"]
        rows.append(("mean balanced accuracy", f"{balanced:.2%}; sensitive"))
    if values["teachers_constant"]:
        rows.append(
            (
                "WARNING",
                f"{values['teachers_constant']} of {values['teachers_evaluated']} teachers always "
                f"give the same answer, which says nothing (a network's training may have "
                f"diverged: try a lower learning rate); sensitive",
            )
        )
    return rows


def _teachers_in_words(config: TeacherConfig, values: Mapping[str, Any]) -> str:
    if values["ensemble"] is not None:
        if config.representation is not None:
            features = f", on {name_of(config.representation)} features of the pool"
            return f"{config.num_teachers} of {name_of(config.model)}{features}"
        are_classifiers = classifier.is_classifier(config.model, config.dataset)
        steps_each = "" if are_classifiers else f", {config.steps_in_words}"
        return f"{config.num_teachers} of {name_of(config.model)}{steps_each}"
    trained, evaluated = values["teachers_trained"], values["teachers_evaluated"]
    if evaluated is None:
        return f"{trained} of {config.num_teachers} trained; the rest is missing still"
    return (
        f"{evaluated} of {config.num_teachers} trained so far, {trained} of them asked for; the "
        f"rest is missing still"
    )


def _accuracy_in_words(values: Mapping[str, Any], num_samples: int) -> str:
    if values["teachers_evaluated"] is None:
        return NOT_MEASURED
    mean, lowest, highest = (
        values[f"teacher_accuracy_{name}"] for name in ("mean", "lowest", "highest")
    )
    return (
        f"{mean:.2%} (lowest {lowest:.2%}, highest {highest:.2%}) on {num_samples:,} public "
        f"samples; sensitive"
    )


# What teachers on features need besides records: their number, and a pool's representation.


RECORDS_A_TEACHER = 30
RECORDS_A_CLASS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recommendation:
    """How many teachers, and why. Public, as far as the number of private records is.

    Attributes:
      num_teachers: at least 1.
      reason: in words.
    """

    num_teachers: int
    reason: str


def recommendation(num_records: int, dataset: Dataset) -> Recommendation:
    """Recommends a number of teachers that learn from features, by public values alone.

    The number of private records counts as public here, as it does in the partition, the ledger and
    every statement, where records are protected. Where owners are it is private.
    """
    # Half as many, for twice the teachers: votes were a point better on the pools of MNIST and
    # Fashion-MNIST at an epsilon of .1, no better at .25, and up to two points worse at 1.
    each = max(RECORDS_A_TEACHER, RECORDS_A_CLASS * dataset.num_classes)
    return Recommendation(
        num_teachers=max(1, num_records // each),
        reason=f"{each} records for each of them: epsilon falls with their number, and on "
        f"features these are enough for votes that agree; the number of private records counts as "
        f"public",
    )


def recommended_num_teachers(
    asked: int | None,
    model: Named | None,
    examples: PrivateExamples,
    reporting: Reporting,
    *,
    unit: str,
) -> int:
    """Returns how many teachers there are to be; tells of a number that nobody asked for.

    Where owners are protected somebody must ask for one: nothing that follows from the records may
    take its place, since one owner more or less would change it, and all teachers with it.

    Args:
      asked: what the user says; None for what is recommended where teachers learn from features,
        `DEFAULT_NUM_TEACHERS` otherwise.
      model: of a teacher; None for the default.
      examples: whose number counts as public where records are protected.
      reporting: is told.
      unit: what is protected, "record" or "owner".

    Raises:
      ValueError: if owners are protected and no number is asked for.
    """
    if asked is not None:
        return asked
    if unit == "owner":
        raise ValueError(
            "num_teachers: expected it with owners, got none: how many records they have is "
            "private, so no number of teachers can follow from it"
        )
    if model is None or not is_on_features(model):
        return DEFAULT_NUM_TEACHERS
    found = recommendation(len(examples), examples.dataset)
    reporting.note(f"{found.num_teachers} teachers, as recommended: {found.reason}")
    return found.num_teachers


def encoder_for(config: TeacherConfig, pool: Pool | None, reporting: Reporting) -> Encoder | None:
    """Returns what teachers take for an input; None for the raw input.

    Raises:
      ValueError: if a representation is to be learnt and there is no pool, or it does not fit.
    """
    teachers.check_representation(config)
    if config.representation is None:
        return None
    if pool is None:
        raise ValueError(
            f"pool: expected public inputs with teachers of {name_of(config.model)}, got none: "
            f"their representation comes from there"
        )
    with reporting.clock("learning a representation of the pool"):
        encoder = encoder_of(
            pool, config.representation, config.seed, show_progress=reporting.verbose
        )
    doubts = catalogue.doubts(pool, config.representation, config.seed)
    if doubts is not None:
        reporting.warn(doubts)
    return encoder


# A whole run of the teachers, from plain values to a report.
#
# What `pate_tf.cli.teachers` calls, and any program may.


Ensemble = ensembles.Ensemble | classifiers.ClassifierEnsemble


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeachersRun:
    """An ensemble, in plain values.

    Attributes:
      data: private records, and public samples that measure the teachers.
      num_classes: checked against the data set if given.
      num_teachers: how many share the private records; None for `DEFAULT_NUM_TEACHERS`, or what is
        recommended where teachers learn from features (`runs.teachers.features`). Where owners are
        protected it must be given.
      pool_size: how many of the public samples, from the first, form the pool that representations
        are learnt from; None for the data set's own.
      teachers: the teachers to train in this process, from 0; None for all, or for none if those
        of other jobs are merged.
      partition: who gets which record.
      settings: how they learn.
      folder: of the run; None for `runs/DATASET-NUM_TEACHERS`.
      merge_from: run folders of other jobs, whose teachers are taken over.
      export_each: whether every teacher is exported as a SavedModel of its own too.
      parallelism: see `runs.teachers.train`.
    """

    data: DataSource = dataclasses.field(default_factory=DataSource)
    num_classes: int | None = None
    num_teachers: int | None = None
    pool_size: int | None = None
    teachers: Sequence[int] | None = None
    partition: PartitionSource = dataclasses.field(default_factory=PartitionSource)
    settings: TeacherSettings = dataclasses.field(default_factory=TeacherSettings)
    folder: pathlib.Path | None = None
    merge_from: Sequence[pathlib.Path] = ()
    export_each: bool = False
    parallelism: str = "ensemble"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Engine:
    """What trains teachers of functions, beside their settings.

    Attributes:
      callbacks: for `fit` of compiled Keras models; see `keras_fit.new_callbacks`.
      parallelism: see `runs.teachers.train`. Speed.
      num_processes: likewise.
      devices: a strategy over devices of this host; None for all GPUs, else the CPU. Speed.
    """

    callbacks: keras_fit.Callbacks | None = None
    parallelism: str = "ensemble"
    num_processes: int | None = None
    devices: tf.distribute.Strategy | None = None


def fit(
    settings: TeacherSettings,
    examples: PrivateExamples,
    *,
    num_teachers: int,
    pool: Pool | None = None,
    folder: pathlib.Path | None = None,
    engine: Engine,
    reporting: Reporting = QUIET,
) -> tuple[pathlib.Path, Ensemble]:
    """Trains what is missing of an ensemble in this process, and loads it.

    Args:
      settings: how the teachers learn.
      examples: private records; with owners, all records of one owner go to one teacher.
      num_teachers: how many share them.
      pool: public inputs, for teachers on features.
      folder: of the run; None for `runs/DATASET-NUM_TEACHERS`.
      engine: what trains them.
      reporting: how progress is shown.

    Returns:
      The folder of the run, and the ensemble.

    Raises:
      ValueError: if something does not fit.
    """
    shares = (
        partition.random_partition(
            num_records=len(examples), num_teachers=num_teachers, seed=settings.seed
        )
        if examples.owners is None
        else partition.owner_partition(
            examples.owners, num_teachers=num_teachers, seed=settings.seed
        )
    )
    config = complete_settings(settings, examples, shares)
    if settings.learning_rate is not None and runs.is_compiled(config):
        raise ValueError(
            "learning_rate: expected none with a compiled model, whose optimizer has its own"
        )
    encoder = encoder_for(config, pool, reporting)
    root = folder or run_folder(examples.dataset.name, num_teachers)
    directory = artifacts.RunDirectory(root)
    check_places(directory)
    with reporting.progress_bar("training teachers", num_teachers, "teacher") as advance:
        runs.train(
            config=config,
            examples=examples,
            partition=shares,
            teachers=range(num_teachers),
            run_directory=directory,
            devices=engine.devices or cluster.choose_strategy(),
            parallelism=engine.parallelism,
            callbacks=engine.callbacks,
            num_processes=engine.num_processes,
            encoder=encoder,
            progress=advance,
        )
    return root, runs.load_ensemble(runs.ensemble_folder(directory))


def serve_worker() -> None:
    """Serves as the worker that TF_CONFIG names, until ended."""
    cluster.serve_worker()


def run(asked: TeachersRun, reporting: Reporting = QUIET) -> RunReport:
    """Trains teachers, exports a complete ensemble; keeps and returns what was found out.

    Raises:
      ValueError: if something does not fit.
    """
    cluster_config = cluster.read_tf_config()
    if cluster_config is not None:
        wait_for_workers(cluster_config, reporting)
    if asked.folder is not None:
        check_places(artifacts.RunDirectory(asked.folder))
    others = [artifacts.RunDirectory(path) for path in asked.merge_from]
    kept_teachers(others)
    examples = asked.data.load_private(reporting)
    public = asked.data.load_public(reporting)
    check_data(examples, public, asked.num_classes)
    examples = asked.partition.owned(examples)
    num_teachers = recommended_num_teachers(
        asked.num_teachers,
        asked.settings.model,
        examples,
        reporting,
        unit=asked.partition.unit(examples),
    )
    shares = asked.partition.load(
        num_records=len(examples),
        num_teachers=num_teachers,
        seed=asked.settings.seed,
        owners=examples.owners,
    )
    config = complete_settings(asked.settings, examples, shares)
    encoder = None
    if runs.needs_encoder(config):
        pool = public.split(asked.pool_size or public.dataset.pool_size).pool
        encoder = encoder_for(config, pool, reporting)
    directory = artifacts.RunDirectory(
        asked.folder or run_folder(examples.dataset.name, num_teachers)
    )
    check_places(directory)
    teachers: Sequence[int] = [] if asked.merge_from else range(num_teachers)
    if asked.teachers is not None:
        teachers = asked.teachers
    with reporting.progress_bar("training teachers", len(teachers), "teacher") as advance:
        complete = runs.train(
            config=config,
            examples=examples,
            partition=shares,
            teachers=teachers,
            run_directory=directory,
            devices=cluster.Cluster(cluster_config)
            if cluster_config
            else cluster.choose_strategy(),
            parallelism=asked.parallelism,
            merge_from=others,
            encoder=encoder,
            progress=advance,
        )
    samples, accuracies = public.labelled(), None
    if samples is not None:
        samples = enough(samples, num_teachers)
        accuracies = _measure(
            config, samples, directory, encoder, complete=complete, reporting=reporting
        )
    values = teachers_values(
        config,
        num_trained=len(teachers),
        accuracies=accuracies,
        constant_answer=public.majority_share,
        ensemble=runs.ensemble_folder(directory) if complete else None,
    )
    if complete and asked.export_each:
        with reporting.clock("exporting each teacher"):
            values["each"] = str(runs.export_each(directory, config))
    values["seconds"] = reporting.seconds
    artifacts.write_json(directory.sensitive / REPORT, values, private=True)
    rows = teachers_rows(
        config,
        values,
        num_records=len(examples),
        num_samples=0 if samples is None else len(samples),
        teachers_folder=directory.sensitive / "teachers",
    )
    return RunReport(values=values, rows=rows)


def _measure(
    config: TeacherConfig,
    samples: PublicExamples,
    directory: artifacts.RunDirectory,
    encoder: Encoder | None,
    *,
    complete: bool,
    reporting: Reporting,
) -> Accuracies:
    """Returns the accuracy of each teacher; of a part of them those that are trained."""
    with reporting.progress_bar("asking teachers", len(samples), "sample") as advance:
        if not complete:  # they are no ensemble yet
            return evaluate_finished(config, samples, directory, advance, encoder=encoder)
        ensemble = runs.load_ensemble(runs.ensemble_folder(directory))
        return evaluate(ensemble, samples, directory, advance)
