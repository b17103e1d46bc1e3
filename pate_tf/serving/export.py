"""Exports a student as a numbered SavedModel that takes raw inputs and needs no Python."""

import pathlib
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from pate_tf import artifacts
from pate_tf.serving.digest import DIGESTS, EXTRA, STATEMENT, file_digests
from pate_tf.serving.formats import write_formats
from pate_tf.serving.signatures import StudentGraph
from pate_tf.serving.warm_up import WARM_UP, write_warm_up
from pate_tf.values.dataset import Dataset


def export_student(
    model: keras.Model | tf.Module,
    dataset: Dataset,
    folder: pathlib.Path,
    statement: dict[str, Any],
    *,
    formats: Sequence[str] = (),
) -> pathlib.Path:
    """Writes the next version below `folder`, whole or not at all.

    A version is what TensorFlow Serving loads: signatures as `StudentGraph` has them, and in
    `assets.extra` the warm-up requests, the privacy statement, what `formats` asks for, and
    digests of files for `matches_statement`.

    Args:
      model: from raw inputs to logits.
      dataset: names and shapes the input.
      folder: the model's folder, e.g. `released/student`.
      statement: JSON values that travel in `assets.extra/privacy_statement.json`.
      formats: of "onnx" and "litert"; `student.onnx` and `student.tflite` lie beside the statement.

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
        versions = [int(path.name) for path in folder.iterdir() if path.name.isdigit()]
        target = folder / str(max(versions, default=0) + 1)
        try:
            with artifacts.atomic_folder(target, replace=False) as temporary:
                tf.saved_model.save(module, str(temporary), signatures=signatures)
                extra = temporary / EXTRA
                extra.mkdir()
                artifacts.write_json(extra / STATEMENT, statement)
                write_warm_up(extra / WARM_UP, dataset)
                write_formats(graph, extra, formats)
                artifacts.write_json(extra / DIGESTS, file_digests(temporary))
            return target
        except FileExistsError:  # another process took the number meanwhile
            continue
