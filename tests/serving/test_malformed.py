"""A hundred malformed requests, each refused, and the next good one answered."""

import collections
from collections.abc import Callable

import grpc
import numpy as np
import pytest
import tensorflow as tf
from prediction_server import PREDICT, predict, predict_request, serving

from pate_tf.serving.signatures import serialized_example

NUM_REQUESTS = 100
LONG = 10**6


def wrong_type(student, random):
    kind = random.choice(["bool", "float16", "float64", "int8", "int32", "int64", "complex64"])
    name, shape = student.dataset.input_name, student.dataset.input_shape
    return predict_request(**{name: np.zeros([int(random.integers(4)), *shape], str(kind))})


def wrong_rank(student, random):
    rank = random.choice([n for n in range(7) if n != len(student.dataset.input_shape) + 1])
    return predict_request(
        **{student.dataset.input_name: np.zeros([2] * int(rank), student.dataset.input_type)}
    )


def wrong_size(student, random):
    shape = np.array(student.dataset.input_shape)
    axis = random.integers(len(shape))
    shape[axis] += random.choice([-1, 1, 1_000])
    return predict_request(
        **{student.dataset.input_name: np.zeros([1, *shape], student.dataset.input_type)}
    )


def not_a_number(student, random):
    """For images NaN is of the wrong type besides."""
    inputs = np.zeros([3, *student.dataset.input_shape], np.float32)
    inputs.flat[random.integers(inputs.size)] = random.choice([np.nan, np.inf, -np.inf])
    return predict_request(**{student.dataset.input_name: inputs})


def unknown_signature(student, random):
    inputs = {student.dataset.input_name: student.inputs[:1]}
    return predict_request(str(random.choice(["classify", "\t", "x" * LONG])), **inputs)


def wrong_inputs(student, random):
    inputs = {student.dataset.input_name: student.inputs[:1]}
    return [
        predict_request(),
        predict_request(inputs=student.inputs[:1]),
        predict_request(**inputs, more=student.inputs[:1]),
        predict_request("serialized_examples", **inputs),
    ][random.integers(4)]


def long_string(student, random):
    strings = [bytes([random.integers(256)]) * LONG, random.bytes(LONG)]
    return predict_request("serialized_examples", examples=[strings[random.integers(2)]])


def broken_example(student, random):
    whole = serialized_example(student.inputs[0], student.dataset)
    half = whole[: random.integers(1, len(whole))]
    return predict_request("serialized_examples", examples=[whole, half])


def other_example(student, random):
    """Whole, but of another size, or with a feature of another name or type."""
    name, size = student.dataset.input_name, student.inputs[0].size
    of_bytes = tf.train.Feature(bytes_list=tf.train.BytesList(value=[b"1" * (size + 1)]))
    of_floats = tf.train.Feature(float_list=tf.train.FloatList(value=[0.5] * (size - 1)))
    of_integers = tf.train.Feature(int64_list=tf.train.Int64List(value=[1] * size))
    feature = [{name: of_bytes}, {name: of_floats}, {name: of_integers}, {"other": of_bytes}, {}]
    example = tf.train.Example(features=tf.train.Features(feature=feature[random.integers(5)]))
    return predict_request("serialized_examples", examples=[example.SerializeToString()])


def broken_tensor(student, random):
    """The bytes of a tensor do not fit the shape that it claims."""
    request = predict_request(**{student.dataset.input_name: student.inputs[:2]})
    tensor = request.inputs[student.dataset.input_name]
    tensor.tensor_content = tensor.tensor_content[: -1 - random.integers(20)]
    return request


def no_request(student, random):
    return random.bytes(int(random.integers(1, 200)))


KINDS: list[Callable] = [
    wrong_type,
    wrong_rank,
    wrong_size,
    not_a_number,
    unknown_signature,
    wrong_inputs,
    long_string,
    broken_example,
    other_example,
    broken_tensor,
    no_request,
]


def refusal(send, content: bytes, what: str) -> grpc.StatusCode:
    try:
        send(content, timeout=60)
    except grpc.RpcError as error:
        return error.code()
    raise AssertionError(f"{what} was answered: {content[:200]!r}")


@pytest.mark.parametrize("name", ["digits", "table"])
def test_a_hundred_malformed_requests_leave_it_serving(request, name):
    student = request.getfixturevalue(name)
    random = np.random.default_rng(20_261_121)
    raw_name = student.dataset.input_name
    good = predict_request(**{raw_name: student.inputs[:5]})
    codes = collections.Counter()
    with serving(student.folder) as channel:
        send = channel.unary_unary(PREDICT)  # bytes as they are
        for number in range(NUM_REQUESTS):
            kind = KINDS[number % len(KINDS)]
            bad = kind(student, random)
            content = bad if isinstance(bad, bytes) else bad.SerializeToString()
            codes[refusal(send, content, kind.__name__)] += 1
            answer = predict(channel, good)
            np.testing.assert_array_equal(answer["label"], student.labels[:5], kind.__name__)
            empty = predict(channel, predict_request(**{raw_name: student.inputs[:0]}))
            assert empty["label"].shape == (0,)
    assert sum(codes.values()) == NUM_REQUESTS
    assert codes[grpc.StatusCode.INVALID_ARGUMENT] >= NUM_REQUESTS - 20
    assert set(codes) <= {grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.INTERNAL}
