"""Teachers of scikit-learn: fitted in processes side by side, kept in one file, asked in threads.

Fitting a small classifier is mostly Python, which threads can't share; asking one is compiled code,
which they can.
"""

import collections
import concurrent.futures
import hashlib
import itertools
import json
import pathlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.partition import Partition
from pate_tf.core.sensitive import PrivateExamples, Votes
from pate_tf.core.validation import IntArray
from pate_tf.models import classifier
from pate_tf.models.classifier import Classifier
from pate_tf.models.encoder import BATCH, Encoder
from pate_tf.models.forest import Forest
from pate_tf.teachers import on_features, records
from pate_tf.teachers.processes import in_order, num_cores
from pate_tf.teachers.settings import TeacherConfig
from pate_tf.teachers.training import TeacherState
from pate_tf.teachers.voters import Progress

# An encoder beside teachers that are no SavedModel, so that their votes take raw inputs.


def save_encoder(folder: pathlib.Path, encoder: Encoder) -> None:
    """Writes an encoder as a SavedModel.

    Its signature `features` takes raw inputs, named as the data set names them, and returns
    `features` float32 `[batch, num_features]`.
    """
    dataset = encoder.dataset
    module = tf.Module()
    module.encoder, module.learnt = encoder, encoder.learnt

    @tf.function(
        autograph=False,
        input_signature=[
            tf.TensorSpec([None, *dataset.input_shape], dataset.input_type, dataset.input_name)
        ],
    )
    def features(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        found = encoder(tf.cast(inputs, tf.float32))
        return {"features": tf.ensure_shape(found, [None, encoder.num_features])}

    module.features = features
    tf.saved_model.save(module, str(folder), signatures={"features": features})


class SavedEncoder:
    """Public: an encoder that `save` wrote.

    Attributes:
      dataset: the data whose inputs it takes.
      digest: SHA-256 of what it learnt.
      num_features: how many features an input has.
    """

    def __init__(self, folder: pathlib.Path, dataset: Dataset) -> None:
        """Loads it.

        Raises:
          ValueError: if there is none at `folder`, or it is broken.
        """
        self.dataset = dataset
        try:
            self._loaded = tf.saved_model.load(str(folder))
            learnt = [variable.numpy() for variable in self._loaded.learnt]
            shape = self._loaded.signatures["features"].structured_outputs["features"].shape
            self.num_features = int(shape[1])
        except Exception as error:  # TensorFlow raises its own kinds
            raise ValueError(f"expected a representation in {folder}, got none") from error
        self.digest = hashlib.sha256(artifacts.digest_arrays(learnt).encode()).hexdigest()

    def features(self, inputs: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Returns features `[num_inputs, num_features]` of raw inputs, worked out in parts."""
        found = np.empty((len(inputs), self.num_features), np.float32)
        encode = self._loaded.signatures["features"]
        for start in range(0, len(inputs), BATCH):
            part = tf.constant(inputs[start : start + BATCH], self.dataset.input_type)
            answer = encode(**{self.dataset.input_name: part})["features"]
            found[start : start + BATCH] = answer.numpy()
        return found


FILE = "classifiers.npz"
FOREST_FILE = "forests.npz"  # its name when forests were the only ones
ENCODER = "encoder"  # folder of a SavedModel, of classifiers on features


def holds_classifiers(folder: pathlib.Path) -> bool:
    """Whether a folder holds an ensemble that `save` wrote."""
    return _file(folder).exists()


def _file(folder: pathlib.Path) -> pathlib.Path:
    old = folder / FOREST_FILE
    return old if old.exists() else folder / FILE


def train(
    config: TeacherConfig,
    examples: PrivateExamples,
    partition: Partition,
    teachers: Sequence[int],
    *,
    num_processes: int | None = None,
    encoder: Encoder | None = None,
) -> Iterator[tuple[int, TeacherState]]:
    """Yields each teacher with its fitted classifier's arrays.

    In the order of `teachers`, on features in ascending order.

    The result does not depend on how many processes there are.

    Args:
      config: how they are trained; of it `model` and `seed` alone.
      examples: the private records of all teachers.
      partition: who gets which record.
      teachers: the teachers to train.
      num_processes: how many fit side by side; None for one a core. Beside this process there are
        others only for a model that they can import.
      encoder: what makes features, for classifiers on them.
    """
    dataset = config.dataset
    shares = _shares(examples, partition, teachers)
    if encoder is not None:
        dataset, teachers = encoder.feature_dataset, sorted(teachers)
        shares = on_features.features_of_shares(examples, partition, teachers, encoder)

    def arguments(teacher: int, inputs: npt.NDArray[Any], labels: IntArray) -> tuple[Any, ...]:
        seed = int(np.random.SeedSequence([config.seed, teacher]).generate_state(1)[0])
        return config.model, dataset, inputs, labels, seed

    fitted = in_order(
        classifier.fit,
        itertools.starmap(arguments, shares),
        num_processes=min(num_processes or num_cores(), len(teachers)),
    )
    for teacher in teachers:
        yield teacher, TeacherState(next(fitted), [], [], [], np.zeros(0, np.float32))


def _shares(
    examples: PrivateExamples, partition: Partition, teachers: Sequence[int]
) -> Iterator[tuple[int, npt.NDArray[Any], IntArray]]:
    """SENSITIVE: yields each teacher with inputs and labels of its share."""
    records = partition.all_records()
    for teacher in teachers:
        yield teacher, examples.inputs[records[teacher]], examples.labels[records[teacher]]


def save(
    folder: pathlib.Path,
    config: TeacherConfig,
    teachers: Sequence[Sequence[npt.NDArray[Any]]],
    *,
    encoder: Encoder | None = None,
) -> None:
    """Writes an ensemble of classifiers at `folder`, whole or not at all.

    Args:
      folder: its parent must exist.
      config: what the teachers were trained with.
      teachers: the arrays of each teacher's classifier.
      encoder: what makes features, for classifiers on them; it is saved beside them.

    Raises:
      ValueError: if a teacher's arrays hold no classifier.
    """
    arrays = {
        f"{teacher}/{part}": array
        for teacher, parts in enumerate(teachers)
        for part, array in enumerate(parts)
    }
    _classifiers(arrays, config.num_teachers)
    with artifacts.atomic_folder(folder) as temporary:
        artifacts.write_arrays(temporary / FILE, arrays, private=True)
        artifacts.write_json(temporary / "ensemble.json", config.to_dict(), private=True)
        if encoder is not None:
            save_encoder(temporary / ENCODER, encoder)
        artifacts.make_private(temporary)


def _classifiers(arrays: Mapping[str, npt.NDArray[Any]], num_teachers: int) -> list[Classifier]:
    """Rebuilds the classifiers of all teachers from the arrays `<teacher>/<part>`."""
    sizes = collections.Counter(name.partition("/")[0] for name in arrays)
    names = [[f"{t}/{part}" for part in range(sizes[str(t)])] for t in range(num_teachers)]
    if not all(names) or arrays.keys() != {name for parts in names for name in parts}:
        raise ValueError(f"expected the arrays of {num_teachers} teachers, got others")
    rebuilt = []
    for teacher, parts in enumerate(names):
        try:
            rebuilt.append(classifier.from_arrays([arrays[name] for name in parts]))
        except ValueError as error:
            raise ValueError(f"teacher {teacher}: {error}") from error
    return rebuilt


class ClassifierEnsemble:
    """Sensitive: a saved ensemble of scikit-learn's classifiers, loaded to be asked for votes.

    Attributes:
      config: what the teachers were trained with.
      digest: SHA-256 of configuration and classifiers; the ledger knows the ensemble by it.
      records: what they learnt from; None if that was not kept.
    """

    def __init__(self, folder: pathlib.Path) -> None:
        """Loads an ensemble that `save` wrote. Nothing in the files is executed.

        Raises:
          ValueError: if there is none at `folder`, or it does not hold classifiers.
        """
        try:
            description = artifacts.read_json(folder / "ensemble.json")
            self.config = TeacherConfig.from_dict(description)
            arrays = artifacts.read_arrays(_file(folder))
            self._classifiers = _classifiers(arrays, self.config.num_teachers)
            self._encoder = (
                None
                if self.config.representation is None
                else SavedEncoder(folder / ENCODER, self.config.dataset)
            )
            self._check_forests()
        except FileNotFoundError as error:
            raise ValueError(
                f"teachers: expected a trained ensemble in {folder}, got none; "
                f"run train_teachers.py first"
            ) from error
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"teachers: expected a complete ensemble in {folder}, got a broken one: {error}"
            ) from error
        weights = artifacts.digest_arrays(arrays[name] for name in sorted(arrays))
        text = json.dumps(description, sort_keys=True) + weights
        text += "" if self._encoder is None else self._encoder.digest
        self.digest = hashlib.sha256(text.encode()).hexdigest()
        self.records = records.beside(folder)

    def _check_forests(self) -> None:
        num_features = int(np.prod(self.dataset.input_shape))
        if self._encoder is not None:
            num_features = self._encoder.num_features
        for one in self._classifiers:
            if isinstance(one, Forest) and (one.num_features, one.num_classes) != (
                num_features,
                self.dataset.num_classes,
            ):
                raise ValueError(
                    f"expected forests of {num_features} features and {self.dataset.num_classes} "
                    f"classes, got {one.num_features} and {one.num_classes}"
                )

    @property
    def dataset(self) -> Dataset:
        """What is publicly known of the data."""
        return self.config.dataset

    @property
    def num_teachers(self) -> int:
        """Number of teachers."""
        return self.config.num_teachers

    @property
    def unit(self) -> str:
        """What one teacher's share protects, "record" or "owner"."""
        return self.config.unit

    def votes(self, inputs: npt.NDArray[Any], progress: Progress | None = None) -> Votes:
        """Asks every teacher for a label of every input.

        Args:
          inputs: `[num_queries, *input_shape]`, raw as the data set holds them.
          progress: called with the number of queries done since its last call, where teachers
            that are done count as their share of the queries.

        Raises:
          ValueError: if the inputs have another shape, or are not finite.
        """
        _check_inputs(inputs, self.dataset)
        if self._encoder is not None:
            inputs = self._encoder.features(inputs)
        return _votes(self._classifiers, self.dataset.num_classes, inputs, progress)


def votes_of(
    config: TeacherConfig,
    teachers: Sequence[Sequence[npt.NDArray[Any]]],
    inputs: npt.NDArray[Any],
    progress: Progress | None = None,
    *,
    encoder: Encoder | None = None,
) -> Votes:
    """Asks teachers that are saved in no ensemble yet, as `ClassifierEnsemble.votes` does.

    Args:
      config: what the teachers were trained with.
      teachers: the arrays of each of them, at least one.
      inputs: `[num_queries, *input_shape]`, raw as the data set holds them.
      progress: called with the number of queries done since its last call.
      encoder: what makes features, for classifiers on them.

    Raises:
      ValueError: if a teacher's arrays hold no classifier, or the inputs do not fit.
    """
    _check_inputs(inputs, config.dataset)
    rebuilt = [classifier.from_arrays(arrays) for arrays in teachers]
    rows = inputs if encoder is None else encoder.features(inputs)
    return _votes(rebuilt, config.dataset.num_classes, rows, progress)


def _check_inputs(inputs: npt.NDArray[Any], dataset: Dataset) -> None:
    if inputs.shape[1:] != dataset.input_shape:
        raise ValueError(
            f"queries: expected [num_queries, {', '.join(map(str, dataset.input_shape))}],"
            f" got {list(inputs.shape)}"
        )


def _votes(
    teachers: Sequence[Classifier],
    num_classes: int,
    inputs: npt.NDArray[Any],
    progress: Progress | None,
) -> Votes:
    labels = np.empty((len(teachers), len(inputs)), np.int64)
    with (
        warnings.catch_warnings(),
        concurrent.futures.ThreadPoolExecutor(num_cores()) as threads,
    ):
        warnings.simplefilter("ignore")  # what they are about can follow from records
        answers = threads.map(lambda one: one.predict(inputs), teachers)
        for teacher in range(len(teachers)):
            try:
                labels[teacher] = next(answers)
            except ValueError as error:
                raise ValueError(f"teacher {teacher}: {error}") from error
            if progress is not None:
                done = (teacher + 1) * len(inputs) // len(teachers)
                progress(done - teacher * len(inputs) // len(teachers))
    return Votes(labels, num_classes)
