"""The named data source that releases are charged to."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any, Final, Self

LONGEST_NAME: Final = 120


@dataclasses.dataclass(frozen=True, kw_only=True)
class PrivateSource:
    """Which private data a release is charged to, by a name that the data holder gives.

    Whether two releases are charged to one source follows from names alone, never from the records:
    "are these the same records?" is a query on private data. All releases under one name add up,
    whether or not the records changed in between, which bounds what they tell of any record that
    was ever among them. Two names for the same records are the holder's to avoid.

    Attributes:
        name: public, for statements; None where a run folder is its own source.
        key: what ledgers know it by: the name, or the absolute path of a file or folder, which
            stays below `sensitive/`.
    """

    name: str | None
    key: str = dataclasses.field(repr=False)

    @classmethod
    def named(cls, name: str) -> Self:
        """Returns the source of a name.

        Raises:
            ValueError: if the name is empty, too long, or not printable on one line of a table.
        """
        if not 0 < len(name.strip()) <= LONGEST_NAME or not name.isprintable() or "|" in name:
            raise ValueError(
                f"source_name: expected 1 to {LONGEST_NAME} printable characters without |, got "
                f"{name[:LONGEST_NAME]!r}"
            )
        return cls(name=name, key=f"name {name}")

    @property
    def is_named(self) -> bool:
        """Whether it is known by its name alone, wherever the records lie."""
        return self.key == f"name {self.name}"

    @classmethod
    def of_file(cls, path: pathlib.Path | str) -> Self:
        """Returns the source of a private file, folder or URL without a name of its own."""
        place = path if "://" in str(path) else pathlib.Path(path).resolve()
        return cls(name=pathlib.Path(path).stem, key=f"file {place}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Records:
    """SENSITIVE: what is stored of the private records beside what was computed from them.

    Attributes:
        num_records: how many there are. Public where single records are protected; not for owners.
        source: that their releases are charged to; None where the run folder is its own.
    """

    num_records: int = dataclasses.field(repr=False)
    source: PrivateSource | None = None

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Self:
        """Rebuilds what `dataclasses.asdict` returned, through JSON or not.

        Raises:
            ValueError: if it is none.
        """
        source = fields.get("source")
        is_source = source is None or set(source) == {"name", "key"}
        if not (is_source and isinstance(fields.get("num_records"), int)):
            raise ValueError("records: expected their number and source, got others")
        made = None if source is None else PrivateSource(**source)
        return cls(num_records=fields["num_records"], source=made)
