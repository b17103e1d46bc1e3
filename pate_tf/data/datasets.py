"""Loads data sets by the names that `--dataset` accepts.

Private and public data are loaded separately, so the training of a student never opens the private
data.
"""

import contextlib
import dataclasses
import hashlib
import io
import logging
import math
import pathlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts, checks
from pate_tf.core.dataset import Dataset, to_input_type
from pate_tf.core.public import PublicExamples
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.source import PrivateSource
from pate_tf.data.named_function import call_function, is_named_function

MAX_IN_MEMORY = 2**28  # bytes; larger inputs of a split are memory-mapped
RETRIES = 3  # attempts of a download; the pause between attempts starts at 0.4 s and doubles
STREAMED_BATCH = 250  # number of examples per batch

Arrays = tuple[npt.NDArray[Any], npt.NDArray[np.int64]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Defines which splits of a TFDS data set are private and public.

    Attributes:
        dataset: public facts about the data.
        builder: name of the data set in TFDS.
        private_split: name of the split with the private records.
        public_split: name of the split with the public samples.
        input_name: name of the input feature.
        label_name: name of the label feature.
    """

    dataset: Dataset
    builder: str
    private_split: str = "train"
    public_split: str = "test"
    input_name: str = "image"
    label_name: str = "label"


@contextlib.contextmanager
def errors_in_one_line(name: str, data_dir: pathlib.Path | None) -> Iterator[None]:
    """Converts every exception of TFDS to a `ValueError` with a one-line message."""
    try:
        yield
    except Exception as error:  # TFDS, TensorFlow and network code raise many types of exceptions
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ValueError(
            f"dataset {name}: TensorFlow Datasets can neither find it in "
            f"{data_dir or 'its default data_dir'} nor download it: {reason}"
        ) from error


def open_builder(name: str, data_dir: pathlib.Path | None) -> Any:
    """Returns the TFDS builder of a data set; downloads the data if they are missing."""
    with contextlib.redirect_stdout(io.StringIO()):  # hides the output of TFDS
        import tensorflow_datasets as tfds
        from tensorflow_datasets.core.download import downloader

        if not sys.stderr.isatty():
            tfds.disable_progress_bar()
        builder = tfds.builder(name, data_dir=data_dir)
        # With these settings, a download without a network fails after seconds instead of minutes,
        # and logs no warning for each attempt. The log level is not restored, because threads of a
        # failed download keep running.
        logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
        retries = downloader.MAX_RETRIES
        downloader.MAX_RETRIES = RETRIES
        try:
            builder.download_and_prepare()
        finally:
            downloader.MAX_RETRIES = retries
    return builder


def _labels_of(
    source: Source,
    builder: Any,
    split: str,
    number: int,
    put: Callable[[slice, npt.NDArray[Any]], object],
) -> npt.NDArray[np.int64]:
    """Returns the labels of a split, and passes the positions and inputs of each batch to `put`.

    Examples are read in a fixed order, because the partition and the queries depend on their
    positions. They are read in batches, because reading all at once needs three times the memory.
    """
    import tensorflow_datasets as tfds

    # Disables the cache of TFDS, because the data are read only once.
    streamed = tfds.ReadConfig(try_autocache=False)
    examples = builder.as_dataset(split=split, shuffle_files=False, read_config=streamed)
    labels = [np.empty(0, np.int64)]
    done = 0
    for batch in examples.batch(STREAMED_BATCH).as_numpy_iterator():
        inputs = np.asarray(batch[source.input_name], source.dataset.input_type)
        checks.shape(["batch_size", *source.dataset.input_shape], **{f"inputs in {split}": inputs})
        put(slice(done, done + len(inputs)), inputs)
        labels.append(np.asarray(batch[source.label_name], np.int64))
        done += len(inputs)
    if done != number:
        raise ValueError(f"{split} has {done} examples instead of {number}")
    return np.concatenate(labels)


def _mapped(source: Source, builder: Any, split: str, shape: tuple[int, ...]) -> Arrays:
    """Returns memory-mapped inputs and labels of a split; first writes missing `.npy` files."""
    about = builder.info.as_json + split + source.input_name
    name = f"pate_tf-{hashlib.sha256(about.encode()).hexdigest()[:16]}"
    inputs_path = pathlib.Path(builder.data_dir, f"{name}-inputs.npy")
    labels_path = inputs_path.with_name(f"{name}-labels.npy")
    if not labels_path.exists():  # labels are written last
        kind = np.dtype(source.dataset.input_type).str
        with artifacts.atomic_file(inputs_path, private=True) as file:
            header = {"descr": kind, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_2_0(file, header)
            labels = _labels_of(
                source, builder, split, shape[0], lambda _, batch: file.write(batch.tobytes())
            )
        with artifacts.atomic_file(labels_path, private=True) as file:
            np.save(file, labels, allow_pickle=False)
    inputs = np.asarray(np.load(inputs_path, mmap_mode="r", allow_pickle=False))
    return inputs, artifacts.read_array(labels_path)


# Image data sets of TensorFlow Datasets. Their split train is private, and their split test is
# public.


MNIST = Dataset(
    name="mnist",
    kind="image",
    input_shape=(28, 28, 1),
    value_range=(0.0, 255.0),
    num_classes=10,
    class_names=tuple(map(str, range(10))),
    augmentation="affine",
    pool_size=9_000,
)
# TFDS gives the digit 0 the label 0; in the original files, this digit has the label 10.
SVHN = dataclasses.replace(MNIST, name="svhn", input_shape=(32, 32, 3), pool_size=10_000)
_OBJECTS = "airplane automobile bird cat deer dog frog horse ship truck"
CIFAR10 = dataclasses.replace(
    SVHN, name="cifar10", class_names=tuple(_OBJECTS.split()), augmentation="flip", pool_size=9_000
)

SOURCES = {
    "mnist": Source(dataset=MNIST, builder="mnist"),
    "svhn": Source(dataset=SVHN, builder="svhn_cropped", private_split="train+extra"),
    "cifar10": Source(dataset=CIFAR10, builder="cifar10"),
}

NAMES = ("digits", *SOURCES)
PUBLIC_SPLITS = ("test", "validation")  # the first one that exists is used
POOL_FRACTION = 0.9  # fraction of public samples in the pool; the rest evaluates the student


# UCI's handwritten digits, which come with scikit-learn: 1,797 gray images of 8 x 8 pixels.
NUM_PRIVATE = 1_200
DIGITS = dataclasses.replace(
    MNIST, name="digits", input_shape=(8, 8, 1), value_range=(0.0, 16.0), pool_size=400
)


def load_private(name: str, *, data_dir: pathlib.Path | None = None) -> PrivateExamples:
    """Returns the private labeled records.

    Args:
        name: one of `NAMES`; any name in TensorFlow Datasets or in `data_dir`; or
            `module:function`. The function is called as `function("private", data_dir)` or
            `function("public", data_dir)`. It returns a `Dataset`, which must be identical for both
            calls, the inputs `[num_examples, *input_shape]` and the labels `[num_examples]`. It
            must not use private records to prepare public samples, and must not scale a record by
            values of other records. Public labels are used to evaluate the student and to choose
            the representation of a table. If there are no public labels, the function may return
            None or an empty array instead; an unlabeled sample has the label -1.
        data_dir: folder of TensorFlow Datasets; None for its default.

    Raises:
        ValueError: if the name is unknown, the data can't be loaded, or the values that a function
            returns contradict each other.
    """
    dataset, inputs, labels = _load(name, data_dir, public=False)
    return PrivateExamples(dataset, inputs, labels, source=PrivateSource.named(dataset.name))


def load_public(name: str, *, data_dir: pathlib.Path | None = None) -> PublicExamples:
    """Returns the public samples. For arguments and errors, see `load_private`."""
    return PublicExamples(*_load(name, data_dir, public=True))


def load_dataset(name: str, *, data_dir: pathlib.Path | None = None) -> Dataset:
    """Returns public facts about a data set. Loads public samples only if necessary.

    For arguments and errors, see `load_private`.
    """
    if is_named_function(name):
        return load_public(name, data_dir=data_dir).dataset
    if name == DIGITS.name:
        return DIGITS
    return _source(name, data_dir).dataset


def _load(
    name: str, data_dir: pathlib.Path | None, *, public: bool
) -> tuple[Dataset, npt.NDArray[Any], Any]:
    """Returns facts about a data set, and its private or public inputs and labels."""
    if is_named_function(name):
        side = "public" if public else "private"
        returned = call_function(name, side, data_dir, flag="dataset", is_private=not public)
        if isinstance(returned, tuple) and len(returned) == 2:
            returned = (*returned, None)
        is_triple = isinstance(returned, tuple) and len(returned) == 3
        if not is_triple or not isinstance(returned[0], Dataset):
            raise ValueError(
                f"dataset: {name}({side!r}, data_dir) must return a Dataset, inputs and labels, "
                f"got {type(returned).__name__}"
            )
        dataset, inputs, labels = returned
        if labels is None and not public:
            raise ValueError(f"dataset: {name} must return labels of the private records")
        return dataset, to_input_type(inputs, dataset, "dataset"), labels
    if name == DIGITS.name:
        from sklearn.datasets import load_digits

        archive = load_digits()
        # The archive is sorted by writer, so it is shuffled with a fixed seed.
        some = slice(NUM_PRIVATE, None) if public else slice(NUM_PRIVATE)
        order = np.random.default_rng(0).permutation(len(archive.target))[some]
        inputs = archive.images[order].astype(np.uint8)[..., np.newaxis]
        return DIGITS, inputs, archive.target[order].astype(np.int64)
    source = _source(name, data_dir)
    dataset = source.dataset
    split = source.public_split if public else source.private_split
    with errors_in_one_line(dataset.name, data_dir):
        builder = open_builder(source.builder, data_dir)
        shape = (builder.info.splits[split].num_examples, *dataset.input_shape)
        if math.prod(shape) * np.dtype(dataset.input_type).itemsize > MAX_IN_MEMORY:
            return dataset, *_mapped(source, builder, split, shape)
        inputs = np.empty(shape, dataset.input_type)
        return dataset, inputs, _labels_of(source, builder, split, shape[0], inputs.__setitem__)


def check_name(name: str, data_dir: pathlib.Path | None) -> None:
    """Raises ValueError if no data set can be loaded by this name."""
    if name in NAMES or is_named_function(name):
        return
    import tensorflow_datasets as tfds

    builder = name.partition("/")[0]
    is_prepared = data_dir is not None and (data_dir / builder).is_dir()
    if not is_prepared and builder not in tfds.list_builders(with_community_datasets=False):
        raise ValueError(
            f"dataset must be {', '.join(NAMES)}, a name in TFDS, or module:function, got {name!r}"
        )


def _source(name: str, data_dir: pathlib.Path | None) -> Source:
    """Returns the source of a data set, from `SOURCES` or from its public metadata.

    The data set must have a `ClassLabel`, an input that is an image of fixed shape or a vector of
    numbers, a split "train", and a split "test" or "validation". Vectors are not scaled for Keras
    models, because the metadata contain no range; forests need no scaling.

    Raises:
        ValueError: if the data set is unknown, can't be loaded, or does not meet these
            requirements.
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
            f"dataset {name}: supervised_keys must be an input and a ClassLabel, got {keys}"
        )
    input_name, label_name = keys
    if "train" not in info.splits or not public:
        raise ValueError(
            f"dataset {name} needs the splits train and {' or '.join(PUBLIC_SPLITS)}; it has "
            f"{', '.join(info.splits)}"
        )
    specification = features[input_name]
    shape = specification.shape
    dtype = np.dtype(specification.np_dtype)
    is_image = type(specification).__name__ == "Image" and dtype == np.uint8
    is_vector = len(shape) == 1 and dtype.kind in "uif"
    if None in shape or not (is_image or is_vector):
        raise ValueError(
            f"dataset {name}: inputs must be images of one shape or vectors of numbers, but "
            f"{input_name} is {dtype} of shape {list(shape)}"
        )
    dataset = Dataset(
        name="-".join(info.full_name.split("/")[:-1]),  # all but the version
        kind="image" if is_image else "tabular",
        input_shape=tuple(shape),
        value_range=(0.0, 255.0) if is_image else (0.0, 1.0),
        num_classes=features[label_name].num_classes,
        class_names=tuple(features[label_name].names),
        pool_size=max(1, int(POOL_FRACTION * info.splits[public[0]].num_examples)),
    )
    return Source(
        dataset=dataset,
        builder=name,
        public_split=public[0],
        input_name=input_name,
        label_name=label_name,
    )
