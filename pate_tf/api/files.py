"""Data in a user's own files, in plain values. TensorFlow is imported for images alone."""

import dataclasses
import pathlib

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset, to_input_type
from pate_tf.core.public import PublicExamples
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.data import image_folders, schema, tables
from pate_tf.data.schema import Schema, read_schema

# Drafts the schema of a table from its public records. TensorFlow is not imported.


def draft_schema(
    public: pathlib.Path | None,
    target: pathlib.Path,
    *,
    label: str | None = None,
    owner: str | None = None,
) -> str:
    """Writes a draft of a schema, and returns it.

    Args:
      public: a file of PUBLIC records; None, which is refused, where nobody named one.
      target: where the draft goes.
      label: name of the label's column, which public records need not have.
      owner: name of the owner's column.

    Raises:
      ValueError: if no records are named or they can't be read, there is a file at `target`
        already, or it can't be written.
    """
    if public is None:
        raise ValueError(
            "public: expected a file of public records, of comma-separated values or Parquet, got "
            "none"
        )
    if target.exists():
        raise ValueError(f"schema: expected a file that is not there yet, got {target}")
    artifacts.check_can_hold_files(target.parent)
    fields, _ = tables.read_fields(public)
    text = schema.draft(fields, label=label, owner=owner)
    artifacts.write_text(target, text)
    return text


# Records of one holder, from a file of its own.


def read_records(path: pathlib.Path, dataset: Dataset) -> PrivateExamples:
    """SENSITIVE: returns the records of a `.npz` file of `inputs` and `labels`.

    Raises:
      ValueError: if it holds none of such a data set.
      OSError: if it can't be read.
    """
    arrays = artifacts.read_arrays(path)
    if set(arrays) != {"inputs", "labels"}:
        raise ValueError(f"{path}: expected the arrays inputs and labels, got others")
    inputs = to_input_type(arrays["inputs"], dataset, str(path))
    return PrivateExamples(dataset, inputs, arrays["labels"])


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileSource:
    """Data in files of the user's own: tables, or images in folders.

    Attributes:
      public: a file of comma-separated values or Parquet, or a folder of images.
      private: likewise, of the private records; None where nobody is to open it.
      schema: of a table, in TOML; see `data.schema`. Of images None.
      label: name of the label's column; None for the schema's.
      owner: name of the owner's column; None for the schema's.
    """

    public: pathlib.Path
    private: pathlib.Path | None = None
    schema: pathlib.Path | None = None
    label: str | None = None
    owner: str | None = None

    def load_public(self) -> PublicExamples:
        """Returns the public samples.

        Raises:
          ValueError: if they can't be read, or don't fit the schema.
        """
        if self.public.is_dir():
            self._check_images()
            return image_folders.load_public(self.public)
        return tables.load_public(self.public, self._schema(), label=self.label)

    def load_private(self) -> PrivateExamples:
        """SENSITIVE: returns the private records.

        Raises:
          ValueError: if they can't be read, or don't fit the public side.
        """
        if self.private is None:
            raise ValueError("private: expected the file of the private records, got none")
        public = self.load_public()
        if self.public.is_dir() or self.private.is_dir():
            if not (self.public.is_dir() and self.private.is_dir()):
                raise ValueError("private: expected two folders of images or two files, got one")
            return image_folders.load_private(self.private, public)
        return tables.load_private(
            self.private, self._schema(), public, label=self.label, owner=self.owner
        )

    def _schema(self) -> Schema:
        if self.schema is None:
            raise ValueError(
                "schema: expected a file that states the columns' ranges and categories, got none; "
                "pate-schema drafts one from the public file"
            )
        return read_schema(self.schema)

    def _check_images(self) -> None:
        for name in ("schema", "label", "owner"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name}: expected with tables alone, got it with images")
