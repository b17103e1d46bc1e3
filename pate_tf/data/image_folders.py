"""Images in folders: one folder a class on the private side; public images need no class.

What is known of all images, their shape and the names of the classes, is read off the public side
or stated, never off the private one.
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
# What systems leave beside images.
PASSED_OVER: Final = re.compile(r"\..*|thumbs\.db|desktop\.ini|__macosx", re.IGNORECASE)
NO_CLASSES: Final = re.compile(r"(?i)(train|test)(ing)?|val(id(ation)?)?|(image|img|mask|label)s?")
NO_IMAGES: Final = "; files that are no images, such as .npz and labels in .csv, are not read"
# What names a mask: a folder below that of a class, or the end of a name beside that of its image.
MASKS: Final = re.compile(r"(?i)masks?|segmentations?|annotations?")
MASK_OF: Final = re.compile(
    r"(?i)(.+?)[ _.-](masks?|segmentations?|annotations?|seg|gt)([ _.-]?\d+)?"
)
GRAY: Final = ("1", "L", "LA")
DEEP: Final = ("I", "F")  # modes of more than 8 bits, by how they begin
WHITE_LEVELS: Final = (1.0, *(2.0**bits - 1.0 for bits in range(8, 33, 2)))
ORIENTATION: Final = 0x0112  # of EXIF; above 4 the image lies on its side
LARGEST: Final = 4096  # of a side
BROKEN: Final = "expected an image, got a broken one"


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
    folder: pathlib.Path | None,
    beside: pathlib.Path | None = None,
    *,
    classes: Sequence[str] | None = None,
    augmentation: str = IMAGE_AUGMENTATION,
    name: str | None = None,
    size: tuple[int, int] | None = None,
    background: str = BACKGROUND,
    on_bad_record: str = REFUSE,
) -> PublicExamples:
    """Returns the public images of a folder, in a fixed order that has nothing to do with labels.

    Those below a folder of a class's name have that label, those outside of such folders have none.

    Without a folder there are none, of a data set that is declared: gray ones of a size. Of the
    private folder the names of the folders in it are read alone then, which are public: as empty
    ones count too, they do not depend on any image.

    Args:
        folder: with the images; None for none.
        beside: the PRIVATE folder beside it, which must be named where there is no other.
        classes: the names of the classes, in the order of their numbers. Default: the names of the
            folders in it, sorted.
        augmentation: as of `Dataset`.
        name: of the data set. Default: the folder's.
        size: height and width that all images are scaled to, private ones too. Default: that of the
            public images.
        background: color of `BACKGROUNDS` that transparent images are laid on, private ones too.
        on_bad_record: "refuse" if a private folder beside public images is an error by its names
            alone, before any image is decoded; "skip" if it is not looked at.

    Raises:
        ValueError: if there are no images, some are broken (which are named), all are alike, they
            differ in size without `size`, or classes are not known.
    """
    place = folder or beside
    if place is None or (folder is None and size is None):
        raise ValueError("image_size: expected a size of all images without public ones, got none")
    names = tuple(classes or _class_names(place))
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
    if beside is not None and on_bad_record == REFUSE:
        _placed(beside, names, is_private=True)
    shape, white_level = _facts(paths, folder, size)
    number = pool_size(len(labels), has_labels=bool((labels != UNKNOWN).any()))
    dataset = dataclasses.replace(
        dataset, input_shape=shape, white_level=white_level, pool_size=number
    )
    inputs, broken = read_images(paths, dataset)
    _refuse(folder, broken, is_private=False)
    if len(inputs) > 1 and all(np.array_equal(image, inputs[0]) for image in inputs):
        raise ValueError(
            f"{folder}: expected images that differ, got {len(inputs):,} that are all alike, with "
            f"{background} where they are transparent; `background` names another color"
        )
    return PublicExamples(dataset, inputs, labels)


def load_private(
    folder: pathlib.Path, public: PublicExamples, *, on_bad_record: str = REFUSE
) -> PrivateExamples:
    """SENSITIVE: returns the private images of a folder that has a folder for each class.

    An image's place among them follows from its file's name and not from its class: an image that
    is replaced by one of the same name and another class moves no other one. Each is read by the
    rules of the public images: their size, channels and white level.

    Args:
        folder: with the folders.
        public: whose data set this is.
        on_bad_record: "refuse" if an image that is broken, or in no folder of a class, is an error;
            "skip" if it is left out, by itself alone. Each image is an owner then, its place in the
            order of all, as of `TextTable.private`.

    Raises:
        ValueError: if there are no images, or some are refused. The message names no class and no
            file.
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
            f"{folder}: {len(paths) - len(kept):,} images are broken, too large or in no folder of "
            "a class and are left out",
            stacklevel=4,
        )
    if not len(kept):
        raise ValueError(f"{folder}: expected at least one image of a class, got none")
    return PrivateExamples(dataset, inputs[kept], labels[kept], kept)


def image_files(folder: pathlib.Path) -> tuple[list[pathlib.Path], list[pathlib.Path]]:
    """Returns the images in a folder and below, by their suffixes, and the other files, sorted.

    What systems leave beside images, such as `Thumbs.db` and `._x.png`, is passed over.

    Raises:
        ValueError: if there is no such folder.
    """
    below = (path for place in _folders(folder) for path in (folder / place).rglob("*"))
    images = list[pathlib.Path]()
    others = list[pathlib.Path]()
    for path in sorted([*folder.iterdir(), *below]):
        is_passed_over = any(map(PASSED_OVER.fullmatch, path.relative_to(folder).parts))
        if (path.is_file() or not path.exists()) and not is_passed_over:  # a link to nowhere too
            (images if path.suffix.lower() in SUFFIXES else others).append(path)
    return images, others


def _folders(folder: pathlib.Path) -> list[str]:
    """Returns the names of the folders in a folder, sorted; ValueError if it is none."""
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder of images, got none")
    paths = (path for path in folder.iterdir() if not PASSED_OVER.fullmatch(path.name))
    return sorted(path.name for path in paths if path.is_dir())


def _class_names(folder: pathlib.Path) -> list[str]:
    """Returns the folders in a public folder; ValueError if they are no classes."""
    names = _folders(folder)
    if len(names) >= 2 and not all(map(NO_CLASSES.fullmatch, names)):
        return names
    deeper = [folder / name for name in names if len(_folders(folder / name)) > 1]
    raise ValueError(
        f"{folder}: expected folders of at least 2 classes, or `classes`, got "
        f"{' and '.join(names) or 'none'}"
        + (f"; name {deeper[0]}" if deeper else NO_IMAGES * bool(image_files(folder)[1]))
    )


def _check_masks(
    folder: pathlib.Path, images: Sequence[pathlib.Path], *, is_private: bool, on_bad_record: str
) -> None:
    """Raises ValueError, or warns where bad records are skipped, if names say masks of images."""
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
        f"{folder}: expected one image of each record, got {len(masks):,} masks ({which}), which "
        f"would be records of their own: move them out of the folder"
    )
    if on_bad_record == REFUSE:
        raise ValueError(text)
    warn_holder(text, stacklevel=5)


def _placed(
    folder: pathlib.Path, classes: Sequence[str], *, is_private: bool, on_bad_record: str = REFUSE
) -> tuple[list[pathlib.Path], npt.NDArray[np.int64]]:
    """Returns images, and the numbers of their classes, `UNKNOWN` outside of their folders.

    The order is fixed: by what follows the class in their paths, then permuted, as what goes by
    position must not go by class. Files that are no images are named, private ones counted.

    Raises:
        ValueError: if there is no image; unless bad records are skipped, if there is a folder of
            no class, a private image outside of the folders, or a mask beside its image. The
            message names public images alone.
    """
    strange = set(_folders(folder)) - set(classes)
    if strange and on_bad_record == REFUSE:
        is_deeper = any(set(_folders(folder / name)) & set(classes) for name in strange)
        raise ValueError(
            f"{folder}: expected folders of the classes {', '.join(classes[:12])} alone, got "
            f"another" + (", which has such folders: name that one" if is_deeper else "")
        )
    images, others = image_files(folder)
    if others:
        name = "" if is_private else f", such as {others[0].relative_to(folder)}"
        text = f"{folder}: {len(others):,} files are no images and are left out{name}"
        warn_holder(text, is_private=is_private, stacklevel=4)
    if not images:
        raise ValueError(
            f"{folder}: expected images ({', '.join(SUFFIXES)}), got none{NO_IMAGES * bool(others)}"
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
        raise ValueError(f"{folder}: expected images in folders of their classes, got others")
    return paths, labels


def _refuse(folder: pathlib.Path, faults: Mapping[pathlib.Path, str], *, is_private: bool) -> None:
    """Raises ValueError with what is wrong with public images, and the number of private ones.

    It does nothing where there are none.
    """
    if faults and is_private:
        raise ValueError(
            f"{folder}: expected images, got {len(faults):,} broken or too large ones "
            f"(this number is sensitive)"
        )
    texts = [f"{path.relative_to(folder)}: {fault}" for path, fault in sorted(faults.items())]
    raise_all(str(folder), texts)


def read_images(
    paths: Sequence[pathlib.Path], dataset: Dataset
) -> tuple[npt.NDArray[np.uint8], dict[pathlib.Path, str]]:
    """Returns images uint8 `[num_images, *input_shape]`, and what is wrong with those refused."""
    images = np.empty((len(paths), *dataset.input_shape), np.uint8)
    faults = dict[pathlib.Path, str]()
    for place, path in enumerate(paths):
        try:
            images[place] = read_image(path, dataset)
        except ValueError as error:
            faults[path] = str(error)
    return images, faults


def read_image(path: pathlib.Path, dataset: Dataset) -> npt.NDArray[np.uint8]:
    """Returns an image, the first one of a file, as pixels uint8 `input_shape`.

    It is turned as its EXIF entry says, laid on a background where it is transparent, scaled
    to the white level where it has more than 8 bits, made gray or colored, and scaled to
    height and width by Pillow's bilinear filter, which averages where an image becomes smaller.

    Args:
        path: of one of `FORMATS`.
        dataset: says shape, white level and background.

    Raises:
        ValueError: if it is broken. The message does not name it.
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
    """Opens a file of one of `FORMATS`, whatever its name says.

    Pillow's warnings are not shown, as they may describe a private image.

    Raises:
        ValueError: if it is broken, also while it is read, or has more pixels than Pillow takes
            for safe; the message says which.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        try:
            with Image.open(path, formats=FORMATS) as image:
                yield image
        except (Image.DecompressionBombError, Image.DecompressionBombWarning):
            raise ValueError(
                f"expected an image of at most {Image.MAX_IMAGE_PIXELS:,} pixels, got a larger "
                f"one: scale it down"
            ) from None
        except Exception:  # of many kinds, by what is broken
            raise ValueError(BROKEN) from None


def _facts(
    paths: Sequence[pathlib.Path], folder: pathlib.Path, size: tuple[int, int] | None
) -> tuple[tuple[int, int, int], float]:
    """Returns the shape of public images, colors if one of them has some, and their white level.

    The white level is the largest value of the fewest bits, 8, 10, 12, ..., that hold all values.
    Broken images are left out, as reading names them.
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
            raise ValueError(
                f"{folder}: expected images of one size, got {both}; `image_size` scales all to one"
            )
    is_gray = all(mode in GRAY or mode.startswith(DEEP) for mode in modes)
    height, width = size or max(sizes, default=(1, 1))
    white_level = WHITE_LEVEL
    if most or least:
        white_level = next((level for level in WHITE_LEVELS if most <= level), most)
        below = f", and those below 0 black: add {-least:g} to all images to keep them"
        warnings.warn(
            f"{folder}: pixels of more than 8 bits are read from 0 to {white_level:g}, as public "
            f"ones use; larger ones are white{below * (least < 0)}",
            stacklevel=3,
        )
    return (height, width, 1 if is_gray else 3), white_level
