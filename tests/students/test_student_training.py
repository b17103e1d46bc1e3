"""The training shared by all kinds of students."""

import keras
import numpy as np
import pytest
from labels_for_tests import released_labels

from pate_tf.data import datasets as data
from pate_tf.models import architectures as models
from pate_tf.students.student_kinds import StudentConfig, kind_of
from pate_tf.students.student_kinds.consistency import ConsistencyStudent
from pate_tf.students.student_training import STEPS_PER_EPOCH, are_stable, run_digest

PUBLIC = data.load_public("digits")
SPLIT = PUBLIC.split(400)


def config(**changes) -> StudentConfig:
    fields = {"model": "mlp", "max_steps": 30, "batch_size": 32, "learning_rate": 0.003, "seed": 1}
    return StudentConfig(**{**fields, **changes})


def train(num_labels: int, **changes) -> keras.Model:
    labels = released_labels(np.arange(num_labels), SPLIT.pool.true_labels[:num_labels])
    wanted = config(**changes)
    return kind_of(wanted.student).train(wanted, labels, SPLIT.pool)


@pytest.mark.parametrize("max_steps", [1, 149, 150])
def test_it_does_about_as_many_steps_as_were_asked_for(max_steps):
    model = train(8, max_steps=max_steps, batch_size=2)
    assert max_steps <= int(model.optimizer.iterations.numpy()) <= 1.02 * max_steps


@pytest.mark.parametrize(
    ("num_classes", "num_changed", "expected"),
    [(4, 0, True), (1, 0, True), (4, 7, True), (4, 8, False), (4, 500, False)],
)
def test_predictions_are_stable_if_models_agree_beyond_chance(num_classes, num_changed, expected):
    rows = np.tile(np.arange(1_000) % num_classes, (4, 1))
    rows[1::2, :num_changed] = 3 - rows[1::2, :num_changed]
    assert are_stable(rows) == expected


class StopsAtTheEnd(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        if self.model.stop_training:
            raise KeyboardInterrupt


def test_training_ends_once_predictions_on_the_pool_are_stable(tmp_path):
    labels = released_labels(np.arange(200), SPLIT.pool.true_labels[:200])
    wanted = config(max_steps=50 * STEPS_PER_EPOCH)
    model = kind_of("supervised").train(wanted, labels, SPLIT.pool)
    num_steps = int(model.optimizer.iterations.numpy())
    assert 4 * STEPS_PER_EPOCH <= num_steps < wanted.max_steps
    again = {"folder": tmp_path, "callbacks": [StopsAtTheEnd()]}
    with pytest.raises(KeyboardInterrupt):
        kind_of("supervised").train(wanted, labels, SPLIT.pool, **again)
    resumed = kind_of("supervised").train(wanted, labels, SPLIT.pool, folder=tmp_path)
    assert int(resumed.optimizer.iterations.numpy()) == num_steps
    for first, second in zip(model.get_weights(), resumed.get_weights(), strict=True):
        np.testing.assert_array_equal(first, second)


def test_a_models_own_losses_count():
    norms = [
        np.linalg.norm(
            train(60, model=f"architectures_for_tests:{model}", max_steps=100)
            .trainable_weights[0]
            .numpy()
        )
        for model in ("with_dense", "regularized")
    ]
    assert norms[1] < 0.5 * norms[0]


def test_the_average_is_of_the_weights_and_the_first_is_the_weights():
    classifier = models.build("mlp", PUBLIC.dataset, seed=3)
    student = ConsistencyStudent(classifier, PUBLIC.dataset, warm_up_steps=7)
    weights = student.classifier.trainable_weights
    expected = None
    for step in range(4):
        for weight in weights:
            weight.assign(weight + 1.0)
        student.step_end(keras.ops.ones([1], "int64"), np.eye(1), 0.0, 0.0, 0.0)
        share = step / (step + 10)
        values = [weight.numpy() for weight in weights]
        expected = [
            share * old + (1 - share) * new
            for old, new in zip(expected or values, values, strict=True)
        ]
        for average, value in zip(student.averages, expected, strict=True):
            np.testing.assert_allclose(average, value, rtol=1e-5, atol=1e-6)


def test_a_run_is_identified_by_all_that_its_result_depends_on():
    labels = released_labels(np.arange(8), SPLIT.pool.true_labels[:8])
    runs = [
        (config(), labels, SPLIT.pool),
        (config(seed=2), labels, SPLIT.pool),
        (config(model="cnn"), labels, SPLIT.pool),
        (config(), released_labels(np.arange(8), SPLIT.pool.true_labels[1:9]), SPLIT.pool),
        (config(), labels, PUBLIC.split(399).pool),
    ]
    assert len({run_digest(*run) for run in runs}) == len(runs)
