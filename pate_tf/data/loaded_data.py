"""Data as a user brings them: private records on one side, public samples on the other.

TensorFlow is imported for texts and images alone.
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

from pate_tf.core import artifacts
from pate_tf.core.dataset import (
    BACKGROUND,
    CLASS,
    IMAGE_AUGMENTATION,
    LARGEST_CHARACTER,
    NUMBER,
    SEVERAL_LABELS,
    Dataset,
    as_numbers,
    check_inputs,
    to_input_type,
)
from pate_tf.core.public import Pool, PublicExamples, PublicSplit
from pate_tf.core.reporting import QUIET, Reporting
from pate_tf.core.sensitive import PrivateExamples, owner_array, owner_partition, random_partition
from pate_tf.core.source import PrivateSource
from pate_tf.data import image_folders, schema, tables
from pate_tf.data.data_source import DataSource, FileSource
from pate_tf.data.schema import TEXT_FEATURES, Column, Schema, code_text, read_schema

# Files of the user's own.


def draft_schema(
    public: pathlib.Path | None,
    path: pathlib.Path,
    *,
    private: pathlib.Path | None = None,
    label: str | None = None,
    owner: str | None = None,
    target: str | None = None,
) -> str:
    """Writes a draft of a schema, and returns it.

    Args:
        public: a file of PUBLIC records; None where there is none.
        path: where the draft goes.
        private: a file whose first line names the columns; where there is no `public`, these names
            are drafted, and otherwise they must include the public ones. Nothing else of the file
            is in the draft or in a message.
        label: name of the label's column, which public records need not have; with `private` alone
            it is needed. Commas separate the columns of several labels.
        owner: name of the owner's column.
        target: "class", "number" or "labels". Default: by the label's public values.

    Raises:
        ValueError: if no file is named or it can't be read, the first line of `private` may be a
            record, there is a file at `path` already, or it can't be written.
    """
    if path.exists():
        raise ValueError(f"schema: expected a file that is not there yet, got {path}")
    artifacts.check_can_hold_files(path.parent)
    if public is not None:
        form = tables.text_form(public)
        table = tables.read_table(public, form)
        table.report({})
        if private is not None and form.has_header:
            tables.check_header(private, table.fields)
        text = schema.draft(
            table.fields,
            label=label,
            owner=owner,
            target=target,
            left_out=table.left_out,
            names=() if form.has_header else form.names,
            written={"delimiter": form.delimiter, "encoding": form.encoding},
        )
    elif private is not None:
        labels = schema.split_label(label, tables.header_of(private).names)
        form = tables.check_header(private, [*labels, *([owner] if owner else [])])
        if not labels:
            raise ValueError(
                "label: name the label's column; without it the first line may be a record"
            )
        text = schema.draft_of_names(
            form.names,
            labels=labels,
            owner=owner,
            target=target,
            written={"delimiter": form.delimiter, "encoding": form.encoding},
        )
    else:
        raise ValueError("public: expected a file of public records, or `private`, got none")
    artifacts.write_text(path, text)
    return text


def read_records(path: pathlib.Path, dataset: Dataset) -> PrivateExamples:
    """SENSITIVE: returns the records of a `.npz` file of `inputs`, `labels` and maybe `owners`.

    Raises:
        ValueError: if it holds none of such a data set.
        OSError: if it can't be read.
    """
    arrays = artifacts.read_arrays(path)
    if set(arrays) - {"owners"} != {"inputs", "labels"}:
        raise ValueError(f"{path}: expected the arrays inputs and labels, got others")
    inputs = to_input_type(arrays["inputs"], dataset, str(path))
    source = PrivateSource.of_file(path)
    owners = arrays.get("owners")
    return PrivateExamples(dataset, inputs, arrays["labels"], owners=owners, source=source)


# Arrays that a user brings, checked and brought into shape.


ValueRange = tuple[float, float] | tuple[Sequence[float], Sequence[float]]
PIXELS = (0.0, 255.0)
HELD_BACK = 10  # one in so many private records, to estimate accuracy
BLOCK = 2**10  # inputs that are converted at a time


def value_range_of(value_range: ValueRange | None, public: npt.NDArray[Any], kind: str) -> Any:
    """Returns the range of inputs, as a `Dataset` has it; raises ValueError if it is not known."""
    if value_range is None:
        if kind == "image" and public.dtype == np.uint8:
            return PIXELS
        raise ValueError(
            f"value_range: expected the lowest and the highest value of an input, from public "
            f"knowledge, for {kind} inputs of {public.dtype}; got none"
        )
    if len(value_range) != 2:
        raise ValueError(
            f"value_range: expected a lowest and a highest value, got {len(value_range)}"
        )
    # Numbers or tuples of numbers, as a `Dataset` has them.
    sides = [np.asarray(side, np.float64).tolist() for side in value_range]
    return tuple(tuple(side) if isinstance(side, list) else side for side in sides)


def encoded_texts(
    texts: npt.ArrayLike, what: str, length: int, characters: bool
) -> npt.NDArray[np.float32]:
    """Returns texts `[num_texts]` as `length` hashed n-grams, or as their first characters."""
    from pate_tf.data import preprocessing  # TensorFlow, for texts alone

    strings = preprocessing.as_texts(texts, what)
    return preprocessing.encode_texts(strings, length, characters=characters)


def arrays_of(
    x_private: npt.ArrayLike, x_public: npt.ArrayLike | None, kind: str | None
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], str]:
    """Returns private and public inputs with their last dimension, and what they are.

    Where there are no public ones, they are none of the private ones' shape.

    Raises:
        ValueError: if they are no numbers, or of different shapes.
    """
    private = as_numbers(x_private, "x_private")
    public = private[:0] if x_public is None else np.asarray(x_public)
    for what, array in (("x_private", private), ("x_public", public)):
        if array.dtype.kind not in "uif" or array.ndim < 2:
            raise ValueError(
                f"{what}: expected numbers [num_inputs, ...], got {array.dtype} of shape "
                f"{list(array.shape)}; Data.from_dataframe takes texts and codes"
            )
    kind = kind or ("tabular" if public.ndim == 2 else "image")
    if kind == "image":
        private = private[..., np.newaxis] if private.ndim == 3 else private
        public = public[..., np.newaxis] if public.ndim == 3 else public
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
    return private, public, kind


def checked(inputs: npt.NDArray[Any], dataset: Dataset, what: str) -> npt.NDArray[Any]:
    """Returns inputs in the data set's type, clipped to its range, each number by itself.

    Each one goes the same way, through float64, whether it or another is outside of the range.
    Of public ones that were outside there is a warning; of private ones it would tell something.
    There is one, too, where images seem to have their channels first.
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
                f"x_public: images are {height} high and {width} wide, of {channels} channels; if "
                f"channels come first, move them to the end: np.moveaxis(x, 1, -1)",
                stacklevel=3,
            )
    read = np.empty(inputs.shape, dataset.input_type)
    for start in range(0, len(inputs), BLOCK):
        some = slice(start, start + BLOCK)
        clipped = np.clip(inputs[some].astype(np.float64), low, high)
        read[some] = to_input_type(clipped, dataset, what)
    return read


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """Private records, and the public samples that a student learns from.

    >>> import numpy as np, pate_tf
    >>> x, y = np.random.default_rng(0).uniform(size=(90, 3)), np.arange(90) % 2
    >>> data = pate_tf.Data.from_arrays(x, y, x, num_classes=2, value_range=(0, 1))
    >>> len(data.private), data.dataset.kind
    (90, 'tabular')

    Attributes:
        private: SENSITIVE; the labeled records that teachers share out. Its `repr` shows shapes
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

    @property
    def dataset(self) -> Dataset:
        """What is publicly known of both sides."""
        return self.private.dataset

    @property
    def schema(self) -> Schema | None:
        """How a row of a table becomes features; None where inputs are the rows themselves.

        `schema.encode(record)` returns the features of one record.
        """
        return self.dataset.schema

    @property
    def pool(self) -> Pool:
        """Public inputs without labels, which a student learns from."""
        return self.public.pool

    @property
    def held_out(self) -> PublicExamples:
        """Public samples outside of the pool, which evaluate a student where they have labels."""
        return self.public.held_out

    def hold_back(self) -> tuple[Data, PrivateExamples]:
        """Returns the data without a tenth of the private records, and that tenth. SENSITIVE.

        A record's position decides, or its owner's name: never other records.

        Raises:
            ValueError: if there are fewer than ten records, and no owners.
        """
        private = self.private
        if private.owners is not None:
            partition = owner_partition(private.owners, num_teachers=HELD_BACK, seed=0)
        elif len(private) < HELD_BACK:
            raise ValueError(
                f"evaluate_epsilon: expected at least {HELD_BACK} private records, got fewer"
            )
        else:
            partition = random_partition(num_records=len(private), num_teachers=HELD_BACK, seed=0)
        is_held_back = partition.assignment == 0
        this_call = object()
        learned_from = dataclasses.replace(private.take(~is_held_back), split=(this_call, False))
        held_back = dataclasses.replace(private.take(is_held_back), split=(this_call, True))
        return dataclasses.replace(self, private=learned_from), held_back

    @classmethod
    def load(cls, name: str, *, data_dir: str | os.PathLike[str] | None = None) -> Data:
        """Returns a data set by name.

        >>> import pate_tf
        >>> data = pate_tf.Data.load("digits")
        >>> data.private, len(data.pool), len(data.held_out)
        (PrivateExamples(<1200 records>), 400, 197)

        Args:
            name: "digits", "mnist", "svhn", "cifar10", another name of TensorFlow
                Datasets, or `module:function`.
            data_dir: where the data lie; None for the default of TensorFlow Datasets.

        Raises:
            ValueError: if there is no such data set, or it can't be had.
        """
        folder = None if data_dir is None else pathlib.Path(data_dir)
        return cls.of(DataSource(dataset=name, data_dir=folder))

    @classmethod
    def of(
        cls, source: DataSource, pool_size: int | None = None, reporting: Reporting = QUIET
    ) -> Data:
        """Returns the data that flags name, its private and its public side.

        Args:
            source: where they lie.
            pool_size: how many of the public samples, from the first, form the pool; None for the
                data set's own number.
            reporting: how progress is shown.

        Raises:
            ValueError: if they can't be had, or both sides are not of one data set.
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
        """Takes arrays of images, of tables or of texts.

        >>> import numpy as np, pate_tf
        >>> x, y = np.zeros((90, 8, 8)), np.arange(90) % 10
        >>> data = pate_tf.Data.from_arrays(
        ...     x[:60], y[:60], x[60:], num_classes=10, value_range=(0, 16), held_out=0.3)
        >>> data.private, len(data.pool), len(data.held_out), data.dataset.input_type
        (PrivateExamples(<60 records>), 21, 9, 'float32')

        Everything that teachers and students are told of the data is public: it comes from these
        arguments and from the type and shape of `x_public`, never from private records. Without
        `x_public` it is the type and shape of `x_private`, and no value of it. The type is the
        array's `dtype`; a list has none, and its inputs become float32. Each record is read by
        itself, whatever the others are.

        Args:
            x_private: inputs of the private records: images `[num_records, height, width]` or with
                `channels` at the end, tables `[num_records, num_features]`. SENSITIVE.
            y_private: their labels, each a whole number from 0 to num_classes - 1 or a text of
                `class_names`; with `target_range` numbers; with `label_names` several labels, 0 and
                1 `[num_records, num_labels]`. SENSITIVE.
            x_public: public inputs of the same shape. Default: none; feature sums
                need none. Their type is that of all inputs: images of
                whole numbers within 0 to 255 become uint8, other images and all tables float32.
            y_public: their labels, as far as known (elsewhere -1; of names "" or None; of numbers
                NaN; of several labels a row of -1), for evaluation and the choice of a table's
                representation. Default: none.
            num_classes: number of classes, at least 2. Needed for classes, and for nothing else.
            target_range: lowest and highest label where labels are numbers, from public knowledge.
                Labels outside are clipped, with a warning. Default: labels are no numbers.
            label_names: names of several labels, any number of which hold. Default: one class each.
            max_labels: with `label_names`: how many labels of a record count in full; more weigh
                less together. Default: all.
            value_range: lowest and highest value of an input, from public knowledge; of tables also
                one of each for every feature. Values outside are clipped, with a warning for public
                ones. Default: 0 to 255 for uint8 images; none for others.
            owners: whose each private record is, whole numbers or strings; a number and its digits
                are one owner. All records of one owner go to one teacher, and the guarantee is for
                owners instead of records.
            held_out: share of the public samples that stays out of the pool. Default: 0.3 if there
                are labels to evaluate with, else none.
            held_out_seed: None if the last samples are held out, and the pool keeps the order of
                `x_public`; else a seed by which the held-out ones are chosen. Sorted samples need
                one.
            kind: "image", "tabular" or "text". Default: by the shape; two dimensions are a table.
                With "text" the inputs are strings `[num_texts]`, which become hashed n-grams of
                words, without a vocabulary; a served student takes strings.
            class_names: a name for each class.
            augmentation: what leaves an image's label as it is: "none", "shift", "affine" or
                "flip", as `Dataset` says. Default: "shift", by at most a fourteenth of the side,
                for images.
            name: public name of the private data, to which all releases from them are charged, on
                this machine, in all run folders. Default: none; a run folder counts its own
                releases alone.
            characters: with "text": how many of each text's first characters are kept, in place of
                n-grams, for a pre-trained encoder of texts. Default: n-grams.

        Raises:
            ValueError: if the arrays do not fit each other or the other arguments, or an input is
                not finite. The message carries no private value.
        """
        if kind == "text":
            if value_range is not None:
                raise ValueError("value_range: expected none for texts, got one")
            value_range = (0.0, LARGEST_CHARACTER if characters else 1.0)
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
            augmentation=augmentation or "",  # the kind's own
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
            # The held-out samples come last; both parts keep their order.
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
        """Takes two data frames, of pandas, polars or pyarrow.

        What is not stated is read off the public frame alone: a column of numbers has their range
        there, to which private ones are clipped; any other column is a category for each value
        there, and one for others. A column with more than 30 values that are no numbers is left
        out, with a warning. So is the label read: many numbers make it one, with their range,
        and texts that share parts with |, ; or a comma between them several labels.

        Args:
            private: the private records. SENSITIVE.
            public: public ones, which need no labels, nor a column of them. Default: none; feature
                sums need none, but a `schema`.
            label: name of the label's column; for several labels a list of their columns, each of 0
                and 1, or yes and no.
            owner: name of the column that says whose a private record is; all records of one owner
                go to one teacher. Default: none, or the schema's.
            classes: what the label can be, in the order of their numbers. Default: by the labels of
                `public`: these, sorted, unless they are a number or several labels.
            categories: names of columns of numbers that are codes of categories; of a label, of
                classes.
            schema: states columns and classes instead, itself or its file; see `from_csv`.
            name: public name of the private data, to which all releases from them are charged.
                Default: none; a run folder counts its own releases alone.

        Raises:
            ValueError: if a column is missing, nothing says what the classes are, or a record does
                not fit the schema. The message names a place and no private value.
        """
        if public is None and schema is None:
            raise ValueError(
                "schema: expected one, with ranges and categories from public knowledge, where "
                "there are no public records, got none"
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
        """Takes two tables: files of separated values, or of Parquet.

        Args:
            private: the private records; the first line names the columns. SENSITIVE.
            public: public ones, which need no labels, nor a column of them. Default: none; feature
                sums need none.
            schema: a TOML file with each column's range or categories and the classes, from public
                knowledge; `pate schema` drafts it from the public file.
            label: name of the label's column, or a list of several. Default: the schema's.
            owner: name of the column that says whose a private record is; all records of one owner
                go to one teacher. Default: the schema's, if it has one.
            on_bad_record: "refuse" if a private record that does not fit is an error; "skip" if it
                is left out, by itself alone, whatever the others are.
            name: public name of the private data, to which all releases from them are charged.
                Default: the stem of the private file, which is told from others by its path.

        Raises:
            ValueError: if a file can't be read, or a record does not fit the schema. The message
                names a place and no private value.
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
        """Takes one or two folders of images: PNG, JPEG, WebP, TIFF, BMP, GIF, PGM or PPM.

        They are turned as their EXIF entries say, laid on a background where transparent, and
        gray if all public ones are. Pixels of more than 8 bits are stretched by a range that
        the public ones fix.

        Args:
            private: with a folder for each class. SENSITIVE. An image's teacher follows from its
                file's name: give each a name of its own that says nothing of others.
            public: with the same folders, or with images outside of them, which have no label.
                Default: none; images become gray then, and feature sums need no pool.
            classes: names of the classes in the order of their numbers. Default: the names of the
                folders in `public`, sorted, or those in `private`, which are public then.
            augmentation: what leaves an image's label as it is; see `Dataset`.
            image_size: height and width that each image is scaled to, by a bilinear filter that
                averages where it becomes smaller. Default: that of the public images, which must
                all have one. Needed without these.
            background: "white", "black" or "gray", which transparent images are laid on.
            on_bad_record: "refuse" if a private image that is broken is an error; "skip" if it is
                left out, by itself alone, whatever the others are.
            name: public name of the private data, to which all releases from them are charged.
                Default: the name of the private folder, which is told from others by its path.

        Raises:
            ValueError: if there are no images, some are broken, public ones differ in size or are
                all alike, or classes are not known. The message names no private file.
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


# Data frames of pandas, polars and pyarrow, none of which is imported.


NUMBER_TYPES = ("int", "uint", "float", "double", "half", "decimal")  # how their names begin


def frame_table(frame: Any, what: str) -> tables.TextTable:
    """Returns the records of a data frame, as a file of them would have them.

    Raises:
        ValueError: if it is none.
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
    """Returns the columns of a data frame by name, and the names that several have."""
    if hasattr(frame, "collect"):
        raise ValueError(
            f"expected a data frame with its records, got {type(frame).__name__}: call its "
            f"collect()"
        )
    names = getattr(frame, "column_names", None)  # of pyarrow, whose `columns` are values
    names = getattr(frame, "columns", None) if names is None else names
    if names is None:
        raise ValueError(f"expected a data frame with columns, got {type(frame).__name__}")
    numbers = Counter(map(str, names))
    return (
        {str(name): frame[name] for name in names if numbers[str(name)] == 1},
        [name for name, number in numbers.items() if number > 1],
    )


def _joined(label: str | Sequence[str]) -> str:
    """Returns names of several labels with commas between them, as flags have them."""
    return label if isinstance(label, str) else ",".join(label)


def _text(value: Any) -> str:
    """Returns a value of a data frame as text; empty where it is missing."""
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
    """Returns a schema by the types and values of a public data frame, and of its `frame_table`.

    The others are as of `Data.from_dataframe`.

    Raises:
        ValueError: if no column can be used, or nothing says what the classes are.
    """
    codes = set(categories)
    for name, column in _columns(public)[0].items():
        kind = str(column.dtype if hasattr(column, "dtype") else column.type).lower()
        if not kind.startswith(NUMBER_TYPES):
            codes.add(name)
    labels = schema.split_label(label, table.fields)
    columns = schema.draft_columns(table.fields, without=(*labels, owner), categories=codes)
    target = CLASS if classes is not None or {*labels} & {*categories} else None
    stated, doubts = schema.drafted_target(labels, table.fields, target)
    for doubt in [*schema.unnamed_left_out([*table.left_out, *table.fields]), *doubts]:
        warnings.warn(f"public: {doubt}", stacklevel=3)
    if classes is not None:
        stated = {"classes": tuple(_text(name) for name in classes)}
    if len(stated.get("classes", (0, 1))) < 2:
        raise ValueError(f"classes: expected what {label} can be, of which public says too little")
    if left_out := sorted(name for name, column in columns.items() if column is None):
        warnings.warn(
            f"public: columns {', '.join(left_out)} have too many values for categories and are "
            f"left out; a schema= with `text = 2048` for one makes features of its words",
            stacklevel=3,
        )
    usable = tuple(column for column in columns.values() if column is not None)
    named = labels[0] if len(labels) == 1 else None
    return Schema(columns=usable, label=named, owner=owner, **stated)


def numbered(
    labels: npt.ArrayLike, dataset: Dataset, what: str, *, may_lack: bool = False
) -> npt.NDArray[Any]:
    """Returns labels as `checked_labels` takes them, each by itself: a text names its class.

    True and False name theirs, too, if there are such names; else they are 1 and 0. There is a
    warning if numbers are outside of their range.

    An array of numbers is returned as it is. Where labels `may_lack`, an empty one becomes -1,
    unknown.

    Raises:
        ValueError: if a label that is no number names no class. The message names no label.
    """
    if dataset.target != CLASS:
        numbers = as_numbers(labels, what)
        if dataset.target_range is not None and numbers.dtype.kind in "uif":
            low, high = dataset.target_range
            is_outside = (numbers < low) | (numbers > high)
            tables.warn_of_range(what, is_outside, is_private=not may_lack)
        return numbers.astype(np.int64) if numbers.dtype.kind == "b" else numbers
    # A list has no type: one that fits all labels would depend on each.
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
        expected = f"whole numbers from 0 to {dataset.num_classes - 1}, or class_names= with names"
        if dataset.class_names:
            expected = f"labels of the class_names {', '.join(dataset.class_names[:12])}"
        raise ValueError(f"{what}: expected {expected}, got others")
    return np.array(each, np.int64).reshape(array.shape)


def as_examples(samples: Any, dataset: Dataset) -> PublicExamples:
    """Returns public samples with what is known of their labels.

    Args:
        samples: `PublicExamples`, or a data frame with the label's column of the data set's schema.
        dataset: whose samples they are.

    Raises:
        ValueError: if they are others, whose labels nothing says.
    """
    if dataset.schema is not None and hasattr(samples, "columns"):
        table = frame_table(samples, "inputs")
        names = dataset.schema.label_names()
        if names and {*names} <= {*table.fields}:
            return table.public(dataset.schema, name=dataset.name)
    if not isinstance(samples, PublicExamples):
        raise ValueError("labels: expected `labels=` with raw inputs, or data.held_out, got none")
    return samples


def as_inputs(inputs: Any, dataset: Dataset) -> npt.NDArray[Any]:
    """Returns raw inputs as the data set holds them, from an array or from public values.

    Args:
        inputs: a `Pool`, `PublicExamples`, or an array `[num_inputs, *input_shape]`, of gray images
            also without the last dimension. Of texts also strings `[num_inputs]`, of tables with a
            schema also a data frame.
        dataset: whose inputs they are.

    Raises:
        ValueError: if they don't fit the data set.
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
