"""Image data sets that TensorFlow Datasets knows: train is private, test is public."""

import dataclasses
import pathlib

from pate_tf.data.tfds_source import Source, load_split
from pate_tf.values.dataset import Dataset
from pate_tf.values.public import PublicExamples
from pate_tf.values.sensitive import PrivateExamples

_DIGITS = tuple(str(digit) for digit in range(10))

MNIST = Dataset(
    name="mnist",
    kind="image",
    input_shape=(28, 28, 1),
    value_range=(0.0, 255.0),
    num_classes=10,
    class_names=_DIGITS,
    augmentation="affine",
    pool_size=9_000,
)
SVHN = Dataset(
    name="svhn",
    kind="image",
    input_shape=(32, 32, 3),
    value_range=(0.0, 255.0),
    num_classes=10,
    class_names=_DIGITS,  # TFDS gives digit 0 the label 0, where the original files give it 10
    augmentation="affine",
    pool_size=10_000,
)
CIFAR10 = Dataset(
    name="cifar10",
    kind="image",
    input_shape=(32, 32, 3),
    value_range=(0.0, 255.0),
    num_classes=10,
    class_names=(
        *("airplane", "automobile", "bird", "cat", "deer"),
        *("dog", "frog", "horse", "ship", "truck"),
    ),
    augmentation="flip",
    pool_size=9_000,
)

SOURCES = {
    "mnist": Source(dataset=MNIST, builder="mnist"),
    "svhn": Source(dataset=SVHN, builder="svhn_cropped", private_split="train+extra"),
    "cifar10": Source(dataset=CIFAR10, builder="cifar10"),
}


def load_private(
    name: str, data_dir: pathlib.Path | None, *, svhn_extra: bool = True
) -> PrivateExamples:
    """Returns the private side of one of `SOURCES`.

    Args:
      name: of the data set.
      data_dir: as in `load_split`.
      svhn_extra: whether SVHN's extra split is shared out too, or its train split alone.

    Raises:
      ValueError: if the data can't be had, or are broken.
    """
    source = SOURCES[name]
    if name == "svhn" and not svhn_extra:
        source = dataclasses.replace(source, private_split="train")
    return PrivateExamples(source.dataset, *load_split(source, source.private_split, data_dir))


def load_public(name: str, data_dir: pathlib.Path | None) -> PublicExamples:
    """Returns the public side of one of `SOURCES`; errors as above."""
    source = SOURCES[name]
    return PublicExamples(source.dataset, *load_split(source, source.public_split, data_dir))
