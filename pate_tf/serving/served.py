"""A student loaded back from its SavedModel, asked as a server would ask it."""

import pathlib
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.serving.digest import load_student
from pate_tf.serving.signatures import SERVING_DEFAULT

BATCH = 500


class ServedStudent:
    """A student loaded back from its SavedModel, asked as a server would ask it."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Loads a version that `export_student` wrote.

        Raises:
          ValueError: if there is no such SavedModel.
        """
        self._loaded = load_student(folder)
        self._serve = self._loaded.signatures[SERVING_DEFAULT]
        self._name = next(iter(self._serve.structured_input_signature[1]))
        self._type = self._serve.structured_input_signature[1][self._name].dtype

    def classify(self, inputs: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Returns the label int64 `[batch]` of every raw input `[batch, *input_shape]`.

        Raises:
          ValueError: if the student refuses an input, such as features that are not finite.
        """
        parts = [np.empty(0, np.int64)]
        for start in range(0, len(inputs), BATCH):
            batch = tf.constant(inputs[start : start + BATCH], self._type)
            try:
                answer = self._serve(**{self._name: batch})
            except tf.errors.InvalidArgumentError as error:
                raise ValueError(
                    f"student: expected {self._name} of the exported shape and finite, got others"
                ) from error
            parts.append(answer["label"].numpy())
        return np.concatenate(parts)
