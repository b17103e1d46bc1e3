"""Exports a student as a numbered SavedModel that takes raw inputs and needs no Python."""

import pathlib
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf import artifacts
from pate_tf.records import Dataset

BATCH = 500


def export_student(
    model: keras.Model, dataset: Dataset, folder: pathlib.Path, statement: dict[str, Any]
) -> pathlib.Path:
    """Writes the next version below `folder`, whole or not at all.

    `serving_default` takes `image` uint8 or `features` float32 `[batch, *input_shape]` and returns
    `probabilities` float32 `[batch, num_classes]` and `label` int64 `[batch]`.

    Args:
      model: from raw inputs to logits.
      dataset: names and shapes the input.
      folder: the model's folder, e.g. `released/student`.
      statement: JSON values that travel in `assets.extra/privacy_statement.json`.

    Returns:
      The folder of the new version.
    """
    folder.mkdir(parents=True, exist_ok=True)
    signature = tf.TensorSpec(
        [None, *dataset.input_shape], dataset.input_type, name=dataset.input_name
    )

    @tf.function(input_signature=[signature])
    def serve(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        logits = model(tf.cast(inputs, tf.float32), training=False)
        return {"probabilities": tf.nn.softmax(logits), "label": tf.argmax(logits, axis=1)}

    module = tf.Module()
    module.model = model
    module.serve = serve
    while True:
        versions = [int(path.name) for path in folder.iterdir() if path.name.isdigit()]
        target = folder / str(max(versions, default=0) + 1)
        try:
            with artifacts.atomic_folder(target, replace=False) as temporary:
                tf.saved_model.save(module, str(temporary), signatures={"serving_default": serve})
                extra = temporary / "assets.extra"
                extra.mkdir()
                artifacts.write_json(extra / "privacy_statement.json", statement)
            return target
        except FileExistsError:  # another process took the number meanwhile
            continue


class ServedStudent:
    """A student loaded back from its SavedModel, asked as a server would ask it."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Loads a version that `export_student` wrote.

        Raises:
          ValueError: if there is no such SavedModel.
        """
        try:
            self._loaded = tf.saved_model.load(str(folder))
            self._serve = self._loaded.signatures["serving_default"]
        except Exception as error:  # TensorFlow raises many kinds
            raise ValueError(f"student: expected a SavedModel in {folder}, got none") from error
        self._name = next(iter(self._serve.structured_input_signature[1]))
        self._type = self._serve.structured_input_signature[1][self._name].dtype

    def classify(self, inputs: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Returns the label int64 `[batch]` of every raw input `[batch, *input_shape]`."""
        parts = [np.empty(0, np.int64)]
        for start in range(0, len(inputs), BATCH):
            batch = tf.constant(inputs[start : start + BATCH], self._type)
            parts.append(self._serve(**{self._name: batch})["label"].numpy())
        return np.concatenate(parts)
