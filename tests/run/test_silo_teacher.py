"""A silo's teacher: brought along by name, or trained by the same `--model` as everybody's."""

import dataclasses

import numpy as np
import pytest
import silo_teachers_for_tests as given
from script_processes import REPOSITORY

from pate_tf.data import catalogue
from pate_tf.models.forest import Forest
from pate_tf.silos.serving import TeacherRun, make_sums, make_teacher, share_out


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    share_out(folder, ("clinic", "school"))
    return folder / "clinic" / "sensitive" / "records.npz"


def named(function):
    return f"silo_teachers_for_tests:{function}"


@pytest.fixture(scope="module")
def queries(records):
    return np.load(records)["inputs"][:50]


def test_a_forest_is_trained_once_and_records_are_checked(records, queries, tmp_path):
    first = make_teacher(TeacherRun(dataset="digits", records=records), tmp_path).votes(queries)
    again = make_teacher(TeacherRun(dataset="digits", records=records, seed=9), tmp_path)
    assert np.array_equal(first, again.votes(queries))
    assert (first == np.load(records)["labels"][:50]).mean() > 0.9
    kept = tmp_path / "teacher.npz"
    assert kept.stat().st_mode & 0o077 == 0
    # scikit-learn's own compiled walk gives the same labels.
    arrays = np.load(kept)
    compiled = Forest.from_arrays([arrays[f"part_{place}"] for place in range(len(arrays))])
    public = catalogue.load_public("digits").inputs
    assert np.array_equal(again.votes(public), compiled.predict(public))
    kept.unlink()
    np.savez(tmp_path / "bad.npz", inputs=queries, targets=first)
    for fields, match in (
        ({"records": tmp_path / "bad.npz"}, "expected the arrays inputs and labels"),
        ({}, "teacher: expected a teacher or records"),
        ({"records": records, "model": "transformer"}, "model: expected"),
        ({"teacher": "missing.pkl"}, r"SavedModel's folder, a \.skops or a \.keras file"),
        ({"teacher": named("broken")}, "teacher: .*raised RuntimeError"),
        ({"teacher": "nowhere:made"}, "teacher: can't import"),
    ):
        with pytest.raises(ValueError, match=match):
            make_teacher(TeacherRun(dataset="digits", **fields), tmp_path)


def test_trained_teachers_come_from_functions_and_files(queries, tmp_path):
    dataset = catalogue.load_dataset("digits")
    pixels = queries.reshape(len(queries), -1)
    expected = {
        "vote_function": pixels[:, 5] % 10,
        "keras_model": pixels[:, :10].argmax(axis=1),
        "fitted_classifier": given.fitted_classifier(dataset).predict(pixels),
    }
    for name, labels in expected.items():
        teacher = make_teacher(TeacherRun(dataset="digits", teacher=named(name)), tmp_path)
        assert np.array_equal(teacher.votes(queries), labels), name
    given.keras_model(dataset).save(tmp_path / "model.keras")
    run = TeacherRun(dataset="digits", teacher=str(tmp_path / "model.keras"))
    assert np.array_equal(make_teacher(run, tmp_path).votes(queries), expected["keras_model"])
    (tmp_path / "broken.keras").write_bytes(b"no archive")
    with pytest.raises(ValueError, match="expected a Keras model"):
        make_teacher(TeacherRun(dataset="digits", teacher=str(tmp_path / "broken.keras")), tmp_path)
    assert not (tmp_path / "teacher.npz").exists()


@pytest.mark.parametrize("model", ["mlp", named("unfitted_classifier")])
def test_any_model_of_everybody_s_is_trained(records, queries, tmp_path, model, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(REPOSITORY / "tests" / "runs"))
    run = TeacherRun(dataset="digits", records=records, model=model)
    first = make_teacher(run, tmp_path).votes(queries)
    assert (first == np.load(records)["labels"][:50]).mean() > 0.7
    assert np.array_equal(make_teacher(run, tmp_path).votes(queries), first)
    for path in (tmp_path / "teacher" / "sensitive", tmp_path / "teacher.npz"):
        assert not path.exists() or path.stat().st_mode & 0o077 == 0


def test_sums_are_stored_and_taken_up_for_the_same_records_alone(records, tmp_path):
    run = TeacherRun(dataset="digits", records=records, representation="raw")
    made = make_sums(run, tmp_path)
    kept = tmp_path / "sums.npz"
    assert kept.stat().st_mode & 0o077 == 0
    own = np.load(records)
    # Vectors end with the same constant, so that last sums count records.
    counts = made.sums.values[-1] / made.sums.values[-1].sum()
    assert counts == pytest.approx(np.bincount(own["labels"], minlength=10) / len(own["labels"]))
    before = kept.read_bytes()
    again = make_sums(run, tmp_path)
    assert np.array_equal(again.sums.values, made.sums.values) and kept.read_bytes() == before
    fewer = tmp_path / "fewer.npz"
    np.savez(fewer, inputs=own["inputs"][1:], labels=own["labels"][1:])
    np.save(tmp_path / "owners.npy", np.arange(len(own["labels"])))
    for changes, expected in (
        ({"records": fewer}, "data: expected what .*sums.npz was summed from"),
        ({"representation": "patches"}, "representation: expected what"),
        ({"owners": tmp_path / "owners.npy"}, "owners: expected sums of each owner"),
        ({"encoder_digest": "0" * 16}, "encoder_digest: expected 0000"),
        ({"records": None}, "data: expected records"),
    ):
        with pytest.raises(ValueError, match=expected):
            make_sums(dataclasses.replace(run, **changes), tmp_path)
