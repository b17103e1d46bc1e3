"""Images in folders: one folder a class on the private side; public images need no class.

What is known of all images, their shape and the names of the classes, is read off the public side
or stated, never off the private one.
"""

import pathlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pate_tf.core.dataset import IMAGE_AUGMENTATION, Dataset
from pate_tf.core.public import UNKNOWN, PublicExamples
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.data.tables import pool_size

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp")


def load_public(
    folder: pathlib.Path,
    *,
    classes: Sequence[str] | None = None,
    augmentation: str = IMAGE_AUGMENTATION,
) -> PublicExamples:
    """Returns the public images of a folder, in a fixed order that has nothing to do with labels.

    Those in a folder of a class's name have that label, those outside of such folders have none.

    Args:
        folder: with the images.
        classes: the names of the classes, in the order of their numbers. Default: the names of the
            folders in it, sorted.
        augmentation: as of `Dataset`.

    Raises:
        ValueError: if there are no images, they differ in shape, or classes are not known.
    """
    names = tuple(classes) if classes else tuple(sorted(_folders(folder)))
    if len(names) < 2:
        raise ValueError(
            f"{folder}: expected folders of at least 2 classes, or `classes`, got {len(names)}"
        )
    labelled = _labelled_paths(folder, names)
    inputs, labels = _read([*((path, UNKNOWN) for path in _images(folder)), *labelled], folder)
    dataset = Dataset(
        name=folder.resolve().name,
        kind="image",
        input_shape=inputs.shape[1:],
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
    is replaced by one of the same name and another class moves no other one.

    Args:
        folder: with the folders.
        public: whose data set this is.

    Raises:
        ValueError: if there are no images, one has another shape than the public ones, or a folder
            has the name of no class. The message names no class and no file.
    """
    paths = _labelled_paths(folder, public.dataset.class_names)
    paths.sort(key=lambda each: (each[0].name, each[1]))
    return PrivateExamples(public.dataset, *_read(paths, folder, shape=public.dataset.input_shape))


def _folders(folder: pathlib.Path) -> set[str]:
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder of images, got none")
    return {one.name for one in folder.iterdir() if one.is_dir() and not one.name.startswith(".")}


def _labelled_paths(folder: pathlib.Path, classes: Sequence[str]) -> list[tuple[pathlib.Path, int]]:
    names = _folders(folder)
    if names - set(classes):
        raise ValueError(
            f"{folder}: expected folders of the classes {', '.join(classes[:12])} alone, got "
            f"another"
        )
    return [
        (path, number)
        for number, name in enumerate(classes)
        if name in names
        for path in _images(folder / name)
    ]


def _images(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(
        path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file()
    )


def _read(
    paths: Sequence[tuple[pathlib.Path, int]],
    folder: pathlib.Path,
    *,
    shape: tuple[int, ...] | None = None,
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Returns images and labels in a fixed order: what goes by position does not go by class."""
    import tensorflow as tf

    if not paths:
        raise ValueError(f"{folder}: expected images ({', '.join(SUFFIXES)}), got none")
    images, labels = [], []
    for index in np.random.default_rng(0).permutation(len(paths)):
        path, label = paths[index]
        try:
            image = tf.io.decode_image(
                path.read_bytes(),
                channels=0 if shape is None else shape[-1],
                expand_animations=False,
            ).numpy()
        except (tf.errors.InvalidArgumentError, OSError):
            raise ValueError(f"{folder}: expected images, got a broken one") from None
        shape = image.shape if shape is None else shape
        if image.shape != shape:
            raise ValueError(
                f"{folder}: expected images {list(shape)} as the first public one, got another "
                f"shape; scale them before"
            )
        images.append(image)
        labels.append(label)
    return np.stack(images), np.array(labels, np.int64)
