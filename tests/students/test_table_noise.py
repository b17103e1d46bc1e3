import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats

from pate_tf.students import gan
from pate_tf.students.gan import TableNoise


def test_there_is_none_outside_of_training():
    inputs = tf.ones([3, 4])
    np.testing.assert_array_equal(TableNoise(0.5, seed=0)(inputs, training=False), inputs)


@pytest.mark.parametrize("stddev", [0.3, 0.5])
def test_it_is_gaussian(stddev):
    noise = TableNoise(stddev, seed=0)(tf.zeros([200, 500]), training=True).numpy().ravel()
    # Seeded: the same answer on every run.
    assert stats.kstest(noise, "norm", args=(0.0, stddev)).pvalue > 1e-3


def test_every_call_and_every_seed_draws_another():
    layer, inputs = TableNoise(0.5, seed=0), tf.zeros([4, 5])
    draws = [layer(inputs, training=True), layer(inputs, training=True)]
    draws.append(TableNoise(0.5, seed=1)(inputs, training=True))
    draws = [draw.numpy() for draw in draws]
    assert all(
        not np.array_equal(one, other) for place, one in enumerate(draws) for other in draws[:place]
    )


def test_batches_larger_than_the_table_are_served(monkeypatch):
    monkeypatch.setattr(gan, "TABLE_SIZE", 64)
    layer = TableNoise(1.0, seed=0)
    for shape in ([8, 8], [9, 8], [50, 3, 2, 1]):
        noise = layer(tf.zeros(shape), training=True).numpy()
        assert noise.shape == tuple(shape)
        assert noise.std() > 0.5


def test_it_comes_back_from_its_configuration():
    model = keras.Sequential([keras.Input((3,)), TableNoise(0.3, seed=7)])
    again = keras.models.clone_model(model)
    assert again.layers[-1].get_config() == model.layers[-1].get_config()
