"""A silo's own account: what it was charged, and the one answer that each query ever gets.

Queries are known by their digest: the same query in two batches, of any run or coordinator, is
charged once and answered with the same stored answer. Sealed shares are of one batch: the parties
draw fresh noise for every batch, so a query that was asked under them is not answered in another.
"""

import base64
import datetime
import pathlib
import time
from collections.abc import Mapping, Sequence

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.core.source import PrivateSource
from pate_tf.ledger.journal import LedgerError, LedgerRow, Store, charge_of

DAY_SECONDS = 24 * 60 * 60


class SiloAccount(Store):
    """SENSITIVE: one silo's debits and answers.

    A silo has one account. One that was deleted or restored, whose copy went on, or that is not the
    only one of its silo is refused, see `Store`.

    Attributes:
        silo: name of the silo.
    """

    epsilon_budget: float  # every account has one

    def __init__(
        self,
        folder: pathlib.Path | None,
        *,
        silo: str,
        epsilon_budget: float,
        delta: float,
        source: PrivateSource | None = None,
        unit: str = "record",
        acknowledge_reset: bool = False,
    ) -> None:
        """Opens an account, or a new one.

        Args:
            folder: sensitive; gets mode 0700. None for a simulation, which forgets everything when
                it ends: then nothing is private.
            silo: name of the silo; fixed at first use.
            epsilon_budget: of everything that the silo ever answers. Every change is recorded.
            delta: that it holds at; every change is recorded.
            source: that the silo's releases are charged to; None for the account's folder itself.
            unit: what the charges of sums protect, "record" or "owner"; labels protect the silo.
            acknowledge_reset: whether to go on although an earlier account of the silo, or later
                rows of this one, are gone. That stays on record; what is known of what was spent is
                charged again.

        Raises:
            LedgerError: if the account is damaged, was changed, or belongs to another silo, or if
                there was another one, or one with more rows.
        """
        super().__init__(
            folder,
            source=source,
            identity=("silo", silo),
            unit=unit,
            acknowledge_reset=acknowledge_reset,
        )
        self.silo = silo
        self._charges: dict[bytes, tuple[int, Charge]] = {}
        self._debits: list[tuple[float, int]] = []
        self._sealing: dict[str, int] = {}
        self._sealed: dict[str, tuple[bytes, ...]] = {}
        numbers = {"epsilon_budget": epsilon_budget, "delta": delta}
        try:
            self.open_or_verify({"silo": silo, **numbers})
            with self.exclusive():
                if (self.epsilon_budget, self.delta) != (epsilon_budget, delta):
                    self.write("budget", numbers)
        except BaseException:
            self.close()
            raise

    @property
    def num_queries(self) -> int:
        """How many queries were charged."""
        return self.charges.total()

    def epsilon(self) -> float:
        """Returns what all debits cost together, at delta, for the whole silo."""
        return smallest_epsilon(self.charges, self.delta)[0]

    def num_charged_within_a_day(self) -> int:
        """Returns how many queries were charged in the last 24 hours by this machine's clock."""
        since = time.time() - DAY_SECONDS
        return sum(number for when, number in self._debits if when >= since)

    def charge_of(self, query: bytes) -> Charge | None:
        """Returns what a query was charged as; None if it was not charged."""
        return self._charges[query][1] if query in self._charges else None

    def debit(self, charge: Charge, queries: Sequence[bytes], *, batch: str | None = None) -> None:
        """Charges durably; call it inside `exclusive`. Nothing may be drawn before it returns.

        Args:
            charge: of each query.
            queries: digests, distinct and not charged yet.
            batch: key of the batch of sealed shares; None for labels.

        Raises LedgerError if it can't be made durable; then it may have been charged.
        """
        details = {
            "charge": charge.to_dict(),
            "number": len(queries),
            "queries": [query.hex() for query in queries],
            "batch": batch,
        }
        self.write("debit", details)

    def is_charged_batch(self, batch: str) -> bool:
        """Whether sealed shares of a batch were charged, sent or not."""
        return batch in self._sealing

    def labels(self, queries: Sequence[bytes]) -> dict[bytes, int]:
        """Returns the stored answers, randomised, by query."""
        answers = self.stored_answers(queries).items()
        return {query: answer.label for query, answer in answers if answer.label is not None}

    def store_labels(self, labels: Mapping[bytes, int]) -> None:
        """Stores the answers of charged queries durably; call it inside `exclusive`.

        Raises:
            LedgerError: if a query was not charged or was answered before, or they can't be made
                durable; then none may be sent.
        """
        by_debit: dict[int, list[bytes]] = {}
        for query in labels:
            if query not in self._charges:
                raise LedgerError("account: expected queries that were charged, got others")
            by_debit.setdefault(self._charges[query][0], []).append(query)
        for debit, queries in by_debit.items():
            self.store_answers(debit, queries, [labels[query] for query in queries])

    def sealed(self, batch: str) -> tuple[bytes, ...] | None:
        """Returns the sealed shares of a batch, as they were stored; None without."""
        return self._sealed.get(batch)

    def store_sealed(self, batch: str, sealed: Sequence[bytes]) -> None:
        """Stores the sealed shares of a charged batch durably; call it inside `exclusive`.

        Raises LedgerError if the batch was not charged or has some, or they can't be made durable.
        """
        if batch not in self._sealing or batch in self._sealed:
            raise LedgerError(
                "account: expected a charged batch without sealed shares, got another"
            )
        texts = [base64.b64encode(share).decode() for share in sealed]
        self.write("sealed", {"batch": batch, "sealed": texts})

    def _record(self, row: LedgerRow) -> None:
        details = row.details
        if row.kind == "opened" and details.get("silo") != self.silo:
            raise LedgerError(f"account: expected that of {self.silo}, got another silo's")
        if row.kind == "debit":
            charge, number = charge_of(row)
            when = datetime.datetime.fromisoformat(row.time).timestamp()
            self._debits.append((when, number))
            for query in details.get("queries", ()):  # none where it was charged elsewhere
                self._charges[bytes.fromhex(query)] = (row.sequence, charge)
            if details.get("batch") is not None:
                self._sealing[details["batch"]] = row.sequence
        elif row.kind == "sealed":
            sealed = tuple(base64.b64decode(share) for share in details["sealed"])
            self._sealed[details["batch"]] = sealed
