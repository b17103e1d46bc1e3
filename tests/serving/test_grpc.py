"""TensorFlow Serving's own requests, over gRPC on loopback."""

import numpy as np
import tensorflow as tf
from prediction_server import predict, predict_request, serving
from tensorflow_serving.apis import prediction_log_pb2

from pate_tf.serving.signatures import serialized_example

BATCH = 100


def warm_up_requests(folder):
    path = folder / "assets.extra" / "tf_serving_warmup_requests"
    for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        log = prediction_log_pb2.PredictionLog.FromString(record)
        assert log.WhichOneof("log_type") == "predict_log"
        yield log.predict_log.request


def test_requests_over_grpc_get_the_labels_of_keras(images):
    labels = {"serving_default": [], "serialized_examples": []}
    with serving(images.folder) as channel:
        for start in range(0, len(images.inputs), BATCH):
            batch = images.inputs[start : start + BATCH]
            examples = [serialized_example(image, images.dataset) for image in batch]
            for signature, inputs in (
                ("serving_default", {"image": batch}),
                ("serialized_examples", {"examples": examples}),
            ):
                answer = predict(channel, predict_request(signature, **inputs))
                labels[signature].append(answer["label"])
                assert answer["class_name"].astype(str).tolist() == [
                    images.dataset.class_names[label] for label in answer["label"]
                ]
    for given in labels.values():
        np.testing.assert_array_equal(np.concatenate(given), images.labels)


def test_the_warm_up_requests_are_answered(digits, table):
    for student, empty in (
        (digits, np.zeros([1, 8, 8, 1], np.float32)),
        (table, np.zeros([1, 4], np.float32)),
    ):
        expected = tf.nn.softmax(student.model(empty))[0]
        asked = []
        with serving(student.folder) as channel:
            for request in warm_up_requests(student.folder):
                answer = predict(channel, request)
                asked.append((request.model_spec.signature_name, len(answer["label"])))
                for probabilities in answer["probabilities"]:
                    np.testing.assert_allclose(probabilities, expected, atol=1e-5)
        sizes = (1, 16)
        names = ("serving_default", "serialized_examples")
        assert sorted(asked) == sorted((name, size) for name in names for size in sizes)
