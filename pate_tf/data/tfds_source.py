"""Examples out of TensorFlow Datasets, image or table, however large.

A split that is small lies in memory. A large one is streamed once through tf.data into a file in
the folder of its records, and mapped: gathering the records of one teacher reads those alone.
"""

import contextlib
import dataclasses
import hashlib
import io
import logging
import math
import os
import pathlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import PublicExamples
from pate_tf.core.sensitive import PrivateExamples

LARGEST_IN_MEMORY = 2**28  # bytes of a split's inputs
RETRIES = 3  # of a download; each waits twice as long as the one before, from 0.4 s on
STREAMED_BATCH = 250  # examples

Arrays = tuple[npt.NDArray[Any], npt.NDArray[np.int64]]


class RawDataError(ValueError):
    """A raw file that does not hold what it should; one line that names a place and no value."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """Where TFDS has a data set's two sides.

    Attributes:
        dataset: what is publicly known of the data.
        builder: the name that TFDS knows.
        private_split: the split that the teachers share out.
        public_split: the split that holds the student's pool.
        input_name: the feature that is the input.
        label_name: the feature that is the label.
        raw_files: names of the raw files that a user can put into `<data_dir>/<builder>` by hand.
    """

    dataset: Dataset
    builder: str
    private_split: str = "train"
    public_split: str = "test"
    input_name: str = "image"
    label_name: str = "label"
    raw_files: tuple[str, ...] = ()

    def load_private(self, data_dir: pathlib.Path | None) -> PrivateExamples:
        """Returns the private side; arguments and errors as of `load_split`."""
        return PrivateExamples(self.dataset, *load_split(self, self.private_split, data_dir))

    def load_public(self, data_dir: pathlib.Path | None) -> PublicExamples:
        """Returns the public side; arguments and errors as of `load_split`."""
        return PublicExamples(self.dataset, *load_split(self, self.public_split, data_dir))


def load_split(source: Source, split: str, data_dir: pathlib.Path | None) -> Arrays:
    """Returns inputs `[num_examples, *input_shape]` and labels int64 `[num_examples]`.

    Args:
        source: what to load.
        split: as TFDS writes splits, e.g. "train+extra".
        data_dir: where TFDS keeps prepared data; None for its own default. What is not prepared
            there is prepared there, from raw files or by download; below TFDS' default if
            `data_dir` is read-only and holds raw files.

    Raises:
        ValueError: if the data are neither there nor can be downloaded, or are broken.
    """
    with errors_in_one_line(source, data_dir):
        builder = open_builder(source.builder, data_dir, source.raw_files)
        shape = (builder.info.splits[split].num_examples, *source.dataset.input_shape)
        if math.prod(shape) * np.dtype(source.dataset.input_type).itemsize > LARGEST_IN_MEMORY:
            return _mapped(source, builder, split, shape)
        inputs = np.empty(shape, source.dataset.input_type)

        def put(start: int, batch: npt.NDArray[Any]) -> None:
            inputs[start : start + len(batch)] = batch

        return inputs, _labels_of(source, builder, split, shape[0], put)


@contextlib.contextmanager
def errors_in_one_line(source: Source, data_dir: pathlib.Path | None) -> Iterator[None]:
    """Turns any exception of TFDS into a `ValueError` of one line."""
    try:
        yield
    except Exception as error:  # TFDS, TensorFlow and the network each raise their own kinds
        name = source.dataset.name
        raw = _raw_data_error(error)
        if raw is not None:
            raise ValueError(f"dataset {name}: {raw}") from error
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        place = data_dir or "the default data_dir"
        files = " and ".join(source.raw_files)
        by_hand = f", or {files} in {place}/{source.builder}" if files else ""
        raise ValueError(
            f"dataset {name}: expected it prepared by TensorFlow Datasets in {place}{by_hand} or a "
            f"network to download it from, got: {reason}"
        ) from error


def open_builder(name: str, data_dir: pathlib.Path | None, raw_files: Sequence[str] = ()) -> Any:
    """Returns a TFDS builder of a name whose data are prepared; the others as of `load_split`."""
    with contextlib.redirect_stdout(io.StringIO()):  # the library never prints, nor may TFDS here
        import tensorflow_datasets as tfds

        if not sys.stderr.isatty():
            tfds.disable_progress_bar()
        folder = data_dir / name if data_dir and raw_files else None
        by_hand = folder is not None and all((folder / file).is_file() for file in raw_files)
        if folder is not None and by_hand and not _is_writable(folder):
            # Another folder for other raw files, so that what was prepared can't be stale.
            digest = artifacts.digest_paths([folder / file for file in raw_files])
            data_dir = pathlib.Path(tfds.core.constants.DATA_DIR) / f"from-{digest[:16]}"
        builder = tfds.builder(name, data_dir=data_dir)
        with _impatient():
            builder.download_and_prepare(
                download_config=tfds.download.DownloadConfig(
                    manual_dir=str(folder) if by_hand else None
                )
            )
    return builder


@contextlib.contextmanager
def _impatient() -> Iterator[None]:
    """Lets TFDS give a network up after seconds, not minutes, and without a warning a try."""
    from tensorflow_datasets.core.download import downloader

    # Not set back: threads of a download that was given up go on for a while.
    logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
    tries = downloader.MAX_RETRIES
    downloader.MAX_RETRIES = RETRIES
    try:
        yield
    finally:
        downloader.MAX_RETRIES = tries


def _is_writable(folder: pathlib.Path) -> bool:
    # A folder without any write permission is left alone by root too.
    return os.access(folder, os.W_OK) and bool(folder.stat().st_mode & 0o222)


def _raw_data_error(error: BaseException | None) -> RawDataError | None:
    while error is not None and not isinstance(error, RawDataError):
        error = error.__cause__ or error.__context__
    return error


def _labels_of(
    source: Source,
    builder: Any,
    split: str,
    number: int,
    put: Callable[[int, npt.NDArray[Any]], object],
) -> npt.NDArray[np.int64]:
    """Returns a split's labels; hands each batch of inputs to `put`, with its first one's place.

    Always in one order: partition and queries are positions in it. All at once would take three
    times the memory.
    """
    import tensorflow_datasets as tfds

    # What is streamed once must not be cached by the way.
    streamed = tfds.ReadConfig(try_autocache=False)
    examples = builder.as_dataset(split=split, shuffle_files=False, read_config=streamed)
    expected, labels = source.dataset.input_shape, [np.empty(0, np.int64)]
    done = 0
    for batch in examples.batch(STREAMED_BATCH).as_numpy_iterator():
        inputs = np.asarray(batch[source.input_name], source.dataset.input_type)
        if inputs.shape[1:] != expected:
            raise ValueError(
                f"expected inputs of shape {list(expected)} in {split}, got "
                f"{list(inputs.shape[1:])}"
            )
        put(done, inputs)
        labels.append(np.asarray(batch[source.label_name], np.int64))
        done += len(inputs)
    if done != number:
        raise ValueError(f"expected {number} examples in {split}, got {done}")
    return np.concatenate(labels)


def _mapped(source: Source, builder: Any, split: str, shape: tuple[int, ...]) -> Arrays:
    """Streams a split into two `.npy` files, unless it was done before, and maps the inputs."""
    about = builder.info.as_json + split + source.input_name
    name = f"pate_tf-{hashlib.sha256(about.encode()).hexdigest()[:16]}"
    folder = pathlib.Path(builder.data_dir)
    inputs_path, labels_path = folder / f"{name}-inputs.npy", folder / f"{name}-labels.npy"
    if not labels_path.exists():  # it comes last
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


# Image data sets that TensorFlow Datasets knows: train is private, test is public.


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
