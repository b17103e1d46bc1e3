"""The scripts and Python give the same labels and students for the same seeds."""

import json
import pathlib

import numpy as np
import pytest
from encoder_helpers import train_briefly
from script_processes import learn_little, run_script

import pate_tf

OF_TEACHERS = ("--dataset=digits", "--nb_teachers=6", "--model=random_forest", "--seed=3")
OF_LABELS = ("--insecure_seed=7", "--delta=1e-5", "--student=random_forest", "--train_dir=run")
METHODS = {
    "pate": ("--queries=30", "--lap_scale=2", "--query_strategy=first"),
    "feature_sums": ("--method=feature_sums", "--epsilon=8", "--representation=raw"),
}


def typed(method: str, folder: pathlib.Path) -> dict[str, object]:
    """Types the commands in a folder and returns the student's report."""
    if method == "pate":
        ended = run_script("train_teachers.py", *OF_TEACHERS, "--train_dir=run", folder=folder)
        assert ended.code == 0, ended.err
        data = ()
    else:
        data = ("--dataset=digits",)
    ended = run_script(
        *("train_student.py", *data, *OF_LABELS, *METHODS[method], "--report_file=report.json"),
        folder=folder,
        setup=learn_little,
    )
    assert ended.code == 0, ended.err
    return json.loads((folder / "report.json").read_text())


def fitted(method: str, data: pate_tf.Data, folder: pathlib.Path) -> pate_tf.Fitted:
    """Returns the result of Python for the same settings."""
    common = {"delta": 1e-5, "student": pate_tf.Student("random_forest"), "insecure_seed": 7}
    if method == "pate":
        return pate_tf.fit(
            data,
            source=pate_tf.Teachers("random_forest", num_teachers=6, directory=folder, seed=3),
            mechanism=pate_tf.LaplaceNoisyMax(scale=2.0),
            num_queries=30,
            strategy="first",
            **common,
        )
    sums = pate_tf.FeatureSums(directory=folder, representation="raw")
    return pate_tf.fit(data, method=method, source=sums, epsilon=8.0, **common)


@pytest.mark.parametrize("method", METHODS)
def test_both_ways_give_the_same_labels(method, tmp_path, monkeypatch):
    data = pate_tf.Data.load("digits")
    train_briefly(monkeypatch, 20, 30)  # as `learn_little`
    in_python = fitted(method, data, tmp_path / "python")
    report = typed(method, tmp_path)
    labels = pate_tf.Labels.load(tmp_path / "run" / "released", data.pool)
    assert np.array_equal(labels.query_indices, in_python.labels.query_indices)
    assert np.array_equal(labels.labels, in_python.labels.labels)
    assert report["epsilon_data_independent"] == in_python.cost.epsilon
    assert report["student_accuracy"] == in_python.student.evaluate(data.held_out)
