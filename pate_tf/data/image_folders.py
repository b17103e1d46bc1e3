"""Images in folders: one folder a class on the private side; public images need no class.

What is known of all images, their shape and the names of the classes, is read off the public side
or stated, never off the private one.
"""

import contextlib
import pathlib
import re
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps

from pate_tf.core.dataset import IMAGE_AUGMENTATION, Dataset
from pate_tf.core.public import UNKNOWN, PublicExamples
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.data.tables import pool_size

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp")
FORMATS = ("PNG", "JPEG", "BMP")
GRAY = ("1", "L", "LA")
ORIENTATION = 0x0112  # of EXIF; above 4 the image lies on its side
LARGEST = 4096  # of a side
BROKEN = "expected images, got a broken one"


def size_of(text: str | None) -> tuple[int, int] | None:
    """Returns height and width that "64" (both) or "48x64" says; None for None.

    Raises:
        ValueError: if it says neither, or a side is not from 1 to 4,096.
    """
    if text is None:
        return None
    parts = re.fullmatch(r"(\d{1,4})(?:x(\d{1,4}))?", text)
    sides = [int(side) for side in parts.groups(default=parts[1])] if parts else [0]
    if not all(1 <= side <= LARGEST for side in sides):
        raise ValueError(
            f"image_size: expected a side or HEIGHTxWIDTH from 1 to {LARGEST}, got {text!r}"
        )
    return sides[0], sides[1]


def load_public(
    folder: pathlib.Path,
    *,
    classes: Sequence[str] | None = None,
    augmentation: str = IMAGE_AUGMENTATION,
    name: str | None = None,
    size: tuple[int, int] | None = None,
) -> PublicExamples:
    """Returns the public images of a folder, in a fixed order that has nothing to do with labels.

    Those in a folder of a class's name have that label, those outside of such folders have none.

    Args:
        folder: with the images.
        classes: the names of the classes, in the order of their numbers. Default: the names of the
            folders in it, sorted.
        augmentation: as of `Dataset`.
        name: of the data set. Default: the folder's.
        size: height and width that all images are scaled to, private ones too. Default: that of the
            public images.

    Raises:
        ValueError: if there are no images, they differ in size without `size`, or classes are not
            known.
    """
    names = tuple(classes) if classes else tuple(sorted(_folders(folder)))
    if len(names) < 2:
        raise ValueError(
            f"{folder}: expected folders of at least 2 classes, or `classes`, got {len(names)}"
        )
    paths = _image_paths(folder, names, has_unlabelled=True)
    shape = _shape([path for path, _ in paths], folder, size)
    inputs, labels = _read(paths, folder, shape=shape)
    dataset = Dataset(
        name=name or folder.resolve().name,
        kind="image",
        input_shape=shape,
        value_range=(0.0, 255.0),
        num_classes=len(names),
        class_names=names,
        augmentation=augmentation,
        pool_size=pool_size(len(labels), has_labels=bool((labels != UNKNOWN).any())),
    )
    return PublicExamples(dataset, inputs, labels)


def load_private(folder: pathlib.Path, public: PublicExamples) -> PrivateExamples:
    """SENSITIVE: returns the private images of a folder that has a folder for each class.

    An image's place among them follows from its file's name and not from its class: an image that
    is replaced by one of the same name and another class moves no other one. Each is scaled to the
    public images' size, and gets their channels.

    Args:
        folder: with the folders.
        public: whose data set this is.

    Raises:
        ValueError: if there are no images, one is broken, or a folder has the name of no class. The
            message names no class and no file.
    """
    paths = _image_paths(folder, public.dataset.class_names)
    paths.sort(key=lambda each: (each[0].name, each[1]))
    if not paths:
        raise ValueError(f"{folder}: expected images ({', '.join(SUFFIXES)}), got none")
    height, width, channels = public.dataset.input_shape
    return PrivateExamples(public.dataset, *_read(paths, folder, shape=(height, width, channels)))


def _folders(folder: pathlib.Path) -> set[str]:
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder of images, got none")
    return {
        path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith(".")
    }


def _image_paths(
    folder: pathlib.Path, classes: Sequence[str], *, has_unlabelled: bool = False
) -> list[tuple[pathlib.Path, int]]:
    """Returns images and the numbers of their classes; those beside the folders are unlabelled."""
    names = _folders(folder)
    if names - set(classes):
        raise ValueError(
            f"{folder}: expected folders of the classes {', '.join(classes[:12])} alone, got "
            f"another"
        )
    places = [(folder / name, number) for number, name in enumerate(classes) if name in names]
    if has_unlabelled:
        places.insert(0, (folder, UNKNOWN))
    return [
        (path, number)
        for place, number in places
        for path in sorted(place.iterdir())
        if path.suffix.lower() in SUFFIXES and path.is_file()
    ]


def _read(
    paths: Sequence[tuple[pathlib.Path, int]], folder: pathlib.Path, *, shape: tuple[int, int, int]
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Returns images and labels in a fixed order: what goes by position does not go by class."""
    images, labels = [], []
    for index in np.random.default_rng(0).permutation(len(paths)):
        path, label = paths[index]
        images.append(read_image(path, shape, str(folder)))
        labels.append(label)
    return np.stack(images), np.array(labels, np.int64)


def read_image(path: pathlib.Path, shape: tuple[int, int, int], what: str) -> npt.NDArray[np.uint8]:
    """Returns an image as pixels uint8 `shape`, which is height, width and 1 or 3 channels.

    It is turned as its EXIF entry says, made gray or coloured, without transparency, and scaled to
    height and width by Pillow's bilinear filter, which averages where an image becomes smaller.

    Args:
        path: PNG, JPEG or BMP.
        shape: of all images.
        what: begins the message.

    Raises:
        ValueError: if it is broken. The message does not name it.
    """
    height, width, channels = shape
    with _opened(path, what) as image:
        pixels = ImageOps.exif_transpose(image)
        if pixels.mode.startswith("I"):  # of 16 bits
            pixels = Image.fromarray((np.asarray(pixels) >> 8).astype(np.uint8))
        pixels = pixels.convert("L" if channels == 1 else "RGB")
    if pixels.size != (width, height):
        pixels = pixels.resize((width, height), Image.Resampling.BILINEAR)
    return np.asarray(pixels, np.uint8).reshape(shape)


@contextlib.contextmanager
def _opened(path: pathlib.Path, what: str) -> Iterator[Image.Image]:
    """Opens a file of one of `FORMATS`, whatever its name says; ValueError if it is broken."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            yield image
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError):
        raise ValueError(f"{what}: {BROKEN}") from None


def _shape(
    paths: Sequence[pathlib.Path], folder: pathlib.Path, size: tuple[int, int] | None
) -> tuple[int, int, int]:
    """Returns height, width and channels of public images, colours if one of them has some."""
    if not paths:
        raise ValueError(f"{folder}: expected images ({', '.join(SUFFIXES)}), got none")
    sizes, modes = set(), set()
    for path in paths:
        with _opened(path, str(folder)) as image:
            is_lying = image.getexif().get(ORIENTATION, 1) > 4
            sizes.add(image.size if is_lying else image.size[::-1])
            modes.add(image.mode)
        if size is None and len(sizes) > 1:
            both = " and ".join(f"{height}x{width}" for height, width in sorted(sizes))
            raise ValueError(
                f"{folder}: expected images of one size, got {both}; `image_size` scales all to one"
            )
    is_gray = all(mode in GRAY or mode.startswith("I") for mode in modes)
    return *(size or sizes.pop()), 1 if is_gray else 3
