"""What a served student answers to: raw inputs, or serialized `tf.train.Example`s of them."""

import dataclasses
import math
from typing import Any

import keras
import tensorflow as tf

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.data.text import ngram_features

SERVING_DEFAULT = "serving_default"
FEATURES = "features"  # of texts alone: what strings have become
TEXT = "text"  # the input of SERVING_DEFAULT, of texts
SERIALIZED_EXAMPLES = "serialized_examples"
EXAMPLES = "examples"  # the one input of SERIALIZED_EXAMPLES


@dataclasses.dataclass(frozen=True)
class StudentGraph:
    """A student with its signatures, all preprocessing inside the graph.

    Both signatures return `probabilities` float32 `[batch, num_classes]`, `label` int64 `[batch]`
    and, where the data set names its classes, `class_name` string `[batch]`. Any batch size will
    do, 0 too.

    Attributes:
        model: a Keras model, or a `tf.Module` called as one, from raw inputs to logits `[batch,
            num_classes]`.
        dataset: names and shapes the input, and names the classes.
    """

    model: keras.Model | tf.Module
    dataset: Dataset

    def module(self) -> tf.Module:
        """Returns what is saved: the `weights`, in the order that their digest takes them in.

        Not the Keras model: TensorFlow's variables inside of Keras' own would not be restored by a
        server without Python, and be NaN for the LiteRT converter.
        """
        module = tf.Module()
        module.weights = student_variables(self.model)
        return module

    def signatures(self) -> dict[str, Any]:
        """Returns the function behind each signature.

        `serving_default` takes `image` uint8 or float32, or `features` float32, `[batch,
        *input_shape]`; floats that are NaN or infinite are an error. For texts it takes `text`
        string `[batch]`, and the signature `features` what `data.text` makes of them.
        `serialized_examples` takes `examples` string `[batch]`; one that can't be parsed, lacks the
        feature or has another size is an error for the whole batch.
        """

        @tf.function(autograph=False, input_signature=[input_spec(self.dataset)])
        def serve(inputs: tf.Tensor) -> dict[str, tf.Tensor]:
            return self._named(tf.ensure_shape(inputs, input_spec(self.dataset).shape))

        @tf.function(
            autograph=False, input_signature=[tf.TensorSpec([None], tf.string, name=EXAMPLES)]
        )
        def serve_examples(examples: tf.Tensor) -> dict[str, tf.Tensor]:
            return self._named(parse_examples(examples, self.dataset))

        if self.dataset.kind != "text":
            return {SERVING_DEFAULT: serve, SERIALIZED_EXAMPLES: serve_examples}

        @tf.function(autograph=False, input_signature=[tf.TensorSpec([None], tf.string, name=TEXT)])
        def serve_texts(text: tf.Tensor) -> dict[str, tf.Tensor]:
            return self._named(ngram_features(text, self.dataset.input_shape[0]))

        return {
            SERVING_DEFAULT: serve_texts,
            SERIALIZED_EXAMPLES: serve_examples,
            FEATURES: serve,
        }

    def answer(self, inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns `probabilities` and `label` of raw inputs `[batch, *input_shape]`."""
        logits = self.model(tf.cast(inputs, tf.float32), training=False)
        return {"probabilities": tf.nn.softmax(logits), "label": tf.argmax(logits, axis=1)}

    def _named(self, inputs: tf.Tensor) -> dict[str, tf.Tensor]:
        if inputs.dtype.is_floating:
            name = self.dataset.input_name
            inputs = tf.debugging.check_numerics(inputs, f"{name}: expected finite numbers")
        # Some convolutions refuse an empty batch: it gets a sample, whose answer is dropped.
        size = tf.shape(inputs)[0]
        paddings = [[0, tf.cast(size == 0, tf.int32)], *([0, 0] for _ in inputs.shape[1:])]
        answer = {key: part[:size] for key, part in self.answer(tf.pad(inputs, paddings)).items()}
        if self.dataset.class_names:
            names = tf.constant(self.dataset.class_names)
            answer["class_name"] = tf.gather(names, answer["label"])
        return answer


def input_spec(dataset: Dataset) -> tf.TensorSpec:
    """Returns type, shape and name of a batch of raw inputs."""
    return tf.TensorSpec([None, *dataset.input_shape], dataset.input_type, name=dataset.input_name)


def parse_examples(examples: tf.Tensor, dataset: Dataset) -> tf.Tensor:
    """Returns the raw inputs `[batch, *input_shape]` of serialized `tf.train.Example`s `[batch]`.

    An example holds one feature, named as the data set names its input: `image`, a bytes list of
    one string with the pixels in row-major order, one byte each, where they are uint8; `text`, a
    bytes list of one string, for texts; else a float list.
    """
    name, shape = dataset.input_name, dataset.input_shape
    if dataset.kind == "text":
        texts = tf.io.parse_example(examples, {TEXT: tf.io.FixedLenFeature([], tf.string)})[TEXT]
        return ngram_features(texts, shape[0])
    if dataset.input_type != "uint8":
        return tf.io.parse_example(examples, {name: tf.io.FixedLenFeature(shape, tf.float32)})[name]
    pixels = tf.io.parse_example(examples, {name: tf.io.FixedLenFeature([], tf.string)})[name]
    size = math.prod(shape)
    tf.debugging.assert_equal(
        tf.strings.length(pixels), size, f"image: expected {size} bytes, one a pixel and channel"
    )
    # Cut or filled up to the size, so that the line above is what a wrong size is answered with.
    decoded = tf.io.decode_raw(pixels, tf.uint8, fixed_length=size)
    return tf.reshape(decoded, [-1, *shape])


def serialized_example(raw: Any, dataset: Dataset) -> bytes:
    """Returns a raw input `input_shape`, or bytes of a text, as `serialized_examples` takes it."""
    if dataset.kind == "text":
        text = tf.train.Feature(bytes_list=tf.train.BytesList(value=[raw]))
        return _serialized(TEXT, text)
    if dataset.input_type == "uint8":
        pixels = tf.train.BytesList(value=[raw.tobytes()])
        return _serialized(dataset.input_name, tf.train.Feature(bytes_list=pixels))
    numbers = tf.train.FloatList(value=raw.ravel())
    return _serialized(dataset.input_name, tf.train.Feature(float_list=numbers))


def _serialized(name: str, feature: tf.train.Feature) -> bytes:
    features = tf.train.Features(feature={name: feature})
    return tf.train.Example(features=features).SerializeToString()


def student_variables(model: keras.Model | tf.Module) -> list[tf.Variable]:
    """Returns the weights of a student in the order that their digest takes them in."""
    if isinstance(model, keras.Model):
        return [weight.value for weight in model.weights]
    return list(model.variables)


def student_digest(model: keras.Model | tf.Module) -> str:
    """SHA-256 of a student's weights: the `student_digest` of its privacy statement."""
    return artifacts.digest_arrays(variable.numpy() for variable in student_variables(model))
