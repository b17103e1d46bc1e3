"""Matches a served student to its privacy statement, by a digest of its weights."""

import pathlib
from typing import Any

import keras
import tensorflow as tf

from pate_tf import artifacts

EXTRA = "assets.extra"
STATEMENT = "privacy_statement.json"


def student_variables(model: keras.Model | tf.Module) -> list[tf.Variable]:
    """Returns the weights of a student in the order that their digest takes them in."""
    if isinstance(model, keras.Model):
        return [weight.value for weight in model.weights]
    return list(model.variables)


def student_digest(model: keras.Model | tf.Module) -> str:
    """SHA-256 of a student's weights: the `student_digest` of its privacy statement."""
    return artifacts.digest_arrays(variable.numpy() for variable in student_variables(model))


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
    """Whether the weights in a SavedModel are those that the statement inside it was made for.

    The digest covers the weights; whoever must also trust the graph compares `saved_model.pb`.

    Args:
      folder: a version that `export_student` wrote, with `assets.extra/privacy_statement.json`.

    Raises:
      ValueError: if there is no such SavedModel, or no statement in it that names a digest.
    """
    path = folder / EXTRA / STATEMENT
    if not path.is_file():
        raise ValueError(f"student: expected a privacy statement at {path}, got none")
    stated = artifacts.read_json(path).get("student_digest")
    if not isinstance(stated, str):
        raise ValueError(f"{path}: expected a student_digest, got none")
    return served_digest(folder) == stated
