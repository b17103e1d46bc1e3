"""Settings for the data of a run: a data set, a function, or the user's files."""

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
from pate_tf.data.schema import Schema, read_schema, split_names


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileSource(Settings):
    """Settings for the user's files: tables, or folders of images."""

    private: pathlib.Path | None = setting(
        None,
        help="Private records, instead of --dataset: a CSV or Parquet file (needs --schema), or a "
        "folder with one folder of images for each class. Without --public, the method is "
        "feature_sums, and images need --image_size.",
    )
    owner: str | None = setting(
        None,
        advanced=True,
        help="Column with the owner of each private record. All records of one owner go to one "
        "teacher, and the guarantee protects owners. Default: the owner column of the schema.",
    )
    public: pathlib.Path | None = setting(
        None,
        help="Public records, instead of --dataset: a file or a folder of images, labeled or not.",
    )
    schema: pathlib.Path | None = setting(
        None,
        help="For tables: a TOML file with the range or the categories of each column and of the "
        "label, from public knowledge. `pate schema` drafts it from the public file.",
    )
    label: str | None = setting(
        None, advanced=True, help="For tables: the label's column. Default: the schema's label."
    )
    image_size: str | None = setting(
        None,
        help="For images: size that each image is scaled to, such as 64 or 48x64 (HEIGHTxWIDTH). "
        "Default: the size of the public images. Without public images, all images become gray.",
    )
    classes: str | None = setting(
        None,
        help="For images without class folders in --public: all class names, separated by commas. "
        "Default: the names of the folders in --public.",
    )
    background: str = setting(
        BACKGROUND,
        advanced=True,
        choices=tuple(BACKGROUNDS),
        help="For images: the color that replaces transparent pixels.",
    )
    on_bad_record: str = setting(
        tables.REFUSE,
        advanced=True,
        choices=(tables.REFUSE, tables.SKIP),
        help="What to do with a private record that does not fit the schema, or a broken image. "
        "refuse: stop with an error. skip: leave it out, independently of other records. With "
        "skip, the number of records is private, and each record has a different owner.",
    )
    name: str | None = setting(
        None,
        help="Name of the data set in the run folder. Without --source_name, it also names the "
        "private source. Default: the name in the schema, else the name of the private file or of "
        "the folder of public images.",
    )

    @functools.cached_property
    def _schema(self) -> Schema:
        if self.schema is None:
            for path in filter(None, (self.public, self.private)):
                path.stat()  # raises an error for a misspelled folder of images
            raise ValueError("schema is required. `pate schema` drafts one from a public file.")
        return read_schema(self.schema)

    @functools.cached_property
    def _public_table(self) -> tables.TextTable:
        if self.public is None:
            raise ValueError("public is required: a file or folder of public records")
        form = tables.text_form(self.public, self._schema)
        return tables.read_table(self.public, form, self._schema, self.label)

    def load_public(self) -> PublicExamples:
        """Returns the public samples, or an empty set if there is no public file or folder.

        Raises:
            ValueError: if the samples can't be read, or do not fit the schema.
        """
        place = self.public or self.private
        if place is not None and place.is_dir():
            for name in ("schema", "label", "owner"):
                if getattr(self, name) is not None:
                    raise ValueError(f"{name} is only for tables. Remove it for images.")
            return image_folders.load_public(
                self.public,
                self.private,
                classes=split_names(self.classes),
                name=self.name,
                size=image_folders.size_of(self.image_size),
                background=self.background,
                on_bad_record=self.on_bad_record,
            )
        for name in ("image_size", "classes"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name} is only for folders of images. Remove it for tables.")
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
            public: the result of `load_public`. If None, this function calls `load_public`.

        Raises:
            ValueError: if the records can't be read, or do not match the public samples.
        """
        if self.private is None:
            raise ValueError("private is required: the file or folder of the private records")
        tables.check_other_file(self.public, self.private)
        public = self.load_public() if public is None else public
        is_folder = (self.public or self.private).is_dir()
        if is_folder != self.private.is_dir():
            raise ValueError("private and `public` must both be folders, or both be files")
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
    """Settings for the data of a run: the name of a data set, or the user's `files`."""

    dataset: str = setting(
        "digits",
        group="data",
        help="Name of the data set: digits (included), mnist, svhn, cifar10, another name in "
        "TensorFlow Datasets, or module:function.",
    )
    data_dir: pathlib.Path | None = setting(
        None,
        group="data",
        help="Folder with data sets that TensorFlow Datasets (TFDS) prepared. Default: the default "
        "folder of TFDS. Missing data are downloaded.",
    )
    source_name: str | None = setting(
        None,
        group="data",
        help="Public name of the private data. The costs of all releases on this machine with the "
        "same name add up, even if the records changed in between. Never use two names for the "
        "same records. Default: the name of the data set, or of the private file (for a common "
        "name such as private.csv, with its folder).",
    )
    owners_file: pathlib.Path | None = setting(
        None,
        group="data",
        help="An .npy file with the owner of each private record (numbers or strings). All records "
        "of one owner go to one teacher, or their total contribution to feature sums is clipped. "
        "The guarantee covers adding or removing one owner.",
    )
    files: FileSource | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        datasets.check_name(self.dataset, self.data_dir)

    @property
    def named_source(self) -> PrivateSource | None:
        """The private source with the name that the user chose; None without such a name."""
        return None if self.source_name is None else PrivateSource.named(self.source_name)

    @property
    def facts(self) -> dict[str, Any]:
        """Public facts about the user's files, for the report of a run."""
        if (files := self.files) is None:
            return {}
        return {
            "public_file": files.public and files.public.name,
            "owner_column": files.owner or (files.schema and read_schema(files.schema).owner),
            "is_named_after_file": not (self.source_name or files.name),
        }

    @property
    def flags(self) -> dict[str, Any]:
        """The command-line flags that describe these data, as JSON values with absolute paths."""
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
        """Returns the private records with their source, and with the owners in `owners_file`.

        Args:
            reporting: shows progress.
            public: the result of `load_public`; None if the public samples are not loaded yet.

        Raises:
            ValueError: if the records can't be loaded, or the owners do not match the records.
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
        """Returns public facts about the data; raises ValueError if they can't be loaded."""
        if self.files is not None:
            return self.files.load_public().dataset
        return datasets.load_dataset(self.dataset, data_dir=self.data_dir)

    def load_public(self, reporting: Reporting) -> PublicExamples:
        """Returns the public samples.

        Raises:
            ValueError: if the samples can't be loaded.
        """
        with reporting.clock(f"reading {self.files.public if self.files else self.dataset}"):
            if self.files is not None:
                return self.files.load_public()
            return datasets.load_public(self.dataset, data_dir=self.data_dir)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoolSize(Settings):
    """Setting for the number of public samples in the pool."""

    pool_size: int | None = setting(
        None,
        flag="stdnt_share",
        least=1,
        advanced=True,
        help="Number of public samples in the pool. The first samples are used for queries and "
        "representations, all others to evaluate the student. Default: the data set's number.",
    )
