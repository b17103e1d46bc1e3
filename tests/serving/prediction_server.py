"""A server that speaks TensorFlow Serving's protocol and answers through a loaded SavedModel."""

import concurrent.futures
import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

PREDICT = "/tensorflow.serving.PredictionService/Predict"
OPTIONS = [("grpc.enable_http_proxy", 0)]  # it is on this machine


class Servicer(prediction_service_pb2_grpc.PredictionServiceServicer):
    def __init__(self, folder: pathlib.Path) -> None:
        self._loaded = tf.saved_model.load(str(folder))

    def Predict(  # noqa: N802  (the protocol's name)
        self, request: predict_pb2.PredictRequest, context: grpc.ServicerContext
    ) -> predict_pb2.PredictResponse:
        try:
            outputs = self._answer(request)
        except Exception as error:
            line = str(error).encode("ascii", "replace").decode()
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, " ".join(line.split())[:500])
        response = predict_pb2.PredictResponse(model_spec=request.model_spec)
        for name, value in outputs.items():
            response.outputs[name].CopyFrom(tf.make_tensor_proto(value))
        return response

    def _answer(self, request: predict_pb2.PredictRequest) -> dict[str, tf.Tensor]:
        signature = self._loaded.signatures[request.model_spec.signature_name or "serving_default"]
        arrays = {name: tf.make_ndarray(proto) for name, proto in request.inputs.items()}
        return signature(**{name: tf.constant(array) for name, array in arrays.items()})


@contextlib.contextmanager
def serving(folder: pathlib.Path) -> Iterator[grpc.Channel]:
    """Yields a channel to a server on loopback."""
    threads = concurrent.futures.ThreadPoolExecutor(2)
    server = grpc.server(threads, options=OPTIONS)
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Servicer(folder), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(f"127.0.0.1:{port}", options=OPTIONS) as channel:
            yield channel
    finally:
        server.stop(None).wait()
        threads.shutdown()


def predict_request(
    signature: str = "serving_default", **inputs: Any
) -> predict_pb2.PredictRequest:
    request = predict_pb2.PredictRequest()
    request.model_spec.name = "student"
    request.model_spec.signature_name = signature
    for name, values in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(values))
    return request


def predict(channel: grpc.Channel, request: predict_pb2.PredictRequest) -> dict[str, np.ndarray]:
    stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
    response = stub.Predict(request, timeout=60)
    return {name: tf.make_ndarray(proto) for name, proto in response.outputs.items()}
