"""A student in formats other than SavedModel: ONNX and LiteRT.

Both take raw inputs by the name that `serving_default` gives them and return `probabilities` and
`label`. ONNX needs tf2onnx (`pip install "pate_tf[onnx]"`); the LiteRT converter is a part of
TensorFlow. Forests can't be converted: they count in float64, and gather from variables inside a
loop, for which neither format has operations.
"""

import importlib.util
import pathlib
from collections.abc import Callable, Sequence

import tensorflow as tf

from pate_tf.serving.signatures import StudentGraph, input_spec

OPSET = 18  # of ONNX; of 2022, so that runtimes in use know it


def check_formats(formats: Sequence[str]) -> None:
    """Checks that students can be written in these formats here.

    Raises:
      ValueError: if there is no such format, or the package that writes it is not installed.
    """
    for name in formats:
        if name not in WRITERS:
            raise ValueError(f"export_formats: expected of {', '.join(WRITERS)}, got {name!r}")
    if "onnx" in formats and importlib.util.find_spec("tf2onnx") is None:
        raise ValueError("export_formats: expected tf2onnx to be installed for onnx, got none")


def write_formats(graph: StudentGraph, folder: pathlib.Path, formats: Sequence[str]) -> None:
    """Writes `student.onnx` and `student.tflite` into a folder, those of them that are asked for.

    Raises:
      ValueError: if the student can't be converted.
    """
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
