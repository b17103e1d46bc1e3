"""A model's own losses count as in Keras' `fit`, and sparse gradients are gradients."""

import keras
import numpy as np
import pytest
import teacher_helpers as helpers
import tensorflow as tf

from pate_tf.core.dataset import Dataset
from pate_tf.core.partition import assigned_partition
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.models import catalogue
from pate_tf.teachers.training import FIRST_MOMENT_DECAY, EnsembleParallelTrainer, TeacherData

TABLE = Dataset(
    name="table",
    kind="tabular",
    input_shape=(4,),
    value_range=(0.0, 9.0),
    num_classes=3,
    pool_size=10,
)
NUM_RECORDS = 8


def one_step(model: str):
    """One step on all of a teacher's records: the state before, the one after, the records."""
    random = np.random.default_rng(3)
    inputs = random.integers(0, 10, (2 * NUM_RECORDS, 4)).astype(np.float32)
    private = PrivateExamples(TABLE, inputs, random.integers(0, 3, len(inputs)))
    partition = assigned_partition(np.repeat([0, 1], NUM_RECORDS), num_teachers=2)
    config = helpers.config(
        dataset=TABLE, num_teachers=2, model=model, max_steps=1, batch_size=NUM_RECORDS
    )
    data = TeacherData(config, private, partition)
    trainer = EnsembleParallelTrainer(data, tf.distribute.OneDeviceStrategy("/CPU:0"))
    before = data.initial_state(0)
    (after,) = trainer.advance([0], [before], 1)
    return before, after, inputs[:NUM_RECORDS], private.labels[:NUM_RECORDS]


@pytest.mark.parametrize(
    "model", ["small", "regularized", "with_activities", "with_added_loss", "embedding"]
)
def test_a_step_has_the_loss_and_the_gradient_of_keras_fit(model):
    name = f"architectures_for_tests:{model}"
    before, after, inputs, labels = one_step(name)
    twin = catalogue.build(name, TABLE)
    for variable, weight in zip(twin.trainable_variables, before.weights, strict=True):
        variable.assign(weight)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    twin.compile(optimizer=keras.optimizers.SGD(1.0), loss=loss)
    history = twin.fit(inputs, labels, batch_size=NUM_RECORDS, shuffle=False, verbose=0)
    assert after.losses[0] == pytest.approx(history.history["loss"][0], rel=1e-5)
    slots = zip(before.weights, after.first_moments, twin.get_weights(), strict=True)
    for weight, moment, stepped in slots:
        np.testing.assert_allclose(
            moment / (1.0 - FIRST_MOMENT_DECAY), weight - stepped, rtol=1e-3, atol=1e-4
        )
        assert np.abs(moment).max() > 0.0


@pytest.mark.parametrize("model", ["regularized", "with_activities", "with_added_loss"])
def test_own_losses_change_the_teacher(model):
    _, plain, *_ = one_step("architectures_for_tests:with_dense")
    _, other, *_ = one_step(f"architectures_for_tests:{model}")
    assert not np.array_equal(plain.first_moments[0], other.first_moments[0])


def test_an_embedding_learns():
    before, after, inputs, _ = one_step("architectures_for_tests:embedding")
    moved = np.abs(after.weights[0] - before.weights[0]).max(axis=1) > 0.0
    seen = np.isin(np.arange(10), inputs)
    np.testing.assert_array_equal(moved, seen)
    assert seen.any()
