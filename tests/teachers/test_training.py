import dataclasses

import keras
import numpy as np
import pytest
import teacher_helpers as helpers
import tensorflow as tf
from script_processes import REPOSITORY, run_fresh

from pate_tf.core.dataset import Dataset
from pate_tf.core.partition import assigned_partition, random_partition
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.models import catalogue
from pate_tf.teachers.training import (
    FIRST_MOMENT_DECAY,
    DataParallelTrainer,
    EnsembleParallelTrainer,
    TeacherData,
)


@pytest.fixture(scope="module")
def undisturbed():
    """Every teacher trained by a trainer of its own, in one call."""
    return [
        helpers.train_all(helpers.trainer(), [teacher])[0]
        for teacher in range(helpers.NUM_TEACHERS)
    ]


def test_a_teacher_is_the_same_with_any_other_teachers(undisturbed):
    for order in ([0, 1, 2, 3], [3, 1, 2], [2, 0, 2]):
        together = helpers.train_all(helpers.trainer(), order)
        for teacher, state in zip(order, together, strict=True):
            assert helpers.same(state, undisturbed[teacher])


@pytest.mark.parametrize("chunks", [(1,) * 9, (1, 5, 3), (8, 1), (4, 400), (9, 5)], ids=str)
def test_a_teacher_is_the_same_in_one_call_or_in_several(undisturbed, chunks):
    trainer = helpers.trainer()
    for teacher in (0, 3):
        (state,) = helpers.train_all(trainer, [teacher], chunks)
        assert state.step == 9
        assert helpers.same(state, undisturbed[teacher])


def test_the_shipped_model_with_dropout_is_the_same_in_chunks():
    chunked, whole = (
        helpers.train_all(helpers.trainer(model="deeper", max_steps=3), [1], chunks)[0]
        for chunks in ((1, 2), (3,))
    )
    assert helpers.same(chunked, whole)


@pytest.fixture(scope="module")
def on_two_devices(tmp_path_factory):
    """From a name and a place to the arrays that a process with two devices trained."""
    folder = tmp_path_factory.mktemp("devices")
    child = REPOSITORY / "tests" / "teachers" / "two_devices_child.py"
    ended = run_fresh(str(child), str(folder / "a.npz"), folder=folder)
    assert ended.code == 0, ended.err[-2000:]
    with np.load(folder / "a.npz") as found:
        arrays = dict(found)

    def look_up(name, place):
        count = sum(key.startswith(f"{name}/{place}/") for key in arrays)
        return [arrays[f"{name}/{place}/{index}"] for index in range(count)]

    return look_up


@pytest.mark.parametrize(("name", "teachers"), [("even", [0, 1, 2, 3]), ("odd", [3, 0, 2])])
def test_two_devices_train_the_same_teachers(undisturbed, on_two_devices, name, teachers):
    for place, teacher in enumerate(teachers):
        found, expected = on_two_devices(name, place), helpers.arrays(undisturbed[teacher])
        for one, other in zip(found, expected, strict=True):
            assert one.tobytes() == other.tobytes()


def test_two_devices_train_teachers_that_end_at_different_steps(on_two_devices):
    data = helpers.data_of_owners()
    alone = EnsembleParallelTrainer(data, tf.distribute.OneDeviceStrategy("/CPU:0"))
    for place, (teacher, steps) in enumerate([(0, 150), (4, 0), (3, 300), (1, 188)]):
        (expected,) = helpers.train_all(alone, [teacher], (37, 400))
        assert expected.step == data.num_steps(teacher) == steps
        found = on_two_devices("own_steps", place)
        for one, other in zip(found, helpers.arrays(expected), strict=True):
            assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize(
    ("name", "model"), [("data_parallel", helpers.SMALL), ("own_losses", helpers.OWN_LOSSES)]
)
def test_two_devices_on_one_teacher_agree_up_to_rounding(on_two_devices, name, model):
    (expected,) = helpers.train_all(helpers.trainer(model=model), [1])
    found = on_two_devices(name, 0)
    for one, other in zip(found, helpers.arrays(expected), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


def test_every_own_record_has_influence(undisturbed):
    # With 5 records and 72 examples seen, no record is left out by the shuffling.
    private = helpers.examples()
    for record in helpers.uneven_partition().records_of(0):
        labels = np.array(private.labels)
        labels[record] = (labels[record] + 1) % 3
        changed = PrivateExamples(helpers.BLOBS, private.inputs, labels)
        (state,) = helpers.train_all(helpers.trainer(private=changed), [0])
        assert not helpers.same(state, undisturbed[0])


def test_a_call_changes_no_state_that_it_was_given():
    trainer = helpers.trainer()
    (state,) = helpers.train_all(trainer, [1], (4,))
    copies = [array.copy() for array in helpers.arrays(state)]
    trainer.advance([1], [state], 3)
    for array, copy in zip(helpers.arrays(state), copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_teachers_begin_each_with_weights_of_their_own():
    data = helpers.teacher_data()
    kernels = [data.initial_state(teacher).weights[0] for teacher in range(4)]
    for one in range(4):
        again = helpers.teacher_data().initial_state(one).weights[0]
        np.testing.assert_array_equal(kernels[one], again)
        for other in range(one):
            assert not np.array_equal(kernels[one], kernels[other])
    other_seed = helpers.teacher_data(seed=6).initial_state(0).weights[0]
    assert not np.array_equal(kernels[0], other_seed)


def test_the_loss_falls_and_batch_statistics_move():
    trainer = helpers.trainer(max_steps=120)
    initial = trainer.data.initial_state(3)
    (state,) = helpers.train_all(trainer, [3])
    assert state.losses.shape == (120,)
    assert state.losses.dtype == np.float32
    assert state.losses[-20:].mean() < 0.6 * state.losses[:10].mean()
    moved = [
        not np.array_equal(one, other)
        for one, other in zip(initial.buffers, state.buffers, strict=True)
    ]
    assert all(moved)  # moving mean, moving variance, dropout's seed


@pytest.mark.parametrize("kind", [EnsembleParallelTrainer, DataParallelTrainer])
def test_a_training_that_diverges_stops_nothing(kind):
    """Whether it does follows from the teacher's records."""
    data = helpers.teacher_data(model=helpers.SMALL, learning_rate=1.0, max_steps=50)
    object.__setattr__(data.config, "learning_rate", 1e38)  # no setting may be so large
    trainer = kind(data, tf.distribute.OneDeviceStrategy("/CPU:0"))
    (state,) = helpers.train_all(trainer, [3])
    assert state.step == 50
    assert not np.isfinite(state.losses).all()


def test_one_record_a_teacher_is_enough():
    partition = random_partition(num_records=4, num_teachers=4, seed=0)
    data = TeacherData(helpers.config(max_steps=2), helpers.examples(4), partition)
    trainer = EnsembleParallelTrainer(data, tf.distribute.OneDeviceStrategy("/CPU:0"))
    (state,) = helpers.train_all(trainer, [2])
    assert state.step == 2


def test_a_states_repr_shows_no_weight():
    state = helpers.teacher_data().initial_state(0)
    state = dataclasses.replace(state, losses=np.array([0.123456], np.float32))
    assert "0.1234" not in repr(state)
    assert "array(" not in repr(state)


# A model's own losses count as in Keras' `fit`, and sparse gradients are gradients.


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
