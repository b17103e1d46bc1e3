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
    """Returns the public images of a folder.

    Those in a folder of a class's name have that label, those that lie loose have none. They come
    in the order of their paths, which for a pool with labels is that of classes: samples are put in
    a fixed order that has nothing to do with them.

    Args:
        folder: with the images.
        classes: the names of the classes, in the order of their numbers. Default: the names of the
            folders in it, sorted.
        augmentation: as of `Dataset`.

    Raises:
        ValueError: if there are no images, they differ in shape, or classes are not known.
    """
    found = _folders(folder)
    named = tuple(classes) if classes else tuple(sorted(found))
    if len(named) < 2:
        raise ValueError(
            f"{folder}: expected folders of at least 2 classes, or `classes`, got {len(named)}"
        )
    _check_known(found, named, folder)
    paths = [(path, UNKNOWN) for path in _images(folder)]
    for number, name in enumerate(named):
        paths += [(path, number) for path in _images(folder / name)] if name in found else []
    if not paths:
        raise ValueError(f"{folder}: expected images ({', '.join(SUFFIXES)}), got none")
    order = np.random.default_rng(0).permutation(len(paths))
    inputs = _read([paths[index][0] for index in order], None)
    labels = np.array([paths[index][1] for index in order], np.int64)
    dataset = Dataset(
        name=folder.resolve().name,
        kind="image",
        input_shape=inputs.shape[1:],
        value_range=(0.0, 255.0),
        num_classes=len(named),
        class_names=named,
        augmentation=augmentation,
        pool_size=pool_size(len(paths), has_labels=bool((labels != UNKNOWN).any())),
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
    dataset = public.dataset
    found = _folders(folder)
    _check_known(found, dataset.class_names, folder)
    paths = [
        (path, number)
        for number, name in enumerate(dataset.class_names)
        if name in found
        for path in _images(folder / name)
    ]
    if not paths:
        raise ValueError(f"{folder}: expected a folder of images for each class, got no image")
    paths.sort(key=lambda each: (each[0].name, each[1]))
    # A fixed order, so that what goes by position does not go by class where names do.
    order = np.random.default_rng(0).permutation(len(paths))
    return PrivateExamples(
        dataset,
        _read([paths[index][0] for index in order], dataset.input_shape),
        np.array([paths[index][1] for index in order], np.int64),
    )


def _folders(folder: pathlib.Path) -> set[str]:
    if not folder.is_dir():
        raise ValueError(f"{folder}: expected a folder of images, got none")
    return {one.name for one in folder.iterdir() if one.is_dir() and not one.name.startswith(".")}


def _check_known(found: set[str], classes: Sequence[str], folder: pathlib.Path) -> None:
    if found - set(classes):
        raise ValueError(
            f"{folder}: expected folders of the classes {', '.join(classes[:12])} alone, got "
            f"another"
        )


def _images(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(
        path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file()
    )


def _read(paths: Sequence[pathlib.Path], shape: tuple[int, ...] | None) -> npt.NDArray[np.uint8]:
    import tensorflow as tf

    images = []
    for path in paths:
        try:
            image = tf.io.decode_image(
                path.read_bytes(),
                channels=0 if shape is None else shape[-1],
                expand_animations=False,
            ).numpy()
        except (tf.errors.InvalidArgumentError, OSError):
            raise ValueError(f"{path.parent.parent}: expected images, got a broken one") from None
        shape = image.shape if shape is None else shape
        if image.shape != shape:
            raise ValueError(
                f"{path.parent.parent}: expected images {list(shape)} as the first public one, got "
                f"another shape; scale them before"
            )
        images.append(image)
    return np.stack(images)
