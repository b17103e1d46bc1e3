"""The ledger of one ensemble: what it released, what that cost, and what may still be spent."""

import contextlib
import dataclasses
import hashlib
import hmac
import math
import pathlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any

from pate_tf.accounting import composition
from pate_tf.accounting.charge import PlannedRelease, QueryCounts, check_recordable, rounded_up
from pate_tf.accounting.composition import Charge
from pate_tf.accounting.conversions import DEFAULT_DELTA, least
from pate_tf.core import artifacts
from pate_tf.core.settings import EpsilonDelta
from pate_tf.core.source import PrivateSource
from pate_tf.ledger.journal import Store
from pate_tf.ledger.ledger_file import (
    DEBITS,
    VERSION,
    BudgetExceeded,
    BudgetMismatch,
    LedgerError,
    LedgerRow,
    canonical_json,
    charge_of,
    charges_of,
    fault_point,
    first_debit,
)
from pate_tf.ledger.rollback_guard import Identity

LARGEST_DELTA = 0.5
MOST_CHARGES = 2**40  # of which without a budget a ledger takes any number


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spending(QueryCounts, EpsilonDelta):
    """What all debits of one or several ledgers cost together, releases included.

    Epsilon is data-independent: in both directions, and in the worst case over all data.

    >>> import pate_tf
    >>> with pate_tf.Labeller(sums, epsilon=8.0, delta=1e-5) as labeller:
    ...     labeller.spent().epsilon <= 8.0
    True

    Attributes:
        num_queries: queries charged, whether or not they were answered; feature sums ask none.
    """


class Ledger(Store):
    """The budget of one ensemble, kept on disk across runs, processes and crashes.

    Costs are data-independent: they hold for every data set, in both directions, for replacing one
    training record, or adding or removing one owner's. They add up moment by moment, so charges can
    be mixed; where all debits name one, its own composition theorem is used if that gives less.

    Guarantees. A debit is durable before the noise is drawn that it charges for, so what was
    released never exceeds what was spent. Nothing is ever deleted or changed.
    A query is answered once by each mechanism. The sum of all debits never exceeds the budget,
    whichever processes write at once; only what was released before it was recorded can exceed it.
    What other ledgers of the same source were charged is what `source_spending` returns; it counts
    against no budget but their own.

    Attributes are for reading; `Store` has more.

    Assumptions. Those of `Store`. Mechanisms and numbers of queries are chosen without looking at
    earlier noisy answers. If answers choose them, the budget holds all the same where all debits
    name one mechanism, else at a larger delta; what was spent at a time that answers chose does not
    (docs/proofs/theory.md, Proposition S4).

    Attributes:
        ensemble_digest: digest of the ensemble that this ledger was opened for.
        num_queries: how many queries were charged, answered or not.
        num_answered: how many queries have a label as their answer.
        is_secure: False forever once a single debit or release used predictable noise.
        planned_release: how the data-dependent cost will be released, if ever.
        plan_is_late: whether that was fixed when there may have been votes already.
    """

    folder: pathlib.Path  # never in memory
    ensemble_digest = ""
    num_queries = 0
    num_answered = 0
    is_secure = True
    planned_release = PlannedRelease()
    plan_is_late = True

    @classmethod
    def open(
        cls,
        folder: pathlib.Path,
        *,
        ensemble_digest: str,
        delta: float,
        epsilon_budget: float | None = None,
        source: PrivateSource | None = None,
        identity: Identity | None = None,
        unit: str | None = "record",
        student_runs: Sequence[pathlib.Path] = (),
        acknowledge_reset: bool = False,
        planned_release: PlannedRelease | None = None,
    ) -> "Ledger":
        """Opens the ledger of `folder` for labeling; the first call creates it.

        The registry of this user notes it (`pate_tf.ledger.rollback_guard`). Where that can't be
        kept, a `LedgerWarning` says so; another tells what all ledgers of the source have spent.

        Args:
            folder: the sensitive folder of the ensemble; gets mode 0700.
            ensemble_digest: digest of the ensemble; fixed by the first call.
            delta: the delta that the budget holds at; fixed by the first call.
            epsilon_budget: the most that all labels may cost together; fixed by the first call that
                gives one. Default: no budget; everything is still recorded.
            source: the named data source that it is charged to; fixed by the first call. Default:
                the run folder itself.
            identity: of what has one ledger alone, wherever it lies, such as a run that random
                bytes name. Default: none.
            unit: what its charges protect, "record" (default), "owner" or "participant"; None for
                a ledger that was opened before. Costs of other units don't add up to one.
            student_runs: run folders that the ensemble's students may have gone to, whose
                statements quote its ledger. The ledger's own run is always looked at.
            acknowledge_reset: whether to go on although an earlier ledger of this folder, or later
                rows of this one, are gone. A row tells so forever, and so does every later
                statement. What is known of what was spent is charged again.
            planned_release: how the data-dependent cost will be released, if ever; fixed by the
                first call, before there are votes. Default: what was fixed, at first
                `PlannedRelease()`.

        Raises:
            ValueError: if delta is outside [0, 1), or the budget is not positive and finite.
            BudgetMismatch: if budget, delta or planned release were fixed to other values.
            LedgerError: if the ledger is damaged, was changed, can't be used, is new where votes, a
                statement or the registry tell of an earlier one, or lacks rows that were seen.
        """
        if not 0.0 <= delta < 1.0:
            raise ValueError(f"delta: expected in [0, 1), got {delta!r}")
        if epsilon_budget is not None and not 0.0 < epsilon_budget < math.inf:
            raise ValueError(f"epsilon_budget: expected above 0 and finite, got {epsilon_budget!r}")
        ledger = cls(
            folder, source=source, identity=identity, unit=unit, acknowledge_reset=acknowledge_reset
        )

        opening = {
            "schema_version": VERSION,
            "ensemble_digest": ensemble_digest,
            "epsilon_budget": epsilon_budget,
            "delta": delta,
            "planned_release": dataclasses.asdict(planned_release or PlannedRelease()),
        }

        def verify() -> None:
            if ledger.ensemble_digest != ensemble_digest:
                raise LedgerError(
                    f"{folder}: expected the ensemble that this ledger was opened for, got another "
                    f"ensemble"
                )
            if delta != ledger.delta or (
                ledger.epsilon_budget is not None
                and epsilon_budget not in (None, ledger.epsilon_budget)
            ):
                raise BudgetMismatch(
                    f"{folder}: expected epsilon_budget {ledger.epsilon_budget} and delta "
                    f"{ledger.delta}, fixed at first use, got {epsilon_budget} and {delta}"
                )
            if planned_release is not None:
                ledger.check_plan(planned_release)

        try:
            ledger.open_or_verify(opening, verify, runs=student_runs)
            if epsilon_budget is not None and ledger.epsilon_budget is None:
                with ledger.exclusive():
                    ledger.replace_budget(epsilon_budget, delta)
        except BaseException:
            ledger.close()
            raise
        return ledger

    @classmethod
    def read(cls, folder: pathlib.Path) -> "Ledger":
        """Opens an existing ledger to look at it; nothing can be written through it.

        Raises:
            LedgerError: if there is none, it is damaged, was changed, or can't be read.
        """
        ledger = cls(folder, read_only=True)
        try:
            ledger.catch_up()
            if ledger.opened is None:
                raise LedgerError(f"{folder}: expected an opened ledger, got an empty one")
        except BaseException:
            ledger.close()
            raise
        return ledger

    def _record(self, row: LedgerRow) -> None:
        super()._record(row)
        details = row.details
        if row.kind in DEBITS:
            self.is_secure &= details["secure_noise"]
            self.num_queries += details["num_queries"]
        elif row.kind == "answers":
            self.num_answered += details["num_answered"]
        elif row.kind == "opened":
            if "ensemble_digest" not in details:
                raise LedgerError(
                    f"{self.folder}: expected the ledger of an ensemble, got another's; a silo's "
                    "is read by pate silo status, and verified with `statement`"
                )
            self.ensemble_digest = details["ensemble_digest"]
            self.planned_release = PlannedRelease(**details["planned_release"])
            # Who lost a ledger may have seen its votes.
            self.plan_is_late = details["acknowledged"]

    def spent(self, delta: float | None = None) -> Spending:
        """Returns what all debits cost, at a delta or the ledger's own; see `compose`.

        Raises:
            ValueError: if delta is outside (0, 1).
        """
        return compose([self], delta=self.delta if delta is None else delta)

    def remaining(self) -> float | None:
        """Returns the budget less what was spent, at least 0; None if there is no budget.

        Costs don't add up as epsilons: `affordable` says what still fits.
        """
        if self.epsilon_budget is None:
            return None
        return max(0.0, self.epsilon_budget - self.spent().epsilon)

    def affordable(self, charge: Charge) -> int | None:
        """Returns how many more of `charge` fit, queries of a mechanism for one; None: no limit."""
        exceeds = 1
        while self._fits(charge, exceeds):
            exceeds *= 2
            if self.epsilon_budget is None and exceeds > MOST_CHARGES:
                return None
        return least(lambda number: not self._fits(charge, number), exceeds // 2, exceeds) - 1

    def check_affordable(self, charge: Charge, number: int) -> None:
        """Checks that `number` more of `charge` fit in the worst case.

        Raises:
            BudgetExceeded: if they don't; the message says how many would.
            LedgerError: if the charge has no finite guarantee.
        """
        if self._fits(charge, number):
            return
        self._check_finite(charge)
        affordable = self.affordable(charge) or 0
        charges = self.charges + Counter({charge: number})
        epsilon, _ = composition.moments_epsilon(charges, self.delta)
        spent, _ = composition.smallest_epsilon(self.charges, self.delta)
        too_much = f"would make it epsilon {epsilon:.4g}"
        if math.isinf(epsilon):  # charges with a delta of their own leave none to others
            too_much = f"would use up delta {self.delta:g}; give the mechanism a smaller one"
        raise BudgetExceeded(
            f"epsilon_budget: expected at most {affordable} new {charge.counted[1]} of "
            f"{charge.summary()}, got {number}, which {too_much}: epsilon {spent:.4g} of "
            f"{self.epsilon_budget} at delta {self.delta} is spent",
            num_affordable=affordable,
        )

    def _check_finite(self, charge: Charge) -> None:
        """Raises LedgerError unless one of `charge` has a finite cost."""
        if math.isinf(composition.moments_epsilon({charge: 1}, self.delta)[0]):
            raise LedgerError(
                f"expected a finite guarantee at delta {self.delta}, got none for "
                f"{charge.several(1)}: nothing private may be released through it"
            )

    def _fits(self, charge: Charge, number: int) -> bool:
        charges = self.charges + Counter({charge: number})
        if self.epsilon_budget is not None:
            return composition.fits(charges, self.delta, self.epsilon_budget)
        return not math.isinf(composition.moments_epsilon(charges, self.delta)[0])

    def recognise(self, content: Mapping[str, Any]) -> str:
        """Returns a digest of JSON values that can't be made without this ledger's secret salt."""
        return hmac.digest(self._salt, canonical_json(dict(content)).encode(), "sha256").hex()

    def stored_release(self) -> Mapping[str, Any] | None:
        """Returns what `store_release` stored last; None if there was no draw."""
        kept = [row.details["kept"] for row in self.history() if row.kind == "released"]
        return kept[-1] if kept else None

    def raise_budget(self, *, epsilon_budget: float, delta: float) -> LedgerRow:
        """Replaces budget and delta, which weakens privacy; a row reports it forever.

        Args:
            epsilon_budget: the new budget for everything that this ensemble ever answers.
            delta: the delta that it holds at.

        Raises:
            ValueError: if a number is out of range, or more was spent already.
            LedgerError: if the row can't be written.
        """
        if not (0.0 <= delta < 1.0 and 0.0 < epsilon_budget < math.inf):
            raise ValueError(f"epsilon_budget: expected above 0 and finite, got {epsilon_budget}")
        with self.exclusive():
            spent, _ = composition.smallest_epsilon(self.charges, delta)
            if spent > epsilon_budget:
                raise ValueError(
                    f"epsilon_budget: expected at least what this ensemble has spent, epsilon "
                    f"{rounded_up(spent)} at delta {delta:g}, got {epsilon_budget:g}"
                )
            return self.replace_budget(epsilon_budget, delta)

    def debit(
        self,
        charge: Charge,
        queries: Sequence[bytes] = (),
        *,
        secure_noise: bool,
        was_released: bool = False,
    ) -> int:
        """Charges in the worst case, durably; call it inside `exclusive`.

        Args:
            charge: the mechanism that will answer, or the plan of what will be released.
            queries: digests of the queries to be answered, distinct and not answered yet. What they
                cost is `charge.number_charged` of their number.
            secure_noise: whether the noise is unpredictable; if not, the ledger is marked for good.
            was_released: whether it was released already. It costs what it costs, so it is charged
                above the budget too: a refusal would only hide it.

        Returns:
            The sequence of the row. No noise may be drawn before this returns.

        Raises:
            BudgetExceeded: if it doesn't fit; nothing is charged.
            LedgerError: if the charge has no finite guarantee or could not be read back, or the row
                can't be made durable; then it may have been charged.
        """
        number = charge.number_charged(len(queries))
        try:
            check_recordable(charge)
        except ValueError as error:
            raise LedgerError(f"expected a registered charge, got another: {error}") from error
        if was_released:
            self._check_finite(charge)
        else:
            self.check_affordable(charge, number)
        details = {
            "charge": charge.to_dict(),
            "number": number,
            "num_queries": len(queries),
            "queries_digest": hashlib.sha256(b"".join(queries)).hexdigest(),
            "secure_noise": secure_noise,
            "past": was_released,
            "delta": self.delta,
        }
        with self.transaction():
            return self.append("debit", details).sequence

    @contextlib.contextmanager
    def debited(
        self, charge: Charge, queries: Sequence[bytes], *, secure_noise: bool
    ) -> Iterator[int]:
        """Charges queries, or takes up their open debit; gives its row. Call it in `exclusive`.

        Draw and store the answers inside. Nothing that was drawn may leave before it is stored. If
        the process is killed or interrupted inside, the debit stays open, and the next call takes
        it up: whether a process is killed does not depend on what it drew
        (docs/proofs/theory.md, Proposition S6). An error closes the debit, because it may depend
        on what was drawn: longer answers may not fit on a full disk.

        Args:
            charge: as of `debit`.
            queries: all that the debit charges, in its order.
            secure_noise: as of `debit`.

        Raises as `debit`.
        """
        mark = self._mark_of(queries)
        debit = self.open_debit(queries, secure_noise=secure_noise)
        if debit is None:
            fault_point("before_debit")
            with self._reporting(), artifacts.atomic_file(mark, private=True) as file:
                file.write(str(self.head.sequence).encode())
            debit = self.debit(charge, queries, secure_noise=secure_noise)
        try:
            yield debit
        except Exception:
            mark.unlink(missing_ok=True)  # needs no space on a full disk
            artifacts.sync_folder(mark.parent)
            raise
        mark.unlink(missing_ok=True)

    def _mark_of(self, queries: Sequence[bytes]) -> pathlib.Path:
        """Returns the file that marks the debit of queries as open.

        It contains the last row before the debit: an earlier debit of the queries is closed.
        """
        return self.folder / f"open-{hashlib.sha256(b''.join(queries)).hexdigest()[:32]}"

    def open_debit(self, queries: Sequence[bytes], *, secure_noise: bool) -> int | None:
        """Returns the row of a debit that `debited` would take up; None if there is none.

        A debit of unpredictable noise is not taken up with predictable noise. A debit from before a
        reset was acknowledged is not taken up either: another copy of the ledger may have released
        its answers.

        Args:
            queries: all that the debit charged, in its order.
            secure_noise: as of `debit`.
        """
        try:
            before = int(self._mark_of(queries).read_text())
        except (OSError, ValueError):
            return None
        debit = None
        digest = hashlib.sha256(b"".join(queries)).hexdigest()
        for row in self.history()[before:]:
            details = row.details
            if row.kind == "acknowledged":
                debit = None
            elif (
                row.kind == "debit"
                and not details["past"]
                and details["queries_digest"] == digest
                and (secure_noise or not details["secure_noise"])
            ):
                debit = row.sequence
        return debit

    def check_plan(self, planned: PlannedRelease) -> None:
        """Checks that the data-dependent cost is released as was fixed at first.

        Raises:
            BudgetMismatch: if something else was fixed.
        """
        wanted = vars(planned)
        fixed = vars(self.planned_release)
        differing = [name for name in fixed if wanted[name] != fixed[name]]
        if differing:
            raise BudgetMismatch(
                f"{self.folder}: expected {' and '.join(differing)} of the release as fixed when "
                f"the ledger was opened, before there were votes, "
                f"{[fixed[name] for name in differing]}, got "
                f"{[wanted[name] for name in differing]}"
            )

    def store_release(self, debit: int, kept: Mapping[str, Any]) -> None:
        """Stores what was drawn, so that it is never drawn again; call it inside `exclusive`.

        Args:
            debit: sequence of the row that charged it.
            kept: JSON values: the draw, and what it was drawn for.

        Raises:
            LedgerError: if it can't be made durable; then nothing of it may be published.
        """
        self.write("released", {"debit": debit, "kept": kept})


# What several ledgers cost together; one is the simplest case.


def compose(ledgers: Sequence[Store], *, delta: float) -> Spending:
    """Returns what several ledgers cost together, for ensembles trained on the same records.

    Everything charged counts, whether or not its labels were ever released. Of copies of one ledger
    that went on apart, every branch counts, and what they have in common once: rows are the same
    if their digests are, which depend on all rows before.

    Args:
        ledgers: the ledgers.
        delta: the one delta that the sum holds at.

    Raises:
        ValueError: if delta is outside (0, 1).
    """
    epsilon, _ = composition.smallest_epsilon(charges_of(distinct_rows(ledgers)), delta)
    queries: dict[str, int] = {}
    answered: dict[str, int] = {}
    for ledger in ledgers:
        of_sums = set[int]()
        for row in ledger.history():
            if row.kind in DEBITS and charge_of(row)[0].releases_feature_sums:
                of_sums.add(row.sequence)
            elif row.kind in DEBITS:
                queries[first_debit(row)] = row.details.get("num_queries", 0)
            elif row.kind == "answers" and row.details["debit"] not in of_sums:
                answered[row.digest] = row.details["num_answered"]
    return Spending(
        epsilon=epsilon,
        delta=delta,
        num_queries=sum(queries.values()),
        num_answered=sum(answered.values()),
    )


def distinct_rows(ledgers: Sequence[Store]) -> list[LedgerRow]:
    """Returns the rows of several ledgers, those that they share once; see `compose`."""
    rows = {first_debit(row): row for ledger in ledgers for row in ledger.history()}
    return list(rows.values())


def source_facts(ledger: Store) -> dict[str, Any]:
    """Returns what a statement says of resets, and of all ledgers of the same source.

    By name: `ledger_was_reset`; `source_name`, None where the run folder is its own source;
    `epsilon_source` and `delta_source` of everything charged to the source, None where that is not
    known; `num_ledgers` of it, None without a registry; `num_other_units`.
    """
    spending = ledger.source_spending()
    epsilon = delta = None
    if spending is not None and not (spending.num_unknown or spending.num_other_units):
        delta = ledger.delta
        epsilon = spending.epsilon(delta)
        if not math.isfinite(epsilon):  # others spent more delta than this one has
            spent = sum(
                number * Fraction(charge.approximate[1])
                for charge, number in spending.charges.items()
                if charge.approximate is not None
            )
            delta = min((delta or DEFAULT_DELTA) + float(spent), LARGEST_DELTA)
            epsilon = spending.epsilon(delta)
    return {
        "ledger_was_reset": ledger.was_reset,
        "source_name": None if ledger.source is None else ledger.source.name,
        "epsilon_source": epsilon,
        "delta_source": delta,
        "num_ledgers": None if spending is None else spending.num_ledgers,
        "num_other_units": 0 if spending is None else spending.num_other_units,
    }
