"""`Teachers`: an ensemble that the library trains, or that is made from given votes or models."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import os
import pathlib
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
    owner_partition,
    random_partition,
    warn_holder,
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
from pate_tf.teachers.teacher_kinds import TeacherKind, TrainedTeacher, TrainingJob
from pate_tf.teachers.teacher_settings import TeacherConfig, TeacherSettings
from pate_tf.teachers.voters import StoredVotes, Voter

Net = Callable[[Dataset], Any]
Path = str | os.PathLike[str]

IMAGE_MODEL = "ridge"  # default model of a teacher for images
REPORT = "teachers_report.json"
# Maximum number of votes that are used to measure the teachers' accuracy. With thousands of
# teachers, computing votes on all samples would take longer than the training.
MAX_ANSWERS = 2**22
MIN_SAMPLES = 256


class Teachers:
    """SENSITIVE: an ensemble of teachers, each trained on its own shard of the private records.

    >>> import pate_tf
    >>> data = pate_tf.Data.load("digits")
    >>> teachers = pate_tf.Teachers("mlp", num_teachers=4, directory=folder, steps=5)
    >>> len(teachers.fit(data.private))
    4
    >>> teachers.votes(data.pool.inputs[:3]).shape
    (4, 3)

    A teacher depends only on its own shard, public settings and the seed. Therefore one record (or
    one owner) changes at most one vote (docs/proofs/theory.md, Propositions S1 and S2). If `net` is
    a user's function, this is an assumption: the function must create all objects anew at each
    call, and must not keep state between calls.

    If `fit` is interrupted, it resumes in the same directory. Finished teachers are kept if the
    records are the same; otherwise, all teachers are trained on the new records. If all teachers
    are finished, they are used even if the records have changed, because an error would reveal
    something about the private data. In this case, a warning shows the date of the training. Use
    another directory for other records. `fit` refuses a directory that contains teachers with other
    settings or another model.
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
        """Stores the settings. Nothing is trained or written before `fit`.

        Args:
            net: model of each teacher, given by a function or a name. A function takes a `Dataset`
                and returns one of these:

                - a Keras model that is not compiled and maps raw inputs to logits. It is trained by
                  Adam, with the augmentation of the data set. This is fast, because all teachers
                  use the same traced loop. If the target is a number, the model has two logits; the
                  second value of their softmax is the position of the number in its range.
                - a compiled Keras model for classes. Keras' `fit` trains it with its own optimizer,
                  loss and metrics, one teacher after another, without augmentation.
                - an unfitted scikit-learn classifier; if the target is a number, a regressor; if it
                  is several labels, a classifier or regressor with several outputs.

                Names are "cnn", "wide_cnn", "mlp", "random_forest" and others, or
                "module:function". "ridge" is solved in closed form on features of a
                `representation`: thousands of teachers take seconds. Default: "ridge" for images if
                `fit` gets a pool and no network setting is given; otherwise a small network that
                suits the data.
            num_teachers: number of teachers among which the private records are partitioned. With
                more teachers, labels cost less privacy, but each teacher is less accurate. Default:
                for ridge, a number that depends on the numbers of records and classes; for other
                models, 100. If records have owners, the number of records is private, so there is
                no default, and you must not derive the number of teachers from the number of
                records.
            directory: folder of the run; teachers and the ledger are stored in its `sensitive/`.
                Default: `runs/NAME-NUM_TEACHERS` in the working directory.
            steps: number of training steps of each teacher; for a compiled model, it is rounded up
                to whole passes over the shard. Default: see `--max_steps` of `pate teachers`.
            batch_size: number of records per training step.
            learning_rate: learning rate of Adam. Do not pass it for a compiled model, which has its
                own learning rate.
            seed: seed of the partition, initial weights, shuffling and augmentation. Privacy noise
                does not depend on it.
            representation: function that computes the features which "ridge" or a scikit-learn
                estimator takes. Possible values: "contrastive", "patches" or "wavelets", computed
                from the pool that `fit` gets; "bins" or "raw"; several names joined by "+";
                "encoder:PATH" for a model on disk; a `pate_tf.Representation`; a Keras model that
                maps raw inputs to features; or a function that takes a `Dataset` and returns such a
                model, given as an object or by its name "module:function". No weight of the model
                may depend on private records. Default, only for "ridge": "contrastive+patches" for
                gray images, "patches+wavelets" for color images, "raw" for tables, "lsa" for texts.
            class_weights: weights of the records of each class, chosen from public knowledge. Not
                supported for compiled models and scikit-learn estimators. Default: equal weights.
            num_processes: number of processes that fit scikit-learn estimators; affects only the
                speed. If there are several processes, the calling script needs `if __name__ ==
                "__main__":`, and `net` must be defined in a module.
            verbose: whether progress bars are shown.

        Raises:
            ValueError: if `net` is neither a function nor a name.
        """
        is_function = callable(net) and not isinstance(net, (type, keras.Model))
        if not (net is None or isinstance(net, str) or is_function):
            raise ValueError(
                f"net must be a name, or a function that takes the data set and returns a new "
                f"model at each call, got {type(net).__name__}"
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
        # Identifies the records on which `fit` trained these teachers; None for teachers that were
        # loaded.
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

        Calls with the same settings and data train the same ensemble, even if the training was
        stopped and resumed.

        Args:
            private: the private records, `data.private`. If they have owners, all records of one
                owner go to one teacher.
            pool: the public inputs, `data.pool`. They are required for teachers that learn from
                features.
            teachers: numbers of the teachers that this process trains; the first teacher has the
                number 0. The process that trains the last missing teacher saves the ensemble.
                Default: all teachers.
            data_source: description of the files that contain the data, which is stored in the run
                folder; None if the data are arrays.
            reporting: object that shows progress and warnings. Default: depends on `verbose`.

        Returns:
            This object.

        Raises:
            ValueError: if the settings do not match the records, or if the directory contains
                teachers with other settings.
        """
        if not isinstance(private, PrivateExamples):
            raise ValueError(f"private must be data.private, got {type(private).__name__}")
        if self._voter is not None and self._voter.config is None:
            raise ValueError("teachers made by from_votes or from_models can't be trained")
        show = reporting or self._reporting
        kind, config, partition = self._configured(private, pool, show)
        number = config.num_teachers
        chosen = range(number) if teachers is None else teachers
        if not 0 <= chosen.start < chosen.stop <= number:
            raise ValueError(
                f"teachers must be from 0 to {number - 1}, got {chosen.start} to {chosen.stop - 1}"
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
        # Checks the settings before anything is written, so that a wrong setting leaves no files
        # behind.
        kind.check(job)
        artifacts.remove_abandoned(directory.root)
        with contextlib.ExitStack() as stack:
            if teachers is None:  # otherwise, several processes may write at the same time
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
                write_curves(directory, config, trained)
                self._voter = teacher_kinds.load_ensemble(target)
        return self

    def _take_stored(self, target: pathlib.Path, private: PrivateExamples) -> None:
        """Loads a complete ensemble of the same data source.

        Raises ValueError if it was trained on another source or on a different number of records.
        """
        voter = teacher_kinds.load_ensemble(target)
        folder = target.parent
        if private.public_size is not None and voter.num_records not in (None, len(private)):
            raise ValueError(
                f"{folder} contains teachers that learned from {voter.num_records:,} records, not "
                f"from {len(private):,}. Choose another folder, or delete this folder."
            )
        if private.source is not None:
            private.source.check_stored(voter.source, folder)
        self._voter = voter
        self.split = None  # they may have been trained on other records
        self.num_teachers = voter.num_teachers
        self.directory = folder.parent.parent

    def chosen(
        self, private: PrivateExamples, pool: Pool | None
    ) -> tuple[TeacherKind, Named, Named | None, int]:
        """Returns the kind of the teachers, their model, their representation and their number.

        All four results depend only on settings and public values.

        Args:
            private: private records.
            pool: public inputs; None if there are none.

        Raises:
            ValueError: if settings contradict each other, or if the number of teachers is missing
                but required.
        """
        settings = self._settings
        dataset = private.dataset
        model = settings.model
        if model is None:
            of_images = dataset.kind == "image" and pool is not None and len(pool) > 0
            needs_network = any(
                getattr(settings, name) is not None for name in teacher_kinds.TRAINING_SETTINGS
            )
            on_features = settings.representation is not None or (of_images and not needs_network)
            model = IMAGE_MODEL if on_features else default_model(dataset)
        kind = teacher_kinds.find_kind(model, dataset)
        kind.check_settings(settings, model)
        representation = settings.representation
        if representation is None and kind.features == "required":
            representation = representations.default_of_teachers(dataset)
        number = self.num_teachers
        if number is None and private.owners is not None:
            raise ValueError("num_teachers is required: with owners, the record count is private")
        if number is None and kind.features == "required":
            number = recommended_num_teachers(len(private), dataset)
        return kind, model, representation, DEFAULT_NUM_TEACHERS if number is None else number

    def _configured(
        self, private: PrivateExamples, pool: Pool | None, show: Reporting
    ) -> tuple[TeacherKind, TeacherConfig, Partition]:
        """Returns the kind of the teachers, their complete configuration, and the partition."""
        settings = self._settings
        kind, model, representation, number = self.chosen(private, pool)
        if self.num_teachers is None and kind.features == "required":
            show.note(
                f"{number} teachers, the default for {len(private)} private records; this number "
                f"of records is treated as public"
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
            show.note(f"Teachers: {_in_words(config)}, the default for these data")
        return kind, config, partition

    def report(self, data: Data, reporting: Reporting) -> RunReport:
        """Measures the teachers' accuracy on public samples. SENSITIVE.

        The method stores and returns a report, and writes the mean accuracy for TensorBoard.
        """
        directory = artifacts.RunDirectory(pathlib.Path(self.directory or ""))
        finished = len(finished_teachers(directory.teachers))
        config = None if self._voter is None else self._voter.config
        public = data.public.without(np.zeros(0, np.int64))  # all samples
        samples = public.labelled()
        accuracy = NOT_MEASURED if samples is None else "not measured"
        mean = lowest = highest = None
        are_classes = public.dataset.target == CLASS
        if config is not None and samples is not None and are_classes:
            accuracies = self._accuracies(samples, reporting)
            with _writer(directory) as writer, writer.as_default():
                tensorboard.scalar("result/mean_accuracy", accuracies.mean(), step=0)
            mean, lowest, highest = (float(each(accuracies)) for each in (np.mean, np.min, np.max))
            accuracy = f"{mean:.2%} (lowest {lowest:.2%}, highest {highest:.2%}); sensitive"
        majority = majority_share(public.labels) if are_classes else None
        values: dict[str, Any] = {
            "dataset": public.dataset.name,
            "nb_teachers": self.num_teachers,
            "teachers_trained": finished,
            "constant_answer_accuracy": majority,
            "seconds": reporting.seconds,
            "teacher_accuracy_mean": mean,
            "teacher_accuracy_lowest": lowest,
            "teacher_accuracy_highest": highest,
        }
        artifacts.write_json(directory.sensitive / REPORT, values, private=True)
        words = f"{finished} of {self.num_teachers} trained"
        if config is not None:
            words = f"{self.num_teachers} of {_in_words(config)}"
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
        """Returns each teacher's accuracy, measured on some labeled samples, `[num_teachers]`."""
        most = max(MIN_SAMPLES, MAX_ANSWERS // len(self))
        part = slice(None, None, -(-len(samples) // most))
        inputs = samples.inputs[part]
        with reporting.progress_bar(
            desc="measuring teachers", total=len(inputs), unit="sample"
        ) as bar:
            votes = self.identified.votes(inputs, bar.update).labels
        accuracies: npt.NDArray[np.float64] = (votes == np.asarray(samples.labels)[part]).mean(
            axis=1
        )
        return accuracies

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Loads the teachers that `fit` or `pate teachers` stored in a directory.

        Raises:
            ValueError: if the directory contains no complete ensemble.
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
        """Creates teachers from their labels or predictions, without models.

        >>> import numpy as np, pate_tf
        >>> len(pate_tf.Teachers.from_votes(np.zeros((50, 20), int), directory=folder))
        50

        Args:
            votes: each teacher's labels of the first inputs of the pool, in the pool's order, as
                integers `[num_teachers, num_queries]`. For a numeric target, pass predicted numbers
                in the unit of the target. For a target of several labels, pass probabilities from 0
                to 1, `[num_teachers, num_queries, num_labels]`. SENSITIVE. A `Labeller` refuses
                votes that look transposed: the size of the pool equals the number of teachers, but
                not the number of queries.
            unit: unit of privacy: "record" if each record was used for only one teacher, "owner" if
                all records of each owner were used for only one teacher.
            directory: folder for the privacy ledger of these teachers, which a `Labeller` needs.
                Always pass the same folder for the same teachers.
            name: public name of the private data, see `Data.from_arrays`.

        Raises:
            ValueError: if the votes have another shape or type, or the unit is unknown.
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
        """Creates teachers from models that you trained on disjoint records.

        Args:
            models: Keras models, fitted scikit-learn classifiers, or any objects whose method
                `predict(inputs)` takes raw inputs and returns labels `[batch]` or scores `[batch,
                num_classes]`; see `ForeignModels` for other targets. Alternatively, the path of a
                folder of `.keras` files and SavedModels.
            unit: unit of privacy: "record" if each record was used for only one teacher, "owner" if
                all records of each owner were used for only one teacher.
            directory: folder for the privacy ledger of these teachers, which a `Labeller` needs.
                Always pass the same folder for the same teachers.
            name: public name of the private data, see `Data.from_arrays`.

        Raises:
            ValueError: if there is no model, if a model has no method for predictions, or if the
                unit is unknown.
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
        """The unit of privacy, "record" or "owner"; each unit is in only one teacher's shard."""
        return self.identified.unit

    @property
    def is_fitted(self) -> bool:
        """Whether all teachers are trained."""
        return self._voter is not None

    @property
    def identified(self) -> Voter:
        """The trained ensemble that votes; its digest identifies the teachers in a ledger.

        Raises:
            ValueError: if some teachers are not trained yet.
        """
        if self._voter is None:
            raise ValueError("teachers are not trained yet. Call fit(data.private) first.")
        return self._voter

    def for_pool(self, pool: Pool) -> Voter:
        """Returns the ensemble, prepared to vote on the inputs of a pool; called by `Labeller`."""
        return self.identified.for_pool(pool)

    def votes(self, inputs: npt.ArrayLike | Pool | PublicExamples) -> npt.NDArray[Any]:
        """Returns the label that each teacher gives to each input. SENSITIVE: never publish these.

        This method charges no budget, because votes must not be released. Votes are only for audits
        and analyses by the data holder.

        Args:
            inputs: raw inputs `[num_queries, *input_shape]`. Teachers from `from_votes` have votes
                only on the first inputs of their pool; row i gets the votes on the pool's input i.

        Returns:
            Labels, int64 `[num_teachers, num_queries]`. If the target is a number, predictions in
            the unit of the target, float64, in the same shape. If the target is several labels,
            probabilities, float64 `[num_teachers, num_queries, num_labels]`.

        Raises:
            ValueError: if the teachers are not trained yet, or the inputs have the wrong shape.
        """
        voter = self.identified
        if voter.config is not None:
            return voter.votes(as_inputs(inputs, voter.dataset)).labels
        return voter.votes(np.asarray(getattr(inputs, "inputs", inputs))).labels

    def accuracy(
        self, inputs: npt.ArrayLike | Pool | PublicExamples, labels: npt.ArrayLike
    ) -> float:
        """Returns the fraction of correct votes over all teachers and inputs. SENSITIVE.

        Args:
            inputs: raw inputs, see `votes`.
            labels: true labels `[num_queries]`.

        Raises:
            ValueError: for the same reasons as `votes`; or if there are no inputs, or the number of
                labels differs from the number of inputs.
        """
        if self.identified.config is not None:
            self.identified.dataset.require_classes("accuracy")
        votes = self.votes(inputs)
        truth = whole_numbers(labels, "labels")
        if truth.shape != votes.shape[1:] or not truth.size:
            raise ValueError(f"labels must have shape [{votes.shape[1]}], got {list(truth.shape)}")
        return float(np.mean(votes == truth))


def _encoder(config: TeacherConfig, pool: Pool | None, show: Reporting) -> Encoder | None:
    """Returns the encoder of the teachers' representation; None if they learn from raw inputs.

    Raises:
        ValueError: if the pool is missing or belongs to a different data set.
    """
    if config.representation is None:
        return None
    if pool is None:
        raise ValueError(
            f"pool is required for model {name_of(config.model)}: it learns from features, which "
            f"are computed from public inputs"
        )
    if difference := pool.dataset.difference(config.dataset):
        raise ValueError(f"pool must have the same data set as the private records: {difference}")
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
    """Trains and saves the chosen teachers that are not trained yet."""
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
    """Writes files that describe a run: `run.json`, the partition, and facts about the records."""
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
    """Returns a short description of the teachers' model, features and number of steps."""
    words = name_of(config.model)
    if config.representation is not None:
        words += f", on {name_of(config.representation)} features of the pool"
    if config.max_steps is not None:
        words += f", {config.max_steps} steps each"
    return words


PERCENTILES = {"lowest": 0, "10th": 10, "median": 50, "90th": 90, "highest": 100}


def logs_of(directory: artifacts.RunDirectory) -> pathlib.Path:
    """Returns the folder for TensorBoard, `sensitive/logs/teachers`; creates it if necessary.

    Each percentile of the teachers' metrics has its own subfolder, so TensorBoard shows all
    percentiles in one chart.
    """
    return artifacts.make_sensitive_folder(directory.sensitive / "logs") / "teachers"


@contextlib.contextmanager
def _writer(
    directory: artifacts.RunDirectory, name: str = ""
) -> Iterator[tf.summary.SummaryWriter]:
    """Yields a writer for a TensorBoard folder; afterward, makes the written files private."""
    writer = tf.summary.create_file_writer(str(logs_of(directory) / name))
    try:
        yield writer
    finally:
        writer.close()
        artifacts.make_private(logs_of(directory))


def write_curves(
    directory: artifacts.RunDirectory, config: TeacherConfig, trained: Sequence[TrainedTeacher]
) -> None:
    """Writes the teachers' settings, and percentiles of loss and accuracy, for TensorBoard.

    Both are measured on the records of each training step. Only finite values are used. If some
    losses are not finite, the data holder gets a warning. Teachers whose training diverged still
    vote, because leaving them out would depend on private records.
    """
    settings = {**config.to_dict(), "dataset": config.dataset.name}
    tensorboard.write_result(logs_of(directory), settings, {})
    artifacts.make_private(logs_of(directory))
    if not all(np.isfinite(teacher.curves[0]).all() for teacher in trained):
        warn_holder("the training of some teachers diverged; lower learning_rate", stacklevel=4)
    for place, tag in enumerate(("loss", "accuracy")):
        by_step = itertools.zip_longest(*(teacher.curves[place] for teacher in trained))
        padded = np.array(list(by_step), np.float32).reshape(-1, len(trained))
        padded[~np.isfinite(padded)] = np.nan
        steps = np.flatnonzero(~np.isnan(padded).all(axis=1))
        for name, percentile in PERCENTILES.items() if len(steps) else ():
            values = np.nanpercentile(padded[steps], percentile, axis=1)
            with _writer(directory, name) as writer, writer.as_default():
                for step, value in zip(steps.tolist(), values, strict=True):
                    tensorboard.scalar(tag, value, step=step + 1)
