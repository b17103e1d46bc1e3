"""What is known of a ledger beyond its own rows: whether it goes on where it was seen last.

The registry noted its rows, and statements and votes beside it tell of it. A ledger that lacks a
row it should hold is refused, unless its user acknowledges that. Then a row "acknowledged" says for
ever what was missing, and what the missing rows paid for, as far as the registry knows, is charged
again as what has left.
"""

import dataclasses
import math
import pathlib
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pate_tf.accounting import composition
from pate_tf.accounting.charge import Charge
from pate_tf.ledger import beside
from pate_tf.ledger.registry import Registry
from pate_tf.ledger.registry_file import RegistryError
from pate_tf.ledger.rows import Head, LedgerRow
from pate_tf.values.record_set import RecordSet

Result = TypeVar("Result")

ACKNOWLEDGE = (
    "`acknowledge_reset` goes on without it, and the ledger and every later statement tell so for "
    "ever"
)


class LedgerWarning(UserWarning):
    """Something about a ledger that its user should know, in one line."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Missing:
    """Rows that a ledger should hold and doesn't.

    Attributes:
      reason: one line: what is missing, and what to do.
      digests: of the missing rows.
      payments: what they paid for, as far as that is known; see `Registry.payments`.
      left_nothing: whether nothing lies here that they paid for, neither votes nor a statement: a
        run was deleted as a whole, and the registry alone tells of it.
    """

    reason: str
    digests: tuple[str, ...]
    payments: tuple[Mapping[str, Any], ...] = ()
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


class Memory:
    """What the registry and the folders around a ledger know of it.

    Without a registry it warns once and knows what lies beside the ledger alone.

    Args:
      folder: the ledger's.
      records: what its ensemble learnt from; None if that is not known.
    """

    def __init__(self, folder: pathlib.Path, records: RecordSet | None = None) -> None:
        self._folder, self._records = folder, records
        self._missed: dict[str, int] = {}
        self._position = 0
        self._registry: Registry | None = None
        try:
            self._registry = Registry()
        except RegistryError as error:
            self._go_on_without(error)

    @property
    def is_kept(self) -> bool:
        """Whether a registry notes what the ledger does."""
        return self._registry is not None

    def close(self) -> None:
        """Closes the registry."""
        if self._registry is not None:
            self._registry.close()

    def note(self, opened: LedgerRow, rows: Sequence[LedgerRow]) -> None:
        """Notes rows that are durable in the ledger."""
        self._ask(
            lambda registry: registry.note(
                opened, rows, folder=self._folder, records=self._records
            ),
            None,
        )

    def missing_before(self, ensemble_digest: str, runs: Iterable[pathlib.Path]) -> Missing | None:
        """Returns what a ledger that is about to be opened for the first time should have held.

        Args:
          ensemble_digest: of its ensemble.
          runs: folders of runs whose statements may quote an earlier ledger.
        """
        seen: dict[str, int] = self._ask(
            lambda registry: registry.earlier(ensemble_digest, self._folder), {}
        )
        reasons = []
        if seen:
            reasons.append(f"one of {max(seen.values())} rows was seen here")
        if beside.has_votes(self._folder):
            reasons.append(f"votes that one paid for lie in {self._folder / beside.VOTES}")
        quoted = {}
        for path, head in beside.quoted_heads([*beside.own_run(self._folder), *runs]).items():
            others = self._ensembles_of(head)
            if not others or self._is_known(ensemble_digest, others):
                reasons.append(f"{path} quotes row {head.sequence} of one")
                quoted[head.digest] = head.sequence
        if not reasons:
            return None
        return Missing(
            reason=(
                f"{self._folder}: expected the ledger that was here before, got none, but "
                f"{' and '.join(reasons)}; put it back with all of its files; {ACKNOWLEDGE}"
            ),
            digests=tuple(seen | quoted),
            payments=self._payments(seen),
            left_nothing=len(reasons) == 1 and bool(seen),
        )

    def missing_from(
        self, opened: LedgerRow, held: Mapping[str, int], acknowledged: Iterable[str]
    ) -> Missing | None:
        """Returns what was seen of a ledger and is not in it.

        Args:
          opened: the row that opened it.
          held: its rows: the sequence of each, by digest.
          acknowledged: digests of rows that are known to be missing.
        """
        gone = frozenset(acknowledged)
        # Rows are only ever added, here and there, so that what was found once stays.
        nothing: tuple[dict[str, int], int] = ({}, self._position)
        new, self._position = self._ask(
            lambda registry: registry.seen(opened, self._position), nothing
        )
        self._missed = {
            digest: row
            for digest, row in (self._missed | new).items()
            if digest not in held and digest not in gone
        }
        seen, quoted = self._missed, {}
        for head in beside.quoted_heads(beside.own_run(self._folder)).values():
            # A student of other teachers may lie here, too.
            is_known = head.digest in held or head.digest in gone
            if not is_known and (head.digest in seen or not self._ensembles_of(head)):
                quoted[head.digest] = head.sequence
        lost = seen | quoted
        if not lost:
            return None
        last, here = max(lost.values()), max(held.values())
        if here < last:
            reason = (
                f"this ledger was restored from an older copy: row {last} was seen, row {here} is "
                f"here; put the newer one back"
            )
        else:
            reason = (
                f"this ledger and a copy of it went on apart: another row {last} was seen than is "
                f"here; go on with that copy alone"
            )
        return Missing(
            reason=f"{self._folder}: {reason}; {ACKNOWLEDGE}",
            digests=tuple(lost),
            payments=self._payments(digest for digest in lost if digest in seen),
        )

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

    def _ensembles_of(self, head: Head) -> list[bytes]:
        return self._ask(lambda registry: registry.ensembles_of(head.digest), [])

    def _is_known(self, ensemble_digest: str, others: Sequence[bytes]) -> bool:
        return self._ask(lambda registry: registry.ensemble_key(ensemble_digest), b"") in others

    def _payments(self, digests: Iterable[str]) -> tuple[Mapping[str, Any], ...]:
        wanted = list(digests)
        return tuple(self._ask(lambda registry: registry.payments(wanted), []))

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
