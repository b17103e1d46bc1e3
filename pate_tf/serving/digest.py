"""Matches a served student to its privacy statement, by digests of its weights and files."""

import hashlib
import pathlib
from typing import Any

import keras
import tensorflow as tf

from pate_tf.core import artifacts

EXTRA = "assets.extra"
STATEMENT = "privacy_statement.json"
DIGESTS = "digests.json"
GRAPH = "saved_model.pb"


def student_variables(model: keras.Model | tf.Module) -> list[tf.Variable]:
    """Returns the weights of a student in the order that their digest takes them in."""
    if isinstance(model, keras.Model):
        return [weight.value for weight in model.weights]
    return list(model.variables)


def student_digest(model: keras.Model | tf.Module) -> str:
    """SHA-256 of a student's weights: the `student_digest` of its privacy statement."""
    return artifacts.digest_arrays(variable.numpy() for variable in student_variables(model))


def file_digests(folder: pathlib.Path) -> dict[str, str]:
    """SHA-256 of each file of a version that decides answers, but for the weights.

    Args:
      folder: a SavedModel, with other formats of it in `assets.extra`.

    Returns:
      Hexadecimal digits by the path in the folder: of `saved_model.pb`, and of `student.onnx` and
      `student.tflite` where they are.

    Raises:
      ValueError: if there is no SavedModel.
    """
    if not (folder / GRAPH).is_file():
        raise ValueError(f"student: expected a SavedModel in {folder}, got none")
    paths = [folder / GRAPH, *sorted((folder / EXTRA).glob("student.*"))]
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in paths
    }


def load_student(folder: pathlib.Path) -> Any:
    """Loads the SavedModel of a student.

    Args:
      folder: a version that `export_student` wrote, e.g. `released/student/1`.

    Raises:
      ValueError: if there is no such SavedModel.
    """
    try:
        loaded = tf.saved_model.load(str(folder))
        # A student has both; another SavedModel need not.
        _ = loaded.signatures["serving_default"], loaded.weights
    except Exception as error:  # TensorFlow raises many kinds
        raise ValueError(f"student: expected a SavedModel in {folder}, got none") from error
    return loaded


def served_digest(folder: pathlib.Path) -> str:
    """SHA-256 of the weights that a SavedModel answers with.

    It is the `artifacts.digest_arrays` of its `weights`, in their order: the SHA-256 of the
    hexadecimal SHA-256 digests of each weight's type, shape and bytes.

    Args:
      folder: a version that `export_student` wrote.

    Raises:
      ValueError: if there is no such SavedModel.
    """
    return artifacts.digest_arrays(weight.numpy() for weight in load_student(folder).weights)


def matches_statement(folder: pathlib.Path) -> bool:
    """Whether graph, weights and other formats are those that the statement was exported with.

    The weights are held against the statement, the files against `assets.extra/digests.json`
    beside it. That finds whatever was damaged, mixed up or exchanged. It does not find who changed
    statement or digests as well, since neither is signed: whoever must exclude that compares both
    files with copies from a place that they trust. Nothing is loaded whose graph is another one.

    Args:
      folder: a version that `export_student` wrote.

    Raises:
      ValueError: if there is no such SavedModel, no digests, or no statement that names a digest.
    """
    statement, digests = (folder / EXTRA / name for name in (STATEMENT, DIGESTS))
    for path, name in ((statement, "a privacy statement"), (digests, "digests")):
        if not path.is_file():
            raise ValueError(f"student: expected {name} at {path}, got none")
    stated = artifacts.read_json(statement).get("student_digest")
    if not isinstance(stated, str):
        raise ValueError(f"{statement}: expected a student_digest, got none")
    if artifacts.read_json(digests) != file_digests(folder):
        return False
    return served_digest(folder) == stated
