"""Images in folders, one per class."""

import json

import numpy as np
import pytest
from PIL import Image

from pate_tf.core.dataset import Dataset
from pate_tf.core.sensitive import SensitiveWarning
from pate_tf.data import image_folders
from pate_tf.data.data_source import FileSource


def save(path, pixels, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    image.save(path, **options)


def draw(folder, name, *, number, grey=100):
    for index in range(number):
        save(folder / name / f"{index}.png", np.full((8, 8), grey + index, np.uint8))


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
        assert np.abs(np.diff(side.labels)).sum() > 1  # not sorted by class


def test_an_image_of_another_class_in_the_place_of_one_moves_no_other(tmp_path):
    """Otherwise one replaced record would change all teachers, because shards depend on
    positions.
    """
    for name in ("cat", "dog", "fox"):
        draw(tmp_path / "public", name, number=2)
    public = image_folders.load_public(tmp_path / "public")
    read = []
    for name in ("fox", "cat"):
        for index in range(30):
            kind = name if index == 17 else ("cat", "dog", "fox")[index % 3]
            path = tmp_path / f"{name} at 17" / kind / f"{index}.png"
            save(path, np.full((8, 8), 5 * index, np.uint8))
        read.append(image_folders.load_private(tmp_path / f"{name} at 17", public))
    one, other = read
    np.testing.assert_array_equal(one.inputs, other.inputs)
    (place,) = np.flatnonzero(one.labels != other.labels)
    assert (one.inputs[place] == 5 * 17).all()


def test_public_images_need_no_class_where_classes_are_stated(tmp_path):
    draw(tmp_path, "public", number=4)
    draw(tmp_path / "private", "dog", number=3)
    folders = {"private": tmp_path / "private", "public": tmp_path / "public"}
    with pytest.raises(ValueError, match=r"no folders\. If the images have no labels, set `class"):
        FileSource(**folders).load_public()
    files = FileSource(**folders, classes="cat, dog")
    public = files.load_public()
    assert public.labels is None and public.dataset.pool_size == 4
    assert files.load_private(public).labels.tolist() == [1, 1, 1]


def test_what_does_not_fit_is_refused_without_a_private_name(tmp_path):
    for name in ("cat", "dog"):
        draw(tmp_path / "public", name, number=2)
    public = image_folders.load_public(tmp_path / "public")
    draw(tmp_path / "other_class", "hidden", number=1)
    (tmp_path / "empty").mkdir()
    for name, told in (
        ("other_class", "may only contain folders of the classes cat, dog"),
        ("empty", "contains no images"),
        ("nosuch", "is not a folder"),
    ):
        with pytest.raises(ValueError, match=told) as caught:
            image_folders.load_private(tmp_path / name, public)
        assert "hidden" not in str(caught.value)


def test_images_as_people_have_them(tmp_path):
    """Unequal sizes, gray and colored, transparent, 16 bits, rotated by EXIF, PNG and JPEG."""
    public, private = tmp_path / "public", tmp_path / "private"
    half = np.zeros((40, 60, 3), np.uint8)
    half[:20] = 250, 20, 20  # red above
    save(public / "cat/a.jpg", half, quality=95)
    save(public / "cat/b.png", Image.fromarray(half[:, :40]).convert("RGBA"))
    save(public / "dog/c.png", half[..., 0])
    with pytest.raises(ValueError, match="such as 40x40 and 40x60: set `image_size`"):
        image_folders.load_public(public)
    images = image_folders.load_public(public, size=image_folders.size_of("8x12"))
    assert images.dataset.input_shape == (8, 12, 3)  # one has colors
    for image in images.inputs:
        assert (image[:3, :, 0] > 200).all() and (image[5:, :, 0] < 50).all()
    turned, exif = Image.fromarray(half), Image.Exif()
    exif[0x0112] = 6  # it is on its side, to be rotated by 90 degrees
    turned = turned.transpose(Image.Transpose.ROTATE_90)
    save(private / "cat/d.jpg", turned, exif=exif, quality=95)
    save(private / "dog/e.png", half[..., 0].astype(np.uint16) << 8)
    save(private / "dog/f.png", Image.fromarray(half).quantize(4))
    records = image_folders.load_private(private, images)
    for image in records.inputs:
        assert (image[:3, :, 0] > 200).all() and (image[5:, :, 0] < 50).all()


def test_images_are_gray_if_all_public_ones_are(tmp_path):
    for name in ("cat", "dog"):
        draw(tmp_path / "public", name, number=2)
    save(tmp_path / "private/cat/green.png", Image.new("RGB", (8, 8), (0, 200, 0)))
    public = image_folders.load_public(tmp_path / "public")
    records = image_folders.load_private(tmp_path / "private", public)
    assert records.inputs.shape == (1, 8, 8, 1)
    assert (records.inputs == 117).all()  # 0.587 of green


RAMP = np.linspace(0, 255, 64).reshape(8, 8)


def in_order(examples):
    """Returns pixels of gray images by brightness, int `[num_images, height, width]`."""
    return np.array(sorted(examples.inputs[..., 0].astype(int), key=np.mean))


def test_what_is_transparent_is_laid_on_white(tmp_path):
    """Tests black ink in all encodings: an alpha channel, with and without colors, a palette."""
    ink = np.zeros((8, 8, 2), np.uint8)
    ink[:4, :, 1] = 255
    palette = Image.fromarray(ink[..., 1] // 255).convert("P")
    palette.putpalette([90, 0, 0, 0, 0, 0])
    for side in ("public", "private"):
        save(tmp_path / side / "ink/a.png", Image.fromarray(ink, "LA").convert("RGBA"))
        save(tmp_path / side / "ink/b.png", Image.fromarray(ink, "LA"))
        save(tmp_path / side / "ink/c.gif", palette, transparency=0)
        save(tmp_path / side / "none/d.png", Image.new("RGBA", (8, 8)))
    public = image_folders.load_public(tmp_path / "public")
    for examples in (public, image_folders.load_private(tmp_path / "private", public)):
        *inked, blank = in_order(examples)
        assert (blank == 255).all() and len(inked) == 3
        for image in inked:
            assert (image[:4] == 0).all() and (image[4:] == 255).all()
    on_gray = image_folders.load_public(tmp_path / "public", background="gray")
    assert (in_order(on_gray)[:, 4:] == 128).all()
    assert Dataset.from_dict(on_gray.dataset.to_dict()) == on_gray.dataset != public.dataset
    for path in (tmp_path / "public/ink").iterdir():
        save(path.with_suffix(".png"), Image.new("RGBA", (8, 8), (255, 255, 255, 9)))
    (tmp_path / "public/ink/c.gif").unlink()
    with pytest.raises(ValueError, match="all images are equal, with white behind"):
        image_folders.load_public(tmp_path / "public")


@pytest.mark.parametrize(
    ("suffix", "kind", "most", "level"),
    [
        (".png", np.uint16, 3000, 4095),
        (".tif", np.uint16, 200, 255),
        (".tif", np.int32, 40000, 65535),
        (".tif", np.float32, 0.6, 1.0),
    ],
)
def test_more_than_8_bits_are_read_by_the_range_of_public_images(
    tmp_path, suffix, kind, most, level
):
    for name, part in (("cat", 1.0), ("dog", 0.5)):
        save(tmp_path / f"public/{name}/a{suffix}", np.full((2, 2), part * most, kind))
        for place, value in enumerate((0.0, 0.2, 1.0, 7.0)):
            pixels = np.full((2, 2), value * level * part, np.float64).clip(0, 65535)
            save(tmp_path / f"private/{name}/{place}{suffix}", pixels.astype(kind))
    with pytest.warns(
        UserWarning, match=f"8 bits are read from 0 .black. to {level:g}.* from the public images"
    ):
        public = image_folders.load_public(tmp_path / "public")
    private = image_folders.load_private(tmp_path / "private", public)
    assert np.abs(in_order(public)[:, 0, 0] - 255 * most / level * np.array([0.5, 1])).max() <= 1
    expected = sorted(min(255, 255 * part * value) for part in (1, 0.5) for value in (0, 0.2, 1, 7))
    assert np.abs(in_order(private)[:, 0, 0] - expected).max() <= 1
    fields = json.loads(json.dumps(public.dataset.to_dict()))
    assert Dataset.from_dict(fields) == public.dataset
    assert public.dataset.white_level == level == fields.get("white_level", 65535)


def test_all_formats_are_read_and_what_is_no_image_is_passed_over_or_counted(tmp_path):
    gray = Image.fromarray(RAMP.astype(np.uint8))
    for side in ("public", "private"):
        for suffix in ("png", "webp", "tiff", "BMP", "pgm", "jpg"):
            options = {"lossless": True} if suffix == "webp" else {}
            save(tmp_path / side / f"cat/a.{suffix}", gray, **options)
        frames = {"save_all": True, "append_images": [gray.rotate(9)]}
        save(tmp_path / side / "cat/Imgs/a.gif", gray, **frames)
        save(tmp_path / side / "dog/Imgs/b.jpg", gray.rotate(180).convert("CMYK"), quality=99)
        for name in ("cat/Thumbs.db", "dog/._b.jpg", ".DS_Store", "__MACOSX/cat/a.png"):
            (tmp_path / side / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / side / name).write_bytes(b"no image")
        (tmp_path / side / "dog/hidden.txt").write_text("no image")
    with pytest.warns(UserWarning, match="1 files that are not images, such as dog/hidden.txt"):
        public = image_folders.load_public(tmp_path / "public")
    with pytest.warns(
        SensitiveWarning, match="sensitive, .*left out 1 files that are not images"
    ) as caught:
        private = image_folders.load_private(tmp_path / "private", public)
    assert "hidden" not in str(caught[0].message)
    for examples in (public, private):
        assert examples.dataset.class_names == ("cat", "dog") and len(examples) == 8
        for image, label in zip(examples.inputs, examples.labels, strict=True):
            expected = RAMP if label == 0 else RAMP[::-1, ::-1]
            assert np.abs(image.mean(axis=-1) - expected).max() < 6


def test_broken_public_images_are_named_and_private_ones_counted_or_skipped(tmp_path):
    for name in ("cat", "dog"):
        draw(tmp_path, name, number=13)
    public = image_folders.load_public(tmp_path)
    for index in range(12):
        whole = (tmp_path / f"cat/{index}.png").read_bytes()
        (tmp_path / f"cat/{index}.png").write_bytes(whole[:50] if index else b"no image")
    (tmp_path / "cat/1.png").unlink()
    (tmp_path / "cat/1.png").symlink_to("nowhere")
    with pytest.raises(ValueError, match=r"cat/0.png: .* broken\n(.*\n){9}- and 2 more$"):
        image_folders.load_public(tmp_path)
    with pytest.raises(
        ValueError, match=r"12 images are broken or too large \(this number is sensitive\)"
    ) as caught:
        image_folders.load_private(tmp_path, public)
    assert ".png" not in str(caught.value)
    whole = {}  # a skipped record changes no other record's position or teacher
    for name in ("cat", "other"):
        (tmp_path / "cat").rename(tmp_path / name)
        with pytest.warns(
            SensitiveWarning, match="images: broken, too large, or in no class folder"
        ):
            records = image_folders.load_private(tmp_path, public, on_bad_record="skip")
        whole[name] = dict(zip(records.owners, records.inputs[:, 0, 0, 0], strict=True))
    assert len(whole["cat"]) == 14 and len(whole["other"]) == 13
    assert whole["other"].items() < whole["cat"].items()


def test_folders_elsewhere_are_shown(tmp_path):
    for place in ("train/cat", "train/dog", "test/cat", "test/dog"):
        draw(tmp_path / "a/photos", place, number=2)
    for folder, told in (
        ("a", "at least 2 classes; it has photos. Use .*a/photos instead$"),
        ("a/photos", "it has test and train. Use .*a/photos/test instead$"),
    ):
        with pytest.raises(ValueError, match=told):
            image_folders.load_public(tmp_path / folder)
    public = image_folders.load_public(tmp_path / "a/photos/train")
    with pytest.raises(
        ValueError, match=r"cat, dog, but it has another folder\. Use it instead: it contains"
    ):
        image_folders.load_private(tmp_path / "a/photos", public)
    draw(tmp_path / "a/photos/train", "", number=1)
    with pytest.raises(ValueError, match="some images are outside of class folders"):
        image_folders.load_private(tmp_path / "a/photos/train", public)


def test_masks_are_no_records_and_no_class(tmp_path):
    """Tests folders of images and masks for train and test, and other files next to the images."""
    for name in ("images", "masks"):
        draw(tmp_path / "sides", name, number=2)
    with pytest.raises(ValueError, match="at least 2 classes; it has images and masks"):
        image_folders.load_public(tmp_path / "sides")
    for name in ("ill", "well"):
        draw(tmp_path / "public", name, number=2)
        draw(tmp_path / "with_mask", name, number=3)  # a class
    public = image_folders.load_public(tmp_path / "public")
    for place, name in enumerate(
        ("ill/0_mask.png", "well/1-Segmentation_2.png", "ill/masks/x.png")
    ):
        for side in ("public", "private"):
            draw(tmp_path / f"{side} {place}", "ill", number=2)
            draw(tmp_path / f"{side} {place}", "well", number=2)
            save(tmp_path / f"{side} {place}" / name, RAMP.astype(np.uint8))
        with pytest.raises(
            ValueError, match=f"1 images look like masks .{name}, .*: move them out"
        ):
            image_folders.load_public(tmp_path / f"public {place}")
        folder = tmp_path / f"private {place}"
        with pytest.raises(
            ValueError, match=r"1 images look like masks \(this number is sensitive\)"
        ):
            image_folders.load_private(folder, public)
        with pytest.warns(SensitiveWarning, match="1 images look like masks"):
            image_folders.load_private(folder, public, on_bad_record="skip")
    # without an image of the same name
    save(tmp_path / "public/ill/with_mask.png", RAMP.astype(np.uint8))
    assert len(image_folders.load_public(tmp_path / "public")) == 5


def test_too_large_negative_and_other_files_are_named(tmp_path, monkeypatch):
    draw(tmp_path / "public", "cat", number=2)
    save(tmp_path / "public/dog/slide.png", np.zeros((40, 50), np.uint8))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1500)
    with pytest.raises(ValueError, match=r"slide.png: .* more than 1,500 pixels: scale it down"):
        image_folders.load_public(tmp_path / "public", size=(8, 8))
    for name, least in (("cat", -1000), ("dog", -500)):
        save(tmp_path / f"ct/{name}/a.tif", np.linspace(least, 900, 64, dtype="f4").reshape(8, 8))
    with pytest.warns(
        UserWarning, match="0 .black. to 1023 .* white and smaller ones black: add 1000"
    ):
        image_folders.load_public(tmp_path / "ct")
    for name in ("arrays/a.npz", "arrays/b.tfrecord", "flat/labels.csv", "none/cat/c.npz"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "none/dog").mkdir()
    for name in ("arrays", "flat"):
        with pytest.raises(
            ValueError, match=r"it has no folders. Files that are not images, such as \.npz"
        ):
            image_folders.load_public(None, tmp_path / name, size=(8, 8))
    with pytest.warns(UserWarning), pytest.raises(ValueError, match="Files that are"):
        image_folders.load_public(tmp_path / "none")
