"""Encoders that a person brings: a Keras model in memory, from a function of hers, or from disk.

Nothing here can tell what such a model was trained on. Features are public only if none of its
weights depends on private records: the person vouches for that, and the statement says so.
"""

import importlib
import os
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.data.named_function import Named, call_function, name_of
from pate_tf.models import encoder as encoders
from pate_tf.models.catalogue import load_keras_file

PREFIX = "encoder:"
FORMS = f"{PREFIX}PATH"
SMALLEST = 96  # pixels along each side that an architecture of Keras Applications gets at least
# What a graph of features has no use for: code and files of its own.
REFUSED_OPS = ("PyFunc", "PyFuncStateless", "EagerPyFunc", "ReadFile", "WriteFile", "MatchingFiles")


def is_from_disk(name: Named) -> bool:
    """Whether a representation's name is that of an encoder on disk."""
    return isinstance(name, str) and name.startswith(PREFIX)


def find(name: str) -> tuple[str | None, pathlib.Path]:
    """Returns the application, if one is named, and the path of an encoder on disk.

    Args:
        name: `encoder:PATH` for a `.keras` file or the folder of a SavedModel, both from raw inputs
            to features; or `encoder:NAME:PATH` for an architecture of `keras.applications` and a
            file of its weights without the last layer, as Keras publishes them ("notop").

    Raises:
        ValueError: if there is no such file or architecture. The file is not opened.
    """
    location = name.removeprefix(PREFIX)
    application: str | None = None
    if not pathlib.Path(location).exists() and ":" in location:
        application, _, location = location.partition(":")
        if not callable(getattr(keras.applications, application, None)):
            raise ValueError(
                f"representation: expected an architecture of keras.applications, such as "
                f"{PREFIX}MobileNetV2:PATH, got {application!r}"
            )
    path = pathlib.Path(location)
    is_model = path.is_file() if application else path.suffix == ".keras" and path.is_file()
    if not is_model and not (application is None and (path / "saved_model.pb").is_file()):
        expected = "a file of weights" if application else "a .keras file or a SavedModel's folder"
        raise ValueError(f"representation: expected {expected} at {path}, got none")
    return application, path


def with_absolute_path(name: Named) -> Named:
    """Returns a name by which an encoder on disk is found from any working directory."""
    if not is_from_disk(name):
        return name
    application, path = find(str(name))
    return PREFIX + (f"{application}:" if application else "") + os.path.abspath(path)


def file_name(name: Named) -> str | None:
    """Returns the name of an encoder's file, without its folder; None if it is from no disk."""
    if not is_from_disk(name):
        return None
    application, _, path = str(name).removeprefix(PREFIX).rpartition(":")
    return f"{application} {pathlib.Path(path).name}".strip()


def function_of(model: keras.Model) -> Callable[[Dataset], keras.Model]:
    """Returns the function that gives a model for any data set, called after the model."""

    def build(dataset: Dataset) -> keras.Model:
        del dataset
        return model

    build.__name__ = model.name
    return build


def encoder(name: Named, dataset: Dataset) -> encoders.Encoder:
    """Returns the encoder of a model that a person brings.

    Args:
        name: as of `find`; or a function, itself or as `module:function`, from a `Dataset` to a
            Keras model.
        dataset: the data whose raw inputs it takes. Images of a model from disk are brought to the
            model's size (bilinear) and colours, where it has fixed ones.

    Raises:
        ValueError: if the model can't be had, or does not take such inputs.
    """
    if not is_from_disk(name):
        model = call_function(name, dataset, flag="representation")
        return encoders.Encoder(
            dataset, [ModelPart(model, name_of(name), dataset)], {"representation": name_of(name)}
        )
    application, path = find(str(name))
    what = f"{PREFIX}{application or path.name}"
    if application:
        model = _application(application, path, dataset)
    else:
        model = load_keras_file(path) if path.is_file() else _saved_model(path)
    part = ModelPart(_adapted(model, dataset), what, dataset)
    digest = artifacts.digest_paths([path])
    return encoders.Encoder(dataset, [part], {"representation": what, "file": digest})


class ModelPart(encoders.Part):
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


def _saved_model(folder: pathlib.Path) -> keras.Model:
    """Returns what the default signature of a SavedModel computes, as a Keras model."""
    try:
        signature = tf.saved_model.load(str(folder)).signatures["serving_default"]
        ((_, specification),) = signature.structured_input_signature[1].items()
        outputs = list(signature.structured_outputs)
    except Exception as error:  # TensorFlow raises its own kinds
        raise ValueError(
            f"{folder}: expected a SavedModel whose signature serving_default takes one input, got "
            f"{type(error).__name__}"
        ) from error
    graph = signature.graph.as_graph_def()
    nodes = [
        *graph.node,
        *(node for function in graph.library.function for node in function.node_def),
    ]
    if refused := sorted({node.op for node in nodes} & set(REFUSED_OPS)):
        raise ValueError(f"{folder}: expected no code or files of its own, got {refused[0]}")
    if len(outputs) != 1:
        raise ValueError(
            f"{folder}: expected one output of features, got {', '.join(sorted(outputs))}"
        )
    inputs = keras.Input(specification.shape[1:], dtype=specification.dtype.name)
    answers = keras.layers.TFSMLayer(str(folder), call_endpoint="serving_default")(inputs)
    return keras.Model(inputs, answers[outputs[0]])


def _application(name: str, path: pathlib.Path, dataset: Dataset) -> keras.Model:
    """Returns an architecture of Keras Applications with weights of a file, from pixels."""
    if dataset.kind != "image":
        raise ValueError(f"representation: expected images for {name}, got {dataset.kind} data")
    build = getattr(keras.applications, name)
    height, width = (max(side, SMALLEST) for side in dataset.input_shape[:2])
    try:
        body = build(include_top=False, weights=None, input_shape=(height, width, 3), pooling="avg")
        body.load_weights(str(path))
    except Exception as error:  # Keras and h5py each raise their own kinds
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"representation: expected weights of {name} without its last layer in {path}, got "
            f"others: {reason}"
        ) from error
    inputs = keras.Input(body.input_shape[1:])
    low, high = float(np.min(dataset.value_range[0])), float(np.max(dataset.value_range[1]))
    scale = 255.0 / (high - low)
    pixels = keras.layers.Rescaling(scale, offset=-low * scale)(inputs)
    prepare = importlib.import_module(build.__module__).preprocess_input
    return keras.Model(inputs, body(prepare(pixels)))


def _adapted(model: Any, dataset: Dataset) -> Any:
    """Returns a model that takes a data set's images, brought to the model's size and colours."""
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
