import dataclasses

import event_files
import numpy as np
import pytest
import tensorflow as tf
from labels_for_tests import released_labels

from pate_tf.core.public import PublicExamples
from pate_tf.data import catalogue as data
from pate_tf.students import catalogue, evaluation, gan, training
from pate_tf.students.config import StudentConfig

PUBLIC = data.load_public("digits")
SPLIT = PUBLIC.split(400)
HELD_OUT = SPLIT.held_out
LABELS = released_labels(np.arange(100), SPLIT.pool_labels[:100])


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(training, "STEPS_AN_EPOCH", 10)
    monkeypatch.setattr(gan, "CLASSIFIER_UNITS", (64, 32, 32))
    monkeypatch.setattr(gan, "GENERATOR_UNITS", (32, 32))


def train(student: str, max_steps: int = 60, **kwargs):
    found = catalogue.STUDENTS[student]
    config = StudentConfig(
        student=student,
        model="mlp" if student != "gan" else found.default_model(PUBLIC.dataset),
        max_steps=max_steps,
        batch_size=16,
        learning_rate=0.003,
        seed=1,
    )
    return found.train(config, LABELS, SPLIT.pool, **kwargs)


@pytest.mark.parametrize(
    "student",
    ["supervised", "consistency", pytest.param("gan", marks=pytest.mark.long)],
)
def test_accuracy_and_confusion_are_written_as_it_trains(student, tmp_path):
    logs = training.logs_of(tmp_path)
    model = train(student, folder=tmp_path, callbacks=[evaluation.HeldOutAccuracy(HELD_OUT, logs)])
    written = event_files.scalars(logs / "held_out")["epoch_accuracy"]
    assert [step for step, _ in written] == list(range(6))
    logits = model(tf.constant(HELD_OUT.inputs, tf.float32), training=False)
    final = (np.argmax(logits, axis=1) == HELD_OUT.labels).mean()
    assert written[-1][1] == pytest.approx(final, abs=1e-6)
    ((step, picture),) = event_files.images(logs / "held_out")["confusion_matrix"]
    assert step == 4
    assert picture.shape == (480, 480, 3)
    losses = event_files.scalars(logs / "train")["epoch_loss"]
    assert [step for step, _ in losses] == list(range(6))
    assert all(np.isfinite(value) for _, value in losses)


@pytest.mark.parametrize(
    "student",
    ["supervised", "consistency", pytest.param("gan", marks=pytest.mark.long)],
)
def test_watching_changes_nothing_whatever_the_true_labels(student, tmp_path):
    others = PublicExamples(PUBLIC.dataset, HELD_OUT.inputs, (HELD_OUT.labels + 1) % 10)
    alone = train(student, 20).get_weights()
    for samples in (HELD_OUT, others):
        watch = evaluation.HeldOutAccuracy(samples, tmp_path)
        for one, other in zip(
            alone, train(student, 20, callbacks=[watch]).get_weights(), strict=True
        ):
            np.testing.assert_array_equal(one, other)


def test_it_is_cheap_where_there_are_many_samples(tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "NUM_SAMPLES", 7)
    train("supervised", 10, callbacks=[evaluation.HeldOutAccuracy(HELD_OUT, tmp_path)])
    ((_, value),) = event_files.scalars(tmp_path / "held_out")["epoch_accuracy"]
    assert value * 7 == pytest.approx(round(value * 7), abs=1e-5)


def test_a_version_leaves_its_settings_results_and_confusion(tmp_path):
    config = StudentConfig(model="mlp", max_steps=2, batch_size=3, learning_rate=0.5, seed=4)
    evaluation.write_version(
        tmp_path,
        HELD_OUT,
        HELD_OUT.labels,
        settings=dataclasses.asdict(config),
        results={"accuracy": 1.0},
    )
    assert event_files.settings(tmp_path) == dataclasses.asdict(config)
    assert event_files.scalars(tmp_path) == {"accuracy": [(0, 1.0)]}
    assert list(event_files.images(tmp_path)) == ["confusion_matrix"]
