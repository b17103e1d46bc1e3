"""Raw tables as their owners publish them: found or downloaded, and read record by record."""

import csv
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pate_tf.data.columns import Column


class RawDataError(ValueError):
    """A raw file that does not hold what it should; its message is one line for the user.

    It names the place, never the record's values.
    """


def raw_files(dl_manager: Any, urls: Mapping[str, str]) -> dict[str, pathlib.Path]:
    """Returns raw files by name: those put into the manual folder by hand, or downloaded ones.

    Downloads are checked against `checksums.tsv`.

    Args:
      dl_manager: TFDS' download manager.
      urls: from a file's name to where it is downloaded from.
    """
    try:
        folder = pathlib.Path(dl_manager.manual_dir)
    except AssertionError:  # how TFDS says that there is no such folder
        by_hand = []
    else:
        by_hand = [folder / name for name in urls if (folder / name).is_file()]
    if len(by_hand) < len(urls):
        by_hand = [pathlib.Path(path) for path in dl_manager.download(list(urls.values()))]
    return dict(zip(urls, by_hand, strict=True))


def read_records(
    lines: Iterable[str], fields: Sequence[str], *, file: str, first_line: int = 1
) -> Iterator[tuple[str, dict[str, str]]]:
    """Reads comma-separated records; blank lines are left out.

    Args:
      lines: of the file, without a header.
      fields: the name of each field.
      file: its name, for errors.
      first_line: the number of the first of `lines` in the file.

    Yields:
      Where the record stands, for errors, and its fields by name.

    Raises:
      RawDataError: if a record has another number of fields, or the file is no text.
    """
    reader = csv.reader(lines)
    try:
        for record in reader:
            if not record:
                continue
            place = f"{file}, line {reader.line_num + first_line - 1}"
            if len(record) != len(fields):
                raise RawDataError(f"{place}: expected {len(fields)} fields, got {len(record)}")
            yield place, dict(zip(fields, (field.strip() for field in record), strict=True))
    except (csv.Error, UnicodeDecodeError) as error:
        raise RawDataError(f"{file}: expected comma-separated text, got something else") from error


def encode_record(columns: Iterable[Column], place: str, record: Mapping[str, str]) -> list[float]:
    """As `encode`, for a record of a private file.

    Raises:
      RawDataError: names the place and the column, not the value.
    """
    features = []
    for column in columns:
        try:
            features.append(column.encode(record[column.name]))
        except ValueError:
            raise RawDataError(
                f"{place}: {column.name}: expected {column.expected}, got something else"
            ) from None
    return features


def encode_label(labels: Mapping[str, int], place: str, text: str) -> int:
    """Returns the class of a record's label.

    Raises:
      RawDataError: if the label is unknown.
    """
    if text not in labels:
        raise RawDataError(
            f"{place}: label: expected one of {', '.join(labels)}, got something else"
        )
    return labels[text]
