"""The user's data: private records and public samples.

TensorFlow is only imported for texts and images.
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

from pate_tf.core import artifacts, checks
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

# The user's files.


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
        public: a file of PUBLIC records; None for no public file.
        path: file that the draft is written to.
        private: a private file whose first line names the columns. Without `public`, the draft
            contains these names; otherwise they must include the public ones. Nothing else of the
            file appears in the draft or in a message.
        label: name of the label's column, which public records may lack. Required without
            `public`. Commas separate the columns of several labels.
        owner: name of the owner's column.
        target: "class", "number" or "labels". Default: inferred from the label's public values.

    Raises:
        ValueError: if no file is named, both are the same file, a file can't be read, the first
            line of `private` may be a record, or `path` already exists or can't be written.
    """
    if path.exists():
        raise ValueError(f"schema: {path} already exists; remove it or choose another name")
    artifacts.check_can_hold_files(path.parent)
    tables.check_other_file(public, private)
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
            raise ValueError("label is required: otherwise the first line may be a record")
        text = schema.draft_of_names(
            form.names,
            labels=labels,
            owner=owner,
            target=target,
            written={"delimiter": form.delimiter, "encoding": form.encoding},
        )
    else:
        raise ValueError("`public` or `private` is required: the file to draft a schema from")
    artifacts.write_text(path, text)
    return text


def read_records(path: pathlib.Path, dataset: Dataset) -> PrivateExamples:
    """SENSITIVE: returns the records of an `.npz` file: `inputs`, `labels` and optional `owners`.

    Raises:
        ValueError: if the arrays do not fit the data set.
        OSError: if the file can't be read.
    """
    arrays = artifacts.read_arrays(path)
    if set(arrays) - {"owners"} != {"inputs", "labels"}:
        raise ValueError(f"{path} must contain the arrays inputs, labels and optionally owners")
    inputs = to_input_type(arrays["inputs"], dataset, str(path))
    source = PrivateSource.of_file(path)
    owners = arrays.get("owners")
    return PrivateExamples(dataset, inputs, arrays["labels"], owners=owners, source=source)


# The user's arrays, checked and reshaped.


ValueRange = tuple[float, float] | tuple[Sequence[float], Sequence[float]]
PIXELS = (0.0, 255.0)
HELD_BACK = 10  # one of this many private records estimates the accuracy
BLOCK = 2**10  # inputs converted at a time


def value_range_of(value_range: ValueRange | None, public: npt.NDArray[Any], kind: str) -> Any:
    """Returns the range of inputs for a `Dataset`; raises ValueError if it is unknown."""
    if value_range is None:
        if kind == "image" and public.dtype == np.uint8:
            return PIXELS
        raise ValueError(
            f"value_range is required for {kind} inputs of {public.dtype}: the lowest and the "
            f"highest value of an input, from public knowledge"
        )
    if len(value_range) != 2:
        raise ValueError(f"value_range must be (lowest, highest), got {len(value_range)} values")
    # A `Dataset` takes numbers or tuples of numbers.
    sides = [np.asarray(side, np.float64).tolist() for side in value_range]
    return tuple(tuple(side) if isinstance(side, list) else side for side in sides)


def encoded_texts(
    texts: npt.ArrayLike, what: str, length: int, characters: bool
) -> npt.NDArray[np.float32]:
    """Returns texts `[num_texts]` as `length` hashed n-grams, or as their first characters."""
    from pate_tf.data import preprocessing  # TensorFlow, only for texts

    strings = preprocessing.as_texts(texts, what)
    return preprocessing.encode_texts(strings, length, characters=characters)


def arrays_of(
    x_private: npt.ArrayLike, x_public: npt.ArrayLike | None, kind: str | None
) -> tuple[npt.NDArray[Any], npt.NDArray[Any], str]:
    """Returns private inputs, public inputs and their kind; gray images get a channel dimension.

    Without public inputs, the public array is empty; its inputs have the shape of private inputs.

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
    """Returns inputs in the data set's type, clipped to its range.

    Every number is converted through float64, so no number changes how another one is converted.
    Warns if public numbers are outside the range; a warning about private numbers would reveal
    something. Also warns if public images seem to have their channels first.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Data:
    """Private records, and the public samples that a student learns from.

    >>> import numpy as np, pate_tf
    >>> x, y = np.random.default_rng(0).uniform(size=(90, 3)), np.arange(90) % 2
    >>> data = pate_tf.Data.from_arrays(x, y, x, num_classes=2, value_range=(0, 1))
    >>> len(data.private), data.dataset.kind
    (90, 'tabular')

    Attributes:
        private: SENSITIVE; the labeled records, partitioned among the teachers. The `repr` only
            shows shapes.
        public: public samples, split into the pool of possible queries and the held-out samples.
    """

    private: PrivateExamples
    public: PublicSplit

    def __post_init__(self) -> None:
        if difference := self.public.dataset.difference(self.private.dataset):
            raise ValueError(f"data: public and private data sets differ: {difference}")

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
        """Public facts about private records and public samples."""
        return self.private.dataset

    @property
    def schema(self) -> Schema | None:
        """The schema that turns a row of a table into features; None without a schema.

        `schema.encode(record)` returns the features of one record.
        """
        return self.dataset.schema

    @property
    def pool(self) -> Pool:
        """Public inputs that a student learns from."""
        return self.public.pool

    @property
    def held_out(self) -> PublicExamples:
        """Public samples outside the pool. If they have labels, they evaluate the student."""
        return self.public.held_out

    def hold_back(self) -> tuple[Data, PrivateExamples]:
        """Splits off a tenth of the private records; returns the rest and the tenth. SENSITIVE.

        The split depends on a record's position or on its owner's name, never on other records.

        Raises:
            ValueError: if there are fewer than ten records and no owners.
        """
        private = self.private
        if private.owners is not None:
            partition = owner_partition(private.owners, num_teachers=HELD_BACK, seed=0)
        elif len(private) < HELD_BACK:
            raise ValueError(f"evaluate_epsilon needs at least {HELD_BACK} private records")
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
            data_dir: folder with the data; None for the default of TensorFlow Datasets.

        Raises:
            ValueError: if there is no such data set, or it can't be loaded.
        """
        folder = None if data_dir is None else pathlib.Path(data_dir)
        return cls.of(DataSource(dataset=name, data_dir=folder))

    @classmethod
    def of(
        cls, source: DataSource, pool_size: int | None = None, reporting: Reporting = QUIET
    ) -> Data:
        """Returns the private and public data that the flags name.

        Args:
            source: names the data.
            pool_size: number of samples in the pool, which are the first public samples; None for
                the data set's default.
            reporting: shows progress.

        Raises:
            ValueError: if the data can't be loaded, or private and public data sets differ.
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

        All facts about the data that teachers and students use are public: they come from these
        arguments and from the type and shape of `x_public`, never from private values. Without
        `x_public`, type and shape are those of `x_private`. The type is the array's `dtype`; inputs
        in a list become float32. No record changes how another record is read.

        Args:
            x_private: inputs of the private records: images `[num_records, height, width]` or with
                `channels` at the end, tables `[num_records, num_features]`. SENSITIVE.
            y_private: labels of the private records: whole numbers from 0 to num_classes - 1 or
                names in `class_names`. With `target_range`, any numbers. With `label_names`, 0 or 1
                for each label, `[num_records, num_labels]`. SENSITIVE.
            x_public: public inputs of the same shape. Default: none; then only feature sums work.
                Images of whole numbers from 0 to 255 become uint8, other images and all tables
                become float32. Private inputs get the same type.
            y_public: labels of the public inputs. Mark unknown labels as -1 (names: "" or None;
                numbers: NaN; several labels: a row of -1). They evaluate the student and choose the
                representation of a table. Default: none.
            num_classes: number of classes, at least 2. Required for classes only.
            target_range: lowest and highest label if labels are numbers, from public knowledge.
                Labels outside this range are clipped, with a warning. Default: labels are not
                numbers.
            label_names: names of the labels if each record can have several labels. Default: each
                record has one class.
            max_labels: with `label_names`: number of labels that count fully. If a record has more
                labels, each of them counts less. Default: all.
            value_range: lowest and highest value of an input, from public knowledge. For tables,
                both can be arrays with one value for each feature. Values outside are clipped;
                only public ones cause a warning. Default: 0 to 255 for uint8 images; required
                otherwise.
            owners: the owner of each private record, as whole numbers or strings; 7 and "7" are the
                same owner. All records of one owner go to one teacher, and the guarantee protects
                owners instead of records.
            held_out: fraction of the public samples that stays out of the pool. Default: 0.3 if
                there are public labels, else 0.
            held_out_seed: seed that chooses the held-out samples. Default: the last samples are
                held out, which is wrong if samples are sorted. The pool keeps the order of
                `x_public`.
            kind: "image", "tabular" or "text". Default: inferred from the shape; two dimensions are
                a table. With "text" the inputs are strings `[num_texts]`, which become hashed
                n-grams of words, without a vocabulary; a served student takes strings.
            class_names: a name for each class.
            augmentation: changes that keep an image's label: "none", "shift", "affine" or "flip";
                see `Dataset`. Default: "shift", by at most a fourteenth of the side, for images.
            name: public name of the private data. All releases from them on this machine are
                charged to this name. Default: no name; each run folder counts only its own
                releases.
            characters: with "text": number of characters at the start of each text that become its
                inputs, for a pre-trained text encoder. Default: inputs are hashed n-grams.

        Raises:
            ValueError: if the arrays do not fit each other or the other arguments, or an input is
                not finite. The message contains no private value.
        """
        if kind == "text":
            if value_range is not None:
                raise ValueError("value_range is not for texts; remove it")
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
            augmentation=augmentation or "",  # the default of the kind
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
            # The held-out samples come last. Both parts keep their order.
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

        Without a `schema`, the columns are inferred from the public frame only. A column of numbers
        gets the range of its public numbers, and private numbers are clipped to this range. Any
        other column is a category; its values are the public values, and one more value for all
        others. A column with more than 30 values that are not numbers is left out, with a warning.
        The kind of label is inferred as well. The label is a number if it has many different
        numbers, and several labels if its texts have parts separated by |, ; or a comma.

        Args:
            private: the private records. SENSITIVE.
            public: public records, which need no label column. Default: none; then only feature
                sums work, and a `schema` is required.
            label: name of the label's column. For several labels, a list of column names; each of
                these columns contains 0 and 1, or yes and no.
            owner: name of the column with the owner of each private record; all records of one
                owner go to one teacher. Default: the owner column of the schema, if it has one.
            classes: the classes, in the order of their numbers. Default: the sorted labels of
                `public`, unless these are numbers or several labels.
            categories: names of columns whose numbers are codes of categories. If the label is
                among them, its numbers are codes of classes.
            schema: a schema or the path of its file (see `from_csv`); then nothing is inferred.
            name: public name of the private data. All releases from them are charged to this name.
                Default: no name; each run folder counts only its own releases.

        Raises:
            ValueError: if a column is missing, the classes are unknown, or a record does not fit
                the schema. The message contains positions, but no private value.
        """
        if public is None and schema is None:
            raise ValueError(
                "schema is required without public records: it states public ranges and categories"
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
        """Returns data from two tables in files of separated values or Parquet.

        Args:
            private: the private records; the first line names the columns. SENSITIVE.
            public: public records, which need no label column. Default: none; then only feature
                sums work.
            schema: a TOML file that states, from public knowledge, the classes and the range or
                categories of each column. `pate schema` drafts it from the public file.
            label: name of the label's column, or a list of names. Default: as in the schema.
            owner: name of the column with the owner of each private record; all records of one
                owner go to one teacher. Default: the owner column of the schema, if it has one.
            on_bad_record: "refuse" to raise an error for a private record that does not fit the
                schema; "skip" to leave it out. Skipping never depends on other records.
            name: public name of the private data. All releases from them are charged to this name.
                Default: the name of the private file, together with its path.

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

        Images are rotated as their EXIF entries say, and transparent ones get a background. They
        become gray if all public images are gray. Pixels of more than 8 bits are scaled by a range
        that the public images fix.

        Args:
            private: a folder with a folder for each class. SENSITIVE. A file's name determines the
                teacher of its image, so give each file a unique name that reveals nothing.
            public: a folder with the same folders, or with unlabeled images outside of them.
                Default: none; then only feature sums work, and images become gray.
            classes: names of the classes in the order of their numbers. Default: the sorted names
                of the folders in `public`, or of those in `private`, which then become public.
            augmentation: changes that keep an image's label; see `Dataset`.
            image_size: height and width that each image is scaled to, by a bilinear filter that
                averages when it shrinks an image. Default: the common size of all public images.
                Required without public images.
            background: "white", "black" or "gray", the background of transparent images.
            on_bad_record: "refuse" to raise an error for a broken private image; "skip" to leave it
                out. Skipping never depends on other images.
            name: public name of the private data. All releases from them are charged to this name.
                Default: the name of the private folder, together with its path.

        Raises:
            ValueError: if there are no images, some are broken, public images differ in size or are
                all equal, or the classes are unknown. The message names no private file.
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


# Data frames of pandas, polars and pyarrow. None of these libraries is imported.


NUMBER_TYPES = ("int", "uint", "float", "double", "half", "decimal")  # prefixes of type names


def frame_table(frame: Any, what: str) -> tables.TextTable:
    """Returns the records of a data frame as a `TextTable`, as if they were read from a file.

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
    """Returns the columns of a data frame by name, and the names that occur several times."""
    if hasattr(frame, "collect"):
        raise ValueError(f"a {type(frame).__name__} has no records yet: call its collect() first")
    names = getattr(frame, "column_names", None)  # for pyarrow, whose `columns` are values
    names = getattr(frame, "columns", None) if names is None else names
    if names is None:
        raise ValueError(f"a {type(frame).__name__} is not a data frame: it has no columns")
    numbers = Counter(map(str, names))
    return (
        {str(name): frame[name] for name in names if numbers[str(name)] == 1},
        [name for name, number in numbers.items() if number > 1],
    )


def _joined(label: str | Sequence[str]) -> str:
    """Returns the names of several labels joined by commas, as flags take them."""
    return label if isinstance(label, str) else ",".join(label)


def _text(value: Any) -> str:
    """Returns a value of a data frame as text; an empty text if it is missing."""
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
    """Returns a schema inferred from a public data frame and its `frame_table`.

    See `Data.from_dataframe` for the other arguments.

    Raises:
        ValueError: if no column can be used, or the classes are unknown.
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
        raise ValueError(f"classes is required: public has fewer than two values of {label}")
    if left_out := sorted(name for name, column in columns.items() if column is None):
        warnings.warn(
            f"public: columns {', '.join(left_out)} have too many values for categories and are "
            f"left out. Pass schema= with `text = 2048` for a column to use its words.",
            stacklevel=3,
        )
    usable = tuple(column for column in columns.values() if column is not None)
    named = labels[0] if len(labels) == 1 else None
    return Schema(columns=usable, label=named, owner=owner, **stated)


def numbered(
    labels: npt.ArrayLike, dataset: Dataset, what: str, *, may_lack: bool = False
) -> npt.NDArray[Any]:
    """Returns labels in the format of `checked_labels`; a text becomes the number of its class.

    True and False mean the classes with these names if they exist, else 1 and 0. An array of
    numbers is returned unchanged. Warns if numeric labels are outside their range. No label changes
    how another label is read.

    Args:
        labels: the labels that the user passed.
        dataset: names the classes.
        what: name of the argument, for messages.
        may_lack: whether the labels are public and may be unknown: an empty label becomes -1.

    Raises:
        ValueError: if a text names no class. The message contains no label.
    """
    if dataset.target != CLASS:
        numbers = as_numbers(labels, what)
        if dataset.target_range is not None and numbers.dtype.kind in "uif":
            low, high = dataset.target_range
            is_outside = (numbers < low) | (numbers > high)
            tables.warn_of_range(what, is_outside, is_private=not may_lack)
        return numbers.astype(np.int64) if numbers.dtype.kind == "b" else numbers
    # A list has no type, and a common type of all labels would depend on each of them.
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
    """Returns public samples with their known labels.

    Args:
        samples: `PublicExamples`, or a data frame with the label column of the data set's schema.
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
    """Returns raw inputs in the format of the data set.

    Args:
        inputs: a `Pool`, `PublicExamples`, or an array `[num_inputs, *input_shape]`. Gray images
            may lack the last dimension, texts may be strings `[num_inputs]`, and tables with a
            schema may be a data frame.
        dataset: data set of the inputs.

    Raises:
        ValueError: if the inputs do not fit the data set.
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
