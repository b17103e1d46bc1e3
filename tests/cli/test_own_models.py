"""Custom models in the working directory, and environments that Keras is configured for."""

import os
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from api_helpers import digits
from script_processes import assert_one_line, run_fresh, run_script

import pate_tf
from pate_tf.models import architectures
from pate_tf.teachers.foreign import ForeignModels

# Separate, because every process that fits it imports its module.
LOGISTIC = """
from sklearn.linear_model import LogisticRegression


def logistic(dataset):
    return LogisticRegression(max_iter=5)
"""
NETS = """
import keras
import tensorflow as tf


@tf.custom_gradient
def without_gradient(inputs):
    def gradient(upstream):
        raise ValueError("it has no gradient")
    return inputs, gradient


def failing(dataset):
    layers = [keras.Input(dataset.input_shape), keras.layers.Flatten(), keras.layers.Dense(10)]
    return keras.Sequential([*layers, keras.layers.Lambda(without_gradient)])
"""
TEACH = ("--nb_teachers=3", "--train_dir=run")


def half(dataset, activation=None):
    """Sets mixed precision for the whole process."""
    keras.mixed_precision.set_global_policy("mixed_float16")
    layers = [keras.layers.Flatten(), keras.layers.Dense(10, activation=activation)]
    return keras.Sequential([keras.Input(dataset.input_shape), *layers])


def softmax(dataset):
    return half(dataset, "softmax")


def test_they_lie_where_one_types_and_a_failed_start_leaves_the_folder_to_the_next(tmp_path):
    (tmp_path / "nets_here.py").write_text(NETS)
    (tmp_path / "logistic_here.py").write_text(LOGISTIC)
    failed = run_script("train_teachers.py", *TEACH, "--model=nets_here:failing", folder=tmp_path)
    assert_one_line(failed)
    flags = ("--model=logistic_here:logistic", "--representation=raw")
    ended = run_script("train_teachers.py", *TEACH, *flags, folder=tmp_path)
    assert ended.code == 0, ended.err
    refused = run_script("train_teachers.py", *TEACH, "--model=mlp", folder=tmp_path)
    assert_one_line(refused)
    assert "has teachers with other settings" in refused.err


def test_mixed_precision_stays_in_its_model_and_losses_and_answers_are_float32(tmp_path):
    data = digits(augmentation="shift")
    teachers = pate_tf.Teachers(half, num_teachers=3, steps=30, directory=tmp_path / "run")
    votes = teachers.fit(data.private).votes(data.pool)
    assert keras.config.dtype_policy().name == "float32"
    (stored,) = (tmp_path / "run").rglob("finished-*.npz")
    assert np.load(stored)["0/curves"].dtype == np.float32
    assert (votes == votes[0]).mean() < 1.0
    with pate_tf.Labeller(teachers, epsilon=100.0, delta=1e-3) as labeller:
        labels = labeller.label(data.pool, strategy="first")
        for kind in ("supervised", "consistency"):
            student = pate_tf.Student(kind, model=half, steps=20).fit(data.pool, labels)
            assert student.predict_proba(data.pool.inputs).dtype == np.float64
        folder = student.publish(tmp_path / "released").student_folder
    serve = tf.saved_model.load(str(folder)).signatures["serving_default"]
    assert serve.structured_outputs["probabilities"].dtype == tf.float32


def test_a_softmax_that_trains_on_logits_and_adapted_layers_are_noticed():
    dataset = digits().dataset
    with pytest.warns(UserWarning, match="ends in a softmax"):
        model = architectures.build(softmax, dataset)
    inputs = np.full((2, *dataset.input_shape), 9.0, np.float32)
    assert np.allclose(tf.reduce_sum(tf.nn.softmax(model(inputs)), axis=1), 1.0)
    assert np.allclose(tf.reduce_logsumexp(model(inputs), axis=1), 0.0, atol=1e-2)

    assert not architectures.ends_in_softmax(architectures.build(half, dataset))
    assert architectures.ends_in_softmax(
        keras.Model(model.inputs, keras.ops.softmax(model.outputs[0]))
    )

    def normalized(dataset, is_adapted=True):
        layer = keras.layers.Normalization()
        if is_adapted:
            layer.adapt(np.arange(64.0).reshape(1, *dataset.input_shape))
        layers = [layer, keras.layers.Flatten(), keras.layers.Dense(10)]
        return keras.Sequential([keras.Input(dataset.input_shape), *layers])

    with pytest.warns(UserWarning, match="Normalization contains statistics of data"):
        architectures.build(normalized, dataset)
    assert not architectures.holds_statistics(normalized(dataset, is_adapted=False).layers[0])
    assert architectures.holds_statistics(keras.layers.StringLookup(vocabulary=["a"]))
    assert not architectures.holds_statistics(keras.layers.StringLookup())


class Double(keras.layers.Layer):
    """Neither registered nor with its own configuration."""

    def call(self, inputs):
        return 2.0 * inputs


def double(inputs):
    return 2.0 * inputs


def test_foreign_files_that_keras_does_not_read_are_named_with_what_to_do(tmp_path):
    data = digits()
    layers = [keras.Input(data.dataset.input_shape), keras.layers.Flatten()]
    keras.Sequential([*layers, Double(), keras.layers.Dense(10)]).save(tmp_path / "a.keras")
    inputs = data.pool.inputs
    with pytest.raises(ValueError, match=r"a\.keras contains Double, which is not .*model\.export"):
        ForeignModels(tmp_path).votes(inputs)
    keras.Sequential([*layers, keras.layers.Dense(10, double)]).save(tmp_path / "a.keras")
    with pytest.raises(ValueError, match=r"a\.keras contains double, which is not .*model\.export"):
        ForeignModels(tmp_path).votes(inputs)
    (tmp_path / "a.keras").write_bytes(b"PK nonsense")
    with pytest.raises(ValueError, match=r"a\.keras is not a \.keras file"):
        ForeignModels(tmp_path).votes(inputs)
    shutil.move(tmp_path / "a.keras", tmp_path / "b.h5")
    for name in ("b.h5", "c.HDF5", "d.pkl"):
        shutil.move(next(tmp_path.iterdir()), tmp_path / name)
        with pytest.raises(ValueError, match=rf"contains {name}. Use model.save"):
            ForeignModels(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(ValueError, match=r"contains no model. Use model.save"):
        ForeignModels(tmp_path)


@pytest.mark.parametrize(
    ("name", "value"), [("KERAS_BACKEND", "jax"), ("TF_USE_LEGACY_KERAS", "1")]
)
def test_another_keras_is_one_line(tmp_path, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    ended = run_fresh("-m", "pate_tf.cli.main", "teachers", folder=tmp_path)
    assert_one_line(ended)
    assert f"error: the environment variable {name} must be" in ended.err
    assert not os.listdir(tmp_path)
    in_python = run_fresh("-c", "import pate_tf\npate_tf.plan\npate_tf.Student", folder=tmp_path)
    assert in_python.err.splitlines()[-1].startswith(
        f"ValueError: the environment variable {name} must be"
    )


def test_tensorflow_writes_no_line_of_its_own_in_python_either(tmp_path):
    program = "import pate_tf\npate_tf.Student\nimport tensorflow as tf\ntf.zeros(3)"
    assert run_fresh("-c", program, folder=tmp_path).err == ""


def test_python_that_makes_errors_of_warnings_works(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONWARNINGS", "error")
    flags = ("--nb_teachers=2", "--model=random_forest")
    ended = run_fresh("-m", "pate_tf.cli.main", "teachers", *flags, folder=tmp_path)
    assert (ended.code, ended.err) == (0, "")
