"""Append-only rows, each carrying a hash of all rows before it, and the answers they fix.

What opening detects: any change to a row or an answer, a missing or inserted row, a damaged page
or index, a changed schema, and a tail that was cut off (`ledger.head.json` notes the last row
whenever one is written). What it can't detect: somebody who may write to the folder and rewrites
table and head together. Against that, a released statement quotes the `Head` of its ledger, and
`Chain.holds` tells whether a ledger still contains it.
"""

import contextlib
import dataclasses
import datetime
import hashlib
import json
import os
import pathlib
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from pate_tf import artifacts
from pate_tf.ledger.database import Database
from pate_tf.ledger.rows import Head, LedgerError, LedgerRow, StoredAnswer, canonical_json
from pate_tf.values.arrays import IntArray

HEAD: Final = "ledger.head.json"
FAULT_VARIABLE: Final = "PATE_TF_FAULT_POINT"

ROW_QUERY: Final = "SELECT sequence, time, kind, details, digest FROM rows"
TOGETHER: Final = 500  # queries looked up at once; every SQLite takes 999


def fault_point(name: str) -> None:
    """Kills this process if a test named this point in the environment."""
    if os.environ.get(FAULT_VARIABLE) == name:
        os.kill(os.getpid(), signal.SIGKILL)


@dataclasses.dataclass(frozen=True)
class _End:
    """Where the verified part of the chain ends."""

    sequence: int = 0
    digest: bytes = bytes(32)
    num_answers: int = 0


class Chain:
    """The rows and answers of one ledger folder.

    Attributes:
      folder: the folder of the ledger; None for rows in memory.

    Raises:
      LedgerError: as `Database` does, and if rows are missing or were changed.
    """

    def __init__(self, folder: pathlib.Path | None, *, read_only: bool, must_exist: bool) -> None:
        self.folder = folder
        head_exists = folder is not None and (folder / HEAD).exists()
        self._database = Database(folder, read_only=read_only, must_exist=must_exist or head_exists)
        self._connection = self._database.connection
        # An older ledger that is only read has no such column.
        self._noisy_counts = "noisy_counts" if self._database.version >= 3 else "NULL"
        self._end = _End()
        self._noted: Head | None = None
        self.exclusive = self._database.exclusive
        self.close = self._database.close

    @property
    def head(self) -> Head:
        """The last verified row."""
        return Head(sequence=self._end.sequence, digest=self._end.digest.hex())

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """What is appended inside becomes durable together, or not at all."""
        before = self._end
        try:
            with self._database.transaction():
                yield
        except BaseException:
            self._end = before
            raise

    def note_head(self) -> None:
        """Notes the last row outside of the database, so that losing rows is noticed.

        Call it after the row was committed, inside `exclusive`.
        """
        if self.folder is not None and self._noted != self.head:
            with self._database.reporting():
                artifacts.write_json(
                    self.folder / HEAD, dataclasses.asdict(self.head), private=True
                )
            self._noted = self.head

    def append(self, kind: str, details: Mapping[str, Any]) -> LedgerRow:
        """Appends a row; call it inside `transaction`, after `catch_up`."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        text = canonical_json(dict(details))
        row = self._link(self._end.sequence + 1, now, kind, text)
        digest = bytes.fromhex(row.digest)
        self._connection.execute(
            "INSERT INTO rows VALUES (?, ?, ?, ?, ?)", (row.sequence, now, kind, text, digest)
        )
        self._end = dataclasses.replace(self._end, sequence=row.sequence, digest=digest)
        return row

    def append_answers(
        self,
        debit: int,
        queries: Sequence[bytes],
        labels: Sequence[int | None],
        noisy_counts: IntArray | None = None,
    ) -> LedgerRow:
        """Appends the answers that `debit` paid for, and the row that fixes them.

        Noisy counts `[num_queries, num_classes]` are kept where there is a label.

        Raises:
          LedgerError: if one of the queries has an answer already.
        """
        first = self._end.num_answers + 1
        released: list[bytes | None] = [None] * len(queries)
        if noisy_counts is not None:
            released = [
                None if label is None else row.astype("<i8").tobytes()
                for label, row in zip(labels, noisy_counts, strict=True)
            ]
        answers = [
            (first + place, debit, *answer)
            for place, answer in enumerate(zip(queries, labels, released, strict=True))
        ]
        with self._database.reporting():
            self._connection.executemany("INSERT INTO answers VALUES (?, ?, ?, ?, ?)", answers)
        self._end = dataclasses.replace(self._end, num_answers=self._end.num_answers + len(answers))
        details = {
            "debit": debit,
            "num_queries": len(answers),
            "num_answered": sum(label is not None for label in labels),
            "answers_digest": _digest_answers(answers),
        }
        return self.append("answers", details)

    def stored_answers(self, queries: Sequence[bytes]) -> dict[bytes, StoredAnswer]:
        """Returns the answers that exist, by query."""
        found = {}
        with self._database.reporting():
            for start in range(0, len(queries), TOGETHER):
                some = queries[start : start + TOGETHER]
                places = ", ".join("?" * len(some))
                for query, label, debit, counts in self._connection.execute(
                    f"SELECT query, label, debit, {self._noisy_counts} FROM answers "
                    f"WHERE query IN ({places})",
                    some,
                ):
                    if counts is not None:
                        counts = tuple(np.frombuffer(counts, "<i8").tolist())
                    found[query] = StoredAnswer(label=label, debit=debit, noisy_counts=counts)
        return found

    def catch_up(self) -> list[LedgerRow]:
        """Verifies the rows appended since the last call and returns them; call in `transaction`.

        Raises:
          LedgerError: if a row or answer was changed, or rows are missing.
        """
        noted = self._noted = self._noted_head()
        new = []
        for sequence, time, kind, text, digest in self._connection.execute(
            f"{ROW_QUERY} WHERE sequence > ? ORDER BY sequence", (self._end.sequence,)
        ):
            row = self._link(sequence, time, kind, text)
            if sequence != self._end.sequence + 1 or row.digest != digest.hex():
                raise self._refusal(f"row {sequence} was changed, or one before it is missing")
            num_answers = self._end.num_answers
            if kind == "answers":
                num_answers += self._verify_answers(row)
            self._end = _End(sequence, digest, num_answers)
            if noted is not None and noted.sequence == sequence and noted != self.head:
                raise self._refusal(f"row {sequence} is not the one noted in {HEAD}")
            new.append(row)
        self._verify_end(noted)
        return new

    def holds(self, head: Head) -> bool:
        """Whether this ledger contains the row that a statement quoted."""
        return any(
            row.digest == head.digest for row in self.rows() if row.sequence == head.sequence
        )

    def rows(self) -> Iterator[LedgerRow]:
        """Yields all rows in order, as verified by `catch_up`."""
        with self._database.reporting():
            rows = self._connection.execute(
                f"{ROW_QUERY} WHERE sequence <= ? ORDER BY sequence", (self._end.sequence,)
            )
            for sequence, time, kind, text, digest in rows:
                yield LedgerRow(
                    sequence=sequence,
                    time=time,
                    kind=kind,
                    details=json.loads(text),
                    digest=digest.hex(),
                )

    def _link(self, sequence: int, time: str, kind: str, text: str) -> LedgerRow:
        content = canonical_json([sequence, time, kind, text]).encode()
        try:
            details = json.loads(text)
        except json.JSONDecodeError as error:
            raise self._refusal(f"row {sequence} was changed") from error
        return LedgerRow(
            sequence=sequence,
            time=time,
            kind=kind,
            details=details,
            digest=hashlib.sha256(self._end.digest + content).hexdigest(),
        )

    def _verify_answers(self, row: LedgerRow) -> int:
        before = self._end.num_answers
        num_queries = int(row.details["num_queries"])
        answers = self._connection.execute(
            f"SELECT position, debit, query, label, {self._noisy_counts} FROM answers "
            "WHERE position BETWEEN ? AND ? ORDER BY position",
            (before + 1, before + num_queries),
        ).fetchall()
        if _digest_answers(answers) != row.details["answers_digest"]:
            raise self._refusal(f"answers of row {row.sequence} were changed")
        return num_queries

    def _verify_end(self, noted: Head | None) -> None:
        first, last = self._connection.execute(
            "SELECT (SELECT min(position) FROM answers), (SELECT max(position) FROM answers)"
        ).fetchone()
        if (first or 1, last or 0) != (1, self._end.num_answers):
            raise self._refusal("answers were added or removed")
        if noted is None and self._end.sequence > 1:
            raise self._refusal(f"expected {HEAD} beside it, there is none")
        # A process may die between committing a row and noting it, so the table may be longer.
        if noted is not None and noted.sequence > self._end.sequence:
            raise self._refusal(
                f"expected at least {noted.sequence} rows as noted in {HEAD}, got "
                f"{self._end.sequence}: rows were removed"
            )

    def _noted_head(self) -> Head | None:
        if self.folder is None:
            return self.head
        path = self.folder / HEAD
        try:
            fields = artifacts.read_json(path)
            return Head(sequence=int(fields["sequence"]), digest=str(fields["digest"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise LedgerError(f"{path}: expected the last row's sequence and digest") from error

    def _refusal(self, reason: str) -> LedgerError:
        return LedgerError(f"{self._database.path}: the ledger is refused: {reason}")


def _digest_answers(answers: Sequence[tuple[int, int, bytes, int | None, bytes | None]]) -> str:
    digest = hashlib.sha256()
    for position, debit, query, label, noisy_counts in answers:
        released = "" if noisy_counts is None else f",{noisy_counts.hex()}"
        digest.update(f"{position},{debit},{query.hex()},{label}{released}\n".encode())
    return digest.hexdigest()
