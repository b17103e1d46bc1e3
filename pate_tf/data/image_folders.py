"""Reads images from folders. Private images must be in one folder per class.

Public images can be in class folders, too. The shape of all images and the names of the classes
come from the public images or from the user, never from private images.
"""

import contextlib
import dataclasses
import pathlib
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from pate_tf.core.checks import raise_all
from pate_tf.core.dataset import BACKGROUND, IMAGE_AUGMENTATION, UNKNOWN, WHITE_LEVEL, Dataset
from pate_tf.core.public import PublicExamples
from pate_tf.core.sensitive import PrivateExamples, warn_holder
from pate_tf.data.tables import REFUSE, pool_size

FORMATS: Final = ("PNG", "JPEG", "WEBP", "TIFF", "BMP", "GIF", "PPM")
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".tif", ".tiff", ".bmp", ".gif", ".pgm", ".ppm")
# Files that operating systems create next to images.
PASSED_OVER: Final = re.compile(r"\..*|thumbs\.db|desktop\.ini|__macosx", re.IGNORECASE)
NO_CLASSES: Final = re.compile(r"(?i)(train|test)(ing)?|val(id(ation)?)?|(image|img|mask|label)s?")
UNLABELED: Final = ". If the images have no labels, set `classes` to all classes, such as cat,dog"
NO_IMAGES: Final = ". Files that are not images, such as .npz or labels in .csv, are not read."
# Names of masks. The first pattern matches the name of a folder inside a class folder; the second
# matches the name of a file next to its image.
MASKS: Final = re.compile(r"(?i)masks?|segmentations?|annotations?")
MASK_OF: Final = re.compile(
    r"(?i)(.+?)[ _.-](masks?|segmentations?|annotations?|seg|gt)([ _.-]?\d+)?"
)
GRAY: Final = ("1", "L", "LA")
DEEP: Final = ("I", "F")  # first letters of Pillow's modes with more than 8 bits
WHITE_LEVELS: Final = (1.0, *(2.0**bits - 1.0 for bits in range(8, 33, 2)))
ORIENTATION: Final = 0x0112  # EXIF tag; if above 4, the image is rotated by 90 degrees
MAX_SIDE: Final = 4096  # pixels
BROKEN: Final = "the image is broken"


def size_of(text: str | None) -> tuple[int, int] | None:
    """Parses a height and width: "64" (for both) or "48x64". Returns None for None.

    Raises:
        ValueError: if the text has a different form, or a side is not from 1 to 4,096.
    """
    if text is None:
        return None
    parts = re.fullmatch(r"(\d{1,4})(?:x(\d{1,4}))?", text)
    sides = [int(side) for side in parts.groups(default=parts[1])] if parts else [0]
    if not all(1 <= side <= MAX_SIDE for side in sides):
        raise ValueError(f"image_size must be SIDE or HEIGHTxWIDTH, 1 to {MAX_SIDE}, got {text!r}")
    return sides[0], sides[1]


def load_public(
    folder: pathlib.Path | None,
    private: pathlib.Path | None = None,
    *,
    classes: Sequence[str] | None = None,
    augmentation: str = IMAGE_AUGMENTATION,
    name: str | None = None,
    size: tuple[int, int] | None = None,
    background: str = BACKGROUND,
    on_bad_record: str = REFUSE,
) -> PublicExamples:
    """Returns the public images of a folder, in a fixed order that does not depend on labels.

    An image in a folder with the name of a class has this class as its label. Other images have no
    label.

    Without a public folder, the result contains no images, and its data set describes gray images
    of the given size. The classes are then named after the folders in the private folder, and these
    names become public. Empty folders are included, so the names do not depend on any image.

    Args:
        folder: path of the public folder; None if there are no public images.
        private: path of the PRIVATE folder; required without a public folder.
        classes: names of the classes in the order of their numbers. Default: the sorted names of
            the folders.
        augmentation: transformations that keep the label, see `Dataset`.
        name: name of the data set. Default: the folder's name.
        size: height and width to which all images, including private images, are scaled. Default:
            the size of the public images.
        background: color from `BACKGROUNDS` that replaces transparent pixels in all images,
            including private images.
        on_bad_record: what to do with misplaced files in the private folder. "refuse": check all
            folder and file names before any image is decoded. "skip": do not check them here.

    Raises:
        ValueError: if there are no images, some images are broken (the message contains their
            names), all images are identical, images differ in size and `size` is None, or the
            classes are unknown.
    """
    place = folder or private
    if place is None or (folder is None and size is None):
        raise ValueError("image_size is required without public images, such as 64")
    names = tuple(classes or _class_names(place, is_public=folder is not None))
    dataset = Dataset(
        name=name or place.resolve().name,
        kind="image",
        input_shape=(*(size or (1, 1)), 1),
        value_range=(0.0, 255.0),
        num_classes=len(names),
        class_names=names,
        augmentation=augmentation,
        pool_size=0,
        background=background,
    )
    if folder is None:
        return PublicExamples.none_of(dataset)
    paths, labels = _placed(folder, names, is_private=False)
    if private is not None and on_bad_record == REFUSE:
        _placed(private, names, is_private=True)
    shape, white_level = _facts(paths, folder, size)
    number = pool_size(len(labels), has_labels=bool((labels != UNKNOWN).any()))
    dataset = dataclasses.replace(
        dataset, input_shape=shape, white_level=white_level, pool_size=number
    )
    inputs, broken = read_images(paths, dataset)
    _refuse(folder, broken, is_private=False)
    if len(inputs) > 1 and all(np.array_equal(image, inputs[0]) for image in inputs):
        raise ValueError(
            f"{folder}: all images are equal, with {background} behind transparent pixels. If the "
            "images are drawn in this color, choose another `background`."
        )
    return PublicExamples(dataset, inputs, labels)


def load_private(
    folder: pathlib.Path, public: PublicExamples, *, on_bad_record: str = REFUSE
) -> PrivateExamples:
    """SENSITIVE: returns the private images of a folder with one folder per class.

    The position of an image depends on its file name, not on its class, so no image moves if the
    class of another image changes. Size, channels and white level are determined by the public
    images.

    Args:
        folder: path of the private folder.
        public: the public images of the same data set.
        on_bad_record: "refuse" to raise an error for an image that is broken or outside of the
            class folders; "skip" to leave it out. Skipping never depends on other images. With
            "skip", each image has a different owner, identified by its position, as in
            `TextTable.private`.

    Raises:
        ValueError: if there are no images, or some images are refused. The message contains no
            class and no file name.
    """
    dataset = public.dataset
    paths, labels = _placed(
        folder, dataset.class_names, is_private=True, on_bad_record=on_bad_record
    )
    inputs, broken = read_images(paths, dataset)
    if on_bad_record == REFUSE:
        _refuse(folder, broken, is_private=True)
        return PrivateExamples(dataset, inputs, labels)
    is_whole = [path not in broken for path in paths]
    kept = np.flatnonzero(is_whole & (labels != UNKNOWN))
    if len(kept) < len(paths):
        warn_holder(
            f"{folder}: left out {len(paths) - len(kept):,} images: broken, too large, or in no "
            "class folder",
            stacklevel=4,
        )
    if not len(kept):
        raise ValueError(f"{folder}: no image in a class folder can be read")
    return PrivateExamples(dataset, inputs[kept], labels[kept], kept)


def image_files(folder: pathlib.Path) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
    """Returns the paths of all images in a folder tree, and of all other files, both sorted.

    Images are recognized by their suffixes. Files of operating systems, such as `Thumbs.db` and
    `._x.png`, are skipped.

    Raises:
        ValueError: if there is no such folder.
    """
    below = (path for place in _folders(folder) for path in (folder / place).rglob("*"))
    images = list[pathlib.Path]()
    others = list[pathlib.Path]()
    for path in sorted([*folder.iterdir(), *below]):
        is_passed_over = any(map(PASSED_OVER.fullmatch, path.relative_to(folder).parts))
        # Includes broken links, so that they are reported.
        if (path.is_file() or not path.exists()) and not is_passed_over:
            (images if path.suffix.lower() in SUFFIXES else others).append(path)
    return images, others


def _folders(folder: pathlib.Path) -> list[str]:
    """Returns the sorted names of all subfolders; raises ValueError if `folder` is not a folder."""
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder")
    paths = (path for path in folder.iterdir() if not PASSED_OVER.fullmatch(path.name))
    return sorted(path.name for path in paths if path.is_dir())


def _class_names(folder: pathlib.Path, *, is_public: bool) -> list[str]:
    """Returns the names of all class folders; raises ValueError if there are fewer than 2."""
    names = _folders(folder)
    if len(names) >= 2 and not all(map(NO_CLASSES.fullmatch, names)):
        return names
    deeper = [folder / name for name in names if len(_folders(folder / name)) > 1]
    images, others = image_files(folder)
    advice = UNLABELED * (is_public and not names and bool(images)) + NO_IMAGES * bool(others)
    raise ValueError(
        f"{folder} needs a folder for each of at least 2 classes; it has "
        f"{' and '.join(names) or 'no folders'}"
        + (f". Use {deeper[0]} instead" if deeper else advice)
    )


def _check_masks(
    folder: pathlib.Path, images: Sequence[pathlib.Path], *, is_private: bool, on_bad_record: str
) -> None:
    """Raises ValueError if file names look like masks; only warns if bad records are skipped."""
    stems = {path.with_suffix("") for path in images}
    masks = [
        path
        for path in images
        if any(map(MASKS.fullmatch, path.relative_to(folder).parts[1:-1]))
        or ((match := MASK_OF.fullmatch(path.stem)) and path.with_name(match[1]) in stems)
    ]
    if not masks:
        return
    which = "this number is sensitive" if is_private else f"{masks[0].relative_to(folder)}, ..."
    text = (
        f"{folder}: {len(masks):,} images look like masks ({which}). They would be used as "
        "records: move them out of the folder"
    )
    if on_bad_record == REFUSE:
        raise ValueError(text)
    warn_holder(text, stacklevel=5)


def _placed(
    folder: pathlib.Path, classes: Sequence[str], *, is_private: bool, on_bad_record: str = REFUSE
) -> tuple[list[pathlib.Path], npt.NDArray[np.int64]]:
    """Returns the paths of images, and their class numbers (`UNKNOWN` outside of class folders).

    The order is fixed: paths are sorted without the name of the class and then permuted, so that
    positions do not depend on classes. A warning reports files that are not images. It contains the
    name of a public file, but only the number of private files.

    Raises:
        ValueError: if there is no image. Unless bad records are skipped, also if a folder is not a
            class, a private image is outside of the class folders, or a mask is next to its image.
            The message contains only names of public images.
    """
    strange = set(_folders(folder)) - set(classes)
    if strange and on_bad_record == REFUSE:
        is_deeper = any(set(_folders(folder / name)) & set(classes) for name in strange)
        raise ValueError(
            f"{folder} may only contain folders of the classes {', '.join(classes[:12])}, but it "
            "has another folder" + (". Use it instead: it contains class folders" * is_deeper)
        )
    images, others = image_files(folder)
    if others:
        name = "" if is_private else f", such as {others[0].relative_to(folder)}"
        text = f"{folder}: left out {len(others):,} files that are not images{name}"
        warn_holder(text, is_private=is_private, stacklevel=4)
    if not images:
        raise ValueError(
            f"{folder} contains no images ({', '.join(SUFFIXES)}){NO_IMAGES * bool(others)}"
        )
    _check_masks(folder, images, is_private=is_private, on_bad_record=on_bad_record)
    placed = []
    for path in images:
        first, *below = path.relative_to(folder).parts
        is_known = bool(below) and first not in strange
        placed.append((path.name, below, classes.index(first) if is_known else UNKNOWN, path))
    placed.sort()
    placed = [placed[index] for index in np.random.default_rng(0).permutation(len(placed))]
    labels = np.array([label for *_, label, _ in placed], np.int64)
    paths = [path for *_, path in placed]
    if on_bad_record == REFUSE and is_private and (labels == UNKNOWN).any():
        raise ValueError(f"{folder}: some images are outside of class folders. Move them into one.")
    return paths, labels


def _refuse(folder: pathlib.Path, faults: Mapping[pathlib.Path, str], *, is_private: bool) -> None:
    """Raises ValueError for faulty images. The message only contains names of public images."""
    if faults and is_private:
        raise ValueError(
            f"{folder}: {len(faults):,} images are broken or too large (this number is sensitive)"
        )
    texts = [f"{path.relative_to(folder)}: {fault}" for path, fault in sorted(faults.items())]
    raise_all(str(folder), texts)


def read_images(
    paths: Sequence[pathlib.Path], dataset: Dataset
) -> tuple[npt.NDArray[np.uint8], dict[pathlib.Path, str]]:
    """Returns images, uint8 `[num_images, *input_shape]`, and the faults of bad images by path."""
    images = np.empty((len(paths), *dataset.input_shape), np.uint8)
    faults = dict[pathlib.Path, str]()
    for place, path in enumerate(paths):
        try:
            images[place] = read_image(path, dataset)
        except ValueError as error:
            faults[path] = str(error)
    return images, faults


def read_image(path: pathlib.Path, dataset: Dataset) -> npt.NDArray[np.uint8]:
    """Returns the first image of a file as pixels, uint8 `input_shape`.

    The image is rotated according to its EXIF entry. Transparent pixels get the color of the
    background. Values of more than 8 bits are scaled to the white level. Then the image is
    converted to gray or color and scaled to height and width by Pillow's bilinear filter, which
    averages pixels when it shrinks an image.

    Args:
        path: path of a file in one of `FORMATS`.
        dataset: data set with the shape, white level and background of the image.

    Raises:
        ValueError: if the image is broken. The message does not contain its name.
    """
    height, width, channels = dataset.input_shape
    with _opened(path) as image:
        pixels = ImageOps.exif_transpose(image)
        if pixels.mode.startswith(DEEP):
            values = np.asarray(pixels, np.float32) * (255.0 / dataset.white_level)
            pixels = Image.fromarray(np.rint(values.clip(0.0, 255.0)).astype(np.uint8))
        elif pixels.has_transparency_data:
            ground = Image.new("RGBA", pixels.size, dataset.background)
            pixels = Image.alpha_composite(ground, pixels.convert("RGBA"))
        pixels = pixels.convert("L" if channels == 1 else "RGB")
        if pixels.size != (width, height):
            pixels = pixels.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(pixels, np.uint8).reshape(dataset.input_shape)


@contextlib.contextmanager
def _opened(path: pathlib.Path) -> Iterator[Image.Image]:
    """Opens an image file in one of `FORMATS`, with any suffix.

    Pillow's warnings are hidden because they may describe a private image.

    Raises:
        ValueError: if the image is broken or has more pixels than Pillow considers safe. The error
            is raised when the image is opened or when its pixels are read.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with Image.open(path, formats=FORMATS) as image:
                yield image
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            raise ValueError(
                f"the image has more than {Image.MAX_IMAGE_PIXELS:,} pixels: scale it down"
            ) from None
        except Exception:  # Pillow raises many types of exceptions
            raise ValueError(BROKEN) from None


def _facts(
    paths: Sequence[pathlib.Path], folder: pathlib.Path, size: tuple[int, int] | None
) -> tuple[tuple[int, int, int], float]:
    """Returns the common shape of public images, and their white level.

    The images are treated as colored if at least one image is colored. For images of more than 8
    bits, the white level is the smallest value in `WHITE_LEVELS` that is at least the largest pixel
    value. Broken images are ignored here and reported by `read_images`.
    """
    sizes = set[tuple[int, int]]()
    modes = set[str]()
    least = 0.0
    most = 0.0
    for path in paths:
        with contextlib.suppress(ValueError), _opened(path) as image:
            is_lying = image.getexif().get(ORIENTATION, 1) > 4
            sizes.add(image.size if is_lying else image.size[::-1])
            modes.add(image.mode)
            if image.mode.startswith(DEEP):
                pixels = np.asarray(image)
                least = min(least, float(pixels.min()))
                most = max(most, float(pixels.max()))
        if size is None and len(sizes) > 1:
            both = " and ".join(f"{height}x{width}" for height, width in sorted(sizes))
            raise ValueError(f"{folder}: images differ in size, such as {both}: set `image_size`")
    is_gray = all(mode in GRAY or mode.startswith(DEEP) for mode in modes)
    height, width = size or max(sizes, default=(1, 1))
    white_level = WHITE_LEVEL
    if most or least:
        white_level = next((level for level in WHITE_LEVELS if most <= level), most)
        below = f" and smaller ones black: add {-least:g} to all images to keep negative values"
        warnings.warn(
            f"{folder}: pixels of more than 8 bits are read from 0 (black) to {white_level:g} "
            f"(white), from the public images; larger values become white{below * (least < 0)}",
            stacklevel=3,
        )
    return (height, width, 1 if is_gray else 3), white_level
