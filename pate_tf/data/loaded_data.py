"""Loads the user's data: private records and public samples.

TensorFlow is imported only for texts and images.
"""

from __future__ import annotations

import dataclasses
import os
import pathlib
import warnings
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow

from pate_tf.core import artifacts, checks, sensitive
from pate_tf.core.dataset import (
    BACKGROUND,
    CLASS,
    IMAGE_AUGMENTATION,
    MAX_CHARACTER,
    NUMBER,
    SEVERAL_LABELS,
    Dataset,
    as_numbers,
    check_inputs,
    to_input_type,
)
from pate_tf.core.public import Pool, PublicExamples, PublicSplit
from pate_tf.core.reporting import QUIET, Reporting, card
from pate_tf.core.sensitive import PrivateExamples, owner_array, owner_partition, random_partition
from pate_tf.core.source import PrivateSource
from pate_tf.data import image_folders, schema, tables
from pate_tf.data.data_source import DataSource, FileSource
from pate_tf.data.schema import TEXT_FEATURES, Column, Schema, code_text, read_schema

# The following functions load the user's files.


def draft_schema(
    public: pathlib.Path | None,
    path: pathlib.Path,
    *,
    private: pathlib.Path | None = None,
    label: str | None = None,
    owner: str | None = None,
    target: str | None = None,
    classes: Sequence[str] = (),
) -> str:
    """Writes a draft of a schema to a file, and returns its text.

    Args:
        public: path of a file of PUBLIC records; None if there is no public file.
        path: path of the new file for the draft.
        private: path of a private file. Its first line must contain the names of the columns.
            Without `public`, the draft contains these names. With `public`, the first line must
            include the names of all public columns. Nothing else from this file appears in the
            draft or in a message.
        label: name of the label's column, or names of several label columns, separated by commas.
            Public records may have no labels. Required without `public`.
        owner: name of the owner's column.
        target: "class", "number" or "labels". Default: inferred from the label's public values.
        classes: names of all classes. Default: the label's public values.

    Raises:
        ValueError: if there is no file, both files are the same, a file can't be read, the first
            line of `private` may be a record, or `path` already exists or can't be written.
    """
    if path.exists():
        raise ValueError(f"schema: {path} already exists. Remove it or choose another name.")
    artifacts.check_can_hold_files(path.parent)
    tables.check_other_file(public, private)
    if classes:
        if len({*classes} - {""}) < 2 or target == NUMBER:
            raise ValueError(
                "classes must be at least two, such as no,yes. For numbers, choose target number."
            )
        target = target or CLASS
    roles = {"owner": owner, "target": target}
    if public is not None:
        form = tables.text_form(public)
        table = tables.read_table(public, form)
        table.report({})
        if private is not None and form.has_header:
            tables.check_header(private, table.fields)
        text = schema.draft(
            table.fields,
            label=label,
            left_out=table.left_out,
            names=() if form.has_header else form.names,
            written={"delimiter": form.delimiter, "encoding": form.encoding, "classes": classes},
            **roles,
        )
    elif private is not None:
        labels = schema.split_names(label, tables.header_of(private).names)
        form = tables.check_header(private, [*labels, *([owner] if owner else [])])
        if not labels:
            raise ValueError("label is required: otherwise the first line may be a record")
        text = schema.draft_of_names(
            form.names,
            labels=labels,
            written={"delimiter": form.delimiter, "encoding": form.encoding, "classes": classes},
            **roles,
        )
    else:
        raise ValueError("`public` or `private` is required: the file to draft a schema from")
    artifacts.write_text(path, text)
    return text


def read_records(path: pathlib.Path, dataset: Dataset) -> PrivateExamples:
    """SENSITIVE: reads records from the arrays `inputs`, `labels` and optionally `owners`.

    Raises:
        ValueError: if the arrays in the `.npz` file do not match the data set.
        OSError: if the file can't be read.
    """
    arrays = artifacts.read_arrays(path)
    if set(arrays) - {"owners"} != {"inputs", "labels"}:
        raise ValueError(f"{path} must contain the arrays inputs, labels and optionally owners")
    inputs = to_input_type(arrays["inputs"], dataset, str(path))
    source = PrivateSource.of_file(path)
    owners = arrays.get("owners")
    return PrivateExamples(dataset, inputs, arrays["labels"], owners=owners, source=source)


# The following functions check and reshape the user's arrays.


ValueRange = tuple[float, float] | tuple[Sequence[float], Sequence[float]]
PIXELS = (0.0, 255.0)
HELD_BACK = 10  # one in 10 private records is held back to estimate the accuracy
BLOCK = 2**10  # number of inputs that are converted at once


def value_range_of(value_range: ValueRange | None, public: npt.NDArray[Any], kind: str) -> Any:
    """Returns the value range for a `Dataset`; raises ValueError if the range is unknown."""
    if value_range is None:
        if kind == "image" and public.dtype == np.uint8:
            return PIXELS
        raise ValueError(
            f"value_range is required for {kind} inputs of {public.dtype}: the lowest and the "
            f"highest value of an input, from public knowledge"
        )
    if len(value_range) != 2:
        raise ValueError(f"value_range must be (lowest, highest), got {len(value_range)} values")
    # A `Dataset` needs numbers or tuples of numbers, so arrays are converted to lists first.
    sides = [np.asarray(side, np.float64).tolist() for side in value_range]
    return tuple(tuple(side) if isinstance(side, list) else side for side in sides)


def encoded_texts(
    texts: npt.ArrayLike, what: str, length: int, characters: bool
) -> npt.NDArray[np.float32]:
    """Encodes texts `[num_texts]` as `length` hashed n-gram features, or as `length` characters."""
    from pate_tf.data import preprocessing  # imports TensorFlow, only for texts

    strings = preprocessing.as_texts(texts, what)
    return preprocessing.encode_texts(strings, length, characters=characters)


def arrays_of(
    x_private: npt.ArrayLike, x_public: npt.ArrayLike | None, kind: str | None
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], str]:
    """Returns private inputs, public inputs and their kind. Adds a channel axis to gray images.

    Without public inputs, the public array has length 0 and the input shape of the private array.

    Raises:
        ValueError: if inputs are not numbers, or private and public inputs differ in shape.
    """
    private = as_numbers(x_private, "x_private")
    public = private[:0] if x_public is None else np.asarray(x_public)
    for what, array in (("x_private", private), ("x_public", public)):
        if array.dtype.kind not in "uif" or array.ndim < 2:
            raise ValueError(
                f"{what} must be numbers [num_inputs, ...], got {array.dtype} of shape "
                f"{list(array.shape)}. For texts and category codes, use Data.from_dataframe."
            )
    kind = kind or ("tabular" if public.ndim == 2 else "image")
    if kind == "image":
        private = private[..., np.newaxis] if private.ndim == 3 else private
        public = public[..., np.newaxis] if public.ndim == 3 else public
        if public.ndim != 4:
            raise ValueError(
                f"x_public must have shape [num_images, height, width] or [num_images, height, "
                f"width, channels], got {list(public.shape)}"
            )
    checks.shape(["num_records", *public.shape[1:]], x_private=private)
    return private, public, kind


def checked(inputs: npt.NDArray[Any], dataset: Dataset, what: str) -> npt.NDArray[Any]:
    """Converts inputs to the type of the data set, and clips them to its range.

    Every number is first converted to float64, so its conversion does not depend on other numbers.
    A warning reports public numbers outside the range. There is no such warning for private
    numbers, because it would reveal something about them. Another warning appears if public images
    seem to have their channels first.
    """
    try:
        check_inputs(inputs, dataset)
    except ValueError as error:
        raise ValueError(f"{what}: {error}") from None
    low, high = (np.asarray(side) for side in dataset.value_range)
    if what == "x_public":
        tables.warn_of_range(what, (inputs < low) | (inputs > high))
        height, width, channels = dataset.input_shape if dataset.kind == "image" else (0, 0, 0)
        if height in (1, 3) and height < width and channels > 4:
            warnings.warn(
                f"x_public: images are {height} high and {width} wide with {channels} channels. "
                f"If channels come first, move them to the end: np.moveaxis(x, 1, -1)",
                stacklevel=3,
            )
    read = np.empty(inputs.shape, dataset.input_type)
    for start in range(0, len(inputs), BLOCK):
        some = slice(start, start + BLOCK)
        clipped = np.clip(inputs[some].astype(np.float64), low, high)
        read[some] = to_input_type(clipped, dataset, what)
    return read


def _contains(private: npt.NDArray[Any], public: PublicSplit) -> bool:
    """SENSITIVE: returns whether the private inputs seem to contain the public ones.

    In a table with few different rows, public rows may equal private rows by chance. But if chance
    explains nearly all of them, most of them equal several private rows.
    """
    known = {hash(row.tobytes()) for some in (public.pool, public.held_out) for row in some.inputs}
    equal = [row for row in (hash(each.tobytes()) for each in private) if row in known]
    return 10 <= len(equal) < 1.1 * len(known) and len(set(equal)) > 0.9 * len(known)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """Private records, and the public samples that a student learns from.

    >>> import numpy as np, pate_tf
    >>> x, y = np.random.default_rng(0).uniform(size=(90, 3)), np.arange(90) % 2
    >>> data = pate_tf.Data.from_arrays(x, y, x, num_classes=2, value_range=(0, 1))
    >>> len(data.private), data.dataset.kind
    (90, 'tabular')

    Attributes:
        private: SENSITIVE; the labeled private records. The `repr` shows only shapes.
        public: public samples, split into the pool and the held-out samples.
    """

    private: PrivateExamples
    public: PublicSplit

    def __post_init__(self) -> None:
        if difference := self.public.dataset.difference(self.private.dataset):
            raise ValueError(f"data: public and private data sets differ: {difference}")
        if _contains(self.private.inputs, self.public):
            sensitive.warn_holder(
                "nearly all public inputs occur once in the private records. If these are the "
                "same rows, remove them. Otherwise, the accuracy on public samples is too high."
            )

    def __repr__(self) -> str:
        dataset = self.dataset
        shape = " x ".join(map(str, dataset.input_shape))
        classes = ", ".join(dataset.class_names[:6]) + ", ..." * (len(dataset.class_names) > 6)
        labels = "with" if self.held_out.labels is not None else "without"
        several = "labels " if dataset.target == SEVERAL_LABELS else "classes"
        target = f"{several}   {dataset.num_classes}{': ' * bool(classes)}{classes}"
        if dataset.target_range is not None:
            target = "number    from {:g} to {:g}".format(*dataset.target_range)
        return "\n".join(
            [
                f"Data {dataset.name}: {dataset.kind}, inputs of {shape}",
                f"  {target}",
                f"  private   {self.private!r}",
                f"  pool      {len(self.pool):,} public inputs",
                f"  held out  {len(self.held_out):,} public samples, {labels} labels",
            ]
        )

    _repr_html_ = card

    @property
    def dataset(self) -> Dataset:
        """Public facts about the private records and the public samples."""
        return self.private.dataset

    @property
    def schema(self) -> Schema | None:
        """The schema that converts a row of a table to features; None if the data have no schema.

        `schema.encode(record)` returns the features of one record.
        """
        return self.dataset.schema

    @property
    def pool(self) -> Pool:
        """Public inputs that a student learns from."""
        return self.public.pool

    @property
    def held_out(self) -> PublicExamples:
        """Public samples outside the pool.

        If they have labels, they are used to evaluate the student.
        """
        return self.public.held_out

    def hold_back(self) -> tuple[Data, PrivateExamples]:
        """SENSITIVE: returns data without a tenth of the private records, and these records.

        Whether a record belongs to this tenth depends only on its position or its owner's name,
        never on other records.

        Raises:
            ValueError: if there are fewer than ten records and no owners, or if the records are the
                result of an earlier call.
        """
        private = self.private
        if private.split is not None:
            raise ValueError("evaluate_epsilon: a tenth of these records was already held back")
        if private.owners is not None:
            # Not a seed of teachers: with the same hash, a tenth of them would have no records.
            partition = owner_partition(private.owners, num_teachers=HELD_BACK, seed=-1)
        elif len(private) < HELD_BACK:
            raise ValueError(f"evaluate_epsilon needs at least {HELD_BACK} private records")
        else:
            partition = random_partition(num_records=len(private), num_teachers=HELD_BACK, seed=0)
        is_held_back = partition.assignment == 0
        this_call = object()
        parts = private.take(~is_held_back), private.take(is_held_back)
        for part, of_part in zip(parts, (False, True), strict=True):
            object.__setattr__(part, "split", (this_call, of_part))
        return dataclasses.replace(self, private=parts[0]), parts[1]

    @classmethod
    def load(cls, name: str, *, data_dir: str | os.PathLike[str] | None = None) -> Data:
        """Loads a data set by its name.

        >>> import pate_tf
        >>> data = pate_tf.Data.load("digits")
        >>> data.private, len(data.pool), len(data.held_out)
        (PrivateExamples(<1200 records>), 400, 197)

        Args:
            name: "digits", "mnist", "svhn", "cifar10", another name in TensorFlow Datasets, or
                `module:function`.
            data_dir: folder with the data; None for the default folder of TensorFlow Datasets.

        Raises:
            ValueError: if the data set is unknown or can't be loaded.
        """
        folder = None if data_dir is None else pathlib.Path(data_dir)
        return cls.of(DataSource(dataset=name, data_dir=folder))

    @classmethod
    def of(
        cls, source: DataSource, pool_size: int | None = None, reporting: Reporting = QUIET
    ) -> Data:
        """Loads the private and public data that the settings describe.

        Args:
            source: settings with the name of a data set, or with files.
            pool_size: number of public samples in the pool, starting with the first sample; None
                for the data set's default.
            reporting: shows progress.

        Raises:
            ValueError: if the data can't be loaded, or if private and public data sets differ.
        """
        public = source.load_public(reporting)
        private = source.load_private(reporting, public)
        return cls(private=private, public=public.split(pool_size or public.dataset.pool_size))

    @classmethod
    def from_arrays(
        cls,
        x_private: npt.ArrayLike,
        y_private: npt.ArrayLike,
        x_public: npt.ArrayLike | None = None,
        y_public: npt.ArrayLike | None = None,
        *,
        num_classes: int | None = None,
        target_range: tuple[float, float] | None = None,
        label_names: Sequence[str] = (),
        max_labels: int = 0,
        value_range: ValueRange | None = None,
        owners: npt.ArrayLike | None = None,
        held_out: float | None = None,
        held_out_seed: int | None = None,
        kind: str | None = None,
        class_names: Sequence[str] = (),
        augmentation: str | None = None,
        name: str | None = None,
        characters: int | None = None,
    ) -> Data:
        """Returns data from arrays of images, tables or texts.

        >>> import numpy as np, pate_tf
        >>> x, y = np.zeros((90, 8, 8)), np.arange(90) % 10
        >>> data = pate_tf.Data.from_arrays(
        ...     x[:60], y[:60], x[60:], num_classes=10, value_range=(0, 16), held_out=0.3)
        >>> data.private, len(data.pool), len(data.held_out), data.dataset.input_type
        (PrivateExamples(<60 records>), 21, 9, 'float32')

        All facts about the data that teachers and students use are public. They come from the other
        arguments and from the type and shape of `x_public`, never from private values. Without
        `x_public`, type and shape come from `x_private`. The type is the array's `dtype`; inputs in
        a list become float32. Each record is read independently of other records.

        Args:
            x_private: SENSITIVE; inputs of the private records: images `[num_records, height,
                width]` or `[num_records, height, width, channels]`, or tables `[num_records,
                num_features]`.
            y_private: SENSITIVE; labels of the private records: whole numbers from 0 to num_classes
                - 1, or names in `class_names`. With `target_range`, they can be any numbers. With
                `label_names`, they are 0 or 1 for each label, `[num_records, num_labels]`.
            x_public: public inputs of the same shape. Default: no public inputs; this requires
                feature sums. Images of whole numbers from 0 to 255 are converted to uint8, other
                images and all tables to float32. Private inputs get the same type.
            y_public: labels of the public inputs. Mark unknown labels as -1 (names: "" or None;
                numbers: NaN; several labels: a row of -1). The labels are used to evaluate the
                student and to choose the representation of a table. Default: no labels.
            num_classes: number of classes, at least 2. Required if labels are class numbers.
            target_range: if labels are numbers: the lowest and highest label, from public
                knowledge. Labels outside this range are clipped, with a warning. Default: labels
                are not numbers.
            label_names: names of the labels if each record can have several labels. Default: each
                record has one class.
            max_labels: with `label_names`: maximum number of labels of a record that get full
                weight. If a record has more labels, the weight of each label is reduced. Default:
                the number of labels.
            value_range: lowest and highest value of an input, from public knowledge. For tables,
                both can be arrays with one value for each feature. Values outside this range are
                clipped. Only public values cause a warning. Default: 0 to 255 for uint8 images;
                required for all other inputs.
            owners: owner of each private record, as whole numbers or strings; 7 and "7" are the
                same owner. All records of one owner go to one teacher, and the guarantee protects
                owners instead of records.
            held_out: fraction of the public samples that are not in the pool. Default: 0.3 if there
                are public labels, else 0.
            held_out_seed: seed for a random choice of the held-out samples. Default: the last
                samples are held out. Pass a seed if samples are sorted. The pool keeps the order of
                `x_public`.
            kind: "image", "tabular" or "text". Default: inferred from the shape; an array with two
                dimensions is a table. With "text", the inputs are strings `[num_texts]`. The
                strings are converted to hashed n-grams of words, without a vocabulary. An exported
                student takes strings.
            class_names: name of each class. Default: classes have no names.
            augmentation: transformations that keep an image's label: "none", "shift", "affine" or
                "flip"; see `Dataset`. Default for images: "shift", by at most one fourteenth of the
                side.
            name: public name of the private data. The costs of all releases on this machine with
                the same name add up. Default: no name; then only releases in the same run folder
                add up.
            characters: for kind "text" with a pre-trained text encoder: number of characters to
                read from the start of each text. Default: inputs are hashed n-grams.

        Raises:
            ValueError: if the arrays do not match each other or the other arguments, or if an input
                is not finite. The message contains no private value.
        """
        if kind == "text":
            if value_range is not None:
                raise ValueError("value_range must not be set for texts")
            value_range = (0.0, MAX_CHARACTER if characters else 1.0)
            length = characters or TEXT_FEATURES
            private = encoded_texts(x_private, "x_private", length, bool(characters))
            public = private[:0]
            if x_public is not None:
                public = encoded_texts(x_public, "x_public", length, bool(characters))
        else:
            private, public, kind = arrays_of(x_private, x_public, kind)
        range_ = value_range_of(value_range, public, kind)
        if bool(label_names) + (target_range is not None) + (num_classes is not None) != 1:
            raise ValueError("num_classes: pass one of num_classes, target_range and label_names")
        target = NUMBER if target_range is not None else CLASS
        has_bytes = (
            public.dtype.kind in "ui" and np.min(range_[0]) >= 0 and np.max(range_[1]) <= 255
        )
        pool_size = tables.pool_size(
            len(public), has_labels=y_public is not None, held_out=held_out
        )
        pool_size = min(pool_size, len(public))
        dataset = Dataset(
            name=name or "arrays",
            kind=kind,
            input_shape=public.shape[1:],
            value_range=range_,
            num_classes=num_classes or len(label_names) or 2,
            class_names=tuple(label_names or class_names),
            target=SEVERAL_LABELS if label_names else target,
            target_range=target_range,
            max_labels=max_labels,
            augmentation=augmentation or "",  # empty: the default of this kind
            pool_size=pool_size,
            input_type="uint8" if kind == "image" and has_bytes else "float32",
        )
        samples = PublicExamples(
            dataset,
            checked(public, dataset, "x_public"),
            None if y_public is None else numbered(y_public, dataset, "y_public", may_lack=True),
        )
        records = PrivateExamples(
            dataset,
            checked(private, dataset, "x_private"),
            numbered(y_private, dataset, "y_private"),
            None if owners is None else owner_array(owners),
            source=None if name is None else PrivateSource.named(name),
        )
        if held_out_seed is not None:
            # Moves the held-out samples to the end. Both parts keep their order.
            drawn = np.random.default_rng(held_out_seed).permutation(len(samples))
            order = np.concatenate([np.sort(drawn[:pool_size]), np.sort(drawn[pool_size:])])
            samples = samples.take(order)
        return cls(private=records, public=samples.split(pool_size))

    @classmethod
    def from_dataframe(
        cls,
        private: Any,
        public: Any = None,
        *,
        label: str | Sequence[str],
        owner: str | None = None,
        classes: Sequence[Any] | None = None,
        categories: Collection[str] = (),
        schema: Schema | str | os.PathLike[str] | None = None,
        name: str | None = None,
    ) -> Data:
        """Returns data from two data frames of pandas, polars or pyarrow.

        Without a `schema`, the columns are inferred only from the public data frame. A column of
        numbers gets the range of its public numbers, and private numbers are clipped to this range.
        Any other column is a category. Its possible values are the public values, and one
        additional value that replaces all other values. A column with more than 30 values that are
        not numbers is left out, with a warning. The type of the label is inferred, too. If the
        label column contains many different numbers, the label is a number. If its texts have parts
        separated by |, ; or a comma, a record has several labels.

        Args:
            private: SENSITIVE; data frame of private records.
            public: data frame of public records. A label column is optional. Default: no public
                records; this requires feature sums and a `schema`.
            label: name of the label's column. For several labels, a list of column names; each of
                these columns contains 0 and 1, or yes and no.
            owner: name of the column with the owner of each private record. All records of one
                owner go to one teacher. Default: the owner column of the schema, if it has one.
            classes: the classes, in the order of their numbers. Default: the sorted labels of
                `public`, unless labels are numbers or a record has several labels.
            categories: names of columns in which numbers are codes of categories. If the label
                column is among them, its numbers are class codes.
            schema: a schema, or the path of its file (see `from_csv`). With a schema, nothing is
                inferred.
            name: public name of the private data. The costs of all releases with the same name add
                up. Default: no name; then only releases in the same run folder add up.

        Raises:
            ValueError: if a column is missing, the classes are unknown, or a record does not fit
                the schema. The message contains positions of records, but no private value.
        """
        if public is None and schema is None:
            raise ValueError(
                "schema is required without public records: it defines ranges and categories."
            )
        label = _joined(label)
        table = frame_table(private if public is None else public, "public")
        if schema is None:
            by = drafted_schema(
                public, table, label=label, owner=owner, classes=classes, categories=categories
            )
        else:
            by = schema if isinstance(schema, Schema) else read_schema(pathlib.Path(schema))
        called = name or by.name or "dataframe"
        samples = PublicExamples.none_of(by.dataset(called, 0))
        if public is not None:
            samples = table.public(by, name=called, label=label)
        records = frame_table(private, "private").private(samples.dataset, label=label, owner=owner)
        if name is not None:
            records = dataclasses.replace(records, source=PrivateSource.named(name))
        return cls(private=records, public=samples.split(samples.dataset.pool_size))

    @classmethod
    def from_csv(
        cls,
        private: str | os.PathLike[str],
        public: str | os.PathLike[str] | None = None,
        *,
        schema: str | os.PathLike[str],
        label: str | Sequence[str] | None = None,
        owner: str | None = None,
        on_bad_record: str = tables.REFUSE,
        name: str | None = None,
    ) -> Data:
        """Returns data from two table files: CSV, other delimited text, or Parquet.

        Args:
            private: SENSITIVE; file of private records. The first line contains the column names.
            public: file of public records. A label column is optional. Default: no public records;
                this requires feature sums.
            schema: a TOML file with the classes, and the range or categories of each column, from
                public knowledge. `pate schema` drafts it from the public file.
            label: name of the label's column, or a list of names. Default: the label of the schema.
            owner: name of the column with the owner of each private record; all records of one
                owner go to one teacher. Default: the owner column of the schema, if it has one.
            on_bad_record: "refuse" to raise an error for a private record that does not fit the
                schema; "skip" to leave the record out. Skipping never depends on other records.
            name: public name of the private data. The costs of all releases with the same name add
                up. Default: the name of the private file, together with its path.

        Raises:
            ValueError: if a file can't be read, or a record does not fit the schema. The message
                contains line numbers, but no private value.
        """
        files = FileSource(
            private=pathlib.Path(private),
            public=None if public is None else pathlib.Path(public),
            schema=pathlib.Path(schema),
            label=None if label is None else _joined(label),
            owner=owner,
            on_bad_record=on_bad_record,
            name=name,
        )
        return cls.of(DataSource(files=files))

    @classmethod
    def from_folders(
        cls,
        private: str | os.PathLike[str],
        public: str | os.PathLike[str] | None = None,
        *,
        classes: Sequence[str] | None = None,
        augmentation: str = IMAGE_AUGMENTATION,
        image_size: tuple[int, int] | None = None,
        background: str = BACKGROUND,
        on_bad_record: str = tables.REFUSE,
        name: str | None = None,
    ) -> Data:
        """Returns data from folders of PNG, JPEG, WebP, TIFF, BMP, GIF, PGM or PPM images.

        Images are rotated according to their EXIF entries. Transparent pixels are replaced by the
        color `background`. All images become gray if all public images are gray. Pixels of more
        than 8 bits are scaled by a range that the public images determine.

        Args:
            private: SENSITIVE; a folder that contains one folder for each class. The name of a file
                determines the teacher of its image, so give each file a unique name that reveals
                nothing.
            public: a folder that contains the same class folders, or unlabeled images outside of
                class folders. Default: no public images; this requires feature sums, and images
                become gray.
            classes: names of the classes in the order of their numbers. Default: the sorted names
                of the folders in `public`. Without `public`, the names of the folders in `private`,
                which then become public.
            augmentation: transformations that keep an image's label; see `Dataset`.
            image_size: height and width of each image after scaling. The bilinear filter averages
                pixels when it shrinks an image. Default: the common size of all public images.
                Required without public images.
            background: color that replaces transparent pixels: "white", "black" or "gray".
            on_bad_record: "refuse" to raise an error for a broken private image; "skip" to leave it
                out. Skipping never depends on other images.
            name: public name of the private data. The costs of all releases with the same name add
                up. Default: the name of the private folder, together with its path.

        Raises:
            ValueError: if there are no images, images are broken, public images differ in size or
                are all identical, or the classes are unknown. The message contains no name of a
                private file.
        """
        folder = pathlib.Path(private)
        samples = image_folders.load_public(
            None if public is None else pathlib.Path(public),
            folder,
            classes=classes,
            augmentation=augmentation,
            size=image_size,
            background=background,
            on_bad_record=on_bad_record,
        )
        records = image_folders.load_private(folder, samples, on_bad_record=on_bad_record)
        records = dataclasses.replace(records, source=PrivateSource.of_file(folder, name))
        return cls(private=records, public=samples.split(samples.dataset.pool_size))


# The following functions read data frames of pandas, polars and pyarrow without importing any of
# these libraries.


NUMBER_TYPES = ("int", "uint", "float", "double", "half", "decimal")  # prefixes of type names


def frame_table(frame: Any, what: str) -> tables.TextTable:
    """Converts a data frame to a `TextTable`, as if it were read from a file.

    Raises:
        ValueError: if `frame` is not a data frame.
    """
    fields = {}
    columns, left_out = _columns(frame)
    for name, values in columns.items():
        if isinstance(values, Column):
            values = tables.of_arrow(values)
        as_list = getattr(values, "to_pylist", None) or values.to_list
        fields[name] = pyarrow.array([_text(value) for value in as_list()], pyarrow.string())
    return tables.TextTable(fields=fields, what=what, left_out=left_out)


def _columns(frame: Any) -> tuple[dict[str, Any], list[str]]:
    """Returns the columns of a data frame by name, and a list of repeated names."""
    if hasattr(frame, "collect"):
        raise ValueError(f"a {type(frame).__name__} has no records yet: call its collect() first")
    names = getattr(frame, "column_names", None)  # for pyarrow; its `columns` are values
    names = getattr(frame, "columns", None) if names is None else names
    if names is None:
        raise ValueError(f"a {type(frame).__name__} is not a data frame: it has no columns")
    numbers = Counter(map(str, names))
    return (
        {str(name): frame[name] for name in names if numbers[str(name)] == 1},
        [name for name, number in numbers.items() if number > 1],
    )


def _joined(label: str | Sequence[str]) -> str:
    """Returns the names of several labels as one text, separated by commas."""
    return label if isinstance(label, str) else ",".join(label)


def _text(value: Any) -> str:
    """Returns a value of a data frame as text; an empty text for a missing value."""
    text = code_text(value)
    return "" if text in ("nan", "<NA>", "NaT") else text


def drafted_schema(
    public: Any,
    table: tables.TextTable,
    *,
    label: str,
    owner: str | None,
    classes: Sequence[Any] | None,
    categories: Collection[str],
) -> Schema:
    """Infers a schema from a public data frame and its `frame_table`.

    For the other arguments, see `Data.from_dataframe`.

    Raises:
        ValueError: if no column can be used, or the classes are unknown.
    """
    codes = set(categories)
    for name, column in _columns(public)[0].items():
        kind = str(column.dtype if hasattr(column, "dtype") else column.type).lower()
        if not kind.startswith(NUMBER_TYPES):
            codes.add(name)
    labels = schema.split_names(label, table.fields)
    columns = schema.draft_columns(table.fields, without=(*labels, owner), categories=codes)
    target = CLASS if classes is not None or {*labels} & {*categories} else None
    stated, doubts = schema.drafted_target(labels, table.fields, target)
    for doubt in [*schema.unnamed_left_out([*table.left_out, *table.fields]), *doubts]:
        warnings.warn(f"public: {doubt}", stacklevel=3)
    if classes is not None:
        stated = {"classes": tuple(_text(name) for name in classes)}
    if len(stated.get("classes", (0, 1))) < 2:
        raise ValueError(f"classes is required: public has fewer than two values of {label}")
    if left_out := sorted(name for name, column in columns.items() if column is None):
        warnings.warn(
            f"public: columns {', '.join(left_out)} have too many values for categories and are "
            "left out. To use the words of a column, pass a schema with `text = 2048`.",
            stacklevel=3,
        )
    usable = tuple(column for column in columns.values() if column is not None)
    named = labels[0] if len(labels) == 1 else None
    return Schema(columns=usable, label=named, owner=owner, **stated)


def numbered(
    labels: npt.ArrayLike, dataset: Dataset, what: str, *, may_lack: bool = False
) -> npt.NDArray[Any]:
    """Converts labels to the format of `checked_labels`; a class name becomes its number.

    True and False become the classes with these names if they exist, otherwise 1 and 0. An array of
    numbers is returned unchanged. A warning reports numeric labels outside their range. Each label
    is read independently of other labels.

    Args:
        labels: labels in the user's format: texts, numbers or booleans.
        dataset: data set with the names of the classes.
        what: name of the argument, for messages.
        may_lack: whether labels may be unknown, as public labels may. An empty label then becomes
            -1.

    Raises:
        ValueError: if a text is not the name of a class. The message contains no label.
    """
    if dataset.target != CLASS:
        numbers = as_numbers(labels, what)
        if dataset.target_range is not None and numbers.dtype.kind in "uif":
            low, high = dataset.target_range
            is_outside = (numbers < low) | (numbers > high)
            tables.warn_of_range(what, is_outside, is_private=not may_lack)
        return numbers.astype(np.int64) if numbers.dtype.kind == "b" else numbers
    # A list becomes an array of objects, because a common type of all labels would depend on every
    # label.
    array = np.asarray(labels, None if hasattr(labels, "dtype") else object)
    if array.dtype.kind not in "UOb":
        return array
    places = {name: place for place, name in enumerate(dataset.class_names)}
    if may_lack:
        places[""] = -1
    each = list[int | None]()
    for label in array.ravel().tolist():
        number = None
        if isinstance(label, bool) and str(label) in places:
            number = places[str(label)]
        elif isinstance(label, str) or not _text(label):
            number = places.get(_text(label))
        elif isinstance(label, int | float | np.integer | np.floating):
            is_class = -1 <= label < dataset.num_classes and label % 1 == 0
            number = int(label) if is_class else None
        each.append(number)
    if None in each:
        allowed = f"whole numbers from 0 to {dataset.num_classes - 1}, or names in class_names="
        if dataset.class_names:
            allowed = f"among the class_names {', '.join(dataset.class_names[:12])}"
        raise ValueError(f"{what}: all labels must be {allowed}")
    return np.array(each, np.int64).reshape(array.shape)


def as_examples(samples: Any, dataset: Dataset) -> PublicExamples:
    """Converts `samples` to public samples with labels.

    Args:
        samples: `PublicExamples`, or a data frame with the label column that the data set's schema
            defines.
        dataset: data set of the samples.

    Raises:
        ValueError: if the samples have no labels.
    """
    if dataset.schema is not None and hasattr(samples, "columns"):
        table = frame_table(samples, "inputs")
        names = dataset.schema.label_names()
        if names and {*names} <= {*table.fields}:
            return table.public(dataset.schema, name=dataset.name)
    if not isinstance(samples, PublicExamples):
        raise ValueError("labels: pass `labels=` with raw inputs, or pass data.held_out")
    return samples


def as_inputs(inputs: Any, dataset: Dataset) -> npt.NDArray[Any]:
    """Converts raw inputs to the format of the data set.

    Args:
        inputs: a `Pool`, `PublicExamples`, or an array `[num_inputs, *input_shape]`. Gray images
            may have no channel dimension, texts may be strings `[num_inputs]`, and inputs of a
            table with a schema may be a data frame.
        dataset: data set of the inputs.

    Raises:
        ValueError: if the inputs do not match the data set.
    """
    if dataset.schema is not None and any(hasattr(inputs, name) for name in ("collect", "columns")):
        inputs, _ = frame_table(inputs, "inputs").inputs(dataset.schema)
    values = getattr(inputs, "inputs", inputs)
    if dataset.kind != "text" or np.asarray(values).dtype.kind not in "UO":
        array = as_numbers(values, "inputs")
    else:
        array = encoded_texts(values, "inputs", dataset.input_shape[0], dataset.has_characters)
    if array.shape[1:] == dataset.input_shape[:-1] and dataset.input_shape[-1:] == (1,):
        array = array[..., np.newaxis]
    check_inputs(array, dataset)
    return to_input_type(array, dataset, "inputs")
