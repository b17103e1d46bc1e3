"""ONNX and LiteRT answer like the SavedModel."""

import importlib.util
import json
import pathlib
import shutil

import keras
import numpy as np
import onnxruntime
import pytest
import tensorflow as tf
from ai_edge_litert.interpreter import Interpreter
from script_processes import NUM_TEACHERS, run_script

from pate_tf.data.datasets import DIGITS, load_public
from pate_tf.models import architectures, forest
from pate_tf.serving.export import check_formats, export_student
from pate_tf.students.student_kinds.gan import build_classifier
from pate_tf.students.student_kinds.random_forest import ForestModel

FORMATS = ("onnx", "litert")
# One model for each kind of layer. The plain and the consistency student are also such models.
MODELS = {
    "paper_svhn": lambda: architectures.build("paper_svhn", DIGITS, seed=3),
    "gan": lambda: build_classifier(DIGITS, seed=3),
}


def ask_onnx(folder: pathlib.Path, inputs: dict) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(folder / "assets.extra" / "student.onnx")
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def ask_litert(folder: pathlib.Path, inputs: dict) -> dict[str, np.ndarray]:
    interpreter = Interpreter(str(folder / "assets.extra" / "student.tflite"))
    return interpreter.get_signature_runner("serving_default")(**inputs)


def check(folder: pathlib.Path, inputs: dict) -> None:
    served = tf.saved_model.load(str(folder)).signatures["serving_default"]
    for size in (1, 40):
        batch = {name: values[:size] for name, values in inputs.items()}
        expected = served(**{name: tf.constant(values) for name, values in batch.items()})
        for ask in (ask_onnx, ask_litert):
            answer = ask(folder, batch)
            assert set(answer) == {"probabilities", "label"}
            np.testing.assert_allclose(
                answer["probabilities"], expected["probabilities"], atol=1e-4
            )
            np.testing.assert_array_equal(answer["label"], answer["probabilities"].argmax(axis=1))
            assert answer["label"].dtype == np.int64


@pytest.mark.parametrize("name", MODELS)
def test_images_are_answered_alike(tmp_path, name):
    folder = export_student(MODELS[name](), DIGITS, tmp_path / "student", {}, formats=FORMATS)
    check(folder, {"image": load_public("digits").inputs[:40]})


def test_tables_are_answered_alike(table, tmp_path):
    folder = export_student(table.model, table.dataset, tmp_path, {}, formats=FORMATS)
    check(folder, {"features": table.inputs[:40]})


class Inverse(keras.layers.Layer):
    """Neither format supports this operation."""

    def call(self, inputs):
        square = inputs[:, :, tf.newaxis] + tf.eye(inputs.shape[1])
        return tf.linalg.inv(square)[:, 0]


def unusual() -> keras.Model:
    return keras.Sequential(
        [keras.Input(DIGITS.input_shape), keras.layers.Flatten(), keras.layers.Dense(10), Inverse()]
    )


def a_forest() -> ForestModel:
    inputs, labels = load_public("digits").inputs[:50], load_public("digits").labels[:50]
    return ForestModel(forest.fit("random_forest", DIGITS, inputs, labels, seed=1))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("model", [a_forest, unusual])
def test_what_can_not_be_converted_leaves_no_version(tmp_path, name, model):
    with pytest.raises(ValueError, match=f"{name} can't convert an operation") as caught:
        export_student(model(), DIGITS, tmp_path / "student", {}, formats=[name])
    assert "\n" not in str(caught.value)
    assert list((tmp_path / "student").iterdir()) == []


def test_formats_are_checked_by_name_and_package(monkeypatch):
    check_formats([])
    check_formats(FORMATS)
    with pytest.raises(ValueError, match="export_formats must be one of onnx, litert, got"):
        check_formats(["litert", "pickle"])
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "tf2onnx" else find(name)
    )
    check_formats(["litert"])
    with pytest.raises(ValueError, match="onnx needs tf2onnx"):
        check_formats(["onnx"])


def test_the_script_writes_them(trained, tmp_path):
    teachers = shutil.copytree(trained[0], tmp_path / "teachers")
    flags = [f"--teachers_dir={teachers}", f"--train_dir={tmp_path}/run", "--queries=20"]
    flags += [f"--nb_teachers={NUM_TEACHERS}", "--lap_scale=2"]

    more = ("--export_formats=onnx", "--student=random_forest")
    ended = run_script("train_student.py", *flags, *more, folder=tmp_path)
    assert ended.code == 1
    assert ended.err.count("\n") == 1
    assert "export_formats must not be given for student random_forest" in ended.err
    assert not (tmp_path / "run" / "released").exists()  # nothing was charged
    report = tmp_path / "report.json"
    more = ("--export_formats=onnx,litert", "--max_steps=5", f"--report_file={report}")
    ended = run_script("train_student.py", *flags, *more, folder=tmp_path)
    assert ended.code == 0, ended.err
    student = pathlib.Path(json.loads(report.read_text())["student"])
    check(student, {"image": load_public("digits").inputs[:40]})
