import json
import os
import pathlib
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf
from script_processes import run_fresh

from pate_tf.data.digits import DIGITS, load_public
from pate_tf.models import catalogue
from pate_tf.records import Dataset
from pate_tf.serving.export import ServedStudent, export_student

STATEMENT = {"epsilon": 1.5, "delta": 1e-5, "kind": "data-independent", "ledger_rows": [2, 4]}
TABLE = Dataset(
    name="table",
    kind="tabular",
    input_shape=(4,),
    value_range=(-1.0, 1.0),
    num_classes=3,
    pool_size=1,
)


def export(folder: pathlib.Path, dataset: Dataset = DIGITS, model: str = "cnn", seed: int = 1):
    built = catalogue.build(model, dataset, seed=seed)
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
    images = load_public().inputs[:40]
    for batch in (1, 40):
        answer = signature(image=tf.constant(images[:batch]))
        assert set(answer) == {"probabilities", "label"}
        probabilities = answer["probabilities"].numpy()
        assert probabilities.shape == (batch, 10)
        assert probabilities.dtype == np.float32
        assert answer["label"].dtype == tf.int64
        np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-5)
        np.testing.assert_array_equal(probabilities.argmax(axis=1), answer["label"])
    logits = model.predict(images.astype(np.float32), verbose=0)
    expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(probabilities, expected, atol=1e-5)


def test_tables_have_features(tmp_path):
    model, folder = export(tmp_path / "student", TABLE, "mlp")
    signature = tf.saved_model.load(str(folder)).signatures["serving_default"]
    ((name, spec),) = signature.structured_input_signature[1].items()
    assert (name, spec.dtype) == ("features", tf.float32)
    rows = np.random.default_rng(0).uniform(-1, 1, (5, 4)).astype(np.float32)
    expected = model.predict(rows, verbose=0).argmax(axis=1)
    np.testing.assert_array_equal(ServedStudent(folder).classify(rows), expected)


def test_dropout_is_off_when_serving(tmp_path):
    _, folder = export(tmp_path / "student", model="deeper")
    signature = tf.saved_model.load(str(folder)).signatures["serving_default"]
    image = tf.constant(load_public().inputs[:3])
    one, other = (signature(image=image)["probabilities"].numpy() for _ in range(2))
    np.testing.assert_array_equal(one, other)


def test_it_loads_in_a_fresh_process_that_knows_tensorflow_alone(exported, tmp_path):
    program = (
        "import sys\n"
        "sys.modules['keras'] = None  # no import of it can succeed\n"
        "import tensorflow as tf\n"
        "model = tf.saved_model.load(sys.argv[1])\n"
        "answer = model.signatures['serving_default'](image=tf.zeros([2, 8, 8, 1], tf.uint8))\n"
        "print(answer['label'].shape, answer['probabilities'].shape)\n"
        "print([name for name in sys.modules if name.startswith('pate_tf')])\n"
    )
    ended = run_fresh("-I", "-c", program, str(exported[1]), folder=tmp_path)
    assert ended.code == 0, ended.err[-2000:]
    assert ended.out == "(2,) (2, 10)\n[]\n"


def test_saved_model_cli_shows_it(exported):
    tool = pathlib.Path(sys.executable).with_name("saved_model_cli")
    if not tool.exists():
        pytest.skip(f"no saved_model_cli beside {sys.executable}")
    ended = subprocess.run(
        [str(tool), "show", "--dir", str(exported[1]), "--all"],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    for text in ("serving_default", "inputs['image']", "DT_UINT8", "outputs['probabilities']"):
        assert text in ended.stdout
    assert "outputs['label']" in ended.stdout


def test_the_statement_travels_with_the_model(exported):
    path = exported[1] / "assets.extra" / "privacy_statement.json"
    assert json.loads(path.read_text()) == STATEMENT


def test_versions_count_up(tmp_path):
    folder = tmp_path / "student"
    assert export(folder)[1] == folder / "1"
    first = (folder / "1" / "saved_model.pb").read_bytes()
    assert export(folder, seed=2)[1] == folder / "2"
    assert (folder / "1" / "saved_model.pb").read_bytes() == first
    (folder / "10").mkdir()
    (folder / "notes").mkdir()
    assert export(folder)[1] == folder / "11"


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupted_export_leaves_no_version(tmp_path, monkeypatch, error):
    folder = tmp_path / "student"
    save = tf.saved_model.save

    def interrupted(module, path, **options):
        save(module, path, **options)
        raise error

    monkeypatch.setattr(tf.saved_model, "save", interrupted)
    with pytest.raises(error):
        export(folder)
    assert os.listdir(folder) == []
    monkeypatch.undo()
    assert export(folder)[1] == folder / "1"


def test_a_statement_that_is_no_json_leaves_no_version(tmp_path):
    model = catalogue.build("mlp", DIGITS)
    with pytest.raises(ValueError):
        export_student(model, DIGITS, tmp_path / "student", {"epsilon": float("inf")})
    assert os.listdir(tmp_path / "student") == []


@pytest.mark.parametrize("num", [0, 1, 499, 501, 597])
def test_any_number_of_samples_is_classified_in_order(exported, num):
    model, folder = exported
    images = load_public().inputs[:num]
    labels = ServedStudent(folder).classify(images)
    assert labels.shape == (num,)
    assert labels.dtype == np.int64
    if num:
        logits = model.predict(images.astype(np.float32), verbose=0)
        assert (labels != logits.argmax(axis=1)).mean() < 0.01


@pytest.mark.parametrize(
    "damage",
    [
        "nothing there",
        "empty file",
        "half a file",
    ],
)
def test_a_missing_or_broken_student_is_one_clear_line(exported, tmp_path, damage):
    folder = tmp_path / "1"
    if damage != "nothing there":
        folder.mkdir()
        content = (exported[1] / "saved_model.pb").read_bytes()
        kept = len(content) // 2 if damage == "half a file" else 0
        (folder / "saved_model.pb").write_bytes(content[:kept])
    with pytest.raises(ValueError, match="student: expected a SavedModel") as caught:
        ServedStudent(folder)
    assert "\n" not in str(caught.value)
