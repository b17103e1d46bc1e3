"""TensorFlow functions that convert strings to features, and that augment images.

Words are hashed, because a vocabulary of private texts would reveal their words. A hash function
reveals nothing, because it does not depend on the texts. Teachers and the served student use the
same functions.
"""

import importlib
from collections.abc import Container, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from pate_tf.core.dataset import Dataset

BATCH = 500


def input_spec(dataset: Dataset) -> tf.TensorSpec:
    """Returns the type, shape and name of a batch of raw inputs."""
    return tf.TensorSpec([None, *dataset.input_shape], dataset.input_type, name=dataset.input_name)


def num_of_words(num_features: int) -> int:
    """Returns the number of features for single words.

    All other features are for pairs of words.
    """
    return (num_features + 1) // 2


def ngram_features(texts: tf.Tensor, num_features: int) -> tf.Tensor:
    """Converts UTF-8 strings `[batch]` to features from 0 to 1, float32 `[batch, num_features]`.

    Texts are converted to lower case and split into words. A word consists of letters and digits,
    or is a single punctuation mark or symbol. Words are hashed to the first `num_of_words`
    features, and pairs of neighboring words to all other features. Several words or pairs may share
    a feature. Features are the square roots of the counts, scaled to L2 norm 1. For a text without
    words, all features are 0.
    """
    # Removes control characters first, because `lower` stops at a zero byte.
    spaced = tf.strings.regex_replace(texts, r"[^\pL\pN\pP\pS]+", " ")
    spaced = tf.strings.regex_replace(spaced, r"([\pP\pS])", r" \1 ")
    words = tf.strings.split(tf.strings.lower(spaced, encoding="utf-8"))
    batch = tf.shape(texts)[0]
    num_words = num_of_words(num_features)
    counts = []
    for length, number in ((1, num_words), (2, num_features - num_words)):
        if number:
            ngrams = tf.strings.ngrams(words, length)
            places = ngrams.value_rowids() * number
            places += tf.strings.to_hash_bucket_fast(ngrams.values, number)
            ones = tf.ones_like(places, tf.float32)
            total = tf.math.unsorted_segment_sum(ones, places, batch * number)
            counts.append(tf.reshape(total, [batch, number]))
    roots = tf.sqrt(tf.concat(counts, axis=1))
    return tf.minimum(tf.math.divide_no_nan(roots, tf.norm(roots, axis=1, keepdims=True)), 1.0)


def characters_of_texts(texts: tf.Tensor, length: int) -> tf.Tensor:
    """Converts UTF-8 strings `[batch]` to code points, float32 `[batch, length]`, zero-padded."""
    points = tf.strings.unicode_decode(texts, "UTF-8")
    return tf.cast(points.to_tensor(shape=[None, length]), tf.float32)


def texts_of_characters(characters: tf.Tensor) -> tf.Tensor:
    """Converts code points `[batch, length]` of any numeric type to strings `[batch]`."""
    points = tf.RaggedTensor.from_tensor(tf.cast(characters, tf.int32), padding=0)
    return tf.strings.unicode_encode(points, "UTF-8")


def text_inputs(texts: tf.Tensor, dataset: Dataset) -> tf.Tensor:
    """Converts UTF-8 strings to inputs `[batch, *input_shape]`: characters or hashed n-grams."""
    if dataset.has_characters:
        return characters_of_texts(texts, dataset.input_shape[0])
    return ngram_features(texts, dataset.input_shape[0])


def encode_texts(
    texts: Sequence[str], num_features: int, *, characters: bool = False
) -> npt.NDArray[np.float32]:
    """Converts texts to `ngram_features` or characters, `[num_texts, num_features]`."""
    converted = characters_of_texts if characters else ngram_features
    found = np.zeros((len(texts), num_features), np.float32)
    for start in range(0, len(texts), BATCH):
        batch = tf.constant([text.encode() for text in texts[start : start + BATCH]], tf.string)
        found[start : start + BATCH] = converted(batch, num_features).numpy()
    return found


def load_graph(folder: str) -> Any:
    """Loads a SavedModel; imports tensorflow-text if its operations need that package."""
    try:
        return tf.saved_model.load(folder)
    except Exception as error:  # TensorFlow raises several types of exceptions
        if "not registered" not in str(error):
            raise
    importlib.import_module("tensorflow_text")  # registers its operations
    return tf.saved_model.load(folder)


def as_texts(values: npt.ArrayLike, what: str) -> list[str]:
    """Converts strings `[num_texts]` to a list; raises ValueError if a value is not a string."""
    array = np.asarray(values, dtype=object)
    if array.ndim != 1 or not all(isinstance(text, str) for text in array):
        raise ValueError(f"{what} must be strings [num_texts]")
    try:
        for text in array:
            text.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what}: some strings can't be encoded in UTF-8") from None
    return [str(text) for text in array]


# Augmentation is stateless, so it depends only on the seed and the step of the training. The
# following constants are the same for all data sets. They were never tuned on private accuracy.
MAX_ROTATION = 0.2  # radians
MAX_SCALING = 0.1
MAX_SHEAR = 0.15
MAX_SHIFT = 1 / 14  # fraction of the side: 2 pixels of 28


def augment(inputs: tf.Tensor, dataset: Dataset, seed: tf.Tensor) -> tf.Tensor:
    """Returns randomly augmented inputs.

    Args:
        inputs: float32 `[batch, *input_shape]`.
        dataset: data set with the field `augmentation`, the allowed transformations.
        seed: seed of the random transformations, int32 `[2]`.
    """
    if dataset.augmentation == "none":
        return inputs
    if dataset.augmentation == "flip":
        flip_seed, seed = tf.unstack(tf.random.split(seed, 2))
        draws = tf.random.stateless_uniform([tf.shape(inputs)[0], 1, 1, 1], flip_seed)
        inputs = tf.where(draws < 0.5, tf.reverse(inputs, axis=[2]), inputs)
    _, height, width, _ = inputs.shape
    draws = tf.random.stateless_uniform([tf.shape(inputs)[0], 5], seed, -1.0, 1.0)
    angle, scale, slant, shift_x, shift_y = tf.unstack(draws, axis=1)
    strength = float(dataset.augmentation == "affine")
    angle *= strength * MAX_ROTATION
    scale = 1.0 + scale * (strength * MAX_SCALING)
    slant *= strength * MAX_SHEAR
    # Rows of the matrix that maps output coordinates to input coordinates, relative to the center
    # of the image.
    cos = tf.cos(angle) * scale
    sin = tf.sin(angle) * scale
    x = (width - 1) / 2
    y = (height - 1) / 2
    x0 = x - cos * x - (slant - sin) * y + shift_x * MAX_SHIFT * width
    y0 = y - sin * x - cos * y + shift_y * MAX_SHIFT * height
    zero = tf.zeros_like(cos)
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=inputs,
        transforms=tf.stack([cos, slant - sin, x0, sin, cos, y0, zero, zero], axis=1),
        output_shape=[height, width],
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
        fill_value=float(np.min(dataset.value_range[0])),  # value outside of the image
    )


# Stateful operations that are allowed because they neither change state nor draw at random. They
# read variables or call functions. The operations of called functions are checked, too.
_READS = (
    "Case If LookupTableFindV2 LookupTableSizeV2 Placeholder ReadVariableOp "
    "ResourceGather ResourceGatherNd StatefulPartitionedCall VarHandleOp While"
)
READS = set(_READS.split())
# Operations that TensorFlow considers stateless, but that pass inputs to Python or to files.
HANDS_ON = {"DebugIdentity", "DebugNanCount", "DebugNumericSummary", "PyFuncStateless"}
# Stateful operations that are allowed only in keras-hub's tokenizers, where they store no inputs.
# `Assert` is refused in other models, because it can stop a run; a tokenizer uses it only to check
# the lengths of its own rows. The operation of SentencePiece is stateful because it reads a
# vocabulary, and keras-hub never uses its option to choose a segmentation at random.
TOKENIZERS = {"Assert", "SentencepieceTokenizeOp"}


def refuse_state(function: Any, what: str, allowed: Container[str] = ()) -> None:
    """Raises ValueError if a traced function could store its inputs or draw at random.

    Args:
        function: a concrete function of TensorFlow.
        what: name of the function, for the error message.
        allowed: names of additional stateful operations that are allowed.

    Raises:
        ValueError: if this function, or a function that it calls, contains a stateful operation
            that is not allowed.
    """
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(node for each in graph.library.function for node in each.node_def)]
    functions = {each.signature.name for each in graph.library.function}
    for node in nodes:
        definition = op_def_registry.get(node.op)
        is_known = node.op in functions or (definition is not None and node.op not in HANDS_ON)
        is_harmless = node.op in READS or node.op in allowed
        if not is_known or (definition and definition.is_stateful and not is_harmless):
            raise ValueError(
                f"{what}: {node.op} ({node.name}) can store private inputs or draws at random. Use "
                f"a model without this operation."
            )
