"""Teachers of a user: trained here on disjoint shares, or from elsewhere."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import os
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PublicExamples
from pate_tf.core.reporting import reporting
from pate_tf.core.sensitive import PrivateExamples, Votes
from pate_tf.core.source import PrivateSource
from pate_tf.core.validation import IntArray, whole_numbers
from pate_tf.data.data import as_inputs
from pate_tf.representations.catalogue import Representation, source_of
from pate_tf.teachers.foreign import ForeignModels
from pate_tf.teachers.kinds import Callbacks, Engine, load_ensemble
from pate_tf.teachers.run_folder import DEFAULT_NUM_TEACHERS, ensemble_folder
from pate_tf.teachers.settings import TeacherSettings
from pate_tf.teachers.teacher_training import shares_of, train_teachers
from pate_tf.teachers.voters import StoredVotes, Voter, digest_for

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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Known:
    """SENSITIVE: teachers that can vote, before the pool is known.

    Attributes:
        num_teachers: how many they are.
        unit: what one teacher's share protects.
        digest: the ledger knows them by it.
        num_records: None: that of teachers from elsewhere is not known.
        voter: from the pool to what votes on its inputs.
        votes: from inputs, as a person has them, to labels int64 `[num_teachers, num_inputs]`.
        ensemble: what was trained here; None of others.
        source: of the private data that taught them; None for the run folder.
    """

    num_teachers: int
    unit: str
    digest: str
    num_records: ClassVar[None] = None
    voter: Callable[[Pool], Voter] = dataclasses.field(repr=False)
    votes: Callable[[Any], IntArray] = dataclasses.field(repr=False)
    ensemble: Voter | None = dataclasses.field(default=None, repr=False)
    source: PrivateSource | None = None


def _known_ensemble(ensemble: Voter) -> Known:
    return Known(
        num_teachers=ensemble.num_teachers,
        unit=ensemble.unit,
        digest=ensemble.digest,
        voter=lambda pool: ensemble,
        votes=lambda inputs: ensemble.votes(as_inputs(inputs, ensemble.dataset)).labels,
        ensemble=ensemble,
    )


def _first_labels(labels: IntArray, inputs: Any) -> IntArray:
    """Returns the labels of the first inputs, by position."""
    number = len(getattr(inputs, "inputs", inputs))
    if number > labels.shape[1]:
        raise ValueError(
            f"inputs: expected at most the {labels.shape[1]} that were labelled, got {number}"
        )
    return labels[:, :number].copy()


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
    is what makes one record (or one owner) change at most one vote (docs/proofs/theory.md,
    Propositions S1 and S2). For code that a user brings along it is an assumption: `net` and
    `callbacks` must make everything anew at each call, and keep nothing outside.

    A stopped `fit` goes on where it stopped, in the same directory: teachers that are done stay.
    Other records, settings or another model in that directory are refused.
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
        representation: Net | str | keras.Model | Representation | None = None,
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
                that is not compiled, from raw inputs to logits (trained fast, in one traced loop
                for all teachers, by Adam on inputs augmented as the data set allows); a compiled
                Keras model (trained by Keras' own `fit` with its own optimizer, loss and metrics,
                one teacher after another, on inputs as they are); or an unfitted classifier of
                scikit-learn. Or a name: "cnn", "wide_cnn", "mlp", "deeper", "random_forest" and
                others, or "module:function"; "ridge", "nearest_mean" and "nearest_neighbour" are
                solved for on features of a `representation`, thousands in seconds. Default: "ridge"
                for images where `fit` is given a pool and no setting that only networks have; else
                a small network that suits the data.
            num_teachers: how many share the private records. More teachers make labels cheaper, and
                each teacher worse. Where records have owners their number is private, and this
                number may not follow from it.
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
                "contrastive+patches" for grey images, "patches+wavelets" for colour ones, "raw"
                for tables, "lsa" for texts.
            class_weights: how much a record of each class counts, from public knowledge, not for
                compiled models and classifiers of scikit-learn. Default: all the same.
            callbacks: for a compiled model's `fit`: a function that returns new ones for each
                teacher, or unused callbacks, which are copied for each.
            parallelism: speed; "ensemble" if each device trains teachers of its own, "data" if all
                devices train one teacher at a time.
            num_processes: speed; how many processes fit classifiers of scikit-learn. Above 1 the
                script that calls this needs `if __name__ == "__main__":`, and `net` a module.
            devices: speed; the strategy to train with. Default: all GPUs of this host, else the
                CPU.
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
            representation=source_of(representation),
            class_weights=None if class_weights is None else tuple(map(float, class_weights)),
        )
        self._engine = Engine(
            callbacks=callbacks,
            parallelism=parallelism,
            num_processes=num_processes,
            devices=devices,
        )
        self._verbose = verbose
        self._known: Known | None = None

    def fit(self, private: PrivateExamples, pool: Pool | None = None) -> Self:
        """Shares the records out and trains every teacher that is not trained yet.

        Args:
            private: `data.private`. With owners, all records of one owner go to one teacher.
            pool: `data.pool`, for teachers on features: a representation is trained on it.

        Returns:
            This object.

        Raises:
            ValueError: if settings, records and directory do not fit each other.
        """
        if not isinstance(private, PrivateExamples):
            raise ValueError(
                f"private: expected data.private of a pate_tf.Data, got {type(private).__name__}"
            )
        seed, number = self._settings.seed, self.num_teachers
        trained = train_teachers(
            self._settings,
            private,
            shares_of(private, num_teachers=number, seed=seed),
            pool=pool,
            folder=self.directory,
            engine=self._engine,
            reporting=reporting(self._verbose),
        )
        self.directory, self._known = trained.directory.root, _known_ensemble(trained.load())
        return self

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Returns the teachers that `fit` or `train_teachers.py` left in a directory.

        Raises:
            ValueError: if there is no complete ensemble.
        """
        ensemble = load_ensemble(ensemble_folder(artifacts.RunDirectory(pathlib.Path(directory))))
        return cls._of(_known_ensemble(ensemble), directory)

    @classmethod
    def from_votes(
        cls,
        votes: npt.ArrayLike,
        *,
        unit: str = "record",
        directory: Path | None = None,
        name: str | None = None,
    ) -> Self:
        """Takes labels that teachers gave elsewhere, without their records or models.

        >>> import numpy as np, pate_tf
        >>> len(pate_tf.Teachers.from_votes(np.zeros((50, 20), int), directory=folder))
        50

        Args:
            votes: whole numbers `[num_teachers, num_queries]`: each teacher's labels of the first
                inputs of the pool that will be asked about, in the pool's order. SENSITIVE. A
                `Labeller` refuses as many teachers as the pool has inputs, with other than as many
                queries: it takes them for transposed.
            unit: what one teacher's records are shared out by: "record" if each record taught one
                teacher, "owner" if all records of each owner did. The cost of labels protects it.
            directory: holds the one ledger that these teachers ever have; a `Labeller` needs it.
            name: public name of the private data, as of `Data.from_arrays`.

        Raises:
            ValueError: if they are not whole numbers of at least 0 in two dimensions, or the unit
                is unknown.
        """
        array = whole_numbers(votes, "votes")
        if array.ndim != 2 or not len(array) or (array.size and array.min() < 0):
            raise ValueError(
                f"votes: expected labels from 0 on [num_teachers, num_queries], got shape "
                f"{list(array.shape)} or negative ones"
            )
        known = Known(
            num_teachers=len(array),
            unit=unit,
            digest=digest_for(artifacts.digest_array(array), unit),
            voter=functools.lru_cache(maxsize=1)(
                lambda pool: StoredVotes(Votes(array, pool.dataset.num_classes), pool, unit=unit)
            ),
            votes=lambda inputs: _first_labels(array, inputs),
            source=None if name is None else PrivateSource.named(name),
        )
        return cls._of(known, directory)

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
                raw inputs; or a folder of `.keras` files and SavedModels.
            unit: what one teacher's records are shared out by: "record" if each record taught one
                teacher, "owner" if all records of each owner did. The cost of labels protects it.
            directory: holds the one ledger that these teachers ever have; a `Labeller` needs it.
            name: public name of the private data, as of `Data.from_arrays`.

        Raises:
            ValueError: if there is no model, one can't predict, or the unit is unknown.
        """
        is_folder = isinstance(models, (str, os.PathLike))
        given = pathlib.Path(models) if is_folder else list(models)  # type: ignore[arg-type]
        unbound = ForeignModels(given, unit=unit)
        known = Known(
            num_teachers=unbound.num_teachers,
            unit=unit,
            digest=unbound.digest,
            voter=functools.lru_cache(maxsize=1)(
                lambda pool: ForeignModels(given, pool.dataset, unit=unit)
            ),
            votes=lambda inputs: unbound.labels(np.asarray(getattr(inputs, "inputs", inputs))),
            source=None if name is None else PrivateSource.named(name),
        )
        return cls._of(known, directory)

    @classmethod
    def _of(cls, known: Known, directory: Path | None) -> Self:
        teachers = cls(num_teachers=known.num_teachers, directory=directory)
        teachers._known = known
        return teachers

    def __len__(self) -> int:
        return self.num_teachers

    def __repr__(self) -> str:
        state = "not trained yet" if self._known is None else "sensitive"
        return f"Teachers(<{self.num_teachers} teachers, {state}>)"

    @property
    def unit(self) -> str:
        """What one teacher's share protects, "record" or "owner"."""
        return self.known.unit

    @property
    def known(self) -> Known:
        """What votes, for the rest of the public API.

        Raises:
            ValueError: if the teachers are not trained yet.
        """
        if self._known is None:
            raise ValueError("teachers: expected trained ones, got none: call fit(data.private)")
        return self._known

    @property
    def identified(self) -> Any:
        """What the ledger belongs to, for `Labeller`: has `digest`, `unit` and `records`."""
        return self.known.ensemble or self.known

    def for_pool(self, pool: Pool) -> Voter:
        """Returns what labels of a pool come from, for `Labeller`."""
        return self.known.voter(pool)

    def votes(self, inputs: npt.ArrayLike | Pool | PublicExamples) -> IntArray:
        """Returns the label that each teacher gives to each input. SENSITIVE: never publish it.

        No budget is charged, since nothing of it may be released: it serves audits and analyses by
        the holder of the private records.

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
