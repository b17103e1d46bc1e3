"""Strings as features: hashed n-grams of words, without any vocabulary.

A vocabulary of private texts would tell which words are in them. A hash tells nothing: where an
n-gram goes is the same for every text in the world. The same graph turns strings into features when
teachers learn and when a student is served.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

NUM_FEATURES = 2048
LONGEST_NGRAM = 2  # words
BATCH = 500


def ngram_features(texts: tf.Tensor, num_features: int) -> tf.Tensor:
    """Returns features float32 `[batch, num_features]`, from 0 to 1, of UTF-8 strings `[batch]`.

    Lower case; words of letters and digits; one or two in a row are hashed to a feature, which
    different ones may share. Features hold the square roots of how often, scaled to norm 1: zeros
    for a text without words.
    """
    # In this order: what makes letters small stops at a zero byte.
    spaced = tf.strings.regex_replace(texts, r"[^\pL\pN]+", " ")
    words = tf.strings.split(tf.strings.lower(spaced, encoding="utf-8"))
    ngrams = tf.strings.ngrams(words, tuple(range(1, LONGEST_NGRAM + 1)))
    batch = tf.shape(texts)[0]
    places = ngrams.value_rowids() * num_features + tf.strings.to_hash_bucket_fast(
        ngrams.values, num_features
    )
    counts = tf.math.unsorted_segment_sum(
        tf.ones_like(places, tf.float32), places, batch * num_features
    )
    roots = tf.sqrt(tf.reshape(counts, [batch, num_features]))
    return tf.math.divide_no_nan(roots, tf.norm(roots, axis=1, keepdims=True))


def encode(texts: Sequence[str], num_features: int = NUM_FEATURES) -> npt.NDArray[np.float32]:
    """Returns `ngram_features` of texts, `[num_texts, num_features]`."""
    parts = [np.zeros((0, num_features), np.float32)]
    for start in range(0, len(texts), BATCH):
        batch = tf.constant([text.encode() for text in texts[start : start + BATCH]], tf.string)
        parts.append(np.minimum(ngram_features(batch, num_features).numpy(), 1.0))
    return np.concatenate(parts)


def as_texts(values: npt.ArrayLike, what: str) -> list[str]:
    """Returns strings `[num_texts]` as a list; ValueError, without the text, if one is none."""
    array = np.asarray(values, dtype=object)
    if array.ndim != 1 or not all(isinstance(text, str) for text in array):
        raise ValueError(f"{what}: expected strings [num_texts], got something else")
    try:
        for text in array:
            text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what}: expected strings that can be written in UTF-8") from None
    return [str(text) for text in array]
