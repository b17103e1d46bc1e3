"""Strings as hashed n-grams."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import pate_tf
from pate_tf.core.public import Pool
from pate_tf.data import preprocessing
from pate_tf.data.schema import TEXT_FEATURES
from pate_tf.representations.catalogue import encoder_of


def twin(sentence: str, num_features: int) -> np.ndarray:
    """Returns the same result from words and punctuation marks, one n-gram after another."""
    spaced = sentence.lower().replace("\0", " ")
    words = "".join(one if one.isalnum() else f" {one} " for one in spaced).split()
    half = (num_features + 1) // 2
    counts = np.zeros(num_features)
    for word in words:
        counts[int(tf.strings.to_hash_bucket_fast(word, half))] += 1
    for pair in itertools.pairwise(words):
        place = int(tf.strings.to_hash_bucket_fast(" ".join(pair), num_features - half))
        counts[half + place] += 1
    length = np.sqrt(counts.sum())
    return np.sqrt(counts) / length if length else counts


@pytest.mark.parametrize(
    "sentence",
    ["The cat sat; the cat, SAT!", "", "  ", "!?", "Über 3 Äpfel", "日本 語", "a" * 10_000, "x\0y"],
)
def test_features_are_those_of_the_definition(sentence):
    features = preprocessing.encode_texts([sentence], 64)
    np.testing.assert_allclose(features[0], twin(sentence, 64), atol=1e-6)
    assert features.dtype == np.float32 and features.min() >= 0.0 and features.max() <= 1.0


def test_a_text_is_the_same_alone_and_among_others():
    texts = ["one text", "another text of more words", "", "one text"] * 300
    together = preprocessing.encode_texts(texts, 32)
    assert together.shape == (1200, 32)
    alone = np.concatenate([preprocessing.encode_texts([one], 32) for one in texts[:4]])
    assert np.array_equal(together[:4], alone)
    assert preprocessing.encode_texts([], 32).shape == (0, 32)


def test_without_a_pool_the_order_of_words_says_nothing():
    """Most pairs of words are rare, and each product of two features gets noise."""
    data = pate_tf.Data.from_arrays([], [], ["a"], num_classes=2, kind="text")
    encoder = encoder_of(Pool(data.dataset, data.pool.inputs[:0]), "raw")
    texts = ["one word, another", "another word, one", "one word another"]
    first, second, third = encoder.features(preprocessing.encode_texts(texts, TEXT_FEATURES))
    assert encoder.num_features == 512 and np.linalg.norm(first) == pytest.approx(1.0)
    np.testing.assert_allclose(first, second, atol=1e-6)
    assert np.abs(first - third).max() > 0.1


def test_what_is_no_text_is_refused_without_being_shown():
    for values in (["hidden", 3], [["hidden"]], "hidden", [b"hidden"], [None], ["hidden\ud800"]):
        with pytest.raises(ValueError, match="x_private") as caught:
            preprocessing.as_texts(values, "x_private")
        assert "hidden" not in str(caught.value)
    assert preprocessing.as_texts(np.array(["a", "b"]), "x") == ["a", "b"]
