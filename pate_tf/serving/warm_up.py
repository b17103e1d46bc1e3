"""Requests that TensorFlow Serving puts to a student before it takes those of users.

https://www.tensorflow.org/tfx/serving/saved_model_warmup. The first requests to a model are slow;
the warm-up requests take that upon themselves.
"""

import pathlib

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from pate_tf.serving import signatures
from pate_tf.values.dataset import Dataset

WARM_UP = "tf_serving_warmup_requests"
BATCH_SIZES = (1, 16)


def write_warm_up(path: pathlib.Path, dataset: Dataset) -> None:
    """Writes a request for each signature and batch size, as a TFRecord of `PredictionLog`s.

    The inputs are zeros, or empty texts, so that nothing about data is in them.

    Args:
      path: `assets.extra/tf_serving_warmup_requests` of a SavedModel.
      dataset: names and shapes the input.
    """
    with tf.io.TFRecordWriter(str(path)) as records:
        for size in BATCH_SIZES:
            is_text = dataset.kind == "text"
            inputs = (
                np.full(size, b"", object)
                if is_text
                else np.zeros([size, *dataset.input_shape], dataset.input_type)
            )
            name_of_input = signatures.TEXT if is_text else dataset.input_name
            examples = [signatures.serialized_example(raw, dataset) for raw in inputs]
            for signature, name, values in (
                (signatures.SERVING_DEFAULT, name_of_input, inputs),
                (signatures.SERIALIZED_EXAMPLES, signatures.EXAMPLES, examples),
            ):
                request = predict_pb2.PredictRequest()
                request.model_spec.name = "student"
                request.model_spec.signature_name = signature
                request.inputs[name].CopyFrom(tf.make_tensor_proto(values))
                log = prediction_log_pb2.PredictLog(request=request)
                record = prediction_log_pb2.PredictionLog(predict_log=log)
                records.write(record.SerializeToString())
