"""Images in folders, one a class."""

import keras
import numpy as np
import pytest
from PIL import Image

from pate_tf.data import image_folders


def draw(folder, name, *, number, shape=(8, 8), grey=100):
    (folder / name).mkdir(parents=True, exist_ok=True)
    for index in range(number):
        picture = np.full((*shape, 1), grey + index, np.uint8)
        keras.utils.save_img(folder / name / f"{index}.png", picture, scale=False)
    return folder


def test_both_sides_are_read_and_labels_follow_the_folders(tmp_path):
    for name, grey in (("cat", 10), ("dog", 200)):
        draw(tmp_path / "public", name, number=5, grey=grey)
        draw(tmp_path / "private", name, number=7, grey=grey)
    public = image_folders.load_public(tmp_path / "public")
    private = image_folders.load_private(tmp_path / "private", public)
    assert public.dataset.class_names == ("cat", "dog")
    assert public.dataset.input_shape == (8, 8, 1) and public.dataset.augmentation == "shift"
    assert (len(public), len(private), public.dataset.pool_size) == (10, 14, 7)
    for side in (public, private):
        assert side.inputs.dtype == np.uint8
        assert ((side.inputs[:, 0, 0, 0] >= 200) == (side.labels == 1)).all()
        assert np.abs(np.diff(side.labels)).sum() > 1  # not one class after the other


def test_an_image_of_another_class_in_the_place_of_one_moves_no_other(tmp_path):
    """Else one record replaced would change all teachers, whose shares go by position."""
    for name in ("cat", "dog", "fox"):
        draw(tmp_path / "public", name, number=2)
    public = image_folders.load_public(tmp_path / "public")
    read = []
    for name in ("fox", "cat"):
        for index in range(30):
            kind = name if index == 17 else ("cat", "dog", "fox")[index % 3]
            path = tmp_path / f"{name} at 17" / kind
            path.mkdir(parents=True, exist_ok=True)
            picture = np.full((8, 8, 1), 5 * index, np.uint8)
            keras.utils.save_img(path / f"{index}.png", picture, scale=False)
        read.append(image_folders.load_private(tmp_path / f"{name} at 17", public))
    one, other = read
    np.testing.assert_array_equal(one.inputs, other.inputs)
    (place,) = np.flatnonzero(one.labels != other.labels)
    assert (one.inputs[place] == 5 * 17).all()


def test_public_images_need_no_class_where_classes_are_stated(tmp_path):
    draw(tmp_path, "public", number=4)
    draw(tmp_path / "private", "dog", number=3)
    public = image_folders.load_public(tmp_path / "public", classes=["cat", "dog"])
    assert public.labels is None and public.dataset.pool_size == 4
    private = image_folders.load_private(tmp_path / "private", public)
    assert private.labels.tolist() == [1, 1, 1]


def test_what_does_not_fit_is_refused_without_a_private_name(tmp_path):
    for name in ("cat", "dog"):
        draw(tmp_path / "public", name, number=2)
    public = image_folders.load_public(tmp_path / "public")
    draw(tmp_path / "other_class", "hidden", number=1)
    draw(tmp_path / "broken", "cat", number=1)
    (tmp_path / "broken" / "cat" / "hidden.png").write_bytes(b"something else")
    (tmp_path / "empty").mkdir()
    for name, told in (
        ("other_class", "expected folders of the classes cat, dog alone"),
        ("broken", "got a broken one"),
        ("empty", "expected images"),
        ("nosuch", "expected a folder of images"),
    ):
        with pytest.raises(ValueError, match=told) as caught:
            image_folders.load_private(tmp_path / name, public)
        assert "hidden" not in str(caught.value)


def test_images_as_people_have_them(tmp_path):
    """Unequal sizes, gray and coloured, transparent, 16 bits, turned by EXIF, PNG and JPEG."""
    public, private = tmp_path / "public", tmp_path / "private"
    for folder in (public / "cat", public / "dog", private / "cat", private / "dog"):
        folder.mkdir(parents=True)
    half = np.zeros((40, 60, 3), np.uint8)
    half[:20] = 250, 20, 20  # red above
    Image.fromarray(half).save(public / "cat" / "a.jpg", quality=95)
    Image.fromarray(half[:, :40]).convert("RGBA").save(public / "cat" / "b.png")
    Image.fromarray(half[..., 0]).save(public / "dog" / "c.png")
    with pytest.raises(ValueError, match="got 40x40 and 40x60; `image_size` scales"):
        image_folders.load_public(public)
    found = image_folders.load_public(public, size=image_folders.size_of("8x12"))
    assert found.dataset.input_shape == (8, 12, 3)  # one has colours
    for image in found.inputs:
        assert (image[:3, :, 0] > 200).all() and (image[5:, :, 0] < 50).all()
    turned, exif = Image.fromarray(half), Image.Exif()
    exif[0x0112] = 6  # it lies on its left side: to be turned by 90 degrees
    turned.transpose(Image.Transpose.ROTATE_90).save(
        private / "cat" / "d.jpg", exif=exif, quality=95
    )
    Image.fromarray(half[..., 0].astype(np.uint16) << 8).save(private / "dog" / "e.png")
    Image.fromarray(half).quantize(4).save(private / "dog" / "f.png")
    records = image_folders.load_private(private, found)
    for image in records.inputs:
        assert (image[:3, :, 0] > 200).all() and (image[5:, :, 0] < 50).all()


def test_images_are_gray_if_all_public_ones_are(tmp_path):
    for name in ("cat", "dog"):
        draw(tmp_path / "public", name, number=2)
        (tmp_path / "private" / name).mkdir(parents=True)
    Image.new("RGB", (8, 8), (0, 200, 0)).save(tmp_path / "private" / "cat" / "green.png")
    public = image_folders.load_public(tmp_path / "public")
    records = image_folders.load_private(tmp_path / "private", public)
    assert records.inputs.shape == (1, 8, 8, 1)
    assert (records.inputs == 117).all()  # 0.587 of green
