"""Images in folders, one a class."""

import keras
import numpy as np
import pytest

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
    draw(tmp_path / "other_shape", "cat", number=1, shape=(9, 8))
    draw(tmp_path / "broken", "cat", number=1)
    (tmp_path / "broken" / "cat" / "hidden.png").write_bytes(b"something else")
    (tmp_path / "empty").mkdir()
    for name, told in (
        ("other_class", "expected folders of the classes cat, dog alone"),
        ("other_shape", "got another shape"),
        ("broken", "got a broken one"),
        ("empty", "expected images"),
        ("nosuch", "expected a folder of images"),
    ):
        with pytest.raises(ValueError, match=told) as caught:
            image_folders.load_private(tmp_path / name, public)
        assert "hidden" not in str(caught.value)


def test_a_public_folder_without_classes_or_images_is_refused(tmp_path):
    draw(tmp_path, "loose", number=2)
    (tmp_path / "empty" / "cat").mkdir(parents=True)
    (tmp_path / "empty" / "dog").mkdir()
    with pytest.raises(ValueError, match="at least 2 classes"):
        image_folders.load_public(tmp_path / "loose")
    with pytest.raises(ValueError, match="expected images"):
        image_folders.load_public(tmp_path / "empty")
