"""A whole run of the teachers, from plain values to a report.

What `pate_tf.cli.teachers` calls, and any program may.
"""

import dataclasses
import pathlib
from collections.abc import Sequence

import tensorflow as tf

from pate_tf import artifacts, partition
from pate_tf.models.encoder import Encoder
from pate_tf.runs.reporting import QUIET, Reporting, RunReport
from pate_tf.runs.sources import DataSource, run_folder
from pate_tf.runs.teachers import accuracy as teachers_accuracy
from pate_tf.runs.teachers import features, report
from pate_tf.runs.teachers import training as runs
from pate_tf.runs.teachers.checks import (
    REPORT,
    check_data,
    check_places,
    kept_teachers,
    wait_for_workers,
)
from pate_tf.runs.teachers.settings import PartitionSource, TeacherSettings
from pate_tf.teachers import classifiers, cluster, devices, keras_fit
from pate_tf.teachers import ensemble as ensembles
from pate_tf.teachers.config import TeacherConfig
from pate_tf.values.public import Pool, PublicExamples
from pate_tf.values.sensitive import PrivateExamples

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
    config = settings.complete(examples, shares)
    if settings.learning_rate is not None and runs.is_compiled(config):
        raise ValueError(
            "learning_rate: expected none with a compiled model, whose optimizer has its own"
        )
    encoder = features.encoder_for(config, pool, reporting)
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
            devices=engine.devices or devices.choose_strategy(),
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
    num_teachers = features.num_teachers(
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
    config = asked.settings.complete(examples, shares)
    encoder = None
    if runs.needs_encoder(config):
        pool = public.split(asked.pool_size or public.dataset.pool_size).pool
        encoder = features.encoder_for(config, pool, reporting)
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
            else devices.choose_strategy(),
            parallelism=asked.parallelism,
            merge_from=others,
            encoder=encoder,
            progress=advance,
        )
    samples, accuracies = public.labelled(), None
    if samples is not None:
        samples = teachers_accuracy.enough(samples, num_teachers)
        accuracies = _measure(
            config, samples, directory, encoder, complete=complete, reporting=reporting
        )
    values = report.teachers_values(
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
    rows = report.teachers_rows(
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
) -> teachers_accuracy.Accuracies:
    """Returns the accuracy of each teacher; of a part of them those that are trained."""
    with reporting.progress_bar("asking teachers", len(samples), "sample") as advance:
        if not complete:  # they are no ensemble yet
            return teachers_accuracy.evaluate_finished(
                config, samples, directory, advance, encoder=encoder
            )
        ensemble = runs.load_ensemble(runs.ensemble_folder(directory))
        return teachers_accuracy.evaluate(ensemble, samples, directory, advance)
