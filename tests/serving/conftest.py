"""Students that know their data, exported, and the Keras model's answers for their inputs."""

import dataclasses
import pathlib

import keras
import numpy as np
import pytest
from data_sets_for_tests import table_dataset

from pate_tf.core.dataset import Dataset
from pate_tf.data import datasets as data
from pate_tf.models import architectures as models
from pate_tf.serving.export import export_student, student_digest

NUM_IMAGES = 1_000
ROUNDING = 1e-3  # between two logits; other batches and runtimes round differently
TABLE = table_dataset(4, -1.0, 1.0)


@dataclasses.dataclass(frozen=True)
class Exported:
    """A student in memory and on disk.

    Attributes:
        model: the Keras model.
        dataset: the student's data set.
        folder: the exported version.
        inputs: raw inputs `[num_inputs, *input_shape]`, each clearly in one class.
        labels: the Keras model's labels of the inputs, int64 `[num_inputs]`.
    """

    model: keras.Model
    dataset: Dataset
    folder: pathlib.Path
    inputs: np.ndarray
    labels: np.ndarray


def exported(
    model: keras.Model, dataset: Dataset, inputs: np.ndarray, folder: pathlib.Path
) -> Exported:
    statement = {"epsilon": 1.5, "student_digest": student_digest(model)}
    version = export_student(model, dataset, folder / "student", statement)
    logits = model.predict(inputs.astype(np.float32), verbose=0)
    second, first = np.sort(logits, axis=1)[:, -2:].T
    clear = np.flatnonzero(first - second > ROUNDING)[:NUM_IMAGES]
    return Exported(model, dataset, version, inputs[clear], logits.argmax(axis=1)[clear])


@pytest.fixture(scope="session")
def digits(tmp_path_factory) -> Exported:
    public = data.load_public("digits")
    model = models.build("cnn", public.dataset, seed=1)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    images, labels = public.inputs[: 2 * NUM_IMAGES], public.labels[: 2 * NUM_IMAGES]
    model.fit(images.astype(np.float32), labels, epochs=3, shuffle=False, verbose=0)
    made = exported(model, public.dataset, images, tmp_path_factory.mktemp("served"))
    assert len(np.unique(made.labels)) == 10  # otherwise equal labels would prove little
    return made


@pytest.fixture(scope="session")
def table(tmp_path_factory) -> Exported:
    rows = np.random.default_rng(0).uniform(-1, 1, (50, 4)).astype(np.float32)
    model = models.build("mlp", TABLE, seed=1)
    return exported(model, TABLE, rows, tmp_path_factory.mktemp("served"))
