"""Examples out of TensorFlow Datasets, images or vectors, however large.

A split that is small lies in memory. A large one is streamed once through tf.data into a file in
the folder of its records, and mapped: gathering the records of one teacher reads those alone.
"""

import contextlib
import dataclasses
import hashlib
import io
import logging
import math
import pathlib
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset

LARGEST_IN_MEMORY = 2**28  # bytes of a split's inputs
RETRIES = 3  # of a download; each waits twice as long as the one before, from 0.4 s on
STREAMED_BATCH = 250  # examples

Arrays = tuple[npt.NDArray[Any], npt.NDArray[np.int64]]


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
    """

    dataset: Dataset
    builder: str
    private_split: str = "train"
    public_split: str = "test"
    input_name: str = "image"
    label_name: str = "label"


def load_split(source: Source, split: str, data_dir: pathlib.Path | None) -> Arrays:
    """Returns inputs `[num_examples, *input_shape]` and labels int64 `[num_examples]`.

    Args:
        source: what to load.
        split: as TFDS writes splits, e.g. "train+extra".
        data_dir: where TFDS keeps prepared data; None for its own default. What is not prepared
            is downloaded.

    Raises:
        ValueError: if the data are neither there nor can be downloaded, or are broken.
    """
    with errors_in_one_line(source.dataset.name, data_dir):
        builder = open_builder(source.builder, data_dir)
        shape = (builder.info.splits[split].num_examples, *source.dataset.input_shape)
        if math.prod(shape) * np.dtype(source.dataset.input_type).itemsize > LARGEST_IN_MEMORY:
            return _mapped(source, builder, split, shape)
        inputs = np.empty(shape, source.dataset.input_type)

        def put(start: int, batch: npt.NDArray[Any]) -> None:
            inputs[start : start + len(batch)] = batch

        return inputs, _labels_of(source, builder, split, shape[0], put)


@contextlib.contextmanager
def errors_in_one_line(name: str, data_dir: pathlib.Path | None) -> Iterator[None]:
    """Turns any exception of TFDS into a `ValueError` of one line."""
    try:
        yield
    except Exception as error:  # TFDS, TensorFlow and the network each raise their own kinds
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ValueError(
            f"dataset {name}: expected it prepared by TensorFlow Datasets in "
            f"{data_dir or 'the default data_dir'} or a network to download it from, got: {reason}"
        ) from error


def open_builder(name: str, data_dir: pathlib.Path | None) -> Any:
    """Returns a TFDS builder of a name whose data are prepared; the others as of `load_split`."""
    with contextlib.redirect_stdout(io.StringIO()):  # the library never prints, nor may TFDS here
        import tensorflow_datasets as tfds
        from tensorflow_datasets.core.download import downloader

        if not sys.stderr.isatty():
            tfds.disable_progress_bar()
        builder = tfds.builder(name, data_dir=data_dir)
        # A network is given up after seconds, not minutes, and without a warning a try. The logger
        # stays so: threads of a download that was given up go on for a while.
        logging.getLogger("urllib3.connectionpool").setLevel(logging.ERROR)
        retries, downloader.MAX_RETRIES = downloader.MAX_RETRIES, RETRIES
        downloads = pathlib.Path(builder._data_dir_root, "downloads")
        before = set(downloads.rglob("*"))
        try:
            builder.download_and_prepare()
        except BaseException:
            _remove_unfinished(set(downloads.rglob("*")) - before, pathlib.Path(builder.data_dir))
            raise
        finally:
            downloader.MAX_RETRIES = retries
    return builder


def _remove_unfinished(downloads: Iterable[pathlib.Path], prepared: pathlib.Path) -> None:
    """Deletes what a download that was given up left: parts of files, and folders that are empty.

    Args:
        downloads: what is new below the folder of downloads.
        prepared: folder of the data set.
    """
    root = prepared.parents[1]
    for path in (*sorted(downloads, reverse=True), root / "downloads", prepared.parent, root):
        with contextlib.suppress(OSError):  # it holds something, or is a file
            shutil.rmtree(path) if ".tmp." in path.name else path.rmdir()


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
# TFDS gives digit 0 the label 0, where the original files give it 10.
SVHN = dataclasses.replace(MNIST, name="svhn", input_shape=(32, 32, 3), pool_size=10_000)
CIFAR10 = dataclasses.replace(
    SVHN,
    name="cifar10",
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
