"""A student loaded back from its SavedModel, asked as a server would ask it."""

import pathlib
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.serving.digest import load_student
from pate_tf.serving.signatures import FEATURES, SERVING_DEFAULT

BATCH = 500


class ServedStudent:
    """A student loaded back from its SavedModel, asked as a server would ask it."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Loads a version that `export_student` wrote.

        Raises:
          ValueError: if there is no such SavedModel.
        """
        self._loaded = load_student(folder)
        # Texts have become features where a run holds them.
        name = FEATURES if FEATURES in self._loaded.signatures else SERVING_DEFAULT
        self._serve = self._loaded.signatures[name]
        self._name = next(iter(self._serve.structured_input_signature[1]))
        self._type = self._serve.structured_input_signature[1][self._name].dtype

    def classify(self, inputs: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Returns the label int64 `[batch]` of every raw input `[batch, *input_shape]`.

        Raises:
          ValueError: as `answer`.
        """
        return self.answer(inputs)[0]

    def answer(
        self, inputs: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Returns labels int64 `[batch]` and probabilities float32 `[batch, num_classes]`.

        Args:
          inputs: raw, `[batch, *input_shape]`.

        Raises:
          ValueError: if the student refuses an input, such as features that are not finite.
        """
        labels = [np.empty(0, np.int64)]
        num_classes = self._serve.structured_outputs["probabilities"].shape[1]
        probabilities = [np.empty((0, num_classes), np.float32)]
        for start in range(0, len(inputs), BATCH):
            batch = tf.constant(inputs[start : start + BATCH], self._type)
            try:
                answer = self._serve(**{self._name: batch})
            except tf.errors.InvalidArgumentError as error:
                raise ValueError(
                    f"student: expected {self._name} of the exported shape and finite, got others"
                ) from error
            labels.append(answer["label"].numpy())
            probabilities.append(answer["probabilities"].numpy())
        return np.concatenate(labels), np.concatenate(probabilities)
