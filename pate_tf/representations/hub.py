"""Frozen encoders that keras-hub reads: its presets, and folders in the format of Hugging Face."""

import importlib
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from pate_tf.core.dataset import Dataset
from pate_tf.data.preprocessing import texts_of_characters
from pate_tf.representations.images import colour_images

LONGEST_SEQUENCE = 128  # tokens
CHARACTERS_OF_TOKEN = 3  # at least, of most texts
USUAL_SIDE = 224  # pixels, of images whose network names no size


def keras_hub(what: str) -> Any:
    """Returns the package, and registers operations of texts; ValueError if it is not there."""
    try:
        importlib.import_module("tensorflow_text")  # its operations are in SavedModels of texts
        return importlib.import_module("keras_hub")
    except ImportError:
        raise ValueError(
            f"{what}: expected keras-hub to be installed, got none: pip install 'pate_tf[hub]'"
        ) from None


def outputs(where: str, dataset: Dataset) -> tuple[Any, Sequence[Any]]:
    """Returns pooled outputs of a backbone with its preprocessing, and its variables.

    Args:
        where: a preset's name, or a folder: of Keras, or with `config.json` and
            `model.safetensors`, of texts with the tokenizer's files.
        dataset: images, gray or in three colors; or texts that are kept as characters.

    Raises:
        ValueError: if there is no such encoder, or it is for other data.
    """
    what = f"representation hub:{where}"
    hub = keras_hub(what)
    try:
        backbone = hub.models.Backbone.from_preset(where)
        make = _of_images if dataset.kind == "image" else _of_texts
        return make(hub, backbone, where, dataset), backbone.variables
    except Exception as error:  # keras-hub, Kaggle and safetensors each raise their own kinds
        reason = " ".join(str(error).split())[:300]
        raise ValueError(
            f"{what}: expected an encoder of {dataset.kind} data that keras-hub reads, got "
            f"{type(error).__name__} ({reason})"
        ) from None


def _of_images(hub: Any, backbone: Any, where: str, dataset: Dataset) -> Any:
    """Returns mean outputs of images, which the preset's own converter scales."""
    convert = hub.layers.ImageConverter.from_preset(where)
    size = tuple(getattr(backbone, "image_shape", None) or ())[:2]
    size = tuple(side or USUAL_SIDE for side in size or convert.image_size or (None, None))

    def encode(images: tf.Tensor) -> tf.Tensor:
        pictures = colour_images(images, dataset, size)
        return _pooled(backbone(convert(pictures), training=False), None)

    return encode


def _of_texts(hub: Any, backbone: Any, where: str, dataset: Dataset) -> Any:
    """Returns mean outputs over the tokens of texts."""
    if not dataset.has_characters:
        raise ValueError(
            "texts must be kept as characters: characters=512 of Data.from_arrays, or text = 512 "
            "and characters = true in a schema"
        )
    length = min(LONGEST_SEQUENCE, max(8, dataset.input_shape[0] // CHARACTERS_OF_TOKEN))
    tokens = hub.models.TextClassifierPreprocessor.from_preset(where, sequence_length=length)

    def encode(characters: tf.Tensor) -> tf.Tensor:
        prepared = tokens(texts_of_characters(characters))
        mask = prepared["padding_mask"] if isinstance(prepared, dict) else prepared != 0
        return _pooled(backbone(prepared, training=False), mask)

    return encode


def _pooled(outputs: Any, mask: tf.Tensor | None) -> tf.Tensor:
    """Returns means over tokens, or places, of a backbone's outputs: `[batch, num_outputs]`."""
    if isinstance(outputs, dict):
        names = ("sequence_output", "encoder_sequence_output", "pooled_output")
        outputs = next(outputs[name] for name in (*names, *outputs) if name in outputs)
    if outputs.shape.rank == 3 and mask is not None:
        weights = tf.cast(mask, outputs.dtype)[:, :, tf.newaxis]
        total = tf.reduce_sum(outputs * weights, axis=1)
        return total / tf.maximum(tf.reduce_sum(weights, axis=1), 1.0)
    return tf.reduce_mean(outputs, axis=list(range(1, outputs.shape.rank - 1)))
