"""The traced loop trains each teacher separately, and as Keras' `fit` would train it."""

import keras
import numpy as np
import pytest
import teacher_helpers as helpers
from data_sets_for_tests import table_dataset
from script_processes import run_script

from pate_tf.core.sensitive import Partition, PrivateExamples
from pate_tf.models import architectures
from pate_tf.teachers.teacher_kinds import TrainingJob
from pate_tf.teachers.teacher_kinds.networks import arguments


@pytest.fixture(scope="module")
def undisturbed():
    return helpers.train_all(helpers.training_job(), range(helpers.NUM_TEACHERS))


def test_a_teacher_is_the_same_with_any_other_teachers(undisturbed):
    order = [2, 3, 0]
    for teacher, trained in zip(
        order, helpers.train_all(helpers.training_job(), order), strict=True
    ):
        assert helpers.bits(trained) == helpers.bits(undisturbed[teacher])


def test_two_devices_train_the_same_teachers(undisturbed, tmp_path):
    child = "tests/teachers/two_devices_child.py"
    ended = run_script(child, str(tmp_path / "a.npz"), folder=tmp_path)
    assert ended.code == 0, ended.err[-2000:]
    with np.load(tmp_path / "a.npz") as archive:
        arrays = dict(archive)
    of_owners = helpers.train_all(helpers.job_of_owners(), range(5))
    assert [len(of_owners[teacher].curves[0]) for teacher in (0, 4, 3, 1)] == [150, 0, 300, 188]
    for name, order, expected in (
        ("odd", [3, 0, 2], undisturbed),
        ("steps", [0, 4, 3, 1], of_owners),
    ):
        for place, teacher in enumerate(order):
            alone = (*expected[teacher].arrays, expected[teacher].curves)
            for index, array in enumerate(alone):
                assert arrays[f"{name}/{place}/{index}"].tobytes() == array.tobytes()


def test_every_record_of_a_shard_has_influence(undisturbed):
    # With 5 records and 72 examples seen, the shuffling omits no record.
    private = helpers.examples()
    for record in helpers.uneven_partition().all_records()[0]:
        labels = np.array(private.labels)
        labels[record] = (labels[record] + 1) % 3
        changed = PrivateExamples(helpers.BLOBS, private.inputs, labels)
        (trained,) = helpers.train_all(helpers.training_job(changed), [0])
        assert helpers.bits(trained) != helpers.bits(undisturbed[0])


def test_teachers_begin_each_with_weights_of_their_own():
    def kernel(teacher, **changes):
        weights, _, _ = arguments(helpers.training_job(**changes), teacher)
        return weights[0].numpy().tobytes()

    kernels = [kernel(teacher) for teacher in range(4)]
    assert len({*kernels, kernel(0, seed=6)}) == 5
    assert kernel(2) == kernels[2]


def test_a_class_that_counts_more_is_learnt_first():
    job = helpers.training_job(model=helpers.SMALL, class_weights=(1e-6, 1e-6, 1.0), max_steps=60)
    trained = helpers.train_all(job, [3])
    images, _ = helpers.blob_images(30, seed=9)
    assert (helpers.slow_twin(job.config, trained, images) == 2).mean() > 0.9


def test_a_training_that_diverges_stops_nothing():
    """Divergence depends on the teacher's records."""
    job = helpers.training_job(model=helpers.SMALL, learning_rate=1.0, max_steps=50)
    object.__setattr__(job.config, "learning_rate", 1e38)  # larger than settings allow
    (trained,) = helpers.train_all(job, [3])
    assert len(trained.curves[0]) == 50 and not np.isfinite(trained.curves[0]).all()


# A model's added losses count as in Keras' `fit`, and sparse gradients are gradients.

TABLE = table_dataset(4, 0.0, 9.0)
NUM_RECORDS, RATE = 8, 0.5


@pytest.mark.parametrize(
    "model", ["small", "regularized", "with_activities", "with_added_loss", "embedding"]
)
def test_a_step_is_that_of_keras_fit(model):
    name = f"architectures_for_tests:{model}"
    random = np.random.default_rng(3)
    inputs = random.integers(0, 10, (2 * NUM_RECORDS, 4)).astype(np.float32)
    private = PrivateExamples(TABLE, inputs, random.integers(0, 3, len(inputs)))
    partition = Partition(np.repeat([0, 1], NUM_RECORDS), num_teachers=2)
    config = helpers.config(
        dataset=TABLE,
        num_teachers=2,
        model=name,
        max_steps=1,
        batch_size=NUM_RECORDS,
        learning_rate=RATE,
    )
    job = TrainingJob(config=config, examples=private, partition=partition)
    before, _, _ = arguments(job, 0)
    (after,) = helpers.train_all(job, [0])
    twin = architectures.build(name, TABLE)
    for variable, weight in zip(twin.trainable_variables, before, strict=True):
        variable.assign(weight)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    # The rate of the very last step is a fiftieth.
    twin.compile(keras.optimizers.Adam(RATE / 50), loss=loss, metrics=["accuracy"])
    history = twin.fit(
        *(inputs[:NUM_RECORDS], private.labels[:NUM_RECORDS]),
        batch_size=NUM_RECORDS,
        shuffle=False,
        verbose=0,
    ).history
    measured = np.array([history["loss"], history["accuracy"]])
    assert after.curves == pytest.approx(measured, rel=1e-5)
    if model == "embedding":  # for its repeated rows, Keras adds the squares, not the gradients
        moved = np.abs(after.arrays[0] - before[0]).max(axis=1) > 0.0
        np.testing.assert_array_equal(moved, np.isin(np.arange(10), inputs[:NUM_RECORDS]))
        return
    for weight, trained, stepped in zip(before, after.arrays, twin.get_weights(), strict=False):
        np.testing.assert_allclose(trained, stepped, atol=2e-4)
        assert np.abs(trained - weight).max() > 0.009
