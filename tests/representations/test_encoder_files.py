"""Encoders as data: the files that silos get from a coordinator."""

import dataclasses

import numpy as np
import pytest

import pate_tf
from pate_tf.core import artifacts
from pate_tf.core.public import Pool
from pate_tf.representations.catalogue import encoder_of, load_encoder, save_encoder

DATA = pate_tf.Data.load("digits")
TABLE = dataclasses.replace(
    DATA.dataset, kind="tabular", input_shape=(4,), augmentation="none", input_type="float32"
)
ROWS = Pool(dataset=TABLE, inputs=np.random.default_rng(0).normal(8, 3, (20, 4)).astype("f4"))


@pytest.mark.parametrize(
    ("pool", "name"), [(DATA.pool, "patches+raw"), (ROWS, "raw"), (ROWS, "raw+bins")]
)
def test_an_encoder_read_back_gives_the_same_features(tmp_path, pool, name):
    encoder = encoder_of(pool, name, 3)
    save_encoder(encoder, tmp_path / "encoder.npz")
    actual = load_encoder(tmp_path / "encoder.npz", pool.dataset)
    assert actual.digest == encoder.digest
    assert np.array_equal(actual.features(pool.inputs), encoder.features(pool.inputs))
    assert (actual.scale is None) == (encoder.scale is None)
    assert actual.scale is None or np.array_equal(actual.scale, encoder.scale)


@pytest.mark.parametrize("change", ["weights", "names", "missing", "more", "text", "list", "deep"])
def test_what_is_no_encoder_is_refused_in_one_line(tmp_path, change):
    path = tmp_path / "encoder.npz"
    save_encoder(encoder_of(DATA.pool, "raw", 0), path)
    arrays = artifacts.read_arrays(path)
    if change == "weights":
        arrays["0"] = arrays["0"][:3]
    if change == "names":
        arrays["description"] = np.frombuffer(b'{"representation": "unheard-of"}', np.uint8)
    if change == "missing":
        del arrays["1"]
    if change == "more":
        arrays["2"] = np.zeros(3)
    texts = {"text": b"not JSON", "list": b"[]", "deep": b"[" * 200_000}
    if change in texts:
        arrays["description"] = np.frombuffer(texts[change], np.uint8)
    artifacts.write_arrays(path, arrays)
    with pytest.raises(ValueError, match="has no encoder for inputs of digits"):
        load_encoder(path, DATA.dataset)
