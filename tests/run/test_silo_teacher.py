"""A silo's teacher or sums: provided by name, or computed from its records as in every silo."""

import dataclasses
import pathlib

import numpy as np
import pytest
import silo_teachers_for_tests as own

from pate_tf.data import datasets
from pate_tf.silos.silo_server import SiloRun, make_sums, make_teacher

RUN = SiloRun(folder=pathlib.Path("silo"), dataset="digits")


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    private, path = datasets.load_private("digits"), tmp_path_factory.mktemp("silo") / "data.npz"
    np.savez(path, inputs=private.inputs[::2], labels=private.labels[::2])
    return path


def named(function):
    return f"silo_teachers_for_tests:{function}"


def test_a_teacher_is_trained_once_and_what_is_none_is_refused(records, tmp_path):
    run = dataclasses.replace(RUN, records=records)
    queries, labels = np.load(records)["inputs"][:50], np.load(records)["labels"][:50]
    first = make_teacher(run, tmp_path).votes(queries)
    assert (first == labels).mean() > 0.9
    assert np.array_equal(make_teacher(run, tmp_path).votes(queries), first)
    assert (tmp_path / "teacher" / "sensitive").stat().st_mode & 0o077 == 0
    np.savez(tmp_path / "bad.npz", inputs=queries, targets=first)
    for fields, match in (
        ({"records": tmp_path / "bad.npz"}, "must contain the arrays inputs, labels"),
        ({"records": None}, "data is required: a .npz file"),
        ({"teacher": named("broken")}, "teacher: .*raised RuntimeError"),
        ({"teacher": "nowhere:made"}, "teacher: can't import"),
    ):
        with pytest.raises(ValueError, match=match):
            make_teacher(dataclasses.replace(run, **fields), tmp_path / "other")


def test_trained_teachers_come_from_functions_and_files(records, tmp_path):
    dataset, queries = datasets.load_dataset("digits"), np.load(records)["inputs"][:50]
    pixels = queries.reshape(len(queries), -1)
    own.keras_model(dataset).save(tmp_path / "model.keras")
    expected = {
        named("vote_function"): pixels[:, 5] % 10,
        named("keras_model"): pixels[:, :10].argmax(axis=1),
        named("fitted_classifier"): own.fitted_classifier(dataset).predict(pixels),
        str(tmp_path / "model.keras"): pixels[:, :10].argmax(axis=1),
    }
    for teacher, labels in expected.items():
        made = make_teacher(dataclasses.replace(RUN, teacher=teacher), tmp_path)
        assert np.array_equal(made.votes(queries), labels), teacher


def test_sums_are_of_the_records_and_their_owners(records, tmp_path):
    run = dataclasses.replace(RUN, records=records, representation="raw")
    made, arrays = make_sums(run), np.load(records)
    assert (made.unit, made.num_records) == ("record", len(arrays["labels"]))
    # All vectors end with the same constant, so the last sums count records.
    counts = made.values[-1] / made.values[-1].sum()
    expected = np.bincount(arrays["labels"], minlength=10) / len(arrays["labels"])
    assert counts == pytest.approx(expected)
    owned = tmp_path / "owned.npz"
    np.savez(owned, **arrays, owners=np.arange(len(arrays["labels"])) // 2)
    of_owners = make_sums(dataclasses.replace(run, records=owned))
    assert of_owners.unit == "owner" and of_owners.values[-1].sum() < made.values[-1].sum()
