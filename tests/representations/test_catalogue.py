"""Representations: trained once, cached, and found again."""

import dataclasses

import numpy as np
import pytest

from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool
from pate_tf.data import datasets as data
from pate_tf.representations import catalogue, contrastive, raw

POOL = data.load_public("digits").split(300).pool


@pytest.fixture(scope="module", autouse=True)
def quick(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contrastive, "STEPS", 10)
        patch.setattr(contrastive, "NETWORKS", 1)
        patch.setenv(catalogue.CACHE_VARIABLE, str(tmp_path_factory.mktemp("cache")))
        forget()
        yield
    forget()


def forget():
    catalogue.encoder_of.cache_clear()
    catalogue.pool_features_by_name.cache_clear()


TABLE = Dataset(
    name="table",
    kind="tabular",
    input_shape=(13,),
    value_range=((0.0,) * 13, (99_999.0,) * 13),
    num_classes=2,
    pool_size=1,
)


def test_defaults_of_grey_and_colour_images_and_of_tables():
    colour = dataclasses.replace(POOL.dataset, input_shape=(8, 8, 3))
    datasets = (POOL.dataset, colour, TABLE)
    compared = ["contrastive", "patches+wavelets", "raw"]
    assert list(map(catalogue.default_representation, datasets)) == compared
    learnt_from = ["contrastive+patches", "patches+wavelets", "raw"]
    assert list(map(catalogue.default_of_teachers, datasets)) == learnt_from
    summed = ["contrastive+patches", "patches+wavelets", "bins"]
    assert list(map(catalogue.default_of_sums, datasets)) == summed


def test_what_was_learnt_is_taken_up_and_not_learnt_again(monkeypatch):
    first = catalogue.encoder_of(POOL)
    forget()
    monkeypatch.setattr(contrastive.ContrastivePart, "train", lambda *_: pytest.fail("trained"))
    again = catalogue.encoder_of(Pool(POOL.dataset, POOL.inputs.copy()))
    assert again.digest == first.digest
    np.testing.assert_array_equal(again.features(POOL.inputs), first.features(POOL.inputs))


def test_large_images_come_with_advice(monkeypatch):
    monkeypatch.setattr(contrastive, "MAX_QUICK_PIXELS", 63)
    with pytest.warns(UserWarning, match="`image_size=32` or `representation=patches` is faster"):
        contrastive.ContrastivePart(POOL.dataset, 3).train(POOL)


def test_another_pool_seed_or_data_set_is_learnt_for_itself(monkeypatch):
    monkeypatch.setattr(contrastive, "STEPS", 5)
    digests = {
        catalogue.encoder_of(pool, seed=seed).digest
        for pool, seed in (
            (POOL, 0),
            (POOL, 1),
            (Pool(POOL.dataset, POOL.inputs[:299]), 0),
            (Pool(dataclasses.replace(POOL.dataset, augmentation="none"), POOL.inputs), 0),
        )
    }
    assert len(digests) == 4


def test_without_a_whole_file_or_a_folder_to_write_to_it_is_learnt_again(monkeypatch, tmp_path):
    first = catalogue.encoder_of(POOL)
    forget()
    for path in (catalogue.cache_folder() / "representations").glob("*.npz"):
        path.write_bytes(b"PK")
    again = catalogue.encoder_of(POOL)
    assert again.features(POOL.inputs).shape == first.features(POOL.inputs).shape
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(catalogue.CACHE_VARIABLE, str(tmp_path / "file"))
    forget()
    catalogue.encoder_of(POOL)
    forget()


def test_features_do_not_depend_on_other_inputs_of_the_batch():
    encoder = catalogue.encoder_of(POOL)
    batch = POOL.inputs[:64]
    others = np.concatenate([batch[:10], 255 - batch[10:11], np.zeros_like(batch[11:])])
    one, other = encoder.batch_features(batch), encoder.batch_features(others)
    assert one[:10].tobytes() == other[:10].tobytes()
    assert one[10].tobytes() != other[10].tobytes()


def test_raw_features_of_a_table_are_scaled_numbers():
    rows = np.zeros((3, 13), np.float32)
    rows[:, 0] = [40.0, 60.0, 50.0]
    rows[:, 9] = [0.0, 0.0, 99_999.0]
    actual = catalogue.encoder_of(Pool(TABLE, rows)).features(rows)[0]
    assert len(actual) == 13 + 1
    assert actual @ actual == pytest.approx(1.0, rel=1e-5)
    scaled = actual / actual[-1]  # the constant
    ages, gains = rows[:, 0], rows[:, 9]
    assert scaled[0] == pytest.approx((40 - ages.mean()) / ages.std() / 2, rel=1e-5)
    assert scaled[9] == pytest.approx(-gains.mean() / gains.std() / 2, rel=1e-5)
    assert scaled[1] == 0.0  # a constant column of the pool


@pytest.mark.parametrize(
    ("name", "pool", "message"),
    [
        (
            "contrast",
            POOL,
            "representation must be one of contrastive, patches, wavelets, gradients, raw, some",
        ),
        (
            "contrastive",
            Pool(TABLE, np.zeros((2, 13), np.float32)),
            "must be one of raw, cosines, coarse_cosines, bins, coarse_bins, pairs, some of them",
        ),
        *(
            (name, POOL, "must be one of contrastive")
            for name in ("patches+", "patches+patches", "+", "contrastive+nothing", "lsa")
        ),
        (lambda dataset: "no model", POOL, "must be a Keras model"),
        ("nowhere:nothing", POOL, "representation: can't import"),
    ],
)
def test_what_does_not_fit_is_refused(name, pool, message):
    with pytest.raises(ValueError, match=message):
        catalogue.encoder_of(pool, name)


def test_whitened_features_are_of_length_one_and_differ_less_between_directions():
    plain = catalogue.encoder_of(POOL, "raw")
    half = raw.whitened(plain, POOL)
    features = half.features(POOL.inputs)
    assert features.shape == (300, half.num_features) == (300, 65)
    np.testing.assert_allclose(np.linalg.norm(features, axis=1), 1.0, atol=1e-5)
    np.testing.assert_allclose(half.features(POOL.inputs[7:9]), features[7:9], atol=1e-6)

    def tenths(rows: np.ndarray) -> float:
        """Returns the tenth largest deviation of a direction, relative to the largest."""
        variances = np.linalg.eigvalsh(np.cov(rows, rowvar=False))[::-1]
        return float(np.sqrt(variances[9] / variances[0]))

    assert tenths(features) > 1.3 * tenths(plain.features(POOL.inputs))
    # Another pool has other weights for directions, so the encoder is another one.
    assert half.digest != raw.whitened(plain, Pool(POOL.dataset, POOL.inputs[:200])).digest


def test_texts_are_compared_by_latent_semantic_analysis():
    random = np.random.default_rng(0)
    weights = np.maximum(random.normal(size=(300, 20)) - 1.0, 0.0).astype(np.float32)
    dataset = Dataset(
        name="texts",
        kind="text",
        input_shape=(20,),
        value_range=(0.0, 10.0),
        num_classes=2,
        pool_size=200,
    )
    pool = Pool(dataset, weights)
    assert catalogue.default_of_teachers(dataset) == "lsa"
    actual = catalogue.encoder_of(pool, "lsa").features(weights)
    weighed = np.log1p(weights) * np.log(301 / (np.count_nonzero(weights, axis=0) + 1))
    weighed[:, 10:] *= 0.5  # pairs of words
    norms = np.linalg.norm(weighed, axis=1, keepdims=True)
    weighed /= np.where(norms > 0, norms, 1.0)
    centred = weighed - weighed.mean(axis=0)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True)
    np.testing.assert_allclose(actual @ actual.T, centred @ centred.T, atol=1e-4)
    # Five texts vary around their mean in four directions.
    assert catalogue.encoder_of(Pool(dataset, weights[:5]), "lsa").num_features == 4
