"""Requests to a served student."""

from typing import Any

import tensorflow as tf

from pate_tf.core.dataset import Dataset
from pate_tf.serving.export import TEXT


def serialized_example(raw: Any, dataset: Dataset) -> bytes:
    """Returns a raw input as `serialized_examples` takes it.

    It is `input_shape`, bytes of a text, or of a table with a schema a value for each column.
    """
    if dataset.kind == "text":
        text = tf.train.Feature(bytes_list=tf.train.BytesList(value=[raw]))
        return _serialized(TEXT, text)
    if dataset.schema is not None:
        features = {
            name: tf.train.Feature(bytes_list=tf.train.BytesList(value=[value.encode()]))
            if isinstance(value, str)
            else tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
            for name, value in raw.items()
        }
        example = tf.train.Example(features=tf.train.Features(feature=features))
        return example.SerializeToString(deterministic=True)
    if dataset.input_type == "uint8":
        pixels = tf.train.BytesList(value=[raw.tobytes()])
        return _serialized(dataset.input_name, tf.train.Feature(bytes_list=pixels))
    numbers = tf.train.FloatList(value=raw.ravel())
    return _serialized(dataset.input_name, tf.train.Feature(float_list=numbers))


def _serialized(name: str, feature: tf.train.Feature) -> bytes:
    features = tf.train.Features(feature={name: feature})
    return tf.train.Example(features=features).SerializeToString()
