"""Matches a served student to its statement."""

import hashlib
import json
import pathlib
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from pate_tf.core import artifacts
from pate_tf.models import forest
from pate_tf.serving.export import export_student, student_digest
from pate_tf.serving.served import load_student, matches_statement
from pate_tf.students.student_kinds.random_forest import ForestModel


def test_a_student_matches_its_own_statement(digits, table):
    for student in (digits, table):
        assert matches_statement(student.folder)
        assert artifacts.digest_arrays(load_student(student.folder).weights) == student_digest(
            student.model
        )


def test_a_forest_matches_its_own_statement(table, tmp_path):
    fitted = forest.fit("random_forest", table.dataset, table.inputs, table.labels, seed=1)
    model = ForestModel(fitted)
    statement = {"student_digest": student_digest(model)}
    folder = export_student(model, table.dataset, tmp_path / "student", statement)
    assert matches_statement(folder)
    other = forest.fit("random_forest", table.dataset, table.inputs, table.labels, seed=2)
    assert student_digest(ForestModel(other)) != statement["student_digest"]


def test_other_weights_do_not_match(table, tmp_path):
    """Changes the last bit of one weight."""
    changed = keras.models.clone_model(table.model)
    weights = table.model.get_weights()
    weights[-1][0] = np.nextafter(weights[-1][0], np.float32(9.0))
    changed.set_weights(weights)
    statement = {"student_digest": student_digest(table.model)}
    folder = export_student(changed, table.dataset, tmp_path / "student", statement)
    assert not matches_statement(folder)


def test_the_digest_can_be_told_without_this_library(digits):
    """Follows the instructions of docs/serving."""
    digest = hashlib.sha256()
    for weight in tf.saved_model.load(str(digits.folder)).weights:
        array = weight.numpy()
        one = hashlib.sha256(f"{array.dtype.str}{array.shape}".encode() + array.tobytes())
        digest.update(one.hexdigest().encode())
    statement = json.loads((digits.folder / "assets.extra/privacy_statement.json").read_text())
    assert digest.hexdigest() == statement["student_digest"]


class AlwaysSeven(tf.Module):
    """Has the weights of a student but does not use them."""

    def __init__(self, weights: list[tf.Variable]) -> None:
        super().__init__()
        self.weights = weights

    @tf.function(input_signature=[tf.TensorSpec([None, 8, 8, 1], tf.uint8, name="image")])
    def answer(self, image: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"label": tf.fill([tf.shape(image)[0]], tf.constant(7, tf.int64))}


def test_another_graph_with_the_same_weights_does_not_match(digits, tmp_path):
    folder = tmp_path / "1"
    shutil.copytree(digits.folder, folder)
    forged = AlwaysSeven(tf.saved_model.load(str(folder)).weights)
    tf.saved_model.save(forged, str(folder), signatures=forged.answer)
    digests = [
        artifacts.digest_arrays(load_student(each).weights) for each in (folder, digits.folder)
    ]
    assert digests[0] == digests[1]
    assert not matches_statement(folder)
    shutil.copytree(digits.folder, folder, dirs_exist_ok=True)
    assert matches_statement(folder)
    (folder / "assets.extra" / "notes.txt").write_text("a file more")
    assert not matches_statement(folder)


def replace(path: pathlib.Path) -> None:
    path.write_bytes(b"another model")


@pytest.fixture(scope="module")
def converted(table, tmp_path_factory) -> pathlib.Path:
    statement = {"student_digest": student_digest(table.model)}
    folder = tmp_path_factory.mktemp("converted")
    formats = ("onnx", "litert")
    return export_student(table.model, table.dataset, folder, statement, formats=formats)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("no model", "student: .* is not a SavedModel"),
        ("no statement", "student: there is no privacy statement"),
        ("no digest", "has no student_digest"),
        ("no digests", "student: there is no manifest of digests at"),
    ],
)
def test_what_can_not_be_matched_is_one_clear_line(table, tmp_path, damage, message):
    folder = tmp_path / "1"
    shutil.copytree(table.folder, folder)
    if damage == "no model":
        (folder / "saved_model.pb").unlink()
    elif damage == "no statement":
        (folder / "assets.extra" / "privacy_statement.json").unlink()
    elif damage == "no digest":
        artifacts.write_json(folder / "assets.extra" / "privacy_statement.json", {"epsilon": 1.0})
    else:
        (folder / "assets.extra" / "digests.json").unlink()
    with pytest.raises(ValueError, match=message) as caught:
        matches_statement(folder)
    assert "\n" not in str(caught.value)
