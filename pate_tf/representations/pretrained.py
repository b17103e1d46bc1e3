"""Encoders that a person brings: a Keras model in memory, from a function of hers, or from disk.

Nothing here can tell what such a model was trained on. Features are public only if none of its
weights depends on private records: the person vouches for that, and the statement says so.
"""

import pathlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.data.named_function import Named, call_function, name_of
from pate_tf.models.catalogue import load_keras_file
from pate_tf.models.encoder import Encoder, Part

PREFIX = "encoder:"


def is_from_disk(name: Named) -> bool:
    """Whether a representation's name is that of an encoder on disk."""
    return isinstance(name, str) and name.startswith(PREFIX)


def find(name: str) -> pathlib.Path:
    """Returns the path of `encoder:PATH`, a `.keras` file from raw inputs to features.

    Raises:
        ValueError: if there is none. The file is not opened.
    """
    path = pathlib.Path(name.removeprefix(PREFIX))
    if path.suffix != ".keras" or not path.is_file():
        raise ValueError(
            f"representation: expected a .keras file at {path}, got none; of other models take "
            f"module:function"
        )
    return path


def function_of(model: keras.Model) -> Callable[[Dataset], keras.Model]:
    """Returns the function that gives a model for any data set, called after the model."""

    def build(dataset: Dataset) -> keras.Model:
        del dataset
        return model

    build.__name__ = model.name
    return build


def encoder(name: Named, dataset: Dataset) -> Encoder:
    """Returns the encoder of a model that a person brings.

    Args:
        name: as of `find`; or a function, itself or as `module:function`, from a `Dataset` to a
            Keras model.
        dataset: the data whose raw inputs it takes. Images of a model from disk are brought to the
            model's size (bilinear) and colors, where it has fixed ones.

    Raises:
        ValueError: if the model can't be had, or does not take such inputs.
    """
    if not is_from_disk(name):
        model = call_function(name, dataset, flag="representation")
        part = ModelPart(model, name_of(name), dataset)
        return Encoder(dataset, [part], {"representation": name_of(name)})
    path = find(str(name))
    what = f"{PREFIX}{path.name}"
    part = ModelPart(_adapted(load_keras_file(path), dataset), what, dataset)
    digest = artifacts.digest_paths([path])
    return Encoder(dataset, [part], {"representation": what, "file": digest})


class ModelPart(Part):
    """One view: the outputs of a Keras model, flattened and divided by their L2 norm."""

    def __init__(self, model: Any, what: str, dataset: Dataset) -> None:
        """Takes a model; ValueError if it does not map raw inputs of the data set to features."""
        super().__init__()
        if not isinstance(model, keras.Model) or not hasattr(model, "output_shape"):
            raise ValueError(
                f"representation {what}: expected a Keras model that knows its input, got "
                f"{type(model).__name__}"
            )
        expected = (None, *dataset.input_shape)
        width = tf.TensorShape(model.output_shape[1:]).num_elements()
        if tuple(model.input_shape) != expected or not width:
            raise ValueError(
                f"representation {what}: expected {list(expected)} to features of one number, got "
                f"{list(model.input_shape)} to {list(model.output_shape)}"
            )
        self.model = model
        self.widths = (int(width),)

    @property
    def learnt(self) -> list[Any]:
        """The model's weights."""
        return list(self.model.variables)

    def __call__(self, inputs: tf.Tensor) -> list[tf.Tensor]:
        """Returns the view float32 `[batch, width]`."""
        flat = tf.reshape(self.model(inputs, training=False), [-1, self.widths[0]])
        return [tf.math.l2_normalize(tf.cast(flat, tf.float32), axis=1)]


def _adapted(model: Any, dataset: Dataset) -> Any:
    """Returns a model that takes a data set's images, brought to the model's size and colors."""
    shape = getattr(model, "input_shape", None)
    if dataset.kind != "image" or not isinstance(shape, tuple) or len(shape) != 4:
        return model
    height, width, channels = dataset.input_shape
    size = (shape[1] or height, shape[2] or width)
    fits = channels == shape[3] or (channels, shape[3]) == (1, 3)
    if not fits or shape[1:] == dataset.input_shape:
        return model
    inputs = keras.Input(dataset.input_shape)
    images = inputs if channels == shape[3] else keras.layers.Concatenate()([inputs] * 3)
    if size != (height, width):
        images = keras.layers.Resizing(*size, interpolation="bilinear")(images)
    return keras.Model(inputs, model(images))
