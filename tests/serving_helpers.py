"""Requests to a served student."""

import pathlib
from typing import Any

import pytest
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


def assert_warms_up(folder: pathlib.Path) -> None:
    """A version has a request for each signature, as TensorFlow Serving reads and makes them."""
    apis = pytest.importorskip("tensorflow_serving.apis.prediction_log_pb2")
    signatures = tf.saved_model.load(str(folder)).signatures
    path = folder / "assets.extra" / "tf_serving_warmup_requests"
    warmed = set()
    for record in tf.data.TFRecordDataset(str(path)):
        request = apis.PredictionLog.FromString(record.numpy()).predict_log.request
        inputs = {name: tf.constant(tf.make_ndarray(each)) for name, each in request.inputs.items()}
        answer = signatures[request.model_spec.signature_name](**inputs)
        assert answer["label"].shape == (1,) and request.model_spec.name == folder.parent.name
        warmed.add(request.model_spec.signature_name)
    assert warmed == set(signatures)
