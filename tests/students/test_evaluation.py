import event_files
import numpy as np
import pytest
import tensorflow as tf
from labels_for_tests import released_labels

from pate_tf.core.public import PoolLabels, PublicExamples
from pate_tf.data import datasets as data
from pate_tf.data.datasets import DIGITS
from pate_tf.students import student_training
from pate_tf.students.measures import measure_classes, measure_labels, measure_numbers
from pate_tf.students.student_kinds import StudentConfig, kind_of
from pate_tf.students.student_training import accuracy_in_pool


def measured(labels, truth, probabilities=None):
    if probabilities is None:
        probabilities = np.eye(max(2, *truth) + 1)[labels]
    return measure_classes(np.array(labels), np.array(truth), np.asarray(probabilities))


def test_accuracy_has_wilsons_interval():
    # Wilson 1927, computed by hand for 8 of 10: z = 1.96.
    measures = measured([1] * 10, [1] * 8 + [0] * 2)
    assert (measures["accuracy"], measures["num_evaluated"]) == (0.8, 10)
    assert measures["accuracy_interval"] == pytest.approx([0.4902, 0.9433], abs=1e-4)
    low, high = measured([1] * 3, [1] * 3)["accuracy_interval"]
    assert low == pytest.approx(0.4385, abs=1e-4) and high == 1.0


def test_numbers_and_several_labels_against_their_definitions():
    found = measure_numbers(np.array([1.0, 2.0, 6.0]), np.array([0.0, 3.0, 6.0]))
    assert found["r_squared"] == pytest.approx(1.0 - 2.0 / 18.0)
    assert found["root_mean_squared_error"] == pytest.approx((2.0 / 3.0) ** 0.5)
    assert found["mean_absolute_error"] == pytest.approx(2.0 / 3.0)
    assert found["constant_root_mean_squared_error"] == pytest.approx(6.0**0.5)
    assert found["constant_mean_absolute_error"] == pytest.approx(2.0)
    truth = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0]])
    probable = np.array([[0.9, 0.2, 0.1], [0.3, 0.1, 0.2], [0.4, 0.8, 0.3]])
    found = measure_labels((probable >= 0.5).astype(int), truth, probable)
    # For label 2, one of two pairs is in order. No sample has label 3.
    assert found["label_auc"] == [1.0, 0.5, None] and found["auc"] == 0.75
    assert found["label_recall"] == [0.5, 0.5, None] and found["exact_match"] == 1 / 3
    assert found["constant_exact_match"] == 1 / 3


def numbered(num: int) -> PublicExamples:
    """Returns images that show their own positions."""
    inputs = np.zeros((num, 8, 8, 1), np.uint8)
    inputs[:, 0, 0, 0] = np.arange(num)
    return PublicExamples(DIGITS, inputs, np.arange(num) % 10)


def labelled(num: int, *known: int) -> PublicExamples:
    """Returns the same images, some of them labeled."""
    labels = np.full(num, -1)
    labels[list(known)] = np.array(known) % 10
    return PublicExamples(DIGITS, numbered(num).inputs, labels)


def test_labels_in_the_pool_are_measured_where_the_truth_is_known():
    given = PoolLabels(
        query_indices=np.array([0, 1, 2]), labels=np.array([0, 5, 5]), num_classes=10
    )
    assert accuracy_in_pool(given, labelled(12, 0, 1).split(8)) == 0.5
    assert accuracy_in_pool(given, labelled(12, 7).split(8)) is None
    assert accuracy_in_pool(given, labelled(12, 11).split(8)) is None
    assert accuracy_in_pool(given, numbered(12).split(8)) == pytest.approx(1 / 3)


@pytest.mark.parametrize("num_classes", [2, 4])
def test_auc_and_calibration_against_their_definitions(num_classes):
    random = np.random.default_rng(num_classes)
    truth = random.integers(0, num_classes, 60)
    probabilities = random.dirichlet(np.ones(num_classes), 60).round(1)
    labels = probabilities.argmax(axis=1)
    measures = measured(labels, truth, probabilities)
    shares = []
    for label in [1] if num_classes == 2 else range(num_classes):
        pairs = [
            (high > low) + 0.5 * (high == low)
            for high in probabilities[truth == label, label]
            for low in probabilities[truth != label, label]
        ]
        shares.append(np.mean(pairs))
    assert measures["auc"] == pytest.approx(np.mean(shares))
    confidence, error = probabilities[np.arange(60), labels], 0.0
    places = np.minimum((confidence * 10).astype(int), 9)
    for place in range(10):
        inside = places == place
        if inside.any():
            gap = (labels == truth)[inside].mean() - confidence[inside].mean()
            error += inside.mean() * abs(gap)
    assert measures["calibration_error"] == pytest.approx(error)


PUBLIC = data.load_public("digits")
SPLIT = PUBLIC.split(400)
HELD_OUT = SPLIT.held_out
LABELS = released_labels(np.arange(100), SPLIT.pool.true_labels[:100])


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(student_training, "STEPS_PER_EPOCH", 10)


def train(student: str, max_steps: int = 60, **kwargs):
    kind = kind_of(student)
    config = StudentConfig(
        student=student,
        model="mlp",
        max_steps=max_steps,
        batch_size=16,
        learning_rate=0.003,
        seed=1,
    )
    return kind.train(config, LABELS, SPLIT.pool, **kwargs)


@pytest.mark.parametrize("student", ["supervised", "consistency"])
@pytest.mark.usefixtures("small")
def test_accuracy_is_written_as_it_trains(student, tmp_path):
    logs = student_training.logs_of(tmp_path)
    model = train(
        student, folder=tmp_path, callbacks=[student_training.HeldOutAccuracy(HELD_OUT, logs)]
    )
    written = event_files.scalars(logs / "held_out")["epoch_accuracy"]
    assert [step for step, _ in written] == list(range(6))
    logits = model(tf.constant(HELD_OUT.inputs, tf.float32), training=False)
    final = (np.argmax(logits, axis=1) == HELD_OUT.labels).mean()
    assert written[-1][1] == pytest.approx(final, abs=1e-6)
    training = event_files.scalars(logs / "train")
    for tag in ("epoch_loss", "epoch_accuracy", "batch_loss", "batch_accuracy"):
        steps, values = zip(*training[tag], strict=True)
        assert steps == tuple(range(6) if "epoch" in tag else range(10, 70, 10)), tag
        assert np.isfinite(values).all() and ("loss" in tag or values[-1] > values[0])
