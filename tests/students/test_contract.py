import dataclasses
import importlib
import sys
import types

import keras
import numpy as np
import pytest
from contract import FittedStudentContract, KillAfter, Killed, StudentContract
from labels_for_tests import released_labels

from pate_tf.core.public import PublicExamples
from pate_tf.core.settings import described
from pate_tf.data import catalogue as data
from pate_tf.students import gan, training
from pate_tf.students.catalogue import STUDENTS, find_student
from pate_tf.students.config import StudentConfig, StudentSettings

DIGITS = data.load_public("digits")


def config(student: str, **changes: object) -> StudentConfig:
    fields = {
        "student": student,
        "model": STUDENTS[student].default_model(DIGITS.dataset),
        "max_steps": 60,
        "batch_size": 32,
        "learning_rate": 0.003,
        "seed": 1,
    }
    return StudentConfig(**{**fields, **changes})


def as_table(public: PublicExamples) -> PublicExamples:
    """The digits as 64 features that nobody may shift."""
    dataset = dataclasses.replace(
        public.dataset, kind="tabular", input_type="", input_shape=(64,), augmentation="none"
    )
    inputs = public.inputs.reshape(-1, 64).astype(np.float32)
    return PublicExamples(dataset, inputs, public.labels)


class TestSupervised(FittedStudentContract):
    config = config("supervised", max_steps=150)
    public = DIGITS


class TestGan(FittedStudentContract):
    config = config("gan")
    public = DIGITS

    @pytest.fixture(scope="class", autouse=True)
    def small_networks(self):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(gan, "CLASSIFIER_UNITS", (128, 64, 64))
            patch.setattr(gan, "GENERATOR_UNITS", (64, 64))
            yield

    # Each begins by tracing two networks; weights of the right class are learnt from anyway.
    @pytest.mark.long
    def test_it_learns_from_weighted_labels(self):
        super().test_it_learns_from_weighted_labels()

    @pytest.mark.long
    def test_one_label_is_enough_also_in_a_strategy_scope(self):
        super().test_one_label_is_enough_also_in_a_strategy_scope()

    @pytest.mark.long
    def test_nan_stops_the_run_and_the_last_good_weights_stay(self, tmp_path, monkeypatch):
        super().test_nan_stops_the_run_and_the_last_good_weights_stay(tmp_path, monkeypatch)


class TestConsistency(FittedStudentContract):
    config = config("consistency", max_steps=150)
    public = DIGITS


class TestRandomForest(StudentContract):
    config = config("random_forest")
    public = as_table(DIGITS)


@pytest.mark.parametrize("student", ["supervised", "consistency"])
@pytest.mark.parametrize("rates", [(0.1, 0.5), (0.1, 0.1)], ids=["changed", "same"])
def test_a_stopped_run_goes_on_with_the_same_model_alone(student, rates, tmp_path, monkeypatch):
    # Of the same name, steps, labels and shapes: nothing but the settings tell the two apart.
    def net(dataset):
        layers = [keras.layers.Flatten(), keras.layers.Dropout(rate), keras.layers.Dense(10)]
        return keras.Sequential([keras.Input(dataset.input_shape), *layers])

    module = types.ModuleType("nets")
    module.net = net
    monkeypatch.setitem(sys.modules, "nets", module)
    monkeypatch.setattr(training, "STEPS_AN_EPOCH", 1)
    epochs = []
    count = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, _: epochs.append(epoch))
    pool = DIGITS.split(400).pool
    asked = (
        config(student, model="nets:net", max_steps=3),
        released_labels(np.arange(20), DIGITS.labels[:20], 10),
        pool,
    )
    rate = rates[0]
    with pytest.raises(Killed):
        STUDENTS[student].train(*asked, folder=tmp_path, callbacks=[KillAfter(2)])
    rate = rates[1]
    STUDENTS[student].train(*asked, folder=tmp_path, callbacks=[count])
    assert epochs == ([2] if rates[0] == rates[1] else [0, 1, 2])


def test_every_student_keeps_the_contract():
    classes = StudentContract.__subclasses__() + FittedStudentContract.__subclasses__()
    assert {one.config.student for one in classes if hasattr(one, "config")} == set(STUDENTS)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"student": "nosuch"}, "student: expected one of supervised, gan"),
        ({"student": "gan", "model": "cnn"}, "model: expected none for student gan"),
        ({"student": "consistency", "model": "random_forest"}, "model: expected one of"),
        ({"student": "random_forest", "model": "cnn"}, "model: expected a forest"),
        ({"student": "supervised", "model": "nosuch"}, "model: expected one of"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_before_anything_is_paid_for(changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        find_student(dataclasses.replace(config("supervised"), **changes), DIGITS.dataset)
    assert "\n" not in str(caught.value)


def test_the_gan_wants_images():
    with pytest.raises(ValueError, match=r"student gan: expected gray images or \[32, 32, 3\]"):
        find_student(config("gan"), as_table(DIGITS).dataset)


def test_consistency_wants_data_that_can_be_changed():
    with pytest.raises(ValueError, match="student consistency: expected images whose") as caught:
        find_student(config("consistency", model="mlp"), as_table(DIGITS).dataset)
    assert "\n" not in str(caught.value)


def test_a_forest_as_the_plain_students_model_makes_it_the_forest_student():
    forest = find_student(config("supervised", model="random_forest"), DIGITS.dataset)
    assert forest is STUDENTS["random_forest"]


def test_every_student_is_in_the_flag():
    assert {*STUDENTS} < {*described(StudentSettings)["student"].choices}


def with_batch_statistics(dataset):
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input(dataset.input_shape),
            layers.Flatten(),
            layers.BatchNormalization(),
            layers.Dense(dataset.num_classes),
        ]
    )


def test_consistency_refuses_batch_statistics():
    name = f"{importlib.import_module(__name__).__name__}:with_batch_statistics"
    with pytest.raises(ValueError, match="student consistency: expected a model without batch"):
        find_student(config("consistency", model=name), DIGITS.dataset)
