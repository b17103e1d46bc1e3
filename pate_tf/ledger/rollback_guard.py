"""What is known of a store beyond its own rows: whether it goes on where it was seen last.

The registry noted its rows, and statements and votes beside it tell of it. A store that lacks a row
it should hold is refused, unless its user acknowledges that. Then a row "acknowledged" says for
ever what was missing. What missing rows and other stores of the same subject charged is charged
here, too, as what has left.
"""

import dataclasses
import math
import pathlib
import warnings
from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from pate_tf.accounting import composition
from pate_tf.accounting.charge import Charge
from pate_tf.core import artifacts
from pate_tf.core.record_set import RecordSet
from pate_tf.ledger.chain import Head, LedgerRow
from pate_tf.ledger.registry import Registry, RegistryError, SeenRow, Subject

# What lies beside a ledger and outlives it: votes it paid for, and statements that quote it.


VOTES: Final = "votes"
STATEMENT: Final = "privacy_statement.json"


def has_votes(folder: pathlib.Path) -> bool:
    """Whether votes of paid queries lie in a ledger's folder."""
    return any((folder / VOTES).glob("*.npz"))


def quoted_heads(runs: Iterable[pathlib.Path]) -> dict[pathlib.Path, Head]:
    """Returns the statements of run folders, each with the head of the ledger that it quotes.

    A file that is no statement quotes nothing.
    """
    found = {}
    for run in runs:
        path = run / artifacts.RELEASED / STATEMENT
        if path.exists():
            try:
                sequence, digest = artifacts.read_json(path)["ledger_head"]
                found[path] = Head(sequence=int(sequence), digest=str(digest))
            except (KeyError, TypeError, ValueError):
                continue
    return found


def own_run(folder: pathlib.Path) -> tuple[pathlib.Path, ...]:
    """Returns the run folder of a ledger's folder; none where that is no `sensitive/`."""
    folder = folder.resolve()
    return (folder.parent,) if folder.name == artifacts.SENSITIVE else ()


Result = TypeVar("Result")

ACKNOWLEDGE = "`acknowledge_reset` goes on without it, which stays on record for ever"


class LedgerWarning(UserWarning):
    """Something about a ledger that its user should know, in one line."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Missing:
    """Rows that a store should hold and doesn't.

    Attributes:
      reason: one line: what is missing, and what to do.
      digests: of the missing rows.
      left_nothing: whether nothing lies here that they paid for, neither votes nor a statement: a
        run was deleted as a whole, and the registry alone tells of it.
    """

    reason: str
    digests: tuple[str, ...]
    left_nothing: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class AllEnsembles:
    """What all ensembles paid that are known to have learnt from the same private records.

    Attributes:
      paid: the charges, and how often each was paid; a ledger that went on in several copies with
        every branch, and what these have in common once.
      num_ledgers: how many ledgers they have.
      records_are_known: whether the records of this ensemble are known, so that others could be
        recognised by them.
      num_unknown: how many of the ledgers paid for something that is unknown here.
    """

    paid: Mapping[Charge, int]
    num_ledgers: int
    records_are_known: bool
    num_unknown: int = 0

    def epsilon(self, delta: float) -> float:
        """Returns what all of it cost at a delta; infinite where that is not known."""
        if self.num_unknown:
            return math.inf
        return composition.smallest_epsilon(self.paid, delta)[0]


class RollbackGuard:
    """What the registry and the folders around a store know of it.

    Without a registry it warns once and knows what lies beside the store alone.

    Args:
      folder: the store's.
      subject: whom the store is about; None for one that is only read.
      records: what the subject learnt from; None if that is not known.
      is_single: whether a subject has one store alone, wherever it lies: what another one holds
        is missing here. Else several may go on, each charged what the others spent.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        subject: Subject | None,
        records: RecordSet | None = None,
        *,
        is_single: bool = False,
    ) -> None:
        self._folder, self._subject, self._records = folder, subject, records
        self._is_single = is_single
        self._rows: dict[str, SeenRow] = {}
        self._position = 0
        self._registry: Registry | None = None
        try:
            self._registry = Registry()
        except RegistryError as error:
            self._go_on_without(error)

    @property
    def is_kept(self) -> bool:
        """Whether a registry notes what the store does."""
        return self._registry is not None

    def close(self) -> None:
        """Closes the registry."""
        if self._registry is not None:
            self._registry.close()

    def note(self, opened: LedgerRow, rows: Sequence[LedgerRow]) -> None:
        """Notes rows that are durable in the store."""
        subject = self._subject
        if subject is not None:
            self._ask(
                lambda registry: registry.note(
                    opened, rows, subject=subject, folder=self._folder, records=self._records
                ),
                None,
            )

    def missing_before(self, runs: Iterable[pathlib.Path]) -> Missing | None:
        """Returns what a store that is about to be opened for the first time should have held.

        Args:
          runs: folders of runs whose statements may quote an earlier ledger.
        """
        self._look()
        own, folders, reasons = str(self._folder.resolve()), self._folders(), []
        here = [row for row in self._rows.values() if own in folders.get(row.ledger, ())]
        gone = list(self._rows.values()) if self._is_single else here
        seen = {row.digest: row.sequence for row in gone}
        if seen:
            where = "here" if here else f"in {self._places(gone)}"
            reasons.append(f"one of {max(seen.values())} rows was seen {where}")
        if has_votes(self._folder):
            reasons.append(f"votes that one paid for lie in {self._folder / VOTES}")
        quoted = {}
        for path, head in quoted_heads([*own_run(self._folder), *runs]).items():
            others = self._subjects_of(head)
            if not others or self._is_known(others):
                reasons.append(f"{path} quotes row {head.sequence} of one")
                quoted[head.digest] = head.sequence
        if not reasons:
            return None
        return Missing(
            reason=(
                f"{self._folder}: expected the ledger that was kept before, got none, but "
                f"{' and '.join(reasons)}; put it back with all of its files, or go on where it "
                f"lies; {ACKNOWLEDGE}"
            ),
            digests=tuple(seen | quoted),
            left_nothing=len(reasons) == 1 and bool(seen) and not self._is_single,
        )

    def missing_from(
        self, opened: LedgerRow, held: Mapping[str, int], acknowledged: Container[str]
    ) -> Missing | None:
        """Returns what was seen of a store and is not in it.

        Args:
          opened: the row that opened it.
          held: its rows: the sequence of each, by digest.
          acknowledged: digests of rows that are known to be missing.
        """
        self._look()
        own = self._ask(lambda registry: registry.ledger_key(opened), b"")
        gone = [
            row
            for row in self._rows.values()
            if (self._is_single or row.ledger == own)
            and not (row.digest in held or row.digest in acknowledged)
        ]
        seen = {row.digest: row.sequence for row in gone}
        quoted = {}
        for head in quoted_heads(own_run(self._folder)).values():
            # A student of other teachers may lie here, too.
            is_known = head.digest in held or head.digest in acknowledged
            if not is_known and (head.digest in seen or not self._subjects_of(head)):
                quoted[head.digest] = head.sequence
        lost = seen | quoted
        if not lost:
            return None
        last, here = max(lost.values()), max(held.values())
        if any(row.ledger != own for row in gone):
            reason = (
                f"another ledger of the same subject went on in {self._places(gone)}; go on with "
                f"that one alone"
            )
        elif here < last:
            reason = (
                f"this ledger was restored from an older copy: row {last} was seen, row {here} is "
                f"here; put the newer one back"
            )
        else:
            reason = (
                f"this ledger and a copy of it went on apart: another row {last} was seen than is "
                f"here; go on with that copy alone"
            )
        return Missing(reason=f"{self._folder}: {reason}; {ACKNOWLEDGE}", digests=tuple(lost))

    def payments_elsewhere(self, charged: Container[str]) -> list[Mapping[str, Any]]:
        """Returns what rows of the same subject charged that is not charged here.

        Call it after `missing_from` or `missing_before`, once what is missing is acknowledged.

        Args:
          charged: what is charged here, by `payment_identity`.

        Returns:
          As `Registry.note` noted them, each once.
        """
        # Rows are only ever added, here and there: what is settled once stays so.
        self._rows = {
            digest: row
            for digest, row in self._rows.items()
            if row.payment is not None and row.payment["carried_from"] not in charged
        }
        found = [row.payment for row in self._rows.values() if row.payment is not None]
        return list({payment["carried_from"]: payment for payment in found}.values())

    def all_ensembles(
        self, opened: LedgerRow, own: Mapping[str, tuple[Charge, int]]
    ) -> AllEnsembles | None:
        """Returns what all known ensembles of the same records paid; None without a registry.

        Args:
          opened: the row that opened the ledger.
          own: what the ledger itself paid for, by `payment_identity`.
        """

        def ask(registry: Registry) -> AllEnsembles:
            ledgers = registry.related(opened)
            paid: Counter[Charge] = Counter()
            theirs, unknown = registry.paid(ledgers)
            for charge, number in {**theirs, **own}.values():
                paid[charge] += number
            return AllEnsembles(
                paid=dict(paid),
                num_ledgers=max(1, len(ledgers)),
                records_are_known=registry.knows_records(opened),
                num_unknown=len(unknown),
            )

        return self._ask(ask, None)

    def _look(self) -> None:
        """Takes up what the registry noted of the subject since."""
        subject, position = self._subject, self._position
        if subject is not None:
            nothing: tuple[list[SeenRow], int] = ([], position)
            rows, self._position = self._ask(
                lambda registry: registry.seen(subject, position), nothing
            )
            self._rows |= {row.digest: row for row in rows}

    def _folders(self) -> dict[bytes, list[str]]:
        subject = self._subject
        return {} if subject is None else self._ask(lambda registry: registry.folders(subject), {})

    def _places(self, rows: Iterable[SeenRow]) -> str:
        """Names the folders that the ledgers of rows were seen in."""
        folders = self._folders()
        places = {place for row in rows for place in folders.get(row.ledger, ())}
        return " and ".join(sorted(places))

    def _subjects_of(self, head: Head) -> list[bytes]:
        return self._ask(lambda registry: registry.subjects_of(head.digest), [])

    def _is_known(self, others: Sequence[bytes]) -> bool:
        subject = self._subject
        return subject is not None and (
            self._ask(lambda registry: registry.subject_key(subject), b"") in others
        )

    def _ask(self, question: Callable[[Registry], Result], otherwise: Result) -> Result:
        if self._registry is None:
            return otherwise
        try:
            return question(self._registry)
        except RegistryError as error:
            self._go_on_without(error)
            return otherwise

    def _go_on_without(self, error: RegistryError) -> None:
        self._registry = None
        warn(
            "no registry of ledgers can be kept, so that copied or restored ledgers and other "
            f"ensembles of the same records go unnoticed, which statements say: {error}"
        )


def warn(message: str) -> None:
    """Tells the user in one line."""
    warnings.warn(message, LedgerWarning, stacklevel=2)
