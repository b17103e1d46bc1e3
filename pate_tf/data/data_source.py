"""Where the data of a run lie: a data set by its name, a function, or files of the user's own."""

import dataclasses
import functools
import pathlib
from typing import Any

from pate_tf.core import artifacts
from pate_tf.core.dataset import BACKGROUND, BACKGROUNDS, Dataset
from pate_tf.core.public import PublicExamples
from pate_tf.core.reporting import Reporting
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.settings import Settings, described, setting
from pate_tf.core.source import PrivateSource
from pate_tf.data import datasets, image_folders, tables
from pate_tf.data.schema import Schema, read_schema


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileSource(Settings):
    """Data in files of the user's own: tables, or images in folders."""

    private: pathlib.Path | None = setting(
        None,
        help="Private records, instead of --dataset: a file of comma-separated values or Parquet, "
        "with --schema, or a folder with a folder of images for each class. Without --public the "
        "method is feature_sums; images take --image_size then.",
    )
    owner: str | None = setting(
        None,
        advanced=True,
        help="Column that says whose a private record is: all records of one owner go to one "
        "teacher. Default: what the schema says, if anything.",
    )
    public: pathlib.Path | None = setting(
        None,
        help="Public records, instead of --dataset: a file, or a folder of images. They need no "
        "labels.",
    )
    schema: pathlib.Path | None = setting(
        None,
        help="Of files: a TOML file with each column's range or categories, and the label's, from "
        "public knowledge; pate schema drafts it from the public file.",
    )
    label: str | None = setting(
        None, advanced=True, help="Of files: the label's column. Default: the schema's."
    )
    image_size: str | None = setting(
        None,
        help="Of images: the side, or HEIGHTxWIDTH, that each is scaled to, by a bilinear filter "
        "that averages where it becomes smaller. Default: all have one size, the public images'. "
        "Without public images all become gray.",
    )
    background: str = setting(
        BACKGROUND,
        advanced=True,
        choices=tuple(BACKGROUNDS),
        help="Of images: the color that transparent ones are laid on.",
    )
    on_bad_record: str = setting(
        tables.REFUSE,
        advanced=True,
        choices=(tables.REFUSE, tables.SKIP),
        help="What becomes of a private record that does not fit the schema, or of a broken "
        "image. refuse: an error. skip: it is left out, by itself alone, whatever the others are; "
        "how many are left is private then, and each record is an owner if there are none.",
    )
    name: str | None = setting(
        None,
        help="What the data set is called in the run's folder, and the source of the private data "
        "unless --source_name names it. Default: what the schema says, else the name of the "
        "private file, or of the folder of public images.",
    )

    @functools.cached_property
    def _schema(self) -> Schema:
        if self.schema is None:
            raise ValueError(
                "schema: expected a file that states the columns' ranges and categories, got none; "
                "pate schema drafts one"
            )
        return read_schema(self.schema)

    @functools.cached_property
    def _public_table(self) -> tables.TextTable:
        if self.public is None:
            raise ValueError("public: expected a file or folder of public records, got none")
        form = tables.text_form(self.public, self._schema)
        return tables.read_table(self.public, form, self._schema, self.label)

    def load_public(self) -> PublicExamples:
        """Returns the public samples; none where there is no public file or folder.

        Raises:
            ValueError: if they can't be read, or don't fit the schema.
        """
        place = self.public or self.private
        if place is not None and place.is_dir():
            for name in ("schema", "label", "owner"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name}: expected with tables alone, got it with images")
            return image_folders.load_public(
                self.public,
                self.private,
                name=self.name,
                size=image_folders.size_of(self.image_size),
                background=self.background,
                on_bad_record=self.on_bad_record,
            )
        if self.image_size is not None:
            raise ValueError("image_size: expected with folders of images alone, got it with files")
        place = self.private or self.public
        of_file = "table" if place is None else place.resolve().stem
        name = self.name or self._schema.name or of_file
        if self.public is None:
            return PublicExamples.none_of(self._schema.dataset(name, 0))
        table = self._public_table
        by = self._schema.with_decimals(table.fields)
        return table.public(by, name=name, label=self.label)

    def load_private(self, public: PublicExamples | None = None) -> PrivateExamples:
        """SENSITIVE: returns the private records.

        Args:
            public: what `load_public` returned; None where it is read here, if there is any.

        Raises:
            ValueError: if they can't be read, or don't fit the public side.
        """
        if self.private is None:
            raise ValueError("private: expected the file of the private records, got none")
        if self.public is not None and self.public.resolve() == self.private.resolve():
            raise ValueError(
                f"public: expected another file than the private one, got {self.public} for both: "
                f"the pool is public, and part of what is released"
            )
        public = self.load_public() if public is None else public
        is_folder = (self.public or self.private).is_dir()
        if is_folder != self.private.is_dir():
            raise ValueError("private: expected two folders of images or two files, got one")
        if is_folder:
            examples = image_folders.load_private(
                self.private, public, on_bad_record=self.on_bad_record
            )
        else:
            dataset = public.dataset
            form = None if self.public is None else self._public_table.form
            examples = tables.read_table(
                self.private,
                form or tables.text_form(self.private, dataset.schema, header_only=True),
                dataset.schema,
                self.label,
                self.owner,
                in_order=self.on_bad_record == tables.SKIP,
            ).private(dataset, label=self.label, owner=self.owner, on_bad_record=self.on_bad_record)
        return dataclasses.replace(examples, source=PrivateSource.of_file(self.private, self.name))


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSource(Settings):
    """Which data: a data set by its name, or `files` of the user's own."""

    dataset: str = setting(
        "digits",
        group="data",
        help="Name of the data set: digits (embedded), mnist, svhn, cifar10, another name of "
        "TensorFlow Datasets, or module:function.",
    )
    data_dir: pathlib.Path | None = setting(
        None,
        group="data",
        help="Folder with data prepared by TensorFlow Datasets. Default: TFDS' own; what is not "
        "there is downloaded.",
    )
    source_name: str | None = setting(
        None,
        group="data",
        help="Public name of the private data. All releases under one name on this machine add up, "
        "whether or not the records changed in between; two names for the same records do not. "
        "Default: the name of the data set, or the private file, told from others by its path.",
    )
    owners_file: pathlib.Path | None = setting(
        None,
        group="data",
        advanced=True,
        help="A .npy file with the owner of each private record (numbers or strings): all records "
        "of one owner go to one teacher, or what they add to feature sums is clipped together. The "
        "guarantee is against adding or removing an owner.",
    )
    files: FileSource | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        datasets.check_name(self.dataset, self.data_dir)

    @property
    def named_source(self) -> PrivateSource | None:
        """The source that a person named; None for that of the records."""
        return None if self.source_name is None else PrivateSource.named(self.source_name)

    @property
    def flags(self) -> dict[str, Any]:
        """The flags that name the data, as JSON values; paths are absolute."""
        source = self.files or self
        names = described(FileSource) if self.files else ("dataset", "data_dir")
        values = {name: getattr(source, name) for name in names}
        return {
            name: str(value.absolute()) if isinstance(value, pathlib.Path) else value
            for name, value in values.items()
        }

    def load_private(
        self, reporting: Reporting, public: PublicExamples | None = None
    ) -> PrivateExamples:
        """Returns the private records, of a named source, with the owners of `owners_file`.

        Args:
            reporting: how progress is shown.
            public: what `load_public` returned, where it was loaded already.

        Raises:
            ValueError: if there are none, or the owners do not fit.
        """
        with reporting.clock(f"reading {self.files.private if self.files else self.dataset}"):
            if self.files is not None:
                examples = self.files.load_private(public)
            else:
                examples = datasets.load_private(self.dataset, data_dir=self.data_dir)
        owners = examples.owners
        if self.owners_file is not None:
            owners = artifacts.read_array(self.owners_file)
        source = self.named_source or examples.source
        return dataclasses.replace(examples, source=source, owners=owners)

    def load_dataset(self) -> Dataset:
        """Returns what is publicly known of the data; ValueError if they can't be had."""
        if self.files is not None:
            return self.files.load_public().dataset
        return datasets.load_dataset(self.dataset, data_dir=self.data_dir)

    def load_public(self, reporting: Reporting) -> PublicExamples:
        """Returns the public samples.

        Raises:
            ValueError: if there are none.
        """
        with reporting.clock(f"reading {self.files.public if self.files else self.dataset}"):
            if self.files is not None:
                return self.files.load_public()
            return datasets.load_public(self.dataset, data_dir=self.data_dir)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoolSize(Settings):
    """How many public samples form a pool, by a number of one's own."""

    pool_size: int | None = setting(
        None,
        group="data",
        flag="stdnt_share",
        least=1,
        advanced=True,
        help="How many of the public samples, from the first, form the student's pool, on which "
        "representations are trained, too; the others evaluate it. Default: the data set's own "
        "number.",
    )
