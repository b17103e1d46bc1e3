"""A silo's teacher: brought along, or trained on the silo's own records.

What answers stays small: a random forest is trained in a process of its own and walked by NumPy, so
that a silo needs neither TensorFlow nor scikit-learn while it serves. Every other model brings what
it needs.
"""

import dataclasses
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np

from pate_tf.api.files import read_records
from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.record_set import RecordSet
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.data import catalogue
from pate_tf.data.named_function import call_function, is_named_function
from pate_tf.models.forest import RANDOM_FOREST, Forest, WalkedForest
from pate_tf.silos.teachers import OwnTeacher, load_teacher
from pate_tf.teachers import records as record_sets

CLASSIFIER, TRAINED = "teacher.npz", "teacher"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TeacherRun:
    """Which teacher a silo has.

    Attributes:
      dataset: name that `data.catalogue` knows, or `module:function`: shapes and classes.
      data_dir: where the data set lies; None for the default. Of it a silo needs public samples,
        and only for a model on features of them.
      teacher: a SavedModel's folder, a `.keras` or `.skops` file, or `module:function`, whose
        function takes the `Dataset` and returns a trained teacher: a classifier of scikit-learn, a
        Keras model, or a function from inputs to labels. None to train one on `records`.
      records: a `.npz` file of `inputs` and `labels`; None with a teacher.
      model: what is trained, as of train_teachers.py: "random_forest", a Keras architecture,
        "ridge" and its like on features of public samples, or `module:function`.
      seed: fixes the training.
    """

    dataset: str
    data_dir: pathlib.Path | None = None
    teacher: str | None = None
    records: pathlib.Path | None = None
    model: str = RANDOM_FOREST
    seed: int = 0


def make_teacher(run: TeacherRun, folder: pathlib.Path) -> OwnTeacher:
    """Returns the silo's teacher; one that was trained before is taken up again.

    Args:
      run: which one.
      folder: sensitive; what is trained is kept there.

    Raises:
      ValueError: if there is neither a teacher nor records, or they do not fit the data set.
      OSError: if a file can't be read.
    """
    dataset = catalogue.load_dataset(run.dataset, data_dir=run.data_dir)
    facts: dict[str, Any] = {
        "num_classes": dataset.num_classes,
        "input_shape": dataset.input_shape,
        "input_type": dataset.input_type,
    }
    if (run.teacher is None) == (run.records is None):
        raise ValueError("teacher: expected a teacher or records to train one on, got both or none")
    if run.teacher is None:
        return OwnTeacher(_trained(run, folder, dataset), **facts)
    if is_named_function(run.teacher) and not pathlib.Path(run.teacher).exists():
        return OwnTeacher(call_function(run.teacher, dataset, flag="teacher"), **facts)
    return load_teacher(pathlib.Path(run.teacher), **facts)


def known_records(run: TeacherRun, folder: pathlib.Path) -> RecordSet | None:
    """SENSITIVE: returns what the teacher of `make_teacher` learnt from; None if it was given.

    Raises:
      ValueError: if what was kept is broken.
    """
    return None if run.records is None else record_sets.beside(folder / TRAINED)


def _trained(run: TeacherRun, folder: pathlib.Path, dataset: Dataset) -> Any:
    kept = folder / CLASSIFIER
    if kept.exists():
        arrays = artifacts.read_arrays(kept)
        return _from_arrays([arrays[f"part_{place}"] for place in range(len(arrays))])
    records = read_records(run.records or pathlib.Path(), dataset)
    record_sets.keep(folder, records.inputs)
    if run.model != RANDOM_FOREST and not _is_classifier(run.model, dataset):
        return _trained_as_ever(run, folder / TRAINED, records)
    found = _fitted_elsewhere(run.model, records, run.seed)
    parts = {f"part_{place}": array for place, array in enumerate(found)}
    artifacts.write_arrays(kept, parts, private=True)
    return _from_arrays(found)


def _is_classifier(model: str, dataset: Dataset) -> bool:
    from pate_tf.models import classifier

    return classifier.is_classifier(model, dataset)


def _from_arrays(arrays: list[np.ndarray]) -> Any:
    if len(arrays) > 1:
        return WalkedForest(Forest.from_arrays(arrays))
    from pate_tf.models import classifier

    return classifier.from_arrays(arrays)


def _fit(
    model: str, dataset: Dataset, inputs: np.ndarray, labels: np.ndarray, seed: int
) -> list[np.ndarray]:
    from pate_tf.models import classifier

    return list(classifier.fit(model, dataset, inputs, labels, seed))


def _fitted_elsewhere(model: str, records: PrivateExamples, seed: int) -> list[np.ndarray]:
    """Fits a classifier in a process that ends with it: training takes more memory than serving."""
    from pate_tf.teachers.processes import in_order

    arguments = (model, records.dataset, records.inputs, records.labels, seed)
    (found,) = in_order(_fit, [arguments], num_processes=2)  # 1 would be this process
    return found


def _trained_as_ever(
    run: TeacherRun, folder: pathlib.Path, records: PrivateExamples
) -> Callable[[np.ndarray], np.ndarray]:
    """Trains an ensemble of one teacher, in all as train_teachers.py does."""
    from pate_tf.api import teacher_run as train_teachers
    from pate_tf.teachers.on_features import is_on_features
    from pate_tf.teachers.settings import TeacherSettings

    pool = None
    if is_on_features(run.model):
        public = catalogue.load_public(run.dataset, data_dir=run.data_dir)
        pool = public.split(public.dataset.pool_size).pool
    _, ensemble = train_teachers.fit(
        TeacherSettings(model=run.model, seed=run.seed),
        records,
        num_teachers=1,
        pool=pool,
        folder=folder,
        engine=train_teachers.Engine(),
    )
    return lambda queries: ensemble.votes(queries).labels[0]
