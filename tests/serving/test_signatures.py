"""The signature for serialized examples."""

import numpy as np
import pytest
import tensorflow as tf
from serving_helpers import serialized_example

BYTES, FLOATS, INTEGERS = tf.train.BytesList, tf.train.FloatList, tf.train.Int64List


def example(**features) -> bytes:
    fields = {BYTES: "bytes_list", FLOATS: "float_list", INTEGERS: "int64_list"}
    made = {
        name: tf.train.Feature(**{fields[type(values)]: values})
        for name, values in features.items()
    }
    return tf.train.Example(features=tf.train.Features(feature=made)).SerializeToString()


def ask(student, examples):
    served = tf.saved_model.load(str(student.folder)).signatures["serialized_examples"]
    return served(examples=tf.constant(examples, tf.string))


@pytest.mark.parametrize("name", ["digits", "table"])
def test_examples_are_answered_as_raw_inputs_are(request, name):
    student = request.getfixturevalue(name)
    for size in (0, 1, 30):
        inputs = student.inputs[:size]
        answer = ask(student, [serialized_example(raw, student.dataset) for raw in inputs])
        np.testing.assert_array_equal(answer["label"], student.labels[:size])
        assert answer["probabilities"].shape == (size, student.dataset.num_classes)
        if size:
            logits = student.model.predict(inputs.astype(np.float32), verbose=0)
            np.testing.assert_allclose(answer["probabilities"], tf.nn.softmax(logits), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "made", "message"),
    [
        ("digits", example(image=BYTES(value=[b"1" * 63])), "image: expected 64 bytes"),
        ("digits", example(image=BYTES(value=[b"1" * 65])), "image: expected 64 bytes"),
        ("digits", example(image=INTEGERS(value=[1] * 64)), "Data types don't match"),
        ("digits", example(label=INTEGERS(value=[1])), "image .* is required"),
        ("digits", b"", "image .* is required"),
        ("digits", b"no example", "Could not parse example"),
        ("table", example(features=FLOATS(value=[0.5] * 3)), "Values size: 3"),
        ("table", example(features=FLOATS(value=[0.5, 0.5, 0.5, np.nan])), "expected finite"),
        ("table", example(other=FLOATS(value=[0.5] * 4)), "features .* is required"),
    ],
)
def test_a_malformed_example_is_refused(request, name, made, message):
    student = request.getfixturevalue(name)
    good = serialized_example(student.inputs[0], student.dataset)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        ask(student, [good, made])
