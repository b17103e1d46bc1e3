"""An exported student, loaded from its SavedModel: asked as a server asks it, and verified."""

import hashlib
import pathlib
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core import artifacts
from pate_tf.serving.signatures import FEATURES, SERVING_DEFAULT

BATCH = 500
EXTRA = "assets.extra"
STATEMENT = "privacy_statement.json"
DIGESTS = "digests.json"
GRAPH = "saved_model.pb"
KERAS = "student.keras"
SCHEMA = "schema.toml"
DATASET = "dataset.json"


def load_student(folder: pathlib.Path) -> Any:
    """Loads the SavedModel of a version that `export_student` wrote; ValueError if it is none."""
    try:
        loaded = tf.saved_model.load(str(folder))
        # A student has both; another SavedModel need not.
        _ = loaded.signatures["serving_default"], loaded.weights
    except Exception as error:  # TensorFlow raises many kinds
        raise ValueError(f"student: expected a SavedModel in {folder}, got none") from error
    return loaded


class ServedStudent:
    """A student loaded from its SavedModel."""

    def __init__(self, folder: pathlib.Path) -> None:
        """Loads a version that `export_student` wrote; ValueError if it is no such SavedModel."""
        self._loaded = load_student(folder)
        # Texts have become features where a run holds them.
        name = FEATURES if FEATURES in self._loaded.signatures else SERVING_DEFAULT
        self._serve = self._loaded.signatures[name]
        self._name = next(iter(self._serve.structured_input_signature[1]))
        self._type = self._serve.structured_input_signature[1][self._name].dtype

    def classify(self, inputs: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
        """Returns the label int64 `[batch]` of every raw input; otherwise as `answer`."""
        return self.answer(inputs)[0]

    def answer(
        self, inputs: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]:
        """Returns labels int64 `[batch]` and probabilities float32 `[batch, num_classes]`.

        Args:
            inputs: raw, `[batch, *input_shape]`.

        Raises:
            ValueError: if the student refuses an input, such as features that are not finite.
        """
        num_classes = self._serve.structured_outputs["probabilities"].shape[1]
        labels, probabilities = [np.empty(0, np.int64)], [np.empty((0, num_classes), np.float32)]
        for start in range(0, len(inputs), BATCH):
            batch = tf.constant(inputs[start : start + BATCH], self._type)
            try:
                answer = self._serve(**{self._name: batch})
            except tf.errors.InvalidArgumentError as error:
                raise ValueError(
                    f"student: expected {self._name} of the exported shape and finite, got others"
                ) from error
            labels.append(answer["label"].numpy())
            probabilities.append(answer["probabilities"].numpy())
        return np.concatenate(labels), np.concatenate(probabilities)


# An exported version is matched to its privacy statement, by digests of its weights and files.


def file_digests(folder: pathlib.Path) -> dict[str, str]:
    """SHA-256 of every file of a version but the manifest, hexadecimal, by its path in the folder.

    Args:
        folder: a SavedModel, with other formats of it in `assets.extra`.

    Raises:
        ValueError: if there is no SavedModel.
    """
    if not (folder / GRAPH).is_file():
        raise ValueError(f"student: expected a SavedModel in {folder}, got none")
    files = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    files.pop(f"{EXTRA}/{DIGESTS}", None)
    return files


def served_digest(folder: pathlib.Path) -> str:
    """SHA-256 of the weights that a SavedModel answers with; ValueError if there is none.

    It is the `artifacts.digest_arrays` of its `weights`, in their order: the SHA-256 of the
    hexadecimal SHA-256 digests of each weight's type, shape and bytes.
    """
    return artifacts.digest_arrays(weight.numpy() for weight in load_student(folder).weights)


def matches_statement(folder: pathlib.Path) -> bool:
    """Whether every file is the one that was exported, and the weights are the statement's.

    The weights are compared with the statement, the files with the manifest,
    `assets.extra/digests.json`. That finds what was damaged, mixed up or exchanged, unless the
    manifest was changed too: only `pate audit run`, with the ledger that sealed it, finds that. A
    graph that differs is not loaded.

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
    if artifacts.read_json(digests).get("files") != file_digests(folder):
        return False
    return served_digest(folder) == stated
