"""Teachers of a user: trained here on disjoint shares, or brought along."""

from __future__ import annotations

import inspect
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, Self

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.api import teacher_run as train_teachers
from pate_tf.api.data import as_inputs
from pate_tf.api.reporting import reporting
from pate_tf.api.sources import DEFAULT_NUM_TEACHERS
from pate_tf.api.teacher_training import ensemble_folder, load_ensemble
from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PublicExamples
from pate_tf.core.sensitive import PrivateExamples, Votes
from pate_tf.core.validation import IntArray, whole_numbers
from pate_tf.teachers import own_models
from pate_tf.teachers.keras_fit import Callbacks
from pate_tf.teachers.settings import TeacherSettings
from pate_tf.teachers.voters import KeptVotes, ModelFolder, Voter, digest_for

# What may be given as a teacher's model: a function that makes a new one, or a name.


Net = Callable[[Dataset], Any]


def check_net(net: Any) -> None:
    """Raises ValueError unless `net` is None, a function of one argument, or a name."""
    if net is not None and (
        not (callable(net) or isinstance(net, str)) or isinstance(net, (type, keras.Model))
    ):
        raise ValueError(
            f"net: expected a function of the data set that returns a new model at each call, "
            f"or a name, got {type(net).__name__}"
        )
    if callable(net):
        _check_signature(net)


def _check_signature(net: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(net)
    except ValueError:  # compiled functions do not say
        return
    try:
        signature.bind(None)
    except TypeError as error:
        raise ValueError(
            f"net: expected a function of one argument, the data set, got one of {signature}"
        ) from error


# What may stand behind the front door's `Teachers`: all of it votes, and has a digest.


class KnownTeachers:
    """Teachers that can vote, whatever they are.

    Attributes:
      digest: the ledger knows them by it.
      unit: what one teacher's share protects.
      num_teachers: how many they are.
    """

    digest: str
    num_teachers: int
    unit: str = "record"

    @property
    def identified(self) -> Any:
        """What a ledger is opened for: `digest`, `unit` and whatever else is known of it."""
        return self

    def voter(self, pool: Pool) -> Voter:
        """Returns what votes on inputs of a pool."""
        raise NotImplementedError

    def votes(self, inputs: Any) -> IntArray:
        """See `Teachers.votes`."""
        raise NotImplementedError


class LoadedTeachers(KnownTeachers):
    """An ensemble that was trained and exported here."""

    def __init__(self, ensemble: Voter) -> None:
        self._ensemble = ensemble
        self.digest, self.unit = ensemble.digest, ensemble.unit
        self.num_teachers = ensemble.num_teachers

    @property
    def identified(self) -> Any:
        """See `KnownTeachers`."""
        return self._ensemble

    def voter(self, pool: Pool) -> Voter:
        """See `KnownTeachers`."""
        return self._ensemble

    def votes(self, inputs: Any) -> IntArray:
        """See `Teachers.votes`."""
        return self._ensemble.votes(as_inputs(inputs, self._ensemble.dataset)).labels


class GivenVotes(KnownTeachers):
    """Labels that teachers gave elsewhere; see `Teachers.from_votes`."""

    def __init__(self, labels: IntArray, unit: str) -> None:
        self._labels, self.unit = labels, unit
        self.num_teachers = len(labels)
        self.digest = digest_for(artifacts.digest_array(labels), unit)

    def voter(self, pool: Pool) -> Voter:
        """See `KnownTeachers`."""
        return KeptVotes(Votes(self._labels, pool.dataset.num_classes), pool, unit=self.unit)

    def votes(self, inputs: Any) -> IntArray:
        """See `Teachers.votes`."""
        number = len(getattr(inputs, "inputs", inputs))
        if number > self._labels.shape[1]:
            raise ValueError(
                f"inputs: expected at most the {self._labels.shape[1]} that were labelled, got "
                f"{number}"
            )
        return self._labels[:, :number].copy()


class GivenModels(KnownTeachers):
    """Models that were trained elsewhere; see `Teachers.from_models`."""

    def __init__(self, models: Sequence[Any], unit: str) -> None:
        own_models.check_predictors(models)
        self._models, self.unit = models, unit
        self.num_teachers = len(models)
        self.digest = digest_for(own_models.digest_of(models), unit)

    def voter(self, pool: Pool) -> Voter:
        """See `KnownTeachers`."""
        return own_models.ModelList(self._models, pool.dataset, unit=self.unit)

    def votes(self, inputs: Any) -> IntArray:
        """See `Teachers.votes`."""
        raw = np.asarray(getattr(inputs, "inputs", inputs))
        return own_models.labels_of(self._models, raw)


class FolderOfModels(KnownTeachers):
    """A folder of them."""

    def __init__(self, folder: pathlib.Path, unit: str) -> None:
        self._folder, self.unit = folder, unit
        paths = ModelFolder.paths(folder)
        self.num_teachers = len(paths)
        self.digest = digest_for(artifacts.digest_paths(paths), unit)

    def voter(self, pool: Pool) -> Voter:
        """See `KnownTeachers`."""
        return ModelFolder(self._folder, pool.dataset, unit=self.unit)

    def votes(self, inputs: Any) -> IntArray:
        """See `Teachers.votes`."""
        if not isinstance(inputs, (Pool, PublicExamples)):
            raise ValueError(
                "inputs: expected data.pool or data.held_out, which name the data set of a folder "
                "of models, got an array"
            )
        return ModelFolder(self._folder, inputs.dataset).votes(inputs.inputs).labels


def known_models(models: Sequence[Any] | str | os.PathLike[str], unit: str) -> KnownTeachers:
    """Returns models, or those of a folder, as teachers; see `Teachers.from_models`."""
    if not isinstance(models, (str, os.PathLike)):
        return GivenModels(list(models), unit)
    folder = pathlib.Path(models)
    if not folder.is_dir():
        raise ValueError(f"models: expected a folder of models, got {folder}")
    return FolderOfModels(folder, unit)


Path = str | os.PathLike[str]


class Teachers:
    """SENSITIVE: an ensemble of teachers, each of whom saw its own share of the private records.

    >>> import pate_tf
    >>> data = pate_tf.datasets.load("digits")
    >>> teachers = pate_tf.Teachers("mlp", num_teachers=4, directory=folder, steps=5)
    >>> len(teachers.fit(data.private))
    4
    >>> teachers.votes(data.pool.inputs[:3]).shape
    (4, 3)

    What a teacher computes depends on its own share, on public settings and on the seed alone. That
    is what makes one record (or one owner) change at most one vote (docs/theory.md, Propositions S1
    and S2). For code that a user brings along it is an assumption: `net` and `callbacks` must make
    everything anew at each call, and keep nothing outside.

    A stopped `fit` goes on where it stopped, in the same directory: teachers that are done are
    kept. Other records, settings or another model in that directory are refused.
    """

    def __init__(
        self,
        net: Net | str | None = None,
        *,
        num_teachers: int = DEFAULT_NUM_TEACHERS,
        directory: Path | None = None,
        steps: int | None = None,
        batch_size: int | None = None,
        learning_rate: float | None = None,
        seed: int = 0,
        representation: Net | str | None = None,
        class_weights: Sequence[float] | None = None,
        callbacks: Callbacks | None = None,
        parallelism: str = "ensemble",
        num_processes: int = 1,
        devices: tf.distribute.Strategy | None = None,
        verbose: bool = False,
    ) -> None:
        """Takes the settings; nothing is trained or written before `fit`.

        Args:
          net: a function that takes a `Dataset` and returns what each teacher is: a Keras model
            that is not compiled, from raw inputs to logits (trained fast, in one traced loop for
            all teachers, by Adam on inputs augmented as the data set allows); a compiled Keras
            model (trained by Keras' own `fit` with its own optimizer, loss and metrics, one teacher
            after another, on inputs as they are); or an unfitted classifier of scikit-learn. Or a
            name: "cnn", "wide_cnn", "mlp", "deeper", "random_forest" and others, or
            "module:function"; "ridge", "nearest_mean" and "nearest_neighbour" are solved for on
            features of a `representation`, thousands in seconds. Default: a small network that
            suits the data.
          num_teachers: how many share the private records. More teachers make labels cheaper, and
            each teacher worse. Where records have owners their number is private, and this number
            may not follow from it.
          directory: of the run; teachers and the ledger go below its `sensitive/`. Default:
            `runs/NAME-NUM_TEACHERS` in the working directory.
          steps: training steps of each teacher; a compiled model's are rounded up to whole passes.
            Default: 25 passes over a teacher's own records, at least 150 steps.
          batch_size: records a step.
          learning_rate: of Adam, 0.005 by default. A compiled model has its own.
          seed: fixes partition, initial weights, shuffling and augmentation; not the privacy noise.
          representation: what "ridge" and its like, or a classifier of scikit-learn, take for an
            input: "contrastive" or "patches", learnt from the pool that `fit` is given; "raw";
            several of them joined by "+"; or a function, itself or as "module:function", from a
            `Dataset` to a Keras model from raw inputs to features, none of whose weights depends on
            private records. Default, for "ridge" and its like alone: "contrastive+patches" for
            images, "raw" otherwise.
          class_weights: how much a record of each class counts, from public knowledge, not for
            compiled models and classifiers of scikit-learn. Default: all alike.
          callbacks: for a compiled model's `fit`: a function that returns new ones for each
            teacher, or unused callbacks, which are copied for each.
          parallelism: speed; "ensemble" if each device trains teachers of its own, "data" if all
            devices train one teacher at a time.
          num_processes: speed; how many processes fit classifiers of scikit-learn. Above 1 the
            script that calls this needs `if __name__ == "__main__":`, and `net` a module.
          devices: speed; the strategy to train with. Default: all GPUs of this host, else the CPU.
          verbose: whether progress bars are shown.

        Raises:
          ValueError: if `net` is neither a function of one argument nor a name.
        """
        check_net(net)
        self.num_teachers = num_teachers
        self.directory = None if directory is None else pathlib.Path(directory)
        self._settings = TeacherSettings(
            model=net,
            max_steps=steps,
            batch_size=batch_size,
            learning_rate=learning_rate,
            seed=seed,
            representation=representation,
            class_weights=None if class_weights is None else tuple(map(float, class_weights)),
        )
        self._engine = train_teachers.Engine(
            callbacks=callbacks,
            parallelism=parallelism,
            num_processes=num_processes,
            devices=devices,
        )
        self._verbose = verbose
        self._known: KnownTeachers | None = None

    def fit(self, private: PrivateExamples, pool: Pool | None = None) -> Self:
        """Shares the records out and trains every teacher that is not trained yet.

        Args:
          private: `data.private`. With owners, all records of one owner go to one teacher.
          pool: `data.pool`, for teachers on features: a representation is learnt from it.

        Returns:
          This object.

        Raises:
          ValueError: if settings, records and directory do not fit each other.
        """
        if not isinstance(private, PrivateExamples):
            raise ValueError(
                f"private: expected data.private of a pate_tf.Data, got {type(private).__name__}"
            )
        directory, ensemble = train_teachers.fit(
            self._settings,
            private,
            num_teachers=self.num_teachers,
            pool=pool,
            folder=self.directory,
            engine=self._engine,
            reporting=reporting(self._verbose),
        )
        self.directory, self._known = directory, LoadedTeachers(ensemble)
        return self

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Returns the teachers that `fit` or `train_teachers.py` left in a directory.

        Raises:
          ValueError: if there is no complete ensemble.
        """
        ensemble = load_ensemble(ensemble_folder(artifacts.RunDirectory(pathlib.Path(directory))))
        return cls._of(LoadedTeachers(ensemble), ensemble.num_teachers, directory)

    @classmethod
    def from_votes(
        cls, votes: npt.ArrayLike, *, unit: str = "record", directory: Path | None = None
    ) -> Self:
        """Takes labels that teachers gave elsewhere, without their records or models.

        >>> import numpy as np, pate_tf
        >>> len(pate_tf.Teachers.from_votes(np.zeros((50, 20), int), directory=folder))
        50

        Args:
          votes: whole numbers `[num_teachers, num_queries]`: each teacher's labels of the first
            inputs of the pool that will be asked about, in the pool's order. SENSITIVE.
          unit: what one teacher's records are shared out by: "record" if each record taught one
            teacher, "owner" if all records of each owner did. The cost of labels protects it.
          directory: holds the one ledger that these teachers ever have; a `Labeller` needs it.

        Raises:
          ValueError: if they are not whole numbers of at least 0 in two dimensions, or the unit is
            unknown.
        """
        array = whole_numbers(votes, "votes")
        if array.ndim != 2 or not len(array) or (array.size and array.min() < 0):
            raise ValueError(
                f"votes: expected labels from 0 on [num_teachers, num_queries], got shape "
                f"{list(array.shape)} or negative ones"
            )
        return cls._of(GivenVotes(array, unit), len(array), directory)

    @classmethod
    def from_models(
        cls,
        models: Sequence[Any] | Path,
        *,
        unit: str = "record",
        directory: Path | None = None,
    ) -> Self:
        """Takes models that were trained elsewhere, each on records that no other one saw.

        Args:
          models: Keras models, fitted classifiers of scikit-learn, or any objects with
            `predict(inputs)` that returns labels `[batch]` or scores `[batch, num_classes]` of raw
            inputs; or a folder of `.keras` files and SavedModels.
          unit: what one teacher's records are shared out by: "record" if each record taught one
            teacher, "owner" if all records of each owner did. The cost of labels protects it.
          directory: holds the one ledger that these teachers ever have; a `Labeller` needs it.

        Raises:
          ValueError: if there is no model, one can't predict, or the unit is unknown.
        """
        known = known_models(models, unit)
        return cls._of(known, known.num_teachers, directory)

    @classmethod
    def _of(cls, known: KnownTeachers, num_teachers: int, directory: Path | None) -> Self:
        teachers = cls(num_teachers=num_teachers, directory=directory)
        teachers._known = known
        return teachers

    def __len__(self) -> int:
        return self.num_teachers

    def __repr__(self) -> str:
        state = "not trained yet" if self._known is None else "sensitive"
        return f"Teachers(<{self.num_teachers} teachers, {state}>)"

    @property
    def is_fitted(self) -> bool:
        """Whether the teachers can vote."""
        return self._known is not None

    @property
    def unit(self) -> str:
        """What one teacher's share protects, "record" or "owner"."""
        return self.known.unit

    @property
    def known(self) -> KnownTeachers:
        """What stands behind this door; for the other doors.

        Raises:
          ValueError: if the teachers are not trained yet.
        """
        if self._known is None:
            raise ValueError("teachers: expected trained ones, got none: call fit(data.private)")
        return self._known

    def votes(self, inputs: npt.ArrayLike | Pool | PublicExamples) -> IntArray:
        """Returns the label that each teacher gives to each input. SENSITIVE: never publish it.

        No budget is charged, since nothing may leave of it: it serves audits and analyses by
        whoever holds the private records.

        Args:
          inputs: raw inputs `[num_queries, *input_shape]`. Teachers made `from_votes` answer for
            the first inputs of their pool, by position.

        Returns:
          int64 `[num_teachers, num_queries]`.

        Raises:
          ValueError: if the teachers are not trained yet, or the inputs do not fit.
        """
        return self.known.votes(inputs)

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
        votes, truth = self.votes(inputs), whole_numbers(labels, "labels")
        if truth.shape != votes.shape[1:] or not truth.size:
            raise ValueError(
                f"labels: expected [{votes.shape[1]}], one for each input, got {list(truth.shape)}"
            )
        return float(np.mean(votes == truth))
