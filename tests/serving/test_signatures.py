"""The signature for image files."""

import dataclasses
import io

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from pate_tf.data import image_folders
from pate_tf.serving.export import decoded_images


def encoded(pixels, form: str = "PNG", **options) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.asarray(pixels, np.uint8)).save(file, form, **options)
    return file.getvalue()


def test_files_of_images_are_answered_as_their_pixels_are(digits):
    """Uses the digits' range, 0 to 16, and any batch size."""
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
        # Images of the correct size are not resampled: the pixels stay the same.
        np.testing.assert_allclose(decoded[place], expected, atol=0 if place == 3 else 1)
