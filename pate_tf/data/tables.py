"""Tables in files, comma-separated or Parquet: private on one side and public on the other."""

import csv
import dataclasses
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from pate_tf.core.public import PublicExamples
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.data.schema import Schema, field_text

PARQUET = (".parquet", ".pq")
POOL_SHARE = 0.7  # of public records some of which have labels; the rest evaluates the student


@dataclasses.dataclass(frozen=True, kw_only=True)
class Table:
    """Records as texts. SENSITIVE if they are.

    Attributes:
        fields: of each column by its name, a text for each record.
        places: where each record stands, for messages, which carry no field.
        what: begins a message.
    """

    fields: Mapping[str, Sequence[str]] = dataclasses.field(repr=False)
    places: Sequence[str] = dataclasses.field(repr=False)
    what: str

    def private(
        self,
        schema: Schema,
        public: PublicExamples,
        *,
        label: str | None = None,
        owner: str | None = None,
    ) -> PrivateExamples:
        """SENSITIVE: returns the private records.

        Args:
            schema: how a record becomes features.
            public: whose data set this is.
            label: name of the label's column; None for the schema's.
            owner: name of the owner's column; None for the schema's.

        Raises:
            ValueError: if a column is missing, a record does not fit the schema, or there is none.
        """
        label, owner = label or schema.label, owner or schema.owner
        if label is None:
            raise ValueError("label: expected the name of the label's column, got none")
        for name in filter(None, (label, owner)):
            if name not in self.fields:
                raise ValueError(f"{self.what}: expected a column {name}, got none")
        inputs = self._inputs(schema)
        labels = schema.encode_labels(
            self.fields[label], self.what, self.places, may_be_empty=False
        )
        owners = np.array(self.fields[owner], np.str_) if owner else None
        return PrivateExamples(public.dataset, inputs, labels, owners)

    def public(self, schema: Schema, *, name: str, label: str | None = None) -> PublicExamples:
        """Returns the public records; they need no labels, nor a column of them.

        `name` is the data set's unless the schema says it; otherwise as `private`.
        """
        inputs, labels, column = self._inputs(schema), None, label or schema.label
        if column is not None and column in self.fields:
            labels = schema.encode_labels(
                self.fields[column], self.what, self.places, may_be_empty=True
            )
        has_labels = labels is not None and bool((labels >= 0).any())
        size = pool_size(len(self.places), has_labels=has_labels)
        return PublicExamples(schema.dataset(name, size), inputs, labels)

    def _inputs(self, schema: Schema) -> np.ndarray:
        if not self.places:
            raise ValueError(f"{self.what}: expected at least one record, got none")
        return schema.encode_columns(self.fields, self.what, self.places)


def pool_size(num_public: int, *, has_labels: bool) -> int:
    """Returns how many public samples, from the first, form the pool by default."""
    if not has_labels:
        return num_public
    return min(max(1, round(POOL_SHARE * num_public)), max(1, num_public - 1))


def read_table(path: pathlib.Path) -> Table:
    """Reads comma-separated values whose first line names the columns, or Parquet (with pyarrow).

    Raises:
        ValueError: if the file is neither, or can't be read. The message carries no field.
    """
    if path.suffix.lower() in PARQUET:
        return _read_parquet(path)
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            names = checked_names([name.strip() for name in next(reader, [])], path)
            records, places = [], []
            for record in filter(None, reader):
                if len(record) != len(names):
                    raise ValueError(
                        f"{path}, line {reader.line_num}: expected {len(names)} fields, got "
                        f"{len(record)}"
                    )
                records.append([field.strip() for field in record])
                places.append(f"line {reader.line_num}")
    except (csv.Error, UnicodeDecodeError):
        raise ValueError(f"{path}: expected comma-separated text, got something else") from None
    except OSError as error:
        raise ValueError(
            f"{path}: expected a file that can be read, got {error.strerror}"
        ) from None
    columns = list(map(list, zip(*records, strict=True))) or [[] for _ in names]
    return Table(fields=dict(zip(names, columns, strict=True)), places=places, what=str(path))


def _read_parquet(path: pathlib.Path) -> Table:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise ValueError(
            f"{path}: expected the package pyarrow, which reads Parquet, got none"
        ) from None
    try:
        table = parquet.read_table(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise ValueError(f"{path}: expected Parquet, got something else ({error})") from None
    fields = {
        name: [field_text(value) for value in table.column(name).to_pylist()]
        for name in checked_names(table.column_names, path)
    }
    places = [f"record {index}" for index in range(table.num_rows)]
    return Table(fields=fields, places=places, what=str(path))


def checked_names(names: Sequence[str], path: pathlib.Path | str) -> Sequence[str]:
    """Returns the names of a file's columns; raises ValueError unless each has one of its own."""
    if not names or len(set(names)) < len(names) or "" in names:
        raise ValueError(f"{path}: expected a name for each column, each once, in the first line")
    return names
