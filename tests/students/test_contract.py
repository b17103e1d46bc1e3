import dataclasses
import sys
import types

import keras
import numpy as np
import pytest
from contract import FittedStudentContract, KillAfter, Killed, StudentContract
from labels_for_tests import released_labels

from pate_tf.core.public import PublicExamples
from pate_tf.data import datasets as data
from pate_tf.students import student_training
from pate_tf.students.student_kinds import (
    StudentConfig,
    StudentSettings,
    complete,
    find_student,
    gan,
    kind_of,
    names,
)

DIGITS = data.load_public("digits")


def config(student: str, **changes: object) -> StudentConfig:
    fields = {
        "student": student,
        "model": kind_of(student).default_model(DIGITS.dataset),
        "max_steps": 60,
        "batch_size": 32,
        "learning_rate": 0.003,
        "seed": 1,
    }
    return StudentConfig(**{**fields, **changes})


def as_table(public: PublicExamples) -> PublicExamples:
    """Returns the digits as 64 features, without augmentation."""
    dataset = dataclasses.replace(
        public.dataset, kind="tabular", input_type="", input_shape=(64,), augmentation="none"
    )
    inputs = public.inputs.reshape(-1, 64).astype(np.float32)
    return PublicExamples(dataset, inputs, public.labels)


TABLE = as_table(DIGITS)


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

    # Each student first traces two networks. It learns from weights of the correct class in any
    # case.
    @pytest.mark.long
    def test_it_learns_from_weighted_labels(self):
        super().test_it_learns_from_weighted_labels()

    @pytest.mark.long
    def test_one_label_is_enough_also_in_a_strategy_scope(self):
        super().test_one_label_is_enough_also_in_a_strategy_scope()


class TestConsistency(FittedStudentContract):
    config = config("consistency", model="cnn", max_steps=150)
    public = DIGITS


class TestRandomForest(StudentContract):
    config = config("random_forest")
    public = TABLE


@pytest.mark.parametrize("student", ["supervised", "consistency"])
@pytest.mark.parametrize("rates", [(0.1, 0.5), (0.1, 0.1)], ids=["changed", "same"])
def test_a_stopped_run_goes_on_with_the_same_model_alone(student, rates, tmp_path, monkeypatch):
    # Name, steps, labels and shapes are equal: only the settings distinguish the two.
    def net(dataset):
        layers = [keras.layers.Flatten(), keras.layers.Dropout(rate), keras.layers.Dense(10)]
        return keras.Sequential([keras.Input(dataset.input_shape), *layers])

    module = types.ModuleType("nets")
    module.net = net
    monkeypatch.setitem(sys.modules, "nets", module)
    monkeypatch.setattr(student_training, "STEPS_PER_EPOCH", 1)
    epochs = []
    count = keras.callbacks.LambdaCallback(on_epoch_begin=lambda epoch, _: epochs.append(epoch))
    pool = DIGITS.split(400).pool
    arguments = (
        config(student, model="nets:net", max_steps=3),
        released_labels(np.arange(20), DIGITS.labels[:20], 10),
        pool,
    )
    rate = rates[0]
    with pytest.raises(Killed):
        kind_of(student).train(*arguments, folder=tmp_path, callbacks=[KillAfter(2)])
    rate = rates[1]
    kind_of(student).train(*arguments, folder=tmp_path, callbacks=[count])
    assert epochs == ([2] if rates[0] == rates[1] else [0, 1, 2])
    if rates[0] != rates[1]:  # a different student or seed does not remove it either
        epochs.clear()
        other = dataclasses.replace(arguments[0], seed=2)
        kind_of(student).train(other, *arguments[1:], folder=tmp_path, callbacks=[count])
        rate = rates[0]
        kind_of(student).train(*arguments, folder=tmp_path, callbacks=[count])
        assert epochs == [0, 1, 2, 2]


def test_every_student_keeps_the_contract():
    classes = StudentContract.__subclasses__() + FittedStudentContract.__subclasses__()
    # A linear head needs feature sums instead of labels: tests/run/test_feature_sums.py.
    trained = set(names()) - {"linear_head"}
    assert {one.config.student for one in classes if hasattr(one, "config")} == trained


def with_batch_statistics(dataset):
    layers = [keras.layers.Flatten(), keras.layers.BatchNormalization(), keras.layers.Dense(10)]
    return keras.Sequential([keras.Input(dataset.input_shape), *layers])


BATCH_STATISTICS = f"{__name__}:with_batch_statistics"


@pytest.mark.parametrize(
    ("dataset", "changes", "message"),
    [
        (DIGITS, {"student": "nosuch"}, "student must be one of consistency, gan"),
        (DIGITS, {"student": "gan", "model": "cnn"}, "the student gan has its own networks"),
        (DIGITS, {"student": "consistency", "model": "random_forest"}, "model .* is unknown; use"),
        (DIGITS, {"student": "random_forest", "model": "cnn"}, "is not a forest"),
        (DIGITS, {"student": "supervised", "model": "nosuch"}, "model .* is unknown; use"),
        (
            DIGITS,
            {"student": "consistency", "model": BATCH_STATISTICS},
            "student consistency: the model has batch normalization",
        ),
        (TABLE, {"student": "gan", "model": "improved_gan"}, "student gan needs images"),
        (TABLE, {"student": "consistency"}, "student consistency: .* has no augmentation"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_before_anything_is_charged(dataset, changes, message):
    with pytest.raises(ValueError, match=message) as caught:
        wrong = dataclasses.replace(config("supervised"), **changes)
        find_student(wrong, dataset.dataset)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "public", "student", "model"),
    [
        ({}, DIGITS, "consistency", "wide_cnn"),
        ({"model": "mlp"}, DIGITS, "consistency", "mlp"),
        ({"model": BATCH_STATISTICS}, DIGITS, "supervised", BATCH_STATISTICS),
        ({"model": "random_forest"}, DIGITS, "random_forest", "random_forest"),
        ({}, TABLE, "supervised", "mlp"),
        ({"student": "supervised"}, DIGITS, "supervised", "cnn"),
        ({"student": "supervised", "model": "random_forest"}, TABLE, "random_forest", None),
        ({"student": "random_forest"}, TABLE, "random_forest", "random_forest"),
        ({"student": "gan"}, DIGITS, "gan", "improved_gan"),
    ],
    ids=str,
)
def test_settings_are_completed_by_what_the_data_and_the_kind_say(settings, public, student, model):
    completed = complete(StudentSettings(**settings), public.dataset)
    kind = kind_of(student)
    assert find_student(completed, public.dataset) is kind
    assert completed.model == (model or "random_forest")
    assert (completed.max_steps, completed.batch_size) == (kind.max_steps, kind.batch_size)
    if kind.has_steps:
        given = complete(StudentSettings(**settings, max_steps=3), public.dataset)
        assert given == dataclasses.replace(completed, max_steps=3)
    else:
        with pytest.raises(ValueError, match="max_steps: remove it; the student random_forest"):
            complete(StudentSettings(**settings, max_steps=3), public.dataset)
