"""Data sets by the name that `--dataset` takes.

The two sides load apart: training a student never opens the private one.
"""

import pathlib
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.core.dataset import Dataset, to_input_type
from pate_tf.core.public import PublicExamples
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.source import PrivateSource
from pate_tf.data import uci
from pate_tf.data.named_function import call_function, is_named_function
from pate_tf.data.tfds_source import SOURCES, Source, errors_in_one_line, load_split, open_builder

NAMES = ("digits", *SOURCES, *uci.SCHEMAS)
PUBLIC_SPLITS = ("test", "validation")  # the first that there is
POOL_SHARE = 0.9  # of the public samples; the rest evaluates the student


# UCI's handwritten digits, embedded in scikit-learn: 1,797 gray images of 8 x 8 pixels.
NUM_PRIVATE = 1_200
DIGITS = Dataset(
    name="digits",
    kind="image",
    input_shape=(8, 8, 1),
    value_range=(0.0, 16.0),
    num_classes=10,
    class_names=tuple(str(digit) for digit in range(10)),
    augmentation="affine",
    pool_size=400,
)


def load_private(
    name: str, *, data_dir: pathlib.Path | None = None, svhn_extra: bool = True
) -> PrivateExamples:
    """Returns the labeled records that the teachers share out among themselves.

    Args:
        name: one of `NAMES`; any name that TensorFlow Datasets knows or finds in `data_dir`; or
            `module:function`. The function is called as `function("private", data_dir)` or
            `function("public", data_dir)` and returns a `Dataset`, the same for both, the inputs
            `[num_examples, *input_shape]` and the labels `[num_examples]`. It must not look at
            private records to prepare public ones, nor scale a record by others. Public labels
            serve evaluation and the choice of a table's representation: it may return the first
            two without them, None in their place, or -1 for each sample that has none.
        data_dir: where TensorFlow Datasets keeps prepared data; None for its default. Raw files of
            `uci.SCHEMAS` may lie in a folder of the table's name below it.
        svhn_extra: whether SVHN's extra split is shared out too, or its train split alone.

    Raises:
        ValueError: if the name is unknown, the data can't be had, or what a function returns does
            not fit together.
    """
    dataset, inputs, labels = _load(name, data_dir, public=False, svhn_extra=svhn_extra)
    return PrivateExamples(dataset, inputs, labels, source=PrivateSource.named(dataset.name))


def load_public(name: str, *, data_dir: pathlib.Path | None = None) -> PublicExamples:
    """Returns the samples that hold the student's pool; arguments and errors as above."""
    return PublicExamples(*_load(name, data_dir, public=True))


def load_dataset(name: str, *, data_dir: pathlib.Path | None = None) -> Dataset:
    """Returns what is publicly known of a data set; samples are loaded where nothing else tells.

    Arguments and errors as of `load_public`.
    """
    if is_named_function(name):
        return load_public(name, data_dir=data_dir).dataset
    if name == DIGITS.name:
        return DIGITS
    if name in uci.SCHEMAS:
        return uci.SCHEMAS[name].dataset(name, 1)
    return _source(name, data_dir).dataset


def _load(
    name: str, data_dir: pathlib.Path | None, *, public: bool, svhn_extra: bool = True
) -> tuple[Dataset, npt.NDArray[Any], Any]:
    """Returns a data set, and inputs and labels of one of its sides."""
    if is_named_function(name):
        return _from_function(name, "public" if public else "private", data_dir)
    if name == DIGITS.name:
        from sklearn.datasets import load_digits

        archive = load_digits()
        # In one fixed shuffled order: the archive's is by writer.
        side = slice(NUM_PRIVATE, None) if public else slice(NUM_PRIVATE)
        order = np.random.default_rng(0).permutation(len(archive.target))[side]
        inputs = archive.images[order].astype(np.uint8)[..., np.newaxis]
        return DIGITS, inputs, archive.target[order].astype(np.int64)
    if name in uci.SCHEMAS:
        try:
            return uci.SCHEMAS[name].dataset(name, 1), *uci.load(name, data_dir, public=public)
        except (OSError, ValueError) as error:
            raise ValueError(f"dataset {name}: {error}") from error
    source = _source(name, data_dir)
    split = source.public_split if public else source.private_split
    if name == "svhn" and not (public or svhn_extra):
        split = "train"
    return source.dataset, *load_split(source, split, data_dir)


def check_name(name: str, data_dir: pathlib.Path | None) -> None:
    """Raises ValueError unless a data set has a name that `load_private` takes."""
    if name in NAMES or is_named_function(name):
        return
    import tensorflow_datasets as tfds

    builder = name.partition("/")[0]
    is_prepared = data_dir is not None and (data_dir / builder).is_dir()
    if not is_prepared and builder not in tfds.list_builders(with_community_datasets=False):
        raise ValueError(
            f"dataset: expected one of {', '.join(NAMES)}, a name of TensorFlow Datasets or "
            f"module:function, got {name!r}"
        )


def _source(name: str, data_dir: pathlib.Path | None) -> Source:
    """Returns where TFDS has a data set, one of `SOURCES` or by its public metadata alone.

    It needs supervised keys whose label is a `ClassLabel` and whose input is an image of one shape
    or a vector of numbers, and a split "train" and one named "test" or "validation". Vectors are
    not scaled for Keras models (forests need no scale): nothing public says by what.

    Raises:
        ValueError: if it is unknown, can't be had, or is of another form.
    """
    if name in SOURCES:
        return SOURCES[name]
    check_name(name, data_dir)
    with errors_in_one_line(name, data_dir):
        info = open_builder(name, data_dir).info
        features = dict(info.features)
        public = [split for split in PUBLIC_SPLITS if split in info.splits]
    keys: tuple[str, ...] = info.supervised_keys or ()
    if len(keys) != 2 or not hasattr(features[keys[1]], "num_classes"):
        raise ValueError(
            f"dataset {name}: expected an input and a ClassLabel as supervised keys, got {keys}"
        )
    input_name, label_name = keys
    if "train" not in info.splits or not public:
        raise ValueError(
            f"dataset {name}: expected splits train and {' or '.join(PUBLIC_SPLITS)}, got "
            f"{', '.join(info.splits)}"
        )
    specification, classes = features[input_name], features[label_name]
    shape, dtype = specification.shape, np.dtype(specification.np_dtype)
    is_image = type(specification).__name__ == "Image" and dtype == np.uint8
    is_vector = len(shape) == 1 and dtype.kind in "uif"
    if None in shape or not (is_image or is_vector):
        raise ValueError(
            f"dataset {name}: expected images of one shape or vectors of numbers, got {input_name} "
            f"{dtype} of shape {list(shape)}"
        )
    dataset = Dataset(
        name="-".join(info.full_name.split("/")[:-1]),  # all but the version
        kind="image" if is_image else "tabular",
        input_shape=tuple(shape),
        value_range=(0.0, 255.0) if is_image else (0.0, 1.0),
        num_classes=classes.num_classes,
        class_names=tuple(classes.names),
        pool_size=max(1, int(POOL_SHARE * info.splits[public[0]].num_examples)),
    )
    return Source(
        dataset=dataset,
        builder=name,
        public_split=public[0],
        input_name=input_name,
        label_name=label_name,
    )


def _from_function(
    name: str, side: str, data_dir: pathlib.Path | None
) -> tuple[Dataset, npt.NDArray[Any], Any]:
    returned = call_function(name, side, data_dir, flag="dataset", is_private=side == "private")
    if isinstance(returned, tuple) and len(returned) == 2:
        returned = (*returned, None)
    if (
        not isinstance(returned, tuple)
        or len(returned) != 3
        or not isinstance(returned[0], Dataset)
    ):
        raise ValueError(
            f"dataset: expected a Dataset, inputs and labels from {name}({side!r}, data_dir), got "
            f"{type(returned).__name__}"
        )
    dataset, inputs, labels = returned
    if side == "private" and labels is None:
        raise ValueError(f"dataset: expected labels of the private records from {name}, got none")
    return dataset, to_input_type(inputs, dataset, "dataset"), labels
