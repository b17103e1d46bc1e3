"""Predictions and measurements of a published student on files."""

import csv

import keras
import numpy as np
import pytest
from data_sets_for_tests import image_dataset
from PIL import Image

from pate_tf.data.schema import schema_of
from pate_tf.serving import served
from pate_tf.serving.export import export_student

SCHEMA = schema_of(
    {
        "label": "ill",
        "classes": ["no", "yes"],
        "columns": {"age": {"low": 0, "high": 1}, "sex": {"categories": ["F", "M"]}},
    }
)
ROWS = "id;age;sex;ill\n1;0,2;F;no\n2;0,9;M;yes\n3;0,7;F;\n4;0,1;M;yes\n"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Returns a run folder with two versions. The second predicts yes from the middle of the age
    range.
    """
    folder = tmp_path_factory.mktemp("run")
    dataset = SCHEMA.dataset("visits", 10)
    for scale in (-8.0, 8.0):
        model = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(2)])
        kernel = np.zeros((3, 2), np.float32)
        kernel[0, 1] = scale
        model.set_weights([kernel, np.array([0, -scale / 2], np.float32)])
        export_student(model, dataset, folder / "released" / "student", {})
    (folder / "rows.csv").write_text(ROWS)
    return folder


@pytest.mark.parametrize("place", ["", "released", "released/student", "released/student/2"])
def test_a_file_is_predicted_and_keeps_its_columns(run, tmp_path, place):
    output = tmp_path / "predictions.csv"
    report = served.predict(run / place, run / "rows.csv", output)
    assert report.values["inputs"] == 4
    rows = list(csv.DictReader(output.open(), delimiter=";"))
    assert [row["predicted"] for row in rows] == ["no", "yes", "yes", "no"]
    assert [row["id"] for row in rows] == ["1", "2", "3", "4"]
    assert [row["age"] for row in rows] == ["0,2", "0,9", "0,7", "0,1"]
    assert float(rows[1]["probability of yes"].replace(",", ".")) > 0.5
    with pytest.raises(ValueError, match=r"output: .* already exists"):
        served.predict(run, run / "rows.csv", output)
    served.predict(run, output, tmp_path / "again.csv")
    assert (
        ";predicted;" in (again := (tmp_path / "again.csv").read_text()) and "predicted 2" in again
    )


def test_a_labelled_file_measures_accuracy_recall_and_calibration(run):
    values = served.evaluate(run, run / "rows.csv").values
    assert values["num_evaluated"] == 3  # one has no label
    assert values["accuracy"] == pytest.approx(2 / 3)
    assert values["recall"] == {"no": 1.0, "yes": 0.5}
    assert 0.0 <= values["calibration_error"] <= 1.0


def test_files_that_do_not_fit_are_one_line(run, tmp_path):
    (tmp_path / "bad.csv").write_text("age,sex\n0.5,F\n0.5,X\n")
    (tmp_path / "other.csv").write_text("age,sex,ill\n0.5,F,maybe\n")
    for name, told in (("bad.csv", "line 3: sex must be a category"), ("none.csv", "none.csv")):
        with pytest.raises(ValueError, match=told):
            served.predict(run, tmp_path / name, tmp_path / "out.csv", strict=True)
    with pytest.raises(ValueError, match=r"output: the folder .* does not exist"):
        served.predict(run, tmp_path / "bad.csv", tmp_path / "no" / "out.csv")
    with pytest.warns(UserWarning, match="1 records do not fit and are left out: line 3: sex"):
        assert served.predict(run, tmp_path / "bad.csv", tmp_path / "o.csv").values["inputs"] == 1
    (tmp_path / "bad.csv").write_text("age,sex\n0.5,F\n")
    with pytest.raises(
        ValueError, match=r"inputs has no label column 'ill'\. To predict labels, set `output`"
    ):
        served.evaluate(run, tmp_path / "bad.csv")
    with pytest.raises(ValueError, match=r"ill must be a class or none.*no, yes, got 'maybe'"):
        served.evaluate(run, tmp_path / "other.csv")
    with pytest.raises(ValueError, match="contains no published student"):
        served.newest_version(tmp_path)


def test_images_are_predicted_by_file(tmp_path):
    dataset = image_dataset(4, num_classes=2, class_names=("dark", "light"))
    layers = [keras.layers.Input((4, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(2)]
    model = keras.Sequential(layers)
    export_student(model, dataset, tmp_path / "student", {})
    for name, gray in (("dark", 10), ("light", 240)):
        (tmp_path / "images" / name).mkdir(parents=True)
        Image.new("L", (9, 7), gray).save(tmp_path / "images" / name / "a.png")
    (tmp_path / "images/Thumbs.db").touch()
    (tmp_path / "images/light/Imgs").mkdir()
    Image.new("RGBA", (4, 4)).save(tmp_path / "images/light/Imgs/b.png")
    _, inputs = served.ServedStudent(served.newest_version(tmp_path)).read(tmp_path / "images")
    assert inputs[:, 0, 0, 0].tolist() == [10, 255, 240]
    served.predict(tmp_path, tmp_path / "images", tmp_path / "out.csv")
    rows = list(csv.DictReader((tmp_path / "out.csv").open()))
    assert [row["file"] for row in rows] == ["dark/a.png", "light/Imgs/b.png", "light/a.png"]
    assert served.evaluate(tmp_path, tmp_path / "images").values["num_evaluated"] == 3
    (tmp_path / "images/light/c.png").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"inputs: .*light/c.png: the image is broken"):
        served.predict(tmp_path, tmp_path / "images", tmp_path / "more.csv", strict=True)
    with pytest.warns(UserWarning, match=r"1 images were left out: .*light/c.png"):
        served.predict(tmp_path, tmp_path / "images", tmp_path / "more.csv")
    assert (tmp_path / "more.csv").read_text() == (tmp_path / "out.csv").read_text()
