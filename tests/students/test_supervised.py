import dataclasses

import keras
import numpy as np
import pytest
from labels_for_tests import released_labels as released

from pate_tf.data import catalogue as data
from pate_tf.students.config import StudentConfig
from pate_tf.students.evaluation import evaluate
from pate_tf.students.supervised import train_supervised


def config(**changes: object) -> StudentConfig:
    fields = {"model": "cnn", "max_steps": 30, "batch_size": 32, "learning_rate": 0.003, "seed": 1}
    return StudentConfig(**{**fields, **changes})


@pytest.fixture(scope="module")
def sides():
    public = data.load_public("digits")
    return public.split(400)


def classify(model: keras.Model):
    return lambda inputs: model.predict(inputs.astype(np.float32), verbose=0).argmax(axis=1)


def test_it_learns_digits_from_true_labels(sides):
    held_out = sides.held_out
    labels = released(np.arange(400), sides.pool_labels)
    model = train_supervised(config(max_steps=200), labels, sides.pool)
    # A constant guess is right on about 12 %.
    assert evaluate(classify(model), held_out).interval[0] > 0.8


def test_it_learns_from_the_released_labels_and_not_from_the_order_of_the_pool(sides):
    held_out = sides.held_out
    # A wrong but consistent labelling of every second image, given in another order.
    indices = np.random.default_rng(0).permutation(np.arange(0, 400, 2))
    swapped = (sides.pool_labels[indices] + 1) % 10
    model = train_supervised(config(max_steps=200), released(indices, swapped), sides.pool)
    given_labels = classify(model)(held_out.inputs)
    assert (given_labels == (held_out.labels + 1) % 10).mean() > 0.7
    assert (given_labels == held_out.labels).mean() < 0.2


def test_the_seed_decides_the_weights(sides):
    pool = sides.pool
    labels = released(np.arange(50), sides.pool_labels[:50])
    one, again, other = (
        train_supervised(config(seed=seed), labels, pool).get_weights() for seed in (1, 1, 2)
    )
    for first, second in zip(one, again, strict=True):
        np.testing.assert_array_equal(first, second)
    assert not np.array_equal(one[0], other[0])


@pytest.mark.parametrize("max_steps", [1, 149, 150, 260])
def test_it_does_about_as_many_steps_as_were_asked_for(sides, max_steps):
    labels = released(np.arange(8), sides.pool_labels[:8])
    model = train_supervised(
        config(model="mlp", max_steps=max_steps, batch_size=2), labels, sides.pool
    )
    assert max_steps <= int(model.optimizer.iterations.numpy()) <= 1.02 * max_steps


def test_callbacks_are_called(sides):
    epochs = []
    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: epochs.append(logs))
    labels = released(np.arange(8), sides.pool_labels[:8])
    train_supervised(config(model="mlp"), labels, sides.pool, callbacks=[callback])
    assert epochs
    assert np.isfinite(epochs[-1]["loss"])


def test_one_label_is_enough_and_none_is_not(sides):
    pool = sides.pool
    train_supervised(config(model="mlp", max_steps=2), released([7], [3]), pool)
    with pytest.raises(ValueError, match="student: expected at least 1 released label"):
        train_supervised(config(), released([], []), pool)


@pytest.mark.parametrize("indices", [[400], [-1], [0, 10**6]])
def test_labels_of_another_pool_are_refused(sides, indices):
    with pytest.raises(ValueError, match="student: expected labels of a pool of 400"):
        train_supervised(config(), released(indices, [1] * len(indices)), sides.pool)


def test_labels_of_other_classes_are_refused(sides):
    with pytest.raises(ValueError, match="student: expected labels of 10 classes"):
        train_supervised(config(), released([0], [1], num_classes=3), sides.pool)


def test_an_unknown_model_is_refused(sides):
    with pytest.raises(ValueError, match="model: expected"):
        train_supervised(config(model="nosuch"), released([0], [1]), sides.pool)


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("max_steps", 0),
        ("batch_size", 0),
        ("learning_rate", 0.0),
        ("learning_rate", float("nan")),
        ("learning_rate", float("inf")),
        ("seed", -1),
        ("seed", 2**31),
    ],
)
def test_nonsense_is_refused_by_name(name, bad):
    with pytest.raises(ValueError, match=f"{name}: expected"):
        dataclasses.replace(config(), **{name: bad})


def test_a_models_own_losses_count(sides):
    labels = released(np.arange(60), sides.pool_labels[:60])
    norms = []
    for model in ("with_dense", "regularized"):
        settings = config(model=f"architectures_for_tests:{model}", max_steps=100)
        trained = train_supervised(settings, labels, sides.pool)
        norms.append(np.linalg.norm(trained.trainable_weights[0].numpy()))
    assert norms[1] < 0.5 * norms[0]
