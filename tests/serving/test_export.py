import functools
import os
import pathlib
import signal

import numpy as np
import pytest
import tensorflow as tf
from script_processes import start

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.data.datasets import DIGITS, load_public
from pate_tf.models import architectures
from pate_tf.serving.export import export_student
from pate_tf.serving.served import ServedStudent

STATEMENT = {"epsilon": 1.5, "delta": 1e-5, "kind": "data-independent", "ledger_rows": [2, 4]}


def export(folder: pathlib.Path, dataset: Dataset = DIGITS, model: str = "cnn", seed: int = 1):
    built = architectures.build(model, dataset, seed=seed)
    return built, export_student(built, dataset, folder, STATEMENT)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    return export(tmp_path_factory.mktemp("served") / "student")


def test_the_signature_takes_raw_images_by_name(exported):
    model, folder = exported
    signature = tf.saved_model.load(str(folder)).signatures["serving_default"]
    ((name, spec),) = signature.structured_input_signature[1].items()
    assert name == "image"
    assert spec.dtype == tf.uint8
    assert spec.shape.as_list() == [None, 8, 8, 1]
    images = load_public("digits").inputs[:40]
    for batch in (1, 40):
        answer = signature(image=tf.constant(images[:batch]))
        assert set(answer) == {"probabilities", "label", "class_name"}
        probabilities = answer["probabilities"].numpy()
        assert probabilities.shape == (batch, 10)
        assert probabilities.dtype == np.float32
        assert answer["label"].dtype == tf.int64
        np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-5)
        np.testing.assert_array_equal(probabilities.argmax(axis=1), answer["label"])
        names = [DIGITS.class_names[label] for label in answer["label"]]
        assert answer["class_name"].numpy().astype(str).tolist() == names
    logits = model.predict(images.astype(np.float32), verbose=0)
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)


def test_tables_have_features(table):
    signature = tf.saved_model.load(str(table.folder)).signatures["serving_default"]
    ((name, spec),) = signature.structured_input_signature[1].items()
    assert (name, spec.dtype) == ("features", tf.float32)
    answer = signature(features=tf.constant(table.inputs))
    assert set(answer) == {"probabilities", "label"}  # the classes have no names
    np.testing.assert_array_equal(answer["label"], table.labels)
    np.testing.assert_array_equal(ServedStudent(table.folder).answer(table.inputs)[0], table.labels)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_features_that_are_no_numbers_are_refused(table, wrong):
    rows = table.inputs.copy()
    rows[3, 1] = wrong
    served = ServedStudent(table.folder)
    with pytest.raises(
        ValueError, match=r"student: (features must be finite|.* is not a published)"
    ) as caught:
        served.answer(rows)[0]
    assert "\n" not in str(caught.value)
    np.testing.assert_array_equal(served.answer(rows[:3])[0], table.labels[:3])


def test_versions_count_up(tmp_path):
    folder = tmp_path / "student"
    assert export(folder)[1] == folder / "1"
    first = (folder / "1" / "saved_model.pb").read_bytes()
    assert export(folder, seed=2)[1] == folder / "2"
    assert (folder / "1" / "saved_model.pb").read_bytes() == first
    (folder / "10").mkdir()
    (folder / "notes").mkdir()
    assert export(folder)[1] == folder / "11"


def test_an_interrupted_export_leaves_no_version(tmp_path, monkeypatch):
    folder = tmp_path / "student"
    save = tf.saved_model.save

    def interrupted(module, path, **options):
        save(module, path, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(tf.saved_model, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(folder)
    assert os.listdir(folder) == []
    monkeypatch.undo()
    assert export(folder)[1] == folder / "1"


def export_and_die(folder: pathlib.Path, moment: str) -> None:
    """Exports, and kills its own process with SIGKILL at a moment."""

    def dying(function, *, before: bool):
        def replacement(*arguments, **options):
            if not before:
                function(*arguments, **options)
            os.kill(os.getpid(), signal.SIGKILL)

        return replacement

    if moment == "after the model":
        tf.saved_model.save = dying(tf.saved_model.save, before=False)
    elif moment == "before the rename":
        os.rename = dying(os.rename, before=True)
    else:
        os.rename = dying(os.rename, before=False)
    export(folder)


@pytest.mark.parametrize("moment", ["after the model", "before the rename", "after the rename"])
def test_a_killed_export_is_complete_or_not_there(tmp_path, moment):
    folder = tmp_path / "student"
    dying = start(functools.partial(export_and_die, folder, moment), folder=tmp_path)
    assert dying.wait().code == -signal.SIGKILL
    versions = [path.name for path in folder.iterdir() if path.name.isdigit()]
    if moment == "after the rename":
        assert versions == ["1"]
        answers = ServedStudent(folder / "1").answer(load_public("digits").inputs[:3])
        assert answers[0].shape == (3,)
    else:
        assert versions == []  # TensorFlow Serving ignores the leftover files
        artifacts.remove_abandoned(folder)
        assert os.listdir(folder) == []
    assert export(folder)[1] == folder / str(len(versions) + 1)


@pytest.mark.parametrize("damage", ["nothing there", "empty file", "half a file"])
def test_a_missing_or_broken_student_is_one_clear_line(exported, tmp_path, damage):
    folder = tmp_path / "1"
    if damage != "nothing there":
        folder.mkdir()
        content = (exported[1] / "saved_model.pb").read_bytes()
        kept = len(content) // 2 if damage == "half a file" else 0
        (folder / "saved_model.pb").write_bytes(content[:kept])
    with pytest.raises(
        ValueError, match=r"student: (features must be finite|.* is not a published)"
    ) as caught:
        ServedStudent(folder).answer(np.zeros((1, 8, 8, 1)))
    assert "\n" not in str(caught.value)


class KeepsALabel(tf.Module):
    """A student that keeps its last answer."""

    def __init__(self):
        super().__init__()
        self.kept = tf.Variable(tf.zeros([10]))

    def __call__(self, inputs, training=False):
        logits = tf.reshape(inputs, [-1, 64])[:, :10]
        self.kept.assign(tf.reduce_max(logits, axis=0))
        return logits


def test_a_student_that_keeps_its_inputs_is_not_exported(tmp_path):
    with pytest.raises(ValueError, match=r"student: AssignVariableOp .* can store private inputs"):
        export_student(KeepsALabel(), DIGITS, tmp_path / "student", {})
    assert not list(tmp_path.iterdir())
