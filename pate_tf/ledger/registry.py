"""What one user on one machine has seen of ledgers, kept outside of every run folder.

A ledger alone can't tell that its folder was copied, put back from a copy, or deleted, nor that
other ensembles learnt from the same records. The registry can, for what it has seen: it notes every
row of every ledger and silo account that is opened to be written, whom it is about (its subject: an
ensemble, or a silo by its name), every folder that it was seen in, and the records that the subject
learnt from where they are known.

It lies in `$PATE_TF_STATE`, else `$XDG_STATE_HOME/pate_tf`, else `~/.local/state/pate_tf`, with
mode 0700 and its file 0600. Subjects, record sets and ledgers are known in it by digests under a
random key of its own, so that it confirms no guess at private data to whoever lacks the key. What
it can't see: other machines, other users, and runs while it was missing.
"""

import json
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.charges import charge_from_dict
from pate_tf.ledger.payments import payment_record
from pate_tf.ledger.registry_file import RegistryFile, state_folder
from pate_tf.ledger.rows import LedgerRow
from pate_tf.values.record_set import RecordSet

# What a ledger is about: "ensemble" and its digest, or "silo" and its name.
Subject = tuple[str, str]


class SeenRow(NamedTuple):
    """A row that was seen in a ledger.

    Attributes:
      ledger: what its ledger is known by here.
      digest: of the row.
      sequence: of the row.
      payment: what it paid for, see `pate_tf.ledger.payments.payment_record`; None for a row of
        another kind.
    """

    ledger: bytes
    digest: str
    sequence: int
    payment: Mapping[str, Any] | None


class Registry:
    """The registry of this user; use it in the process and thread that made it.

    Args:
      folder: where it lies. Default: `state_folder()`.

    Raises:
      RegistryError: if it can't be made, read or written.
    """

    def __init__(self, folder: pathlib.Path | None = None) -> None:
        self._file = RegistryFile(state_folder() if folder is None else folder)
        self._connection = self._file.connection

    def close(self) -> None:
        """Closes the file; the object can't be used afterwards."""
        self._file.close()

    def note(
        self,
        opened: LedgerRow,
        rows: Iterable[LedgerRow],
        *,
        subject: Subject,
        folder: pathlib.Path,
        records: RecordSet | None = None,
    ) -> None:
        """Notes rows of a ledger, durably; those that are known already stay as they are.

        Args:
          opened: the row that opened the ledger.
          rows: its rows, or those that came since the last call.
          subject: what the ledger is about.
          folder: where it lies.
          records: what its subject learnt from; None if that is not known.

        Raises:
          RegistryError: if it can't be written.
        """
        ledger = self.ledger_key(opened)
        with self._file.writing():
            self._connection.execute(
                "INSERT INTO ledgers VALUES (?, ?, ?) ON CONFLICT (ledger) DO UPDATE SET "
                "records = coalesce(excluded.records, records)",
                (
                    ledger,
                    self.subject_key(subject),
                    None if records is None else self._file.keyed("records", records.digest),
                ),
            )
            self._connection.execute(
                "INSERT OR IGNORE INTO folders VALUES (?, ?)", (ledger, str(folder.resolve()))
            )
            self._connection.executemany(
                "INSERT OR IGNORE INTO sketches VALUES (?, ?)",
                [
                    (ledger, self._file.keyed("record", one))
                    for one in (() if records is None else records.sketch)
                ],
            )
            self._connection.executemany(
                "INSERT OR IGNORE INTO rows VALUES (?, ?, ?, ?)",
                [(ledger, row.sequence, row.digest, payment_record(row)) for row in rows],
            )

    def seen(self, subject: Subject, after: int = 0) -> tuple[list[SeenRow], int]:
        """Returns the rows noted of all ledgers of a subject, in their order, and a position.

        Args:
          subject: what the ledgers are about.
          after: the position that an earlier call returned, for what was noted since. Default: all.

        Raises:
          RegistryError: if it can't be read.
        """
        with self._file.reporting():
            found = self._connection.execute(
                "SELECT ledger, digest, sequence, payment, rows.rowid FROM rows "
                "JOIN ledgers USING (ledger) WHERE subject = ? AND rows.rowid > ? "
                "ORDER BY rows.rowid",
                (self.subject_key(subject), after),
            ).fetchall()
            rows = [
                SeenRow(ledger, digest, sequence, None if text is None else json.loads(text))
                for ledger, digest, sequence, text, _ in found
            ]
        return rows, found[-1][4] if found else after

    def folders(self, subject: Subject) -> dict[bytes, list[str]]:
        """Returns the folders that each ledger of a subject was seen in.

        Raises:
          RegistryError: if it can't be read.
        """
        found: dict[bytes, list[str]] = {}
        with self._file.reporting():
            for ledger, folder in self._connection.execute(
                "SELECT ledger, folder FROM folders JOIN ledgers USING (ledger) "
                "WHERE subject = ? ORDER BY folders.rowid",
                (self.subject_key(subject),),
            ):
                found.setdefault(ledger, []).append(folder)
        return found

    def ledger_key(self, opened: LedgerRow) -> bytes:
        """Returns what a ledger is known by here, by the row that opened it."""
        return self._file.keyed("ledger", opened.digest)

    def subject_key(self, subject: Subject) -> bytes:
        """Returns what a subject is known by here."""
        return self._file.keyed(*subject)

    def subjects_of(self, digest: str) -> list[bytes]:
        """Returns the subjects, as they are known here, whose ledgers hold a row.

        Raises:
          RegistryError: if it can't be read.
        """
        with self._file.reporting():
            return [
                subject
                for (subject,) in self._connection.execute(
                    "SELECT DISTINCT subject FROM rows JOIN ledgers USING (ledger) "
                    "WHERE digest = ?",
                    (digest,),
                )
            ]

    def related(self, opened: LedgerRow) -> list[bytes]:
        """Returns the ledgers of ensembles that are known to share records with a ledger's.

        The ledger itself is among them. Ensembles whose records are not known share them with
        equal ensembles alone.

        Raises:
          RegistryError: if it can't be read.
        """
        with self._file.reporting():
            return [
                ledger
                for (ledger,) in self._connection.execute(
                    "WITH own AS (SELECT * FROM ledgers WHERE ledger = :ledger) "
                    "SELECT ledger FROM ledgers WHERE ledger = :ledger "
                    "OR subject = (SELECT subject FROM own) "
                    "OR records = (SELECT records FROM own) "
                    "OR ledger IN (SELECT ledger FROM sketches WHERE record IN "
                    "(SELECT record FROM sketches WHERE ledger = :ledger)) ORDER BY ledger",
                    {"ledger": self.ledger_key(opened)},
                )
            ]

    def knows_records(self, opened: LedgerRow) -> bool:
        """Whether the records of a ledger's ensemble are known, so that others can share them.

        Raises:
          RegistryError: if it can't be read.
        """
        with self._file.reporting():
            row = self._connection.execute(
                "SELECT records FROM ledgers WHERE ledger = ?", (self.ledger_key(opened),)
            ).fetchone()
        return row is not None and row[0] is not None

    def paid(self, ledgers: Sequence[bytes]) -> tuple[dict[str, tuple[Charge, int]], set[bytes]]:
        """Returns what ledgers paid for, every branch of each, by the digest of who paid first.

        And those of the ledgers that paid for something which is unknown here, as a mechanism of a
        user's own is where nobody imports it. Nobody knows what they spent.

        Raises:
          RegistryError: if it can't be read.
        """
        found: dict[str, tuple[Charge, int]] = {}
        unknown: set[bytes] = set()
        with self._file.reporting():
            for ledger in ledgers:
                for (text,) in self._connection.execute(
                    "SELECT payment FROM rows WHERE ledger = ? AND payment IS NOT NULL", (ledger,)
                ):
                    payment = json.loads(text)
                    try:
                        charge = charge_from_dict(payment["charge"])
                    except (ValueError, TypeError):
                        unknown.add(ledger)
                        continue
                    found[payment["carried_from"]] = (charge, int(payment["number"]))
        return found, unknown
