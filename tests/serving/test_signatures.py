"""The signatures for serialized examples and for files of images."""

import dataclasses
import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from serving_helpers import assert_warms_up, serialized_example

from pate_tf.data import image_folders
from pate_tf.serving.export import decoded_images

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


@pytest.mark.parametrize("name", ["digits", "table"])
def test_each_signature_has_a_request_to_warm_up_with(request, name):
    assert_warms_up(request.getfixturevalue(name).folder)


def encoded(pixels, form: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.asarray(pixels, np.uint8)).save(file, form, **options)
    return file.getvalue()


def test_files_of_images_are_answered_as_their_pixels_are(digits):
    """In the range of the digits, 0 to 16, and in any size of batch."""
    served = tf.saved_model.load(str(digits.folder)).signatures["encoded_images"]
    for size in (0, 1, 30):
        files = [encoded(np.round(image[..., 0] * 255.0 / 16)) for image in digits.inputs[:size]]
        answer = served(image_bytes=tf.constant(files, tf.string))
        np.testing.assert_array_equal(answer["label"], digits.labels[:size])
        assert answer["probabilities"].shape == (size, 10)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Unknown image file format"):
        served(image_bytes=tf.constant([b"no image"]))


@pytest.mark.parametrize("channels", [1, 3])
def test_files_of_any_size_and_kind_become_what_a_folder_of_them_is_read_as(
    tmp_path, digits, channels
):
    random, shape = np.random.default_rng(0), (24, 20, channels)
    fields = {"input_shape": shape, "value_range": (0.0, 255.0), "background": "gray"}
    dataset = dataclasses.replace(digits.dataset, **fields)
    image = Image.fromarray(random.integers(0, 255, (5, 5, 4), np.uint8))
    smooth = np.asarray(image.resize((47, 61)))
    sources = [smooth, smooth[..., :3], smooth[..., 0], smooth[:24, :20, :3]]
    files = [encoded(pixels) for pixels in sources] + [encoded(smooth[..., :3], "JPEG", quality=95)]
    decoded = decoded_images(tf.constant(files), dataset).numpy()
    assert decoded.dtype == np.uint8
    for place, file in enumerate(files):
        (tmp_path / "file.png").write_bytes(file)
        expected = image_folders.read_image(tmp_path / "file.png", dataset).astype(int)
        # No filter where the size is right: the same pixels.
        np.testing.assert_allclose(decoded[place], expected, atol=0 if place == 3 else 1)
