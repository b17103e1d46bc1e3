"""Teachers of a user: trained here on disjoint shards, or from elsewhere."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core import artifacts, tensorboard
from pate_tf.core.checks import whole_numbers
from pate_tf.core.dataset import CLASS, Dataset
from pate_tf.core.public import Pool, PublicExamples, majority_share
from pate_tf.core.reporting import NOT_MEASURED, Reporting, Row, RunReport, reporting
from pate_tf.core.sensitive import (
    Partition,
    PrivateExamples,
    SensitiveWarning,
    owner_partition,
    random_partition,
)
from pate_tf.core.source import PrivateSource, Records, content_sum, record_digests
from pate_tf.data.data_source import DataSource
from pate_tf.data.loaded_data import Data, as_inputs
from pate_tf.data.named_function import Named, name_of
from pate_tf.ledger.rollback_guard import warn_of_same_records
from pate_tf.models.architectures import default_model
from pate_tf.models.encoder import Encoder
from pate_tf.representations import catalogue as representations
from pate_tf.representations.catalogue import Representation
from pate_tf.teachers import teacher_kinds
from pate_tf.teachers.foreign import ForeignModels
from pate_tf.teachers.run_folder import (
    DEFAULT_NUM_TEACHERS,
    RunDescription,
    TeacherStore,
    ensemble_folder,
    finished_teachers,
    recommended_num_teachers,
)
from pate_tf.teachers.teacher_kinds import TeacherKind, TrainingJob
from pate_tf.teachers.teacher_settings import TeacherConfig, TeacherSettings
from pate_tf.teachers.voters import StoredVotes, Voter

Net = Callable[[Dataset], Any]
Path = str | os.PathLike[str]

OF_IMAGES = "ridge"  # the model of a teacher of images, where none is named
REPORT = "teachers_report.json"
# Of all teachers: asking thousands of them about all samples would take longer than training them.
MOST_ANSWERS = 2**22
FEWEST_SAMPLES = 256


class Teachers:
    """SENSITIVE: an ensemble of teachers, each of whom saw its own shard of the private records.

    >>> import pate_tf
    >>> data = pate_tf.Data.load("digits")
    >>> teachers = pate_tf.Teachers("mlp", num_teachers=4, directory=folder, steps=5)
    >>> len(teachers.fit(data.private))
    4
    >>> teachers.votes(data.pool.inputs[:3]).shape
    (4, 3)

    What a teacher computes depends on its own shard, on public settings and on the seed alone. That
    is what makes one record (or one owner) change at most one vote (docs/proofs/theory.md,
    Propositions S1 and S2). For code that a user brings along it is an assumption: `net` must make
    everything anew at each call, and keep nothing outside.

    A stopped `fit` resumes where it stopped, in the same directory: teachers that are done stay,
    if the records are the same; else all are trained on the new ones. Once all are trained, `fit`
    uses them whether or not the records are the same, and a warning says from when they are: it
    would tell of private data to stop for other records. Take another directory for these. Other
    settings or another model in that directory are refused.
    """

    def __init__(
        self,
        net: Net | str | None = None,
        *,
        num_teachers: int | None = None,
        directory: Path | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        seed: int = 0,
        representation: Net | str | keras.Model | Representation | None = None,
        class_weights: Sequence[float] | None = None,
        num_processes: int | None = 1,
        verbose: bool = False,
    ) -> None:
        """Takes the settings; nothing is trained or written before `fit`.

        Args:
            net: a function that takes a `Dataset` and returns what each teacher is: a Keras model
                that is not compiled, from raw inputs to logits (trained fast, in one traced loop
                for all teachers, by Adam on inputs augmented as the data set allows; for a number
                it has two logits, and their softmax says where the number is in its range); a
                compiled Keras model of classes (trained by Keras' own `fit` with its own optimizer,
                loss and metrics, one teacher after another, on inputs as they are); or an unfitted
                classifier of scikit-learn, of a number a regressor, of several labels either with
                several outputs. Or a name: "cnn", "wide_cnn", "mlp", "deeper", "random_forest" and
                others, or "module:function"; "ridge" is solved for on features of a
                `representation`, thousands in seconds. Default: "ridge" for images where `fit` is
                given a pool and no setting that only networks have; else a small network that suits
                the data.
            num_teachers: how many partition the private records. More teachers make labels cheaper,
                and each teacher worse. Default: for teachers on features what suits the numbers of
                records and classes; for others 100. Where records have owners their number is
                private: there is no default, and this number may not follow from it.
            directory: of the run; teachers and the ledger go below its `sensitive/`. Default:
                `runs/NAME-NUM_TEACHERS` in the working directory.
            steps: training steps of each teacher; a compiled model's are rounded up to whole
                passes. Default: so many passes as `--max_steps` of `pate teachers` names.
            batch_size: records a step.
            learning_rate: of Adam. A compiled model has its own.
            seed: fixes partition, initial weights, shuffling and augmentation; not the privacy
                noise.
            representation: what "ridge" and its like, or a classifier of scikit-learn, take for an
                input: "contrastive", "patches" or "wavelets", of the pool that `fit` is given;
                "bins" or "raw"; several of them joined by "+"; "encoder:PATH" for a model on
                disk; a `pate_tf.Representation`; a Keras model from raw inputs to features, or a
                function, itself or as "module:function", from a `Dataset` to one. None of its
                weights may depend on private records. Default, for "ridge" and its like alone:
                "contrastive+patches" for gray images, "patches+wavelets" for color ones, "raw"
                for tables, "lsa" for texts.
            class_weights: how much a record of each class counts, from public knowledge, not for
                compiled models and classifiers of scikit-learn. Default: all the same.
            num_processes: speed; how many processes fit classifiers of scikit-learn. Above 1 the
                script that calls this needs `if __name__ == "__main__":`, and `net` a module.
            verbose: whether progress bars are shown.

        Raises:
            ValueError: if `net` is neither a function of one argument nor a name.
        """
        is_function = callable(net) and not isinstance(net, (type, keras.Model))
        if not (net is None or isinstance(net, str) or is_function):
            raise ValueError(
                f"net: expected a function of the data set that returns a new model at each call, "
                f"or a name, got {type(net).__name__}"
            )
        self.num_teachers = num_teachers
        self.directory = None if directory is None else pathlib.Path(directory)
        self._settings = TeacherSettings(
            model=net,
            max_steps=steps,
            batch_size=batch_size,
            learning_rate=learning_rate,
            seed=seed,
            representation=representations.source_of(representation),
            class_weights=None if class_weights is None else tuple(map(float, class_weights)),
        )
        self._num_processes = num_processes
        self._verbose = verbose
        self._reporting = reporting(verbose)
        self._voter: Voter | None = None
        # Of the records that this object was fitted to; stored teachers may be of others.
        self.split: tuple[object, bool] | None = None

    def fit(
        self,
        private: PrivateExamples,
        pool: Pool | None = None,
        *,
        teachers: range | None = None,
        data_source: DataSource | None = None,
        reporting: Reporting | None = None,
    ) -> Self:
        """Partitions the records and trains every teacher that is not trained yet.

        Every call with the same settings and data ends in the same ensemble, however often it was
        stopped in between.

        Args:
            private: `data.private`. With owners, all records of one owner go to one teacher.
            pool: `data.pool`, for teachers on features: a representation is trained on it.
            teachers: those to train in this process, from 0; the process that trains the last one
                saves the ensemble. Default: all.
            data_source: where the data came from, for the run folder. Default: arrays.
            reporting: how progress is shown. Default: as `verbose` says.

        Returns:
            This object.

        Raises:
            ValueError: if settings, records and directory do not fit each other.
        """
        if not isinstance(private, PrivateExamples):
            raise ValueError(
                f"private: expected data.private of a pate_tf.Data, got {type(private).__name__}"
            )
        show = reporting or self._reporting
        kind, config, partition = self._configured(private, pool, show)
        number = config.num_teachers
        chosen = range(number) if teachers is None else teachers
        if not 0 <= chosen.start < chosen.stop <= number:
            raise ValueError(
                f"teachers: expected teachers from 0 to {number - 1}, got {chosen.start} to "
                f"{chosen.stop - 1}"
            )
        directory = artifacts.RunDirectory(
            self.directory or pathlib.Path(f"runs/{private.dataset.name}-{number}")
        )
        folders = ("", "/teachers", "/teachers/ensemble", "/logs", "/logs/teachers")
        sensitive = artifacts.SENSITIVE
        directory.check(
            files=[f"{sensitive}/{REPORT}"], folders=[f"{sensitive}{name}" for name in folders]
        )
        job = TrainingJob(
            config=config,
            examples=private,
            partition=partition,
            encoder=_encoder(config, pool, show),
            num_processes=self._num_processes,
            verbose=self._verbose,
        )
        # Before anything is written: what does not fit leaves no trace.
        kind.check(job)
        artifacts.remove_abandoned(directory.root)
        with contextlib.ExitStack() as stack:
            if teachers is None:  # of ranges several processes are at work
                place = directory.sensitive / "teachers"
                stack.enter_context(artifacts.only_writer(place))
            store = TeacherStore(directory.teachers, kind.definition(job), job.arrays)
            target = ensemble_folder(directory)
            if target.exists():
                self._take_stored(target, private)
                show.warn_of_stored(target, "teachers")
                return self
            stack.callback(store.abandon)
            _describe(job, directory, None if pool is None else len(pool), data_source)
            _train_missing(kind, job, store, directory, chosen, show)
            self.num_teachers = number
            self.directory = directory.root
            self._voter = None
            self.split = private.split
            if len(finished_teachers(directory.teachers)) == number:
                trained = store.load()
                teacher_kinds.save_ensemble(kind, target, job, trained)
                write_losses(directory, [teacher.losses for teacher in trained])
                self._voter = teacher_kinds.load_ensemble(target)
        return self

    def _take_stored(self, target: pathlib.Path, private: PrivateExamples) -> None:
        """Loads a whole ensemble; ValueError if its records differ in what is public of them."""
        voter = teacher_kinds.load_ensemble(target)
        folder = target.parent
        if private.public_size is not None and voter.num_records not in (None, len(private)):
            raise ValueError(
                f"{folder} holds teachers of {voter.num_records:,} records, not of "
                f"{len(private):,}; choose another folder or remove it"
            )
        if private.source is not None:
            private.source.check_stored(voter.source, folder)
        self._voter = voter
        self.num_teachers = voter.num_teachers
        self.directory = folder.parent.parent

    def chosen(
        self, private: PrivateExamples, pool: Pool | None
    ) -> tuple[TeacherKind, Named, Named | None, int]:
        """Returns the kind, the model, the representation and the number of teachers.

        They follow from settings and public values alone.

        Args:
            private: records that teachers learn from.
            pool: public inputs, if there are any.

        Raises:
            ValueError: if settings do not fit each other, or the number is not known.
        """
        settings = self._settings
        dataset = private.dataset
        model = settings.model
        if model is None:
            of_images = dataset.kind == "image" and pool is not None and len(pool) > 0
            needs_network = any(
                getattr(settings, name) is not None for name in teacher_kinds.OF_STEPS
            )
            on_features = settings.representation is not None or (of_images and not needs_network)
            model = OF_IMAGES if on_features else default_model(dataset)
        kind = teacher_kinds.find_kind(model, dataset)
        kind.check_settings(settings, model)
        representation = settings.representation
        if representation is None and kind.features == "required":
            representation = representations.default_of_teachers(dataset)
        number = self.num_teachers
        if number is None and private.owners is not None:
            raise ValueError(
                "num_teachers: expected it with owners, got none: how many records they have is "
                "private, so no number of teachers can follow from it"
            )
        if number is None and kind.features == "required":
            number = recommended_num_teachers(len(private), dataset)
        return kind, model, representation, DEFAULT_NUM_TEACHERS if number is None else number

    def _configured(
        self, private: PrivateExamples, pool: Pool | None, show: Reporting
    ) -> tuple[TeacherKind, TeacherConfig, Partition]:
        """Returns the settings with what follows from the data, and who gets which record."""
        settings = self._settings
        kind, model, representation, number = self.chosen(private, pool)
        if self.num_teachers is None and kind.features == "required":
            show.note(
                f"{number} teachers, as recommended for {len(private)} records; the number of "
                f"private records counts as public"
            )
        if private.owners is None:
            partition = random_partition(
                num_records=len(private), num_teachers=number, seed=settings.seed
            )
        else:
            partition = owner_partition(private.owners, num_teachers=number, seed=settings.seed)
        values = {name: value for name, value in vars(settings).items() if value is not None}
        facts = {
            "dataset": private.dataset,
            "num_teachers": partition.num_teachers,
            "unit": partition.unit,
            "model": model,
            "representation": representation,
        }
        config = TeacherConfig(**{**values, **facts})
        if settings.model is None:
            show.note(f"Teachers of {_in_words(config)}, the default for these data")
        return kind, config, partition

    def report(self, data: Data, reporting: Reporting) -> RunReport:
        """Measures a complete ensemble on public samples; stores and returns the report.

        SENSITIVE. TensorBoard gets percentiles of the accuracies.
        """
        directory = artifacts.RunDirectory(pathlib.Path(self.directory or ""))
        finished = len(finished_teachers(directory.teachers))
        config = None if self._voter is None else self._voter.config
        public = data.public.without(np.zeros(0, np.int64))  # all of them
        samples = public.labelled()
        accuracies = None
        are_classes = public.dataset.target == CLASS
        if config is not None and samples is not None and are_classes:
            accuracies = self._accuracies(samples, reporting)
            write_accuracies(directory, config, accuracies)
        majority = majority_share(public.labels) if are_classes else None
        values: dict[str, Any] = {
            "dataset": public.dataset.name,
            "nb_teachers": self.num_teachers,
            "teachers_trained": finished,
            "constant_answer_accuracy": majority,
            "seconds": reporting.seconds,
        }
        accuracy = NOT_MEASURED if samples is None else "not measured"
        for name, measure in (("mean", np.mean), ("lowest", np.min), ("highest", np.max)):
            value = None if accuracies is None else float(measure(accuracies))
            values[f"teacher_accuracy_{name}"] = value
        if accuracies is not None:
            accuracy = (
                f"{values['teacher_accuracy_mean']:.2%} (lowest "
                f"{values['teacher_accuracy_lowest']:.2%}, highest "
                f"{values['teacher_accuracy_highest']:.2%}); sensitive"
            )
        artifacts.write_json(directory.sensitive / REPORT, values, private=True)
        number = self.num_teachers
        words = (
            f"{finished} of {number} trained"
            if config is None
            else f"{number} of {_in_words(config)}"
        )
        size = f"{len(data.private):,} private records; sensitive"
        rows: list[Row] = [
            ("data set", f"{public.dataset.name}, {size}"),
            ("teachers", words),
            ("mean teacher accuracy", accuracy),
            ("majority-class baseline", NOT_MEASURED if majority is None else f"{majority:.2%}"),
            ("stored in", f"{directory.teachers} (sensitive)"),
            artifacts.tensorboard_row(directory.root),
            ("time", f"{values['seconds']:.1f} s"),
        ]
        return RunReport(values=values, rows=rows)

    def _accuracies(self, samples: PublicExamples, reporting: Reporting) -> npt.NDArray[np.float64]:
        """Returns each teacher's accuracy `[num_teachers]` on some of the labeled samples."""
        most = max(FEWEST_SAMPLES, MOST_ANSWERS // len(self))
        part = slice(None, None, -(-len(samples) // most))
        inputs = samples.inputs[part]
        with reporting.progress_bar(
            desc="asking teachers", total=len(inputs), unit="sample"
        ) as bar:
            votes = self.identified.votes(inputs, bar.update).labels
        accuracies: npt.NDArray[np.float64] = (votes == np.asarray(samples.labels)[part]).mean(
            axis=1
        )
        return accuracies

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Returns the teachers that `fit` or `train_teachers.py` left in a directory.

        Raises:
            ValueError: if there is no complete ensemble.
        """
        folder = ensemble_folder(artifacts.RunDirectory(pathlib.Path(directory)))
        return cls._of(teacher_kinds.load_ensemble(folder), directory)

    @classmethod
    def from_votes(
        cls,
        votes: npt.ArrayLike,
        *,
        unit: str = "record",
        directory: Path | None = None,
        name: str | None = None,
    ) -> Self:
        """Takes labels or predictions of teachers elsewhere, without their records or models.

        >>> import numpy as np, pate_tf
        >>> len(pate_tf.Teachers.from_votes(np.zeros((50, 20), int), directory=folder))
        50

        Args:
            votes: whole numbers `[num_teachers, num_queries]`: each teacher's labels of the first
                inputs of the pool that will be asked about, in the pool's order. Or predicted
                numbers in their unit; or whether each of several labels holds, or how likely it
                is, from 0 to 1, `[num_teachers, num_queries, num_labels]`. SENSITIVE. A
                `Labeller` refuses as many teachers as the pool has inputs, with other than as many
                queries: it takes them for transposed.
            unit: what one teacher's records are shared out by: "record" if each record taught one
                teacher, "owner" if all records of each owner did. The cost of labels protects it.
            directory: holds the one ledger that these teachers ever have; a `Labeller` needs it.
            name: public name of the private data, as of `Data.from_arrays`.

        Raises:
            ValueError: if they are something else, or the unit is unknown.
        """
        source = None if name is None else PrivateSource.named(name)
        return cls._of(StoredVotes(votes, unit=unit, source=source), directory)

    @classmethod
    def from_models(
        cls,
        models: Sequence[Any] | Path,
        *,
        unit: str = "record",
        directory: Path | None = None,
        name: str | None = None,
    ) -> Self:
        """Takes models that were trained elsewhere, each on records that no other one saw.

        Args:
            models: Keras models, fitted classifiers of scikit-learn, or any objects with
                `predict(inputs)` that returns labels `[batch]` or scores `[batch, num_classes]` of
                raw inputs, or what `ForeignModels` names of other targets; or a folder of `.keras`
                files and SavedModels.
            unit: what one teacher's records are shared out by: "record" if each record taught one
                teacher, "owner" if all records of each owner did. The cost of labels protects it.
            directory: holds the one ledger that these teachers ever have; a `Labeller` needs it.
            name: public name of the private data, as of `Data.from_arrays`.

        Raises:
            ValueError: if there is no model, one can't predict, or the unit is unknown.
        """
        source = None if name is None else PrivateSource.named(name)
        several = pathlib.Path(models) if isinstance(models, (str, os.PathLike)) else models
        return cls._of(ForeignModels(several, unit=unit, source=source), directory)

    @classmethod
    def _of(cls, voter: Voter, directory: Path | None) -> Self:
        teachers = cls(num_teachers=voter.num_teachers, directory=directory)
        teachers._voter = voter
        return teachers

    def __len__(self) -> int:
        return self.num_teachers or 0

    def __repr__(self) -> str:
        state = "not trained yet" if self._voter is None else "sensitive"
        return f"Teachers(<{self.num_teachers} teachers, {state}>)"

    @property
    def unit(self) -> str:
        """What one teacher's shard protects, "record" or "owner"."""
        return self.identified.unit

    @property
    def is_fitted(self) -> bool:
        """Whether all teachers are trained."""
        return self._voter is not None

    @property
    def identified(self) -> Voter:
        """What votes, and what the ledger belongs to, for `Labeller`.

        Raises:
            ValueError: if the teachers are not all trained yet.
        """
        if self._voter is None:
            raise ValueError("teachers: expected trained ones, got none: call fit(data.private)")
        return self._voter

    def for_pool(self, pool: Pool) -> Voter:
        """Returns what labels of a pool come from, for `Labeller`."""
        return self.identified.for_pool(pool)

    def votes(self, inputs: npt.ArrayLike | Pool | PublicExamples) -> npt.NDArray[Any]:
        """Returns the label that each teacher gives to each input. SENSITIVE: never publish it.

        No budget is charged, since nothing of it may be released: it serves audits and analyses by
        the holder of the private records.

        Args:
            inputs: raw inputs `[num_queries, *input_shape]`. Teachers made `from_votes` answer for
                the first inputs of their pool, by position.

        Returns:
            int64 `[num_teachers, num_queries]`. Of a number float64 in its unit; of several labels
            the probability of each, float64 `[num_teachers, num_queries, num_labels]`.

        Raises:
            ValueError: if the teachers are not trained yet, or the inputs do not fit.
        """
        voter = self.identified
        if voter.config is not None:
            return voter.votes(as_inputs(inputs, voter.dataset)).labels
        return voter.votes(np.asarray(getattr(inputs, "inputs", inputs))).labels

    def accuracy(
        self, inputs: npt.ArrayLike | Pool | PublicExamples, labels: npt.ArrayLike
    ) -> float:
        """Returns the share of right votes over all teachers and inputs. SENSITIVE.

        Args:
            inputs: as `votes` takes them.
            labels: their true labels `[num_queries]`.

        Raises:
            ValueError: as `votes`, or if inputs and labels differ in number, or there are none.
        """
        if self.identified.config is not None:
            self.identified.dataset.require_classes("accuracy")
        votes = self.votes(inputs)
        truth = whole_numbers(labels, "labels")
        if truth.shape != votes.shape[1:] or not truth.size:
            raise ValueError(
                f"labels: expected [{votes.shape[1]}], one for each input, got {list(truth.shape)}"
            )
        return float(np.mean(votes == truth))


def _encoder(config: TeacherConfig, pool: Pool | None, show: Reporting) -> Encoder | None:
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
    if difference := pool.dataset.difference(config.dataset):
        raise ValueError(
            f"pool: expected inputs of the private records' data set, got others: {difference}"
        )
    with show.clock("training a representation on the pool"):
        return representations.encoder_of(pool, config.representation, config.seed)


def _train_missing(
    kind: TeacherKind,
    job: TrainingJob,
    store: TeacherStore,
    directory: artifacts.RunDirectory,
    chosen: range,
    show: Reporting,
) -> None:
    """Trains and saves those of the chosen teachers that are not trained yet."""
    finished = finished_teachers(directory.teachers)
    missing = [teacher for teacher in chosen if teacher not in finished]
    with show.progress_bar(desc="training teachers", total=len(chosen), unit="teacher") as bar:
        bar.update(len(chosen) - len(missing))
        if missing:
            num_done = len(finished)
            with _writer(directory) as writer:

                def advance(number: int) -> None:
                    nonlocal num_done
                    num_done += number
                    bar.update(number)
                    with writer.as_default(step=num_done):
                        tensorboard.scalar("progress/teachers_done", num_done)

                store.save_all(kind.train(job, missing), advance)


def _describe(
    job: TrainingJob,
    directory: artifacts.RunDirectory,
    pool_size: int | None,
    data_source: DataSource | None,
) -> None:
    """Writes `run.json`, the partition, and number and source of the records."""
    config = job.config
    examples = job.examples
    RunDescription(
        data_name=config.dataset.name,
        unit=config.unit,
        num_teachers=config.num_teachers,
        pool_size=pool_size,
        source={} if data_source is None else data_source.flags,
    ).write(directory)
    artifacts.write_arrays(
        directory.teachers / "partition.npz", {"assignment": job.partition.assignment}, private=True
    )
    records = dataclasses.asdict(Records(num_records=len(examples), source=examples.source))
    artifacts.write_json(directory.teachers / teacher_kinds.RECORDS, records, private=True)
    content = content_sum(record_digests(examples.inputs), examples.labels).tobytes()
    warn_of_same_records(examples.source, content, directory.sensitive)


def _in_words(config: TeacherConfig) -> str:
    """Returns what each teacher is; it says nothing about the sizes of shards."""
    words = name_of(config.model)
    if config.representation is not None:
        words += f", on {name_of(config.representation)} features of the pool"
    if config.max_steps is not None:
        words += f", {config.max_steps} steps each"
    return words


PERCENTILES = {"lowest": 0, "10th": 10, "median": 50, "90th": 90, "highest": 100}


def logs_of(directory: artifacts.RunDirectory) -> pathlib.Path:
    """Returns the folder that TensorBoard reads, made if it is missing: `sensitive/logs/teachers`.

    Percentiles of the loss have folders of their own in it, so that they share a chart.
    """
    return artifacts.make_sensitive_folder(directory.sensitive / "logs") / "teachers"


@contextlib.contextmanager
def _writer(
    directory: artifacts.RunDirectory, name: str = ""
) -> Iterator[tf.summary.SummaryWriter]:
    """Yields a writer into the folder of a name; what it wrote is private afterwards."""
    writer = tf.summary.create_file_writer(str(logs_of(directory) / name))
    try:
        yield writer
    finally:
        writer.close()
        artifacts.make_private(logs_of(directory))


def write_losses(
    directory: artifacts.RunDirectory, losses: Sequence[npt.NDArray[np.float32]]
) -> None:
    """Writes percentiles over the ensemble of the loss at each step, of `[step]` of each teacher.

    At a step count those teachers that do one, with a finite loss. The data holder is warned of
    others, which vote all the same: whether they do follows from private records.
    """
    if not all(np.isfinite(values).all() for values in losses):
        warnings.warn(
            "sensitive, for the data holder alone: the training of some teachers diverged; a "
            "smaller learning rate helps",
            SensitiveWarning,
            stacklevel=3,
        )
    padded = np.full((len(losses), max(map(len, losses))), np.nan, np.float32)
    for row, values in zip(padded, losses, strict=True):
        row[: len(values)] = np.where(np.isfinite(values), values, np.nan)
    steps = np.flatnonzero(~np.isnan(padded).all(axis=0))
    for name, percentile in PERCENTILES.items():
        values = np.nanpercentile(padded[:, steps], percentile, axis=0)
        with _writer(directory, name) as writer, writer.as_default():
            for step, value in zip(steps.tolist(), values, strict=True):
                tensorboard.scalar("loss", value, step=step + 1)


def write_accuracies(
    directory: artifacts.RunDirectory, config: TeacherConfig, accuracies: npt.NDArray[np.float64]
) -> None:
    """Writes every percentile of accuracies, which takes the place of the step, and settings."""
    with _writer(directory) as writer, writer.as_default():
        for percentile in range(101):
            value = np.percentile(accuracies, percentile)
            tensorboard.scalar("accuracy/by_percentile", value, step=percentile)
    settings = {**config.to_dict(), "dataset": config.dataset.name}
    results = {"result/mean_accuracy": float(accuracies.mean())}
    tensorboard.write_result(logs_of(directory), settings, results)
    artifacts.make_private(logs_of(directory))
