"""Random Fourier features of tables, and products of two columns."""

import dataclasses

import numpy as np
import pytest

from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool
from pate_tf.representations.catalogue import encoder_of

SIX = Dataset(
    name="table",
    kind="tabular",
    input_shape=(6,),
    value_range=(-5.0, 5.0),
    num_classes=2,
    pool_size=400,
)


def test_products_of_fourier_features_approach_the_gaussian_kernel():
    inputs = np.random.default_rng(0).normal(0, 1, (400, 6)).astype(np.float32)
    inputs[:, 3] *= 2.0  # the pool's deviation counts, not the range
    features = encoder_of(Pool(SIX, inputs), "fourier").features(inputs)
    assert features.shape == (400, 600)
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1.0, atol=1e-5)
    standardised = np.clip((inputs - inputs.mean(axis=0)) / inputs.std(axis=0), -3, 3)
    squares = np.square(standardised[:, None] - standardised[None]).sum(axis=2)
    kernel = np.exp(-squares / (2.0 * 6))
    products = features @ features.T
    assert np.abs(products - kernel).mean() < 0.05  # of 600 features: about 1 / sqrt(600)
    again = encoder_of(Pool(SIX, inputs.copy()), "fourier", 1).features(inputs)
    assert np.abs(again - features).max() > 0.01  # another seed


def test_products_of_pairs_are_squares_of_those_of_raw_features():
    dataset = dataclasses.replace(
        SIX,
        input_shape=(3,),
        value_range=((-5.0, -5.0, 0.0), (5.0, 5.0, 3.0)),
        num_categories=(0, 0, 4),
    )
    random = np.random.default_rng(0)
    inputs = np.column_stack([random.normal(0, 1, (50, 2)), random.integers(0, 4, 50)])
    pool = Pool(dataset, inputs.astype(np.float32))
    raw, pairs = (encoder_of(pool, name).features(pool.inputs) for name in ("raw", "pairs"))
    assert pairs.shape == (50, 7 * 8 // 2)
    np.testing.assert_allclose(pairs @ pairs.T, np.square(raw @ raw.T), atol=1e-5)
    wide = dataclasses.replace(
        dataset, input_shape=(65,), value_range=(-5.0, 5.0), num_categories=None
    )
    with pytest.raises(ValueError, match=r"pairs: expected inputs of at most 64 .* got 65"):
        encoder_of(Pool(wide, np.zeros((50, 65), np.float32)), "pairs")
