"""Tables in files, comma-separated or Parquet: private on one side and public on the other."""

import csv
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np

from pate_tf.core.public import PublicExamples
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.data.schema import Schema, field_text

PARQUET = (".parquet", ".pq")
POOL_SHARE = 0.7  # of public records some of which have labels; the rest evaluates the student

Fields = Mapping[str, Sequence[str]]


def read_fields(path: pathlib.Path) -> tuple[Fields, list[str]]:
    """Returns the fields of each column by its name, and where each record stands.

    Args:
        path: a file of comma-separated values whose first line names the columns, or Parquet, by
            its name's end, which needs the package pyarrow.

    Raises:
        ValueError: if the file is neither, or can't be read. The message carries no field.
    """
    if path.suffix.lower() in PARQUET:
        return _read_parquet(path)
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, strict=True)
            names = [name.strip() for name in next(reader, [])]
            _check_names(names, path)
            columns: list[list[str]] = [[] for _ in names]
            places = []
            for record in reader:
                if not record:
                    continue
                if len(record) != len(names):
                    raise ValueError(
                        f"{path}, line {reader.line_num}: expected {len(names)} fields, got "
                        f"{len(record)}"
                    )
                for column, field in zip(columns, record, strict=True):
                    column.append(field.strip())
                places.append(f"line {reader.line_num}")
    except (csv.Error, UnicodeDecodeError):
        raise ValueError(f"{path}: expected comma-separated text, got something else") from None
    except OSError as error:
        raise ValueError(
            f"{path}: expected a file that can be read, got {error.strerror}"
        ) from None
    return dict(zip(names, columns, strict=True)), places


def _read_parquet(path: pathlib.Path) -> tuple[Fields, list[str]]:
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
    _check_names(table.column_names, path)
    fields = {
        name: [field_text(value) for value in table.column(name).to_pylist()]
        for name in table.column_names
    }
    return fields, [f"record {index}" for index in range(table.num_rows)]


def _check_names(names: Sequence[str], path: pathlib.Path) -> None:
    if not names or len(set(names)) < len(names) or "" in names:
        raise ValueError(f"{path}: expected a name for each column, each once, in the first line")


def load_private(
    path: pathlib.Path,
    schema: Schema,
    public: PublicExamples,
    *,
    label: str | None = None,
    owner: str | None = None,
) -> PrivateExamples:
    """SENSITIVE: returns the private records of a file.

    Args:
        path: as `read_fields` takes it.
        schema: how a record becomes features.
        public: whose data set this is.
        label: name of the label's column; None for the schema's.
        owner: name of the owner's column; None for the schema's.

    Raises:
        ValueError: if a column is missing, a record does not fit the schema, or there is none. The
            message names a place and no value.
    """
    fields, places = read_fields(path)
    return private_records(fields, places, str(path), schema, public, label=label, owner=owner)


def private_records(
    fields: Fields,
    places: Sequence[str],
    what: str,
    schema: Schema,
    public: PublicExamples,
    *,
    label: str | None = None,
    owner: str | None = None,
) -> PrivateExamples:
    """SENSITIVE: returns the private records of a table; `what` begins an error's message.

    Other arguments and errors as of `load_private`.
    """
    label, owner = label or schema.label, owner or schema.owner
    if label is None:
        raise ValueError("label: expected the name of the label's column, got none")
    for name in (label, *([owner] if owner else [])):
        if name not in fields:
            raise ValueError(f"{what}: expected a column {name}, got none")
    if not places:
        raise ValueError(f"{what}: expected at least one record, got none")
    return PrivateExamples(
        public.dataset,
        schema.encode_columns(fields, what, places),
        schema.encode_labels(fields[label], what, places, may_be_empty=False),
        np.array(fields[owner], np.str_) if owner else None,
    )


def load_public(path: pathlib.Path, schema: Schema, *, label: str | None = None) -> PublicExamples:
    """Returns the public records of a file; they need no labels, nor a column of them.

    Arguments and errors as of `load_private`.
    """
    fields, places = read_fields(path)
    return public_records(fields, places, str(path), schema, name=path.stem, label=label)


def public_records(
    fields: Fields,
    places: Sequence[str],
    what: str,
    schema: Schema,
    *,
    name: str,
    label: str | None = None,
) -> PublicExamples:
    """Returns the public records of a table; `name` is the data set's unless the schema says it."""
    if not places:
        raise ValueError(f"{what}: expected at least one record, got none")
    inputs = schema.encode_columns(fields, what, places)
    labels = None
    column = label or schema.label
    if column is not None and column in fields:
        labels = schema.encode_labels(fields[column], what, places, may_be_empty=True)
    has_labels = labels is not None and bool((labels >= 0).any())
    size = pool_size(len(places), has_labels=has_labels)
    return PublicExamples(schema.dataset(name, size), inputs, labels)


def pool_size(num_public: int, *, has_labels: bool) -> int:
    """Returns how many public samples, from the first, form the pool by default."""
    if not has_labels:
        return num_public
    return min(max(1, round(POOL_SHARE * num_public)), max(1, num_public - 1))
