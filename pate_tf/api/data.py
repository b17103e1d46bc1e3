"""Data as a user brings them: private records on one side, public samples on the other."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.core.dataset import IMAGE_AUGMENTATION, Dataset, check_inputs, to_input_type
from pate_tf.core.public import Pool, PublicExamples, PublicSplit
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.data import image_folders, tables, text
from pate_tf.data.schema import read_schema

# Arrays that a user brings, checked and brought into shape.


ValueRange = tuple[float, float] | tuple[Sequence[float], Sequence[float]]
PIXELS = (0.0, 255.0)
HELD_OUT = 0.3  # of public samples that have labels


def as_array(values: npt.ArrayLike, what: str) -> npt.NDArray[Any]:
    """Returns inputs `[num_inputs, ...]` as an array; raises ValueError if they are no numbers."""
    array = np.asarray(values)
    if array.dtype.kind not in "uif" or array.ndim < 2:
        raise ValueError(
            f"{what}: expected numbers [num_inputs, ...], got {array.dtype} of shape "
            f"{list(array.shape)}"
        )
    return array


def value_range_of(given: ValueRange | None, public: npt.NDArray[Any], kind: str) -> Any:
    """Returns the range of inputs, as a `Dataset` has it; raises ValueError if it is not known."""
    if given is None:
        if kind == "image" and public.dtype == np.uint8:
            return PIXELS
        raise ValueError(
            f"value_range: expected the lowest and the highest value of an input, from public "
            f"knowledge, for {kind} inputs of {public.dtype}; got none"
        )
    if len(given) != 2:
        raise ValueError(f"value_range: expected a lowest and a highest value, got {len(given)}")
    # Numbers or tuples of numbers, as a `Dataset` has them.
    return tuple(
        tuple(side) if isinstance(side, list) else side
        for side in (np.asarray(each, np.float64).tolist() for each in given)
    )


def fit_uint8(range_: Any) -> bool:
    """Whether numbers of a range are bytes, if they are whole."""
    return bool(np.min(range_[0]) >= 0 and np.max(range_[1]) <= 255)


def size_of_pool(num_public: int, held_out: float | None, *, has_labels: bool) -> int:
    """Returns how many public samples form the pool; raises ValueError for no share."""
    share = (HELD_OUT if has_labels else 0.0) if held_out is None else held_out
    if not 0.0 <= share < 1.0:
        raise ValueError(f"held_out: expected a share from 0 to below 1, got {share}")
    # Whoever has labels and holds nothing out measures nothing.
    size = min(max(1, round(num_public * (1.0 - share))), num_public)
    return size if share == 0.0 else min(size, num_public - 1)


def checked(inputs: npt.NDArray[Any], dataset: Dataset, what: str) -> npt.NDArray[Any]:
    """Returns inputs in the data set's type, none of them out of its range."""
    try:
        check_inputs(inputs, dataset)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
    low, high = (np.asarray(side) for side in dataset.value_range)
    if not ((inputs >= low) & (inputs <= high)).all():
        raise ValueError(
            f"{what}: expected numbers in value_range {dataset.value_range}, got others: clip "
            f"each record by itself, or give the range that is meant"
        )
    return to_input_type(inputs, dataset, what)


def reordered(samples: PublicExamples, pool_size: int, seed: int) -> PublicExamples:
    """Returns samples with the held-out ones at the end; both parts keep their order."""
    drawn = np.random.default_rng(seed).permutation(len(samples))
    order = np.concatenate([np.sort(drawn[:pool_size]), np.sort(drawn[pool_size:])])
    labels = None if samples.labels is None else samples.labels[order]
    return PublicExamples(samples.dataset, samples.inputs[order], labels)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """Private records, and the public samples that a student learns from.

    Attributes:
      private: SENSITIVE; the labelled records that teachers share out. Its `repr` shows shapes
        alone.
      public: public samples, split in two: those that may be put to the teachers, and the rest.
    """

    private: PrivateExamples
    public: PublicSplit

    def __post_init__(self) -> None:
        if difference := self.public.dataset.difference(self.private.dataset):
            raise ValueError(
                f"data: expected public samples of the private records' data set, got others: "
                f"{difference}"
            )

    @property
    def dataset(self) -> Dataset:
        """What is publicly known of both sides."""
        return self.private.dataset

    @property
    def pool(self) -> Pool:
        """Public inputs without labels, which a student learns from."""
        return self.public.pool

    @property
    def held_out(self) -> PublicExamples:
        """Public samples outside of the pool, which evaluate a student where they have labels."""
        return self.public.held_out

    @classmethod
    def from_arrays(
        cls,
        x_private: npt.ArrayLike,
        y_private: npt.ArrayLike,
        x_public: npt.ArrayLike,
        y_public: npt.ArrayLike | None = None,
        *,
        num_classes: int,
        value_range: ValueRange | None = None,
        owners: npt.ArrayLike | None = None,
        held_out: float | None = None,
        held_out_seed: int | None = None,
        kind: str | None = None,
        class_names: Sequence[str] = (),
        augmentation: str | None = None,
        name: str = "arrays",
    ) -> Data:
        """Takes arrays of images, of tables or of texts.

        >>> import numpy as np, pate_tf
        >>> x, y = np.zeros((90, 8, 8)), np.arange(90) % 10
        >>> data = pate_tf.Data.from_arrays(
        ...     x[:60], y[:60], x[60:], num_classes=10, value_range=(0, 16), held_out=0.3)
        >>> data.private, len(data.pool), len(data.held_out), data.dataset.input_type
        (PrivateExamples(<60 records>), 21, 9, 'float32')

        Everything that teachers and students are told of the data is public: it comes from these
        arguments and from the type and shape of `x_public`, never from private records.

        Args:
          x_private: inputs of the private records: images `[num_records, height, width]` or with
            `channels` at the end, tables `[num_records, num_features]`. SENSITIVE.
          y_private: their labels, whole numbers from 0 to num_classes - 1. SENSITIVE.
          x_public: public inputs of the same shape. Their type is that of all inputs: images of
            whole numbers within 0 to 255 become uint8, other images and all tables float32.
          y_public: their labels, as far as known (-1 elsewhere), for evaluation alone. Default:
            none, and nothing is evaluated.
          num_classes: number of classes, at least 2.
          value_range: lowest and highest value of an input, from public knowledge; of tables also
            one of each for every feature. Default: 0 to 255 for uint8 images; none for others.
          owners: whose each private record is, whole numbers or strings. All records of one owner
            go to one teacher, and the guarantee is for owners instead of records.
          held_out: share of the public samples that stays out of the pool. Default: 0.3 if there
            are labels to evaluate with, else none.
          held_out_seed: None if the last samples are held out, and the pool keeps the order of
            `x_public`; else a seed by which the held-out ones are chosen. Sorted samples need one.
          kind: "image", "tabular" or "text". Default: by the shape; two dimensions are a table.
            With "text" the inputs are strings `[num_texts]`, which become hashed n-grams of words,
            without a vocabulary; a served student takes strings.
          class_names: a name for each class.
          augmentation: what leaves an image's label as it is: "none", "shift", "affine" or "flip",
            as `Dataset` says. Default: "shift", by at most a fourteenth of the side, for images.
          name: of the data set, in messages, in the statement and in a run's default folder.

        Raises:
          ValueError: if the arrays do not fit each other or the other arguments, or an input is
            not finite or out of `value_range`. The message carries no private value.
        """
        if kind == "text":
            if value_range is not None:
                raise ValueError("value_range: expected none for texts, got one")
            value_range = (0.0, 1.0)
            x_public = text.encode(text.as_texts(x_public, "x_public"))
            x_private = text.encode(text.as_texts(x_private, "x_private"))
        public, private = as_array(x_public, "x_public"), as_array(x_private, "x_private")
        if kind is None:
            kind = "tabular" if public.ndim == 2 else "image"
        if kind == "image":
            public, private = (
                array[..., np.newaxis] if array.ndim == 3 else array for array in (public, private)
            )
            if public.ndim != 4:
                raise ValueError(
                    f"x_public: expected images [num_images, height, width] or with channels, got "
                    f"{list(public.shape)}"
                )
        if private.shape[1:] != public.shape[1:]:
            raise ValueError(
                f"x_private: expected inputs {list(public.shape[1:])}, as x_public has them, got "
                f"{list(private.shape[1:])}"
            )
        range_ = value_range_of(value_range, public, kind)
        is_uint8 = kind == "image" and fit_uint8(range_) and public.dtype.kind in "ui"
        pool_size = size_of_pool(len(public), held_out, has_labels=y_public is not None)
        dataset = Dataset(
            name=name,
            kind=kind,
            input_shape=public.shape[1:],
            value_range=range_,
            num_classes=num_classes,
            class_names=tuple(class_names),
            augmentation=augmentation or "",  # the kind's own
            pool_size=pool_size,
            input_type="uint8" if is_uint8 else "float32",
        )
        samples = PublicExamples(
            dataset,
            checked(public, dataset, "x_public"),
            None if y_public is None else np.asarray(y_public),
        )
        records = PrivateExamples(
            dataset,
            checked(private, dataset, "x_private"),
            np.asarray(y_private),
            None if owners is None else np.asarray(owners),
        )
        if held_out_seed is not None:
            samples = reordered(samples, pool_size, held_out_seed)
        return cls(private=records, public=samples.split(pool_size))

    @classmethod
    def from_csv(
        cls,
        private: str | os.PathLike[str],
        public: str | os.PathLike[str],
        *,
        schema: str | os.PathLike[str],
        label: str | None = None,
        owner: str | None = None,
    ) -> Data:
        """Takes two tables: files of comma-separated values, or of Parquet with pyarrow there.

        Args:
          private: the private records; the first line names the columns. SENSITIVE.
          public: public ones, which need no labels, nor a column of them.
          schema: a TOML file with each column's range or categories and the classes, from public
            knowledge; `pate-schema` drafts it from the public file.
          label: name of the label's column. Default: the schema's.
          owner: name of the column that says whose a private record is; all records of one owner
            go to one teacher. Default: the schema's, if it has one.

        Raises:
          ValueError: if a file can't be read, or a record does not fit the schema. The message
            names a place and no private value.
        """
        read = read_schema(pathlib.Path(schema))
        samples = tables.load_public(pathlib.Path(public), read, label=label)
        records = tables.load_private(
            pathlib.Path(private), read, samples, label=label, owner=owner
        )
        return cls(private=records, public=samples.split(samples.dataset.pool_size))

    @classmethod
    def from_folders(
        cls,
        private: str | os.PathLike[str],
        public: str | os.PathLike[str],
        *,
        classes: Sequence[str] | None = None,
        augmentation: str = IMAGE_AUGMENTATION,
    ) -> Data:
        """Takes two folders of images (PNG, JPEG or BMP) of one shape.

        Args:
          private: with a folder for each class. SENSITIVE. An image's teacher follows from its
            file's name: give each a name of its own that says nothing of others.
          public: likewise, or with images that lie loose and have no label.
          classes: names of the classes in the order of their numbers. Default: the names of the
            folders in `public`, sorted.
          augmentation: what leaves an image's label as it is; see `Dataset`.

        Raises:
          ValueError: if there are no images, they differ in shape, or classes are not known. The
            message names no private file.
        """
        samples = image_folders.load_public(
            pathlib.Path(public), classes=classes, augmentation=augmentation
        )
        records = image_folders.load_private(pathlib.Path(private), samples)
        return cls(private=records, public=samples.split(samples.dataset.pool_size))


def as_inputs(inputs: Any, dataset: Dataset, what: str = "inputs") -> npt.NDArray[Any]:
    """Returns raw inputs as the data set holds them, from an array or from public values.

    Args:
      inputs: a `Pool`, `PublicExamples`, or an array `[num_inputs, *input_shape]`, of gray images
        also without the last dimension.
      dataset: whose inputs they are.
      what: begins the message.

    Raises:
      ValueError: if they don't fit the data set.
    """
    array = np.asarray(getattr(inputs, "inputs", inputs))
    if array.shape[1:] == dataset.input_shape[:-1] and dataset.input_shape[-1:] == (1,):
        array = array[..., np.newaxis]
    check_inputs(array, dataset)
    return to_input_type(array, dataset, what)
