"""What one user on one machine has seen of ledgers, kept outside of every run folder.

A ledger alone can't tell that its folder was copied, put back from a copy, or deleted, nor that
other ensembles learnt from the same records. The registry can, for what it has seen: it notes every
row of every ledger that is opened for labelling, and the record set of its ensemble.

It lies in `$PATE_TF_STATE`, else `$XDG_STATE_HOME/pate_tf`, else `~/.local/state/pate_tf`, with
mode 0700 and its file 0600. Ensembles, record sets and ledgers are known in it by digests under a
random key of its own, so that it confirms no guess at private data to whoever lacks the key. What
it can't see: other machines, other users, and runs while it was missing.
"""

import json
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.charges import charge_from_dict
from pate_tf.ledger.payments import payment_record
from pate_tf.ledger.registry_file import RegistryFile, state_folder
from pate_tf.ledger.rows import LedgerRow
from pate_tf.values.record_set import RecordSet


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
        folder: pathlib.Path,
        records: RecordSet | None = None,
    ) -> None:
        """Notes rows of a ledger, durably; those that are known already stay as they are.

        Args:
          opened: the row that opened the ledger.
          rows: its rows, or those that came since the last call.
          folder: where it lies.
          records: what its ensemble learnt from; None if that is not known.

        Raises:
          RegistryError: if it can't be written.
        """
        ledger = self._ledger(opened)
        ensemble = self.ensemble_key(opened.details["ensemble_digest"])
        with self._file.writing():
            self._connection.execute(
                "INSERT INTO ledgers VALUES (?, ?, ?, ?) ON CONFLICT (ledger) DO UPDATE SET "
                "folder = excluded.folder, records = coalesce(excluded.records, records)",
                (
                    ledger,
                    ensemble,
                    str(folder.resolve()),
                    None if records is None else self._file.keyed("records", records.digest),
                ),
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

    def seen(self, opened: LedgerRow, after: int = 0) -> tuple[dict[str, int], int]:
        """Returns the rows noted of a ledger: the sequence of each, by digest; and a position.

        Args:
          opened: the row that opened it.
          after: the position that an earlier call returned, for what was noted since. Default: all.

        Raises:
          RegistryError: if it can't be read.
        """
        with self._file.reporting():
            rows = self._connection.execute(
                "SELECT digest, sequence, rowid FROM rows WHERE ledger = ? AND rowid > ? "
                "ORDER BY rowid",
                (self._ledger(opened), after),
            ).fetchall()
        return {digest: sequence for digest, sequence, _ in rows}, rows[-1][2] if rows else after

    def earlier(self, ensemble_digest: str, folder: pathlib.Path) -> dict[str, int]:
        """Returns the rows of ledgers that an ensemble had in a folder: sequence, by digest.

        Raises:
          RegistryError: if it can't be read.
        """
        with self._file.reporting():
            return dict(
                self._connection.execute(
                    "SELECT digest, sequence FROM rows JOIN ledgers USING (ledger) "
                    "WHERE ensemble = ? AND folder = ? ORDER BY rows.rowid",
                    (self.ensemble_key(ensemble_digest), str(folder.resolve())),
                ).fetchall()
            )

    def ensemble_key(self, ensemble_digest: str) -> bytes:
        """Returns what an ensemble is known by here."""
        return self._file.keyed("ensemble", ensemble_digest)

    def ensembles_of(self, digest: str) -> list[bytes]:
        """Returns the ensembles, as they are known here, whose ledgers hold a row.

        Raises:
          RegistryError: if it can't be read.
        """
        with self._file.reporting():
            return [
                ensemble
                for (ensemble,) in self._connection.execute(
                    "SELECT DISTINCT ensemble FROM rows JOIN ledgers USING (ledger) "
                    "WHERE digest = ?",
                    (digest,),
                )
            ]

    def payments(self, digests: Sequence[str]) -> list[dict[str, Any]]:
        """Returns what rows paid for, those of other kinds left out.

        Each has `charge`, `number`, `num_queries`, `secure_noise` and `carried_from`, the digest of
        the row that paid first.

        Raises:
          RegistryError: if it can't be read.
        """
        found = []
        with self._file.reporting():
            for digest in digests:
                for (text,) in self._connection.execute(
                    "SELECT payment FROM rows WHERE digest = ? AND payment IS NOT NULL LIMIT 1",
                    (digest,),
                ):
                    found.append(json.loads(text))
        return found

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
                    "OR ensemble = (SELECT ensemble FROM own) "
                    "OR records = (SELECT records FROM own) "
                    "OR ledger IN (SELECT ledger FROM sketches WHERE record IN "
                    "(SELECT record FROM sketches WHERE ledger = :ledger)) ORDER BY ledger",
                    {"ledger": self._ledger(opened)},
                )
            ]

    def knows_records(self, opened: LedgerRow) -> bool:
        """Whether the records of a ledger's ensemble are known, so that others can share them.

        Raises:
          RegistryError: if it can't be read.
        """
        with self._file.reporting():
            row = self._connection.execute(
                "SELECT records FROM ledgers WHERE ledger = ?", (self._ledger(opened),)
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

    def _ledger(self, opened: LedgerRow) -> bytes:
        return self._file.keyed("ledger", opened.digest)
