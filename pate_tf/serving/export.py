"""Exports a student as a numbered SavedModel that takes raw inputs and needs no Python.

Also in other formats: ONNX, which needs tf2onnx (`pip install "pate_tf[onnx]"`), and LiteRT. Both
take raw inputs by the name that `serving_default` gives them and return `probabilities` and
`label`. Forests can't be converted: they count in float64, and gather from variables inside a loop,
for which neither format has operations.
"""

import importlib.util
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from pate_tf.core import artifacts, validation
from pate_tf.core.dataset import Dataset
from pate_tf.data.schema import Schema
from pate_tf.serving import signatures
from pate_tf.serving.served import DATASET, DIGESTS, EXTRA, KERAS, SCHEMA, STATEMENT, file_digests
from pate_tf.serving.signatures import StudentGraph, input_spec

# Requests that TensorFlow Serving puts to a student before it takes those of users.
#
# https://www.tensorflow.org/tfx/serving/saved_model_warmup. The first requests to a model are slow;
# the warm-up requests take that upon themselves.


WARM_UP = "tf_serving_warmup_requests"
BATCH_SIZES = (1, 16)


def write_warm_up(path: pathlib.Path, dataset: Dataset) -> None:
    """Writes a request for each signature and batch size, as a TFRecord of `PredictionLog`s.

    The inputs are zeros, empty texts, or what a schema says first of each column, so that nothing
    about data is in them.
    """
    with tf.io.TFRecordWriter(str(path)) as records:
        for size in BATCH_SIZES:
            inputs, raw = _warm_up_inputs(dataset, size)
            examples = [signatures.serialized_example(one, dataset) for one in raw]
            for signature, tensors in (
                (signatures.SERVING_DEFAULT, inputs),
                (signatures.SERIALIZED_EXAMPLES, {signatures.EXAMPLES: examples}),
            ):
                request = predict_pb2.PredictRequest()
                request.model_spec.name = "student"
                request.model_spec.signature_name = signature
                for name, values in tensors.items():
                    request.inputs[name].CopyFrom(tf.make_tensor_proto(values))
                log = prediction_log_pb2.PredictLog(request=request)
                record = prediction_log_pb2.PredictionLog(predict_log=log)
                records.write(record.SerializeToString())


def _warm_up_inputs(dataset: Dataset, size: int) -> tuple[dict[str, Any], Any]:
    """Returns the tensors of a request by name, and the same inputs one by one."""
    if dataset.kind == "text":
        texts = np.full(size, b"", object)
        return {signatures.TEXT: texts}, texts
    schema: Schema | None = dataset.schema
    if schema is None:
        zeros = np.zeros([size, *dataset.input_shape], dataset.input_type)
        return {dataset.input_name: zeros}, zeros
    row = {column.name: column.example for column in schema.columns}
    tensors = {
        name: np.full(size, row[column], None if isinstance(row[column], str) else np.float32)
        for column, name in schema.input_names().items()
    }
    return tensors, [row] * size


def next_version(folder: pathlib.Path) -> int:
    """Returns the number of the version that is exported next below `folder`, from 1."""
    return 1 + max((int(path.name) for path in folder.glob("*") if path.name.isdigit()), default=0)


def export_student(
    model: keras.Model | tf.Module,
    dataset: Dataset,
    folder: pathlib.Path,
    statement: dict[str, Any],
    *,
    formats: Sequence[str] = (),
    seal: Callable[[Mapping[str, Any]], str] | None = None,
) -> pathlib.Path:
    """Writes the next version below `folder`, whole or not at all.

    A version is what TensorFlow Serving loads: signatures as `StudentGraph` has them, and in
    `assets.extra` the warm-up requests, the privacy statement, `student.keras` where the student is
    a Keras model, `dataset.json`, `schema.toml` where a table has a schema, what `formats` asks
    for, and the manifest `digests.json`: `model` and `version`, the SHA-256 of every other file,
    and their `seal`.

    Args:
        model: from raw inputs to logits.
        dataset: names and shapes the input.
        folder: the model's folder, e.g. `released/student`.
        statement: JSON values that travel in `assets.extra/privacy_statement.json`.
        formats: of "onnx" and "litert"; `student.onnx` and `student.tflite` in `assets.extra`.
        seal: `Ledger.recognise` of the ledger that was charged; None where there is none.

    Returns:
        The folder of the new version.

    Raises:
        ValueError: if the statement holds NaN or infinity, or the student can't be written in one
            of the formats.
    """
    folder.mkdir(parents=True, exist_ok=True)
    graph = StudentGraph(model, dataset)
    module, signatures = graph.module(), graph.signatures()
    while True:
        target = folder / str(next_version(folder))
        try:
            with artifacts.atomic_folder(target, replace=False) as temporary:
                tf.saved_model.save(module, str(temporary), signatures=signatures)
                extra = temporary / EXTRA
                extra.mkdir()
                artifacts.write_json(extra / STATEMENT, statement)
                write_warm_up(extra / WARM_UP, dataset)
                artifacts.write_json(extra / DATASET, dataset.to_dict())
                if dataset.schema is not None:
                    artifacts.write_text(extra / SCHEMA, dataset.schema.to_toml())
                if isinstance(model, keras.Model):
                    model.save(extra / KERAS)
                write_formats(graph, extra, formats)
                manifest = {
                    "model": folder.name,
                    "version": int(target.name),
                    "files": file_digests(temporary),
                }
                mark = None if seal is None else seal(manifest)
                artifacts.write_json(extra / DIGESTS, {**manifest, "seal": mark})
            return target
        except FileExistsError:  # another process took the number meanwhile
            continue


# Formats other than SavedModel.

OPSET = 18  # of ONNX; of 2022, so that runtimes in use know it


def check_formats(formats: Sequence[str]) -> None:
    """Raises ValueError unless there are such formats, and the packages that write them."""
    for name in formats:
        validation.one_of(WRITERS, export_formats=name)
    if "onnx" in formats and importlib.util.find_spec("tf2onnx") is None:
        raise ValueError("export_formats: expected tf2onnx to be installed for onnx, got none")


def write_formats(graph: StudentGraph, folder: pathlib.Path, formats: Sequence[str]) -> None:
    """Writes `student.onnx` and `student.tflite`, as asked for; ValueError if it can't be done."""
    for name in formats:
        try:
            WRITERS[name](graph, folder)
        except Exception as error:  # the converters raise many kinds
            raise ValueError(
                f"{name}: expected a student of operations that can be converted, got others"
            ) from error


def _write_onnx(graph: StudentGraph, folder: pathlib.Path) -> None:
    import onnx
    import tf2onnx

    signature = [input_spec(graph.dataset)]
    function = tf.function(graph.answer, autograph=False, input_signature=signature)
    converted, _ = tf2onnx.convert.from_function(function, signature, opset=OPSET)
    # tf2onnx leaves operations in that ONNX does not have, and only logs them.
    onnx.checker.check_model(converted)
    (folder / "student.onnx").write_bytes(converted.SerializeToString())


def _write_litert(graph: StudentGraph, folder: pathlib.Path) -> None:
    function = tf.function(
        graph.answer, autograph=False, input_signature=[input_spec(graph.dataset)]
    )
    converter = tf.lite.TFLiteConverter.from_concrete_functions(
        [function.get_concrete_function()], graph.module()
    )
    (folder / "student.tflite").write_bytes(converter.convert())


WRITERS: dict[str, Callable[[StudentGraph, pathlib.Path], None]] = {
    "onnx": _write_onnx,
    "litert": _write_litert,
}
