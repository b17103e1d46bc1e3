"""The ledger of an ensemble: all releases, their privacy cost, and the remaining budget."""

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
from pate_tf.core import artifacts, checks
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

MAX_DELTA = 0.5
MAX_CHARGES = 2**40  # if a charge fits more often into the budget, it is treated as unlimited


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spending(QueryCounts, EpsilonDelta):
    """The total privacy cost of all debits of one or several ledgers, including releases.

    Epsilon is data-independent: it is the worst case over all pairs of neighboring data sets.

    >>> import pate_tf
    >>> with pate_tf.Labeller(sums, epsilon=8.0, delta=1e-5) as labeller:
    ...     labeller.spent().epsilon <= 8.0
    True

    Attributes:
        num_queries: number of charged queries, answered or not. Feature sums have no queries.
    """


class Ledger(Store):
    """The privacy ledger of one ensemble, stored on disk across runs, processes and crashes.

    An ensemble is a set of teachers or a set of feature sums. Costs are data-independent: they hold
    for all pairs of data sets that differ in one replaced record, or in one added or removed owner.
    Moments of different charges add up, so different charges can be combined. If all charges are
    equal, their composition theorem is used where it gives a lower cost.

    Guarantees. A charge (a debit row) is durable before its noise is drawn, so releases never cost
    more than the ledger has recorded. Rows are never deleted or changed. Each mechanism answers a
    query only once. The total of all charges never exceeds the budget, even if several processes
    write at the same time. The only exceptions are releases that had already happened when they
    were recorded. Other ledgers of the same source have separate budgets; `source_spending` returns
    their total.

    All attributes are read-only. See `Store` for inherited attributes.

    Assumptions. The assumptions of `Store` hold. Mechanisms and numbers of queries are chosen
    without looking at earlier noisy answers. If this choice depends on answers, the budget still
    holds: at the same delta if all charges are of one mechanism, else at a larger delta. However,
    the reported cost is not valid if the time at which it is read depends on answers
    (docs/proofs/theory.md, Proposition S4).

    Attributes:
        ensemble_digest: digest of the ensemble to which this ledger belongs.
        num_queries: number of charged queries, answered or not.
        num_answered: number of queries that were answered with a label.
        is_secure: whether all debits and releases used noise from the operating system's entropy.
        planned_release: plan to release the data-dependent cost, fixed when the ledger was opened.
        plan_is_late: whether votes may already have existed when `planned_release` was fixed.
    """

    folder: pathlib.Path  # never None, because a ledger is never in memory
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
        """Opens the ledger in `folder` for labeling. The first call creates the ledger.

        The ledger is added to this user's registry (`pate_tf.ledger.rollback_guard`). If the
        registry can't be used, a `LedgerWarning` is issued. If there are several ledgers of the
        source, another warning reports their total cost.

        Args:
            folder: the sensitive folder of the ensemble; its mode is set to 0700.
            ensemble_digest: digest of the ensemble; set by the first call.
            delta: delta of the budget; set by the first call.
            epsilon_budget: maximum epsilon of all labels together; set by the first call that
                passes a budget. Default: no budget, but every charge is recorded.
            source: named private data source of the ledger; set by the first call. Default: the run
                folder is the source.
            identity: identity of a subject that may have only one ledger in all folders, such as a
                run that is identified by random bytes. Default: no such restriction.
            unit: protected unit of the charges, "record" (default), "owner" or "participant"; None
                for a ledger that already exists. Costs for different units can't be added.
            student_runs: run folders that may contain students of the ensemble, with statements
                that refer to this ledger. The ledger's own run folder is always checked.
            acknowledge_reset: whether to continue even if an earlier ledger of this folder, or rows
                of this ledger, are missing. A permanent row and every later statement report this.
                The known costs of the missing rows are charged again.
            planned_release: plan to release the data-dependent cost; set by the first call, before
                there are votes. Default: the earlier value, or `PlannedRelease()` for a new ledger.

        Raises:
            ValueError: if delta is outside [0, 1), or the budget is not positive and finite.
            BudgetMismatch: if the budget, delta or planned release was set to a different value
                before.
            LedgerError: if the ledger is damaged, was changed or can't be used; if it is new, but
                votes, a statement or the registry show that there was an earlier ledger; or if
                rows are missing that existed before.
        """
        checks.between(0, 1, ends="[)", delta=delta)
        if epsilon_budget is not None:
            checks.positive(epsilon_budget=epsilon_budget)
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
                    f"{folder}: this ledger belongs to other teachers or sums. Use another folder."
                )
            if delta != ledger.delta or (
                ledger.epsilon_budget is not None
                and epsilon_budget not in (None, ledger.epsilon_budget)
            ):
                raise BudgetMismatch(
                    f"{folder}: the budget was set at first use to epsilon {ledger.epsilon_budget} "
                    f"at delta {ledger.delta}. It can't be changed to epsilon {epsilon_budget} at "
                    f"delta {delta}."
                )
            if planned_release is not None:
                ledger.check_plan(planned_release)

        with contextlib.ExitStack() as undo:
            undo.callback(ledger.close)  # if an error is raised
            ledger.open_or_verify(opening, verify, runs=student_runs)
            if epsilon_budget is not None and ledger.epsilon_budget is None:
                with ledger.exclusive():
                    ledger.replace_budget(epsilon_budget, delta)
            undo.pop_all()
        return ledger

    @classmethod
    def read(cls, folder: pathlib.Path) -> "Ledger":
        """Opens an existing ledger for reading only.

        Raises:
            LedgerError: if the ledger does not exist, is damaged, was changed, or can't be read.
        """
        ledger = cls(folder, read_only=True)
        with contextlib.ExitStack() as undo:
            undo.callback(ledger.close)  # if an error is raised
            ledger.catch_up()
            if ledger.opened is None:
                raise LedgerError(f"{folder}: this ledger is empty")
            undo.pop_all()
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
                    f"{self.folder}: this is not the ledger of an ensemble. If it belongs to a "
                    "silo, read it with pate silo status, and verify it with `statement`."
                )
            self.ensemble_digest = details["ensemble_digest"]
            self.planned_release = PlannedRelease(**details["planned_release"])
            # If an earlier ledger was lost, votes may already have existed.
            self.plan_is_late = details["acknowledged"]

    def spent(self, delta: float | None = None) -> Spending:
        """Returns the total privacy cost of all charges in this ledger; see `compose`.

        Args:
            delta: delta of the total cost. Default: the ledger's delta.

        Raises:
            ValueError: if delta is outside [0, 1).
        """
        return compose([self], delta=self.delta if delta is None else delta)

    def remaining(self) -> float | None:
        """Returns the budget minus the spent epsilon, or 0 if negative; None if there is no budget.

        The epsilons of several charges do not simply add up. To get the number of further queries,
        use `affordable`.
        """
        if self.epsilon_budget is None:
            return None
        return max(0.0, self.epsilon_budget - self.spent().epsilon)

    def affordable(self, charge: Charge) -> int | None:
        """Returns the number of times that `charge` still fits into the budget.

        Returns None if there is no limit.
        """
        exceeds = 1
        while self._fits(charge, exceeds):
            exceeds *= 2
            if self.epsilon_budget is None and exceeds > MAX_CHARGES:
                return None
        return least(lambda number: not self._fits(charge, number), exceeds // 2, exceeds) - 1

    def check_affordable(self, charge: Charge, number: int) -> None:
        """Checks that `charge` still fits into the budget `number` times, in the worst case.

        Raises:
            BudgetExceeded: if it does not fit. The message contains how often it fits.
            LedgerError: if the charge has no finite epsilon at the ledger's delta.
        """
        if self._fits(charge, number):
            return
        self._check_finite(charge)
        affordable = self.affordable(charge) or 0
        charges = self.charges + Counter({charge: number})
        epsilon, _ = composition.moments_epsilon(charges, self.delta)
        spent, _ = composition.smallest_epsilon(self.charges, self.delta)
        too_much = f"would raise epsilon to {epsilon:.4g}"
        if math.isinf(epsilon):  # the deltas of the charges exceed the delta of the ledger
            too_much = f"would use delta {self.delta:g} or more; give the mechanism a smaller one"
        raise BudgetExceeded(
            f"`epsilon_budget` allows at most {affordable} more {charge.counted[1]} of "
            f"{charge.summary()}; {number} {too_much} (spent so far: epsilon {spent:.4g} of "
            f"{self.epsilon_budget} at delta {self.delta})",
            num_affordable=affordable,
        )

    def _check_finite(self, charge: Charge) -> None:
        """Raises LedgerError if `charge` has no finite cost."""
        if math.isinf(composition.moments_epsilon({charge: 1}, self.delta)[0]):
            raise LedgerError(
                f"{charge.several(1)} has no finite epsilon at delta {self.delta}: increase delta"
            )

    def _fits(self, charge: Charge, number: int) -> bool:
        charges = self.charges + Counter({charge: number})
        if self.epsilon_budget is not None:
            return composition.fits(charges, self.delta, self.epsilon_budget)
        return not math.isinf(composition.moments_epsilon(charges, self.delta)[0])

    def mac(self, content: Mapping[str, Any]) -> str:
        """Returns a message authentication code of JSON values.

        The key is the ledger's secret salt.
        """
        return hmac.digest(self._salt, canonical_json(dict(content)).encode(), "sha256").hex()

    def stored_release(self) -> Mapping[str, Any] | None:
        """Returns the last result of `store_release`; None if there is no stored draw."""
        kept = [row.details["kept"] for row in self.history() if row.kind == "released"]
        return kept[-1] if kept else None

    def raise_budget(self, *, epsilon_budget: float, delta: float) -> LedgerRow:
        """Replaces budget and delta, which weakens privacy; a permanent row records the change.

        Args:
            epsilon_budget: new maximum epsilon of all answers of this ensemble, including earlier
                answers.
            delta: delta of the new budget.

        Raises:
            ValueError: if a number is out of range, or if the spent epsilon already exceeds the new
                budget.
            LedgerError: if the row can't be written.
        """
        checks.between(0, 1, ends="[)", delta=delta)
        checks.positive(epsilon_budget=epsilon_budget)
        with self.exclusive():
            spent, _ = composition.smallest_epsilon(self.charges, delta)
            if spent > epsilon_budget:
                raise ValueError(
                    f"epsilon_budget must be at least {rounded_up(spent)}, the epsilon that this "
                    f"ensemble has already spent at delta {delta:g}, got {epsilon_budget:g}"
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
        """Durably charges the worst-case cost of a release. Call it inside `exclusive`.

        Args:
            charge: the mechanism that will answer, or the planned release.
            queries: digests of the queries to be answered, distinct and not answered yet. The
                number of charges is `charge.number_charged(len(queries))`.
            secure_noise: whether the noise comes from the operating system's entropy. If not, the
                ledger is marked permanently.
            was_released: whether the release has already happened. Such a release is charged even
                beyond the budget, because otherwise its cost would be hidden.

        Returns:
            The `sequence` of the new row. No noise may be drawn before this method returns.

        Raises:
            BudgetExceeded: if the charge doesn't fit; nothing is charged.
            LedgerError: if the charge has no finite cost, if a ledger with this charge could not be
                read again, or if the row can't be made durable. If the row can't be made durable,
                the charge may still have been recorded.
        """
        number = charge.number_charged(len(queries))
        try:
            check_recordable(charge)
        except ValueError as error:
            raise LedgerError(f"this charge is not registered: {error}") from error
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
        """Charges queries, or reuses an open debit (a charge without answers).

        Yields the `sequence` of the debit row.

        Call it inside `exclusive`.

        The caller draws and stores the answers inside the block, and must not use the answers in
        any way before they are stored. If the process is killed or interrupted inside the block,
        the debit stays open, and the next call reuses it. Reusing the debit is safe because the
        noise does not influence whether a process is killed (docs/proofs/theory.md, Proposition
        S6). An error closes the debit, because the noise may have caused the error: for example,
        longer answers may not fit on a full disk.

        Args:
            charge: mechanism that will answer, see `debit`.
            queries: digests of all queries of the debit, in order.
            secure_noise: whether the noise comes from the operating system, see `debit`.

        Raises the same errors as `debit`.
        """
        mark = self._mark_of(queries)
        debit = self.open_debit(queries, secure_noise=secure_noise)
        if debit is None:
            fault_point("before_debit")
            with self._reporting(), artifacts.atomic_file(mark, private=True) as file:
                file.write(str(self.head.sequence).encode())
            debit = self.debit(charge, queries, secure_noise=secure_noise)
        else:  # Among several copies of the ledger, only one can write this row.
            self.resume(debit=debit)
        try:
            yield debit
        except Exception:
            mark.unlink(missing_ok=True)  # possible even if the disk is full
            artifacts.sync_folder(mark.parent)
            raise
        mark.unlink(missing_ok=True)

    def _mark_of(self, queries: Sequence[bytes]) -> pathlib.Path:
        """Returns the path of a file that marks the debit row of these queries as open.

        The file contains the sequence of the last row before the debit row. Any earlier debit row
        of the same queries is closed.
        """
        return self.folder / f"open-{hashlib.sha256(b''.join(queries)).hexdigest()[:32]}"

    def open_debit(self, queries: Sequence[bytes], *, secure_noise: bool) -> int | None:
        """Returns the sequence of the open debit that `debited` would reuse, or None.

        A debit for secure noise is not reused with noise from a seed. A debit before an
        acknowledged reset is not reused either, because another copy of the ledger may have
        released the answers.

        Args:
            queries: digests of all queries of the debit, in order.
            secure_noise: whether the noise comes from the operating system, see `debit`.
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
        """Checks that `planned` equals the plan that was fixed when the ledger was opened.

        Raises:
            BudgetMismatch: if `planned` differs from the fixed plan.
        """
        wanted = vars(planned)
        fixed = vars(self.planned_release)
        differing = [name for name in fixed if wanted[name] != fixed[name]]
        if differing:
            raise BudgetMismatch(
                f"{self.folder}: {' and '.join(differing)} of the planned release can't be "
                f"changed: before there were votes, {[fixed[name] for name in differing]} was "
                f"fixed, and now it is {[wanted[name] for name in differing]}"
            )

    def store_release(self, debit: int, kept: Mapping[str, Any]) -> None:
        """Stores the noisy values of a release, so that they are never drawn again.

        Call it inside `exclusive`.

        Args:
            debit: sequence of the ledger row that charged the release.
            kept: JSON values to store: the noisy values, and the settings of the release.

        Raises:
            LedgerError: if the noisy values can't be stored durably. In this case, the caller must
                not publish the noisy values.
        """
        self.write("released", {"debit": debit, "kept": kept})


# The total cost of one or several ledgers.


def compose(ledgers: Sequence[Store], *, delta: float) -> Spending:
    """Returns the total privacy cost of several ledgers that belong to the same records.

    All charges are added, even if their labels were never released. If copies of one ledger were
    used separately, all their rows are added, and common rows are added only once. Two rows are
    identical if their digests are equal, because a digest depends on all earlier rows.

    Args:
        ledgers: ledgers of the same records.
        delta: delta of the total cost.

    Raises:
        ValueError: if delta is outside [0, 1).
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
    """Returns the rows of several ledgers without duplicates; see `compose`."""
    rows = {first_debit(row): row for ledger in ledgers for row in ledger.history()}
    return list(rows.values())


def source_facts(ledger: Store) -> dict[str, Any]:
    """Returns the fields of a privacy statement about resets and about other ledgers.

    The fields are `ledger_was_reset`; `source_name`, which is None if the run folder is its own
    source; `epsilon_source` and `delta_source`, the total cost of the source, or None if this cost
    is unknown; `num_ledgers`, the number of ledgers of the source, or None without a registry; and
    `num_other_units`, the number of these ledgers that protect a different unit.
    """
    spending = ledger.source_spending()
    epsilon = delta = None
    if spending is not None and not (spending.num_unknown or spending.num_other_units):
        delta = ledger.delta
        epsilon = spending.epsilon(delta)
        if not math.isfinite(epsilon):  # the deltas of other ledgers exceed this ledger's delta
            spent = sum(
                number * Fraction(charge.approximate[1])
                for charge, number in spending.charges.items()
                if charge.approximate is not None
            )
            delta = min((delta or DEFAULT_DELTA) + float(spent), MAX_DELTA)
            epsilon = spending.epsilon(delta)
    return {
        "ledger_was_reset": ledger.was_reset,
        "source_name": None if ledger.source is None else ledger.source.name,
        "epsilon_source": epsilon,
        "delta_source": delta,
        "num_ledgers": None if spending is None else spending.num_ledgers,
        "num_other_units": 0 if spending is None else spending.num_other_units,
    }
