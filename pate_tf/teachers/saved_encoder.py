"""An encoder beside teachers that are no SavedModel, so that their votes take raw inputs."""

import hashlib
import pathlib
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf import artifacts
from pate_tf.models.encoder import BATCH, Encoder
from pate_tf.values.dataset import Dataset


def save(folder: pathlib.Path, encoder: Encoder) -> None:
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
