"""Data sets by the name that `--dataset` takes.

The two sides load apart: whoever trains a student never opens the private one.
"""

import pathlib

from pate_tf.data import digits, tfds_images, user_data
from pate_tf.data.named_function import is_named_function
from pate_tf.data.tfds_source import Source, load_split
from pate_tf.values.dataset import Dataset
from pate_tf.values.public import PublicExamples
from pate_tf.values.sensitive import PrivateExamples

TABLES = ("adult", "diabetes")
NAMES = ("digits", *tfds_images.SOURCES, *TABLES)


def load_private(
    name: str, *, data_dir: pathlib.Path | None = None, svhn_extra: bool = True
) -> PrivateExamples:
    """Returns the labelled records that the teachers share out among themselves.

    Args:
      name: one of `NAMES`, `module:function` for a function of the user's own (see
        `user_data.load_private_from_function`), or any name that TensorFlow Datasets knows or
        finds in `data_dir`.
      data_dir: where TensorFlow Datasets keeps prepared data; None for its default. Raw files of
        `TABLES` may lie in a folder of the table's name below it.
      svhn_extra: whether SVHN's extra split is shared out too, or its train split alone.

    Raises:
      ValueError: if the name is unknown or the data can't be had.
    """
    if name == "digits":
        return digits.load_private()
    if name in tfds_images.SOURCES:
        return tfds_images.load_private(name, data_dir, svhn_extra=svhn_extra)
    if is_named_function(name):
        return user_data.load_private_from_function(name, data_dir)
    source = _source(name, data_dir)
    return PrivateExamples(source.dataset, *load_split(source, source.private_split, data_dir))


def load_public(name: str, *, data_dir: pathlib.Path | None = None) -> PublicExamples:
    """Returns the samples that hold the student's pool; arguments and errors as above."""
    if name == "digits":
        return digits.load_public()
    if name in tfds_images.SOURCES:
        return tfds_images.load_public(name, data_dir)
    if is_named_function(name):
        return user_data.load_public_from_function(name, data_dir)
    source = _source(name, data_dir)
    return PublicExamples(source.dataset, *load_split(source, source.public_split, data_dir))


def load_dataset(name: str, *, data_dir: pathlib.Path | None = None) -> Dataset:
    """Returns what is publicly known of a data set; samples are loaded where nothing else tells.

    Arguments and errors as of `load_public`.
    """
    if name == "digits":
        return digits.DIGITS
    if name in tfds_images.SOURCES:
        return tfds_images.SOURCES[name].dataset
    if is_named_function(name):
        return load_public(name, data_dir=data_dir).dataset
    return _source(name, data_dir).dataset


def _source(name: str, data_dir: pathlib.Path | None) -> Source:
    # The builders import TFDS, which takes seconds: only when it is needed.
    if name == "adult":
        from pate_tf.data import adult

        return Source(
            dataset=adult.ADULT, builder=name, input_name="features", raw_files=adult.FILES
        )
    if name == "diabetes":
        from pate_tf.data import diabetes

        return Source(
            dataset=diabetes.DIABETES, builder=name, input_name="features", raw_files=diabetes.FILES
        )
    if not user_data.exists_in_tfds(name, data_dir):
        raise ValueError(
            f"dataset: expected one of {', '.join(NAMES)}, a name of TensorFlow Datasets or "
            f"module:function, got {name!r}"
        )
    return user_data.tfds_source(name, data_dir)
