import random

import numpy as np
import pytest

from pate_tf.core.dataset import Dataset
from pate_tf.data.catalogue import DIGITS
from pate_tf.models import catalogue


def images(side: int, channels: int, num_classes: int) -> Dataset:
    return Dataset(
        name="images",
        kind="image",
        input_shape=(side, side, channels),
        value_range=(0.0, 255.0),
        num_classes=num_classes,
        pool_size=1,
    )


DATASETS = {"digits": DIGITS, "28x28x1": images(28, 1, 7), "32x32x3": images(32, 3, 10)}
TABULAR = Dataset(
    name="table",
    kind="tabular",
    input_shape=(5,),
    value_range=(-1.0, 1.0),
    num_classes=2,
    pool_size=1,
)
NAMES = ("cnn", "wide_cnn", "mlp", "deeper", "paper_mnist", "paper_svhn")


def assert_same_weights(one, other) -> None:
    for first, second in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(first, second)


def test_every_documented_name_is_there():
    assert set(NAMES) <= set(catalogue.BUILDERS)


@pytest.mark.parametrize("dataset", DATASETS.values(), ids=DATASETS)
@pytest.mark.parametrize("name", catalogue.BUILDERS)
def test_every_architecture_fits_every_kind_of_image(name, dataset):
    model = catalogue.build(name, dataset, seed=1)
    low, high = dataset.value_range
    inputs = np.stack([np.full(dataset.input_shape, value) for value in (low, high, high / 3)])
    logits = np.asarray(model(inputs.astype(np.float32), training=False))
    assert logits.shape == (3, dataset.num_classes)
    assert np.isfinite(logits).all()
    # Logits, not probabilities; and raw values are scaled, so that the first logits are small.
    assert not np.allclose(logits.sum(axis=1), 1.0)
    assert np.abs(logits).max() < 20.0


def test_mlp_takes_tables_and_the_others_say_that_they_don_t():
    assert catalogue.default_model(TABULAR) == "mlp"
    assert catalogue.default_model(DIGITS) == "cnn"
    assert catalogue.build("mlp", TABULAR).output_shape == (None, 2)
    for name in set(NAMES) - {"mlp"}:
        with pytest.raises(ValueError, match="model: expected images"):
            catalogue.build(name, TABULAR)


@pytest.mark.parametrize("name", NAMES)
def test_the_seed_alone_decides_the_weights(name):
    model = catalogue.build(name, DIGITS, seed=3)
    random.seed(99)
    catalogue.build("mlp", DIGITS, seed=4)
    assert_same_weights(catalogue.build(name, DIGITS, seed=3), model)
    other = catalogue.build(name, DIGITS, seed=4)
    for first, second in zip(model.trainable_variables, other.trainable_variables, strict=True):
        if np.asarray(first).any():  # biases begin at zero
            assert not np.array_equal(first, second)


@pytest.mark.parametrize("name", ["cnn", "deeper", "architectures_for_tests:failing"])
def test_the_callers_random_numbers_are_left_alone(name):
    random.seed(7)
    before_numpy = np.random.get_state()[1].copy()
    expected = random.Random(7).random()
    try:
        catalogue.build(name, DIGITS, seed=3)
    except ValueError:
        assert name.endswith("failing")
    assert random.random() == expected
    np.testing.assert_array_equal(np.random.get_state()[1], before_numpy)


def test_a_users_own_function():
    model = catalogue.build("architectures_for_tests:with_buffers", DIGITS, seed=2)
    assert model.output_shape == (None, 10)
    assert_same_weights(
        catalogue.build("architectures_for_tests:with_buffers", DIGITS, seed=2), model
    )


@pytest.mark.parametrize(
    "name",
    [
        "",
        ":",
        "nosuch",
        "CNN",
        "nosuch.module:function",
        "architectures_for_tests:nosuch",
        "architectures_for_tests:not_a_function",
        "architectures_for_tests:",
        ":small",
        ".architectures_for_tests:small",
        "architectures_for_tests:one_class_too_many",
        "architectures_for_tests:of_another_size",
        "architectures_for_tests:of_a_fixed_batch",
        "architectures_for_tests:failing",
        "architectures_for_tests:nothing",
    ],
)
def test_a_wrong_model_is_one_clear_line(name):
    with pytest.raises(ValueError) as caught:
        catalogue.build(name, DIGITS)
    assert "\n" not in str(caught.value)
    assert str(caught.value)
