"""Compiled Keras models as teachers: trained by `fit`, and only by their own shard."""

import pathlib
import random
import signal
import time

import api_helpers
import event_files
import keras
import numpy as np
import pytest
import tensorflow as tf
from architectures_for_tests import flattened
from script_processes import run_script, save_all_the_time, start_script

import pate_tf
from pate_tf.models import architectures
from pate_tf.teachers import teacher_settings as settings

NUM_TEACHERS = 2


def fitted(folder, private, net=api_helpers.compiled, **settings):
    fields = {"num_teachers": NUM_TEACHERS, "steps": 6, "batch_size": 16, **settings}
    return pate_tf.Teachers(net, directory=folder, **fields).fit(private)


def are_equal(one, other):
    return all(np.array_equal(*pair) for pair in zip(one, other, strict=True))


@pytest.fixture(scope="module")
def data() -> pate_tf.Data:
    return api_helpers.digits()


@pytest.fixture(scope="module")
def folder(tmp_path_factory, data) -> pathlib.Path:
    """Returns a finished ensemble; don't write to it."""
    path = tmp_path_factory.mktemp("compiled")
    fitted(path, data.private)
    return path


def test_what_was_trained_is_what_answers(folder, data):
    teachers = pate_tf.Teachers.load(folder)
    model = api_helpers.compiled(data.dataset)
    by_hand = []
    for arrays in api_helpers.weights(folder):
        trained = arrays[: len(model.trainable_variables)]
        for variable, array in zip(model.trainable_variables, trained, strict=True):
            variable.assign(array)
        by_hand.append(model.predict(data.pool.inputs, verbose=0).argmax(axis=1))
    np.testing.assert_array_equal(teachers.votes(data.pool), by_hand)
    shown = event_files.scalars(folder / "sensitive" / "logs" / "teachers" / "median")
    assert [step for step, _ in shown["accuracy"]] == [step for step, _ in shown["loss"]] == [1, 2]


def test_the_same_settings_give_the_same_bits_whatever_was_drawn_before(tmp_path, data, folder):
    random.seed(11), np.random.seed(12), tf.random.set_seed(13)
    tf.random.uniform([3])
    fitted(tmp_path, data.private)
    for one, other in zip(api_helpers.weights(tmp_path), api_helpers.weights(folder), strict=True):
        assert are_equal(one, other)


def test_the_callers_generators_get_their_states_back(tmp_path, data):
    random.seed(11), np.random.seed(12)
    expected = random.random(), np.random.random()
    random.seed(11), np.random.seed(12)
    with architectures.seeded(5):
        first = random.random(), np.random.random(), float(tf.random.uniform([]))
    assert (random.random(), np.random.random()) == expected
    with architectures.seeded(5):
        assert (random.random(), np.random.random(), float(tf.random.uniform([]))) == first
    assert float(tf.random.uniform([])) != float(tf.random.uniform([]))


def test_fewer_records_of_one_change_no_bit_of_those_trained_after_it(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "PASSES", 3)
    monkeypatch.setattr(settings, "MIN_STEPS", 3)
    # A smaller shard means fewer steps, and fewer draws from generators that all models could
    # share.
    owners = np.array([f"owner {number // 4}" for number in range(48)])
    data = api_helpers.digits(48, owners=owners)
    kept = owners != "owner 3"
    fewer = type(data.private)(
        data.dataset, data.private.inputs[kept], data.private.labels[kept], owners[kept]
    )
    by_share = {"steps": None, "batch_size": 1}
    fitted(tmp_path / "all", data.private, **by_share)
    fitted(tmp_path / "fewer", fewer, **by_share)
    changed = [
        not are_equal(one, two)
        for one, two in zip(
            api_helpers.weights(tmp_path / "all"),
            api_helpers.weights(tmp_path / "fewer"),
            strict=True,
        )
    ]
    assert changed == [True, False]


def test_a_shared_loss_is_refused(tmp_path, data):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    def with_one_loss(dataset):
        model = api_helpers.net(dataset)
        model.compile("adam", loss)
        return model

    with pytest.raises(ValueError, match="model must be a function that creates all objects anew"):
        fitted(tmp_path / "b", data.private, with_one_loss)


def test_keras_own_generator_begins_at_the_seed_and_tells_nothing_afterwards():
    state, inside, after = random.getstate(), [], []
    for already, drawn in ((0, 1), (3, 5)):
        for _ in range(already):
            keras.random.normal((7,))
        random.setstate(state)
        with architectures.seeded(5):
            numbers = [np.array(keras.random.normal((4,))) for _ in range(drawn)]
        inside.append(numbers[0])
        after.append(np.array(keras.random.normal((4,))))
    random.setstate(state)
    np.testing.assert_array_equal(*inside)
    np.testing.assert_array_equal(*after)  # it does not reveal the number of draws


def test_a_model_that_all_teachers_share_is_refused(tmp_path, data):
    shared = api_helpers.compiled(data.dataset)
    with pytest.raises(ValueError, match="model must be a function that creates all objects anew"):
        fitted(tmp_path / "model", data.private, lambda dataset: shared)

    optimizer = keras.optimizers.Adam()

    def with_one_optimizer(dataset):
        model = api_helpers.net(dataset)
        model.compile(optimizer, "mse")
        return model

    with pytest.raises(ValueError, match="model must be a function that creates all objects anew"):
        fitted(tmp_path / "optimizer", data.private, with_one_optimizer)
    assert not any(tmp_path.rglob("finished-*"))


@pytest.mark.parametrize(
    ("net", "number"), [("compiled", 3), pytest.param("net", 30, marks=pytest.mark.long)]
)
def test_a_killed_run_goes_on_and_keeps_the_teachers_that_were_done(tmp_path, net, number):
    flags = ("train_teachers.py", f"--model=api_helpers:{net}", f"--nb_teachers={number}")
    killed = (*flags, "--max_steps=20", "--train_dir=killed")
    child = start_script(*killed, folder=tmp_path, setup=save_all_the_time)
    while not list(tmp_path.rglob("finished-*.npz")):
        assert child.process.is_alive(), "it ended before it could be killed"
        time.sleep(0.01)
    child.kill()
    assert child.wait().code == -signal.SIGKILL
    kept = {path: path.read_bytes() for path in tmp_path.rglob("finished-*.npz")}
    assert 0 < len(kept) < number
    for place in (killed, (*killed[:-1], "--train_dir=at_once")):
        ended = run_script(*place, folder=tmp_path)
        assert ended.code == 0, ended.err
    assert {path: path.read_bytes() for path in kept} == kept
    went_on, at_once = (
        pate_tf.Teachers.load(tmp_path / name).identified.digest for name in ("killed", "at_once")
    )
    assert went_on == at_once


def flat(dataset, *, loss, scale=16.0, **given):
    model = flattened(dataset, scale=scale)
    model.compile("sgd", loss, **given)
    return model


def frozen(dataset):
    model = api_helpers.net(dataset)
    model.trainable = False
    return model


@pytest.mark.parametrize(
    ("net", "said"),
    [
        (lambda dataset: flat(dataset, loss="poisson_loss_of_mine"), "can't compare labels"),
        (lambda dataset: flat(dataset, loss=one_hot_alone), r"labels of shape .* with outputs"),
        (
            lambda dataset: flat(dataset, loss="mse", metrics=[keras.metrics.CategoricalAccuracy]),
            "its loss or a metric can't",
        ),
        (frozen, "has no trainable weights"),
        (lambda dataset: flattened(dataset, scale=float("nan")), "the untrained model returns NaN"),
    ],
    ids=["unknown", "one-hot", "metric", "frozen", "nan"],
)
def test_a_model_that_can_not_be_trained_is_one_sentence_before_anything_is_written(
    tmp_path, data, net, said
):
    with pytest.raises(ValueError, match=rf"^model .*{said}") as caught:
        fitted(tmp_path, data.private, net, steps=None, batch_size=None)
    assert len(str(caught.value)) < 300 and "\n" not in str(caught.value)
    assert not any(tmp_path.iterdir())


def one_hot_alone(labels, outputs):
    return keras.ops.mean(keras.ops.squeeze(keras.ops.square(labels[:, :10] - outputs), 0), -1)


@pytest.mark.parametrize("loss", ["categorical_crossentropy", "categorical_hinge"])
def test_losses_of_one_hot_labels_get_them(tmp_path, data, loss):
    teachers = fitted(tmp_path, data.private, lambda dataset: flat(dataset, loss=loss), steps=2)
    assert len(teachers) == NUM_TEACHERS
