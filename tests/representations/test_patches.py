"""Features of small patches of images, compared with a loop over the patches."""

import dataclasses

import numpy as np
import pytest

from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool
from pate_tf.data import datasets as data
from pate_tf.representations import catalogue
from pate_tf.representations import images as patches

POOL = data.load_public("digits").split(400).pool


def images(shape, number=40, value_range=(0, 255), seed=0) -> Pool:
    """Returns images of noise with a bright half."""
    dataset = dataclasses.replace(
        POOL.dataset, input_shape=shape, value_range=value_range, augmentation="none"
    )
    low, high = value_range
    random = np.random.default_rng(seed)
    inputs = random.uniform(low, low + 0.5 * (high - low), (number, *shape))
    inputs[::2, : shape[0] // 2] += 0.5 * (high - low)
    return Pool(dataset, inputs.astype(np.float32))


def learnt(pool: Pool, seed: int = 0) -> patches.PatchPart:
    part = patches.PatchPart(pool, seed)
    part.train(pool)
    return part


def slow_answers(part: patches.PatchPart, image: np.ndarray, dataset: Dataset) -> np.ndarray:
    """Returns the answers for one place and one filter at a time."""
    filters, offsets, *_ = (variable.numpy().astype(np.float64) for variable in part.learnt)
    side, _, _, num_filters = filters.shape
    low, high = dataset.value_range
    layout = patches.COLOUR if dataset.has_colors else patches.GREY
    stride = layout.stride * -(-max(dataset.input_shape[:2]) // patches.MAX_PLACES)
    before, after = (side - 1) // 2, side - 1 - (side - 1) // 2
    padded = np.pad((image - low) / (high - low), [(before, after), (before, after), (0, 0)])
    rows, columns = (range(0, length, stride) for length in dataset.input_shape[:2])
    actual = np.zeros((len(rows), len(columns), num_filters))
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            patch = padded[row : row + side, column : column + side]
            patch = (patch - patch.mean()) / np.sqrt(patch.var() + patches.MIN_CONTRAST)
            for one in range(num_filters):
                answer = (patch * filters[..., one]).sum() - offsets[one]
                actual[i, j, one] = max(0.0, answer - layout.threshold)
    cells = [-(-length // layout.grid) for length in actual.shape[:2]]
    missing = [cell * layout.grid - side for cell, side in zip(cells, actual.shape, strict=False)]
    whole = np.pad(actual, [*((each // 2, each - each // 2) for each in missing), (0, 0)])
    shape = (layout.grid, cells[0], layout.grid, cells[1], num_filters)
    return np.sqrt(whole.reshape(shape).mean(axis=(1, 3))).ravel()


@pytest.mark.parametrize(
    ("shape", "value_range"),
    [((8, 8, 1), (0, 16)), ((13, 9, 3), (-1, 1)), ((50, 41, 1), (0, 255)), ((3, 2, 1), (0, 1))],
)
def test_answers_are_those_of_a_loop(monkeypatch, shape, value_range):
    for name in ("GREY", "COLOUR"):
        few = dataclasses.replace(getattr(patches, name), filters=7)
        monkeypatch.setattr(patches, name, few)
    pool = images(shape, value_range=value_range)
    part = learnt(pool)
    for image in pool.inputs[:3]:
        slow = slow_answers(part, image, pool.dataset)
        assert slow.any()
        np.testing.assert_allclose(part.features(image[None]).numpy()[0], slow, atol=2e-3)


def test_they_follow_from_pool_and_seed_alone():
    views = [learnt(POOL, seed)(POOL.inputs[:20].astype(np.float32))[0] for seed in (0, 0, 1)]
    np.testing.assert_array_equal(views[0], views[1])
    assert np.abs(views[0] - views[2]).max() > 0.01


@pytest.mark.parametrize("inputs", [np.zeros((30, 8, 8, 1)), np.ones((1, 8, 8, 1))])
def test_images_without_pieces_have_finite_features(inputs):
    pool = Pool(POOL.dataset, inputs.astype(np.float32))
    encoder = catalogue.encoder_of(pool, "patches")
    assert np.isfinite(encoder.features(pool.inputs)).all()
    assert np.isfinite(encoder.scale).all()
    if not inputs.any():  # all features that never vary have one scale
        np.testing.assert_allclose(encoder.scale, encoder.scale[0])


def test_joined_representations_lie_side_by_side_and_weigh_the_same(monkeypatch, tmp_path):
    monkeypatch.setenv(catalogue.CACHE_VARIABLE, str(tmp_path))
    joined = catalogue.encoder_of(POOL, "patches+raw")
    apart = [catalogue.encoder_of(POOL, name) for name in ("patches", "raw")]
    features = joined.features(POOL.inputs)
    np.testing.assert_allclose(
        features, np.hstack([one.features(POOL.inputs) for one in apart]), atol=1e-6
    )
    assert joined.scale is None  # unknown for raw inputs
    views = catalogue.pool_features_by_name(POOL, "patches+raw")
    np.testing.assert_allclose(np.hstack([np.hstack(one) for one in views]), features, atol=1e-6)
    alone = apart[0]
    scaled = alone.features(POOL.inputs) * alone.scale
    assert np.square(scaled).sum(axis=1).mean() == pytest.approx(1.0, abs=0.3)
    assert scaled.var(axis=0)[:50].max() < 2.5 * scaled.var(axis=0)[:50].min()
