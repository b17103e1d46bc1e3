"""The ledger of one ensemble: what it released, what that cost, and what may still be spent."""

import contextlib
import hashlib
import math
import pathlib
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, Protocol, cast

from pate_tf.accounting import composition
from pate_tf.accounting.charge import Charge, rounded_up
from pate_tf.accounting.charges import charge_from_dict
from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.conversions import DEFAULT_MOMENTS, check_delta, least
from pate_tf.accounting.group_privacy import replaced_owner_epsilon
from pate_tf.accounting.planning import PlannedRelease
from pate_tf.core.record_set import RecordSet
from pate_tf.core.validation import IntArray
from pate_tf.ledger.chain import (
    MIGRATIONS,
    BudgetExceeded,
    BudgetMismatch,
    EnsembleMismatch,
    Head,
    LedgerError,
    LedgerRow,
    Spending,
    StoredAnswer,
    canonical_json,
)
from pate_tf.ledger.registry import PAYMENTS, paid_by, payment_identity
from pate_tf.ledger.rollback_guard import AllEnsembles
from pate_tf.ledger.store import Store

# What the rows of a ledger add up to: what was spent, and what may still be.


class Budget:
    """The running sum over the rows of one ledger.

    Attributes:
      ensemble_digest: digest of the ensemble; None before the first row.
      epsilon_budget: the budget in force; None if there is none.
      delta: the delta in force.
      paid: what was paid for, and how often.
      num_queries: queries paid for.
      num_answered: queries whose answer is a label.
      is_secure: False once something was paid for that used predictable noise.
      was_raised: True once the budget or its delta was raised.
      planned_release: how the data-dependent cost will be released; None where a ledger of an
        earlier version never fixed it.
      plan_is_late: whether that was fixed when there may have been votes already.
    """

    def __init__(self) -> None:
        self.ensemble_digest: str | None = None
        self.epsilon_budget: float | None = None
        self.delta = math.nan
        self.paid: Counter[Charge] = Counter()
        self.num_queries = 0
        self.num_answered = 0
        self.is_secure = True
        self.was_raised = False
        self.planned_release: PlannedRelease | None = None
        self.plan_is_late = True

    def record(self, row: LedgerRow) -> None:
        """Adds the next row."""
        details = row.details
        self.paid += paid_by([row])
        if row.kind in PAYMENTS:
            # Releases before there was a choice all drew from the operating system.
            self.is_secure &= details.get("secure_noise", True)
            self.num_queries += details.get("num_queries", 0)
        elif row.kind == "answers":
            self.num_answered += details["num_answered"]
        elif row.kind == "planned":
            self.planned_release = PlannedRelease.from_dict(details["release"])
        elif row.kind in ("opened", "budget"):
            if row.kind == "opened":
                self.ensemble_digest = details["ensemble_digest"]
                if "planned_release" in details:
                    self.planned_release = PlannedRelease.from_dict(details["planned_release"])
                    # Whoever lost a ledger may have seen its votes.
                    self.plan_is_late = details["acknowledged"]
            self.epsilon_budget = details["epsilon_budget"]
            self.delta = details["delta"]
            self.was_raised |= details.get("raised", False)

    def epsilon_with(self, charge: Charge, number: int) -> float:
        """Returns what everything costs by moments once `number` more are paid for too."""
        return composition.moments_epsilon(self._with(charge, number), self.delta)[0]

    def affordable(self, charge: Charge) -> int | None:
        """Returns how many more of `charge` fit; None if there is no limit."""
        if self.epsilon_budget is None and not self._uses_delta(charge):
            return None
        fits, exceeds = 0, 1
        while self._fits(charge, exceeds):
            fits, exceeds = exceeds, 2 * exceeds
        return least(lambda number: not self._fits(charge, number), fits, exceeds) - 1

    def check_finite(self, charge: Charge) -> None:
        """Checks that one of `charge` has a finite cost.

        Raises:
          LedgerError: if it has none.
        """
        if math.isinf(composition.moments_epsilon({charge: 1}, self.delta)[0]):
            raise LedgerError(
                f"expected a finite guarantee at delta {self.delta}, got none for "
                f"{charge.several(1)}: nothing private may be released through it"
            )

    def check_affordable(self, charge: Charge, number: int) -> None:
        """Checks that `number` more fit in the worst case; see `Ledger.check_affordable`."""
        self.check_finite(charge)
        if self._fits(charge, number):
            return
        self._check_delta(charge, number)
        affordable = self.affordable(charge) or 0
        spent, _ = composition.smallest_epsilon(self.paid, self.delta)
        raise BudgetExceeded(
            f"epsilon_budget: expected at most {affordable} new {charge.counted[1]} of "
            f"{charge.summary()}, got {number}, which would make it epsilon "
            f"{self.epsilon_with(charge, number):.4g}: epsilon {spent:.4g} of "
            f"{self.epsilon_budget} at delta {self.delta} is spent",
            num_affordable=affordable,
        )

    def _check_delta(self, charge: Charge, number: int) -> None:
        """Raises BudgetExceeded if what has no moments would leave too little of delta."""
        paid = self._with(charge, number)
        if not math.isinf(composition.moments_epsilon(paid, self.delta)[0]):
            return
        _, used = composition.total_approximate(self.paid)
        _, more = composition.total_approximate({charge: number})
        at_most = "at most" if more and self._is_paid_by_delta_alone(paid) else "less than"
        raise BudgetExceeded(
            f"delta: expected {at_most} {self.delta:g} in all to be used up by charges that have a "
            f"delta of their own, got {float(used):g} used so far and {float(more):g} for "
            f"{charge.several(number)}; all of it leaves nothing to other mechanisms. Give the "
            f"mechanism a smaller delta, or the ledger a larger one, which stays on record",
            num_affordable=self.affordable(charge) or 0,
        )

    @staticmethod
    def _is_paid_by_delta_alone(paid: Counter[Charge]) -> bool:
        return not composition.total_alphas(paid, DEFAULT_MOMENTS).any()

    def _uses_delta(self, charge: Charge) -> bool:
        return any(one.approximate is not None for one in (*self.paid, charge))

    def _with(self, charge: Charge, number: int) -> Counter[Charge]:
        return self.paid + Counter({charge: number})

    def _fits(self, charge: Charge, number: int) -> bool:
        paid = self._with(charge, number)
        if self.epsilon_budget is not None:
            return composition.fits(paid, self.delta, self.epsilon_budget)
        return not (
            self._uses_delta(charge)
            and math.isinf(composition.moments_epsilon(paid, self.delta)[0])
        )


# The store of a ledger: its rows, what they add up to, and what its user is held to.


class Account(Store):
    """A store with its running sums.

    Attributes:
      budget: what the rows add up to, as far as this object has read them.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        *,
        ensemble_digest: str | None = None,
        records: RecordSet | None = None,
        acknowledge_reset: bool = False,
    ) -> None:
        """Opens the files; without an ensemble to read alone. See `Store`."""
        super().__init__(
            folder,
            subject=None if ensemble_digest is None else ("ensemble", ensemble_digest),
            records=records,
            acknowledge_reset=acknowledge_reset,
        )
        self.budget = Budget()

    @property
    def folder(self) -> pathlib.Path:
        """The folder that the ledger lies in."""
        return cast(pathlib.Path, self.chain.folder)

    def _record(self, row: LedgerRow) -> None:
        if row.kind == "opened" and "ensemble_digest" not in row.details:
            raise LedgerError(f"{self.folder}: expected the ledger of an ensemble, got another's")
        self.budget.record(row)

    def open_ledger(
        self,
        *,
        ensemble_digest: str,
        delta: float,
        epsilon_budget: float | None,
        student_runs: Sequence[pathlib.Path],
        planned_release: PlannedRelease | None,
    ) -> None:
        """Opens a ledger that is new, else holds it to what it was opened with.

        For arguments and errors see `Ledger.open`.
        """

        def opening(is_missing: bool) -> dict[str, object]:
            # The published head is a hash of everything from here on; the salt keeps it from
            # confirming a guess at the ensemble, and so at the private data.
            return {
                "schema_version": len(MIGRATIONS),
                "salt": secrets.token_hex(32),
                "ensemble_digest": ensemble_digest,
                "epsilon_budget": epsilon_budget,
                "delta": delta,
                "acknowledged": is_missing,
                # The limit of the ledger that is gone is not known any more.
                "raised": is_missing,
                "planned_release": (planned_release or PlannedRelease()).to_dict(),
            }

        def verify() -> None:
            known = self.budget
            if known.ensemble_digest != ensemble_digest:
                raise EnsembleMismatch(
                    f"{self.folder}: expected the ensemble that this ledger was opened for, got "
                    f"another ensemble"
                )
            if delta != known.delta or (
                known.epsilon_budget is not None
                and epsilon_budget not in (None, known.epsilon_budget)
            ):
                raise BudgetMismatch(
                    f"{self.folder}: expected epsilon_budget {known.epsilon_budget} and delta "
                    f"{known.delta}, fixed at first use, got {epsilon_budget} and {delta}"
                )
            if planned_release is not None and known.planned_release is not None:
                self._check_plan(planned_release, known.planned_release)

        self.open_or_verify(opening, verify, runs=student_runs)
        with self.exclusive():
            if epsilon_budget is not None and self.budget.epsilon_budget is None:
                self.replace_budget(epsilon_budget, delta)
            if planned_release is not None:
                self.plan_release(planned_release)
        self.warn_of_others(self.budget.paid, self.budget.delta)

    def plan_release(self, planned: PlannedRelease) -> None:
        """Fixes how the data-dependent cost is released; see `Ledger.plan_release`."""
        fixed = self.budget.planned_release
        if fixed is None:
            self.write("planned", {"release": planned.to_dict()})
        else:
            self._check_plan(planned, fixed)

    def replace_budget(self, epsilon_budget: float, delta: float) -> LedgerRow:
        """Puts another budget and delta in force; a row reports it for ever."""
        known = self.budget
        old = math.inf if known.epsilon_budget is None else known.epsilon_budget
        details = {
            "epsilon_budget": epsilon_budget,
            "delta": delta,
            "previous_epsilon_budget": known.epsilon_budget,
            "previous_delta": known.delta,
            "raised": epsilon_budget > old or delta > known.delta,
        }
        return self.write("budget", details)

    def check_not_spent(self, epsilon_budget: float, delta: float) -> None:
        """Raises ValueError if more than a new budget was spent already."""
        spent, _ = composition.smallest_epsilon(self.budget.paid, delta)
        if spent > epsilon_budget:
            raise ValueError(
                f"epsilon_budget: expected at least what this ensemble has spent, epsilon "
                f"{rounded_up(spent)} at delta {delta:g}, got {epsilon_budget:g}"
            )

    def _check_plan(self, planned: PlannedRelease, fixed: PlannedRelease) -> None:
        """Raises BudgetMismatch if another plan was fixed."""
        said, known = planned.to_dict(), fixed.to_dict()
        if differing := [name for name in known if said[name] != known[name]]:
            raise BudgetMismatch(
                f"{self.folder}: expected "
                + ", ".join(f"{name} {known[name] or 'as planned'}" for name in differing)
                + " of the release, fixed when the ledger was opened, before there were votes; got "
                + ", ".join(f"{said[name] or 'as planned'}" for name in differing)
            )


def check_budget(epsilon_budget: float) -> None:
    """Raises ValueError unless a budget is positive and finite."""
    if not 0.0 < epsilon_budget < math.inf:
        raise ValueError(f"epsilon_budget: expected above 0 and finite, got {epsilon_budget}")


# What several ledgers cost together; one is the simplest case.


class HasHistory(Protocol):
    """A ledger, as far as its sums need one."""

    def history(self) -> tuple[LedgerRow, ...]:
        """Returns all rows in the order they were written."""
        ...


def compose(
    ledgers: Sequence[HasHistory], *, delta: float, conversion: str = "improved"
) -> Spending:
    """Returns what several ledgers cost together, for ensembles trained on the same records.

    Everything paid counts, whether or not its labels were ever released. Of copies of one ledger
    that went on apart, every branch counts, and what they have in common once: rows are the same
    if their digests are, which depend on all rows before.

    Args:
      ledgers: the ledgers.
      delta: the one delta that the sum holds at.
      conversion: from moments to epsilon, "improved" (default) or "classic"; with "classic" no
        composition theorem other than moments is used.

    Raises:
      ValueError: if delta is outside (0, 1) or the conversion is unknown.
    """
    paid = paid_together(ledgers)
    epsilon, moment = composition.smallest_epsilon(paid, delta, conversion=conversion)
    return Spending(
        epsilon=epsilon,
        delta=delta,
        moment=moment,
        num_queries=num_queries_together(ledgers),
        num_answered=num_answered_together(ledgers),
    )


def paid_together(ledgers: Sequence[HasHistory]) -> dict[Charge, int]:
    """Returns what several ledgers paid for; see `compose`."""
    return dict(paid_by(_distinct(ledgers)))


def num_queries_together(ledgers: Sequence[HasHistory]) -> int:
    """Returns how many queries several ledgers paid for; see `compose`."""
    paid = [row.details for row in _distinct(ledgers) if row.kind in PAYMENTS]
    return sum(details.get("num_queries", 0) for details in paid)


def num_answered_together(ledgers: Sequence[HasHistory]) -> int:
    """Returns how many labels left several ledgers; see `compose`."""
    answers = [row.details for row in _distinct(ledgers) if row.kind == "answers"]
    return sum(details["num_answered"] for details in answers)


def _distinct(ledgers: Sequence[HasHistory]) -> list[LedgerRow]:
    rows = {payment_identity(row): row for ledger in ledgers for row in ledger.history()}
    return list(rows.values())


# What a ledger tells: what was released, what it cost, what is left. Nothing here writes.


class LedgerView:
    """A ledger as whoever asks it sees it; `Ledger` is made from it.

    Args:
      account: its rows, and what they add up to.
    """

    def __init__(self, account: Account) -> None:
        self._account = account
        self._chain, self._budget = account.chain, account.budget

    @property
    def folder(self) -> pathlib.Path:
        """The folder that the ledger lies in."""
        return self._account.folder

    @property
    def head(self) -> Head:
        """The last row known to this object, for a statement to quote."""
        return self._chain.head

    @property
    def ensemble_digest(self) -> str:
        """Digest of the ensemble that this ledger was opened for."""
        return str(self._budget.ensemble_digest)

    @property
    def epsilon_budget(self) -> float | None:
        """The budget in force; None if there is none."""
        return self._budget.epsilon_budget

    @property
    def delta(self) -> float:
        """The delta in force."""
        return self._budget.delta

    @property
    def was_raised(self) -> bool:
        """True for ever once the budget or its delta was raised."""
        return self._budget.was_raised

    @property
    def planned_release(self) -> PlannedRelease | None:
        """How the data-dependent cost will be released; None if that was never fixed."""
        return self._budget.planned_release

    @property
    def plan_is_late(self) -> bool:
        """Whether that was fixed when there may have been votes already."""
        return self._budget.plan_is_late

    @property
    def was_reset(self) -> bool:
        """True for ever once somebody went on although rows or an earlier ledger were gone."""
        return self._account.was_reset

    @property
    def is_registered(self) -> bool:
        """Whether a registry notes what this ledger does; see `pate_tf.ledger.registry`."""
        guard = self._account.guard
        return guard is not None and guard.is_kept

    @property
    def is_secure(self) -> bool:
        """False for ever once a single debit or release used predictable noise."""
        return self._budget.is_secure

    @property
    def num_queries(self) -> int:
        """How many queries were paid for, answered or not."""
        return self._budget.num_queries

    @property
    def num_answered(self) -> int:
        """How many queries have a label as their answer."""
        return self._budget.num_answered

    def history(self) -> tuple[LedgerRow, ...]:
        """Returns all rows in the order they were written."""
        return self._account.history()

    def paid(self) -> dict[Charge, int]:
        """Returns what was paid for, answered or not, and how often."""
        return dict(self._budget.paid)

    def holds(self, head: Head) -> bool:
        """Whether this ledger contains the row that a statement quoted."""
        return self._chain.holds(head)

    def spent(self, delta: float | None = None, *, conversion: str = "improved") -> Spending:
        """Returns what all debits cost; see `compose`.

        What other ledgers of the ensemble charged is among them, as of the last `exclusive`.

        Args:
          delta: default: the ledger's own.
          conversion: "improved" (default) or "classic".

        Raises:
          ValueError: if delta is outside (0, 1) or the conversion is unknown.
        """
        return compose([self], delta=self.delta if delta is None else delta, conversion=conversion)

    def all_ensembles(self) -> AllEnsembles | None:
        """Returns what all known ensembles of the same private records paid, this one included.

        As far as this user's registry knows. None without one.
        """
        return self._account.all_ensembles()

    def replaced_owner_epsilon(self) -> float:
        """Returns what all debits cost against replacing an owner, at the ledger's delta.

        For an ensemble that protects owners; `spent` then counts an owner added or removed.
        """
        return replaced_owner_epsilon(self._budget.paid, self.delta)

    def remaining(self) -> float | None:
        """Returns the budget less what was spent, at least 0; None if there is no budget.

        Costs don't add up as epsilons: `affordable` says what still fits.
        """
        if self.epsilon_budget is None:
            return None
        return max(0.0, self.epsilon_budget - self.spent().epsilon)

    def affordable(self, charge: Charge) -> int | None:
        """Returns how many more of `charge` fit, queries of a mechanism for one.

        None if there is no budget.
        """
        return self._budget.affordable(charge)

    def to_dp_events(self) -> Any:
        """Returns one `dp_accounting` event for all debits, for its RDP accountant.

        Noisy max has no event of its own, so each charge becomes one that is never cheaper, under
        any neighbouring relation: see `Charge.to_dp_event`. Randomised response would be tighter
        for pure mechanisms, but the PLD accountant of dp-accounting 0.6 counts a self-composed one
        only once.

        Returns:
          A `dp_accounting.ComposedDpEvent`, a part for each charge.

        Raises:
          ImportError: if the optional package dp-accounting is missing.
          LedgerError: if something was paid for that has no event.
        """
        try:
            return composition.to_dp_event(self._budget.paid)
        except ValueError as error:
            raise LedgerError(f"{self.folder}: {error}") from error

    def stored_answers(self, queries: Sequence[bytes]) -> dict[bytes, StoredAnswer]:
        """Returns the answers that exist already, by query digest."""
        return self._chain.stored_answers(queries)

    def check_affordable(self, charge: Charge, number: int) -> None:
        """Checks that `number` more of `charge` fit in the worst case.

        Raises:
          BudgetExceeded: if they don't; the message says how many would.
          LedgerError: if the charge has no finite guarantee.
        """
        self._budget.check_affordable(charge, number)

    def seal(self, content: Mapping[str, Any]) -> str:
        """Returns a digest of JSON values that nobody can make without this ledger.

        Keyed by the secret salt of the first row: what was given out can be recognised later.
        """
        return self._account.seal(canonical_json(dict(content)).encode()).hex()

    def kept_release(self) -> Mapping[str, Any] | None:
        """Returns what `store_release` kept last; None if there was no draw."""
        found = [row.details["kept"] for row in self._chain.rows() if row.kind == "released"]
        return found[-1] if found else None


class Ledger(LedgerView):
    """The budget of one ensemble, kept on disk across runs, processes and crashes.

    Costs are data-independent: they hold for every data set, in both directions, for replacing one
    training record, or adding or removing one owner's. They add up moment by moment, so charges can
    be mixed; where all debits name one, its own composition theorem is used if that gives less.

    Guarantees. A debit is durable before the noise that it pays for is drawn, so what was released
    never exceeds what was spent. Nothing is ever deleted or changed.
    A query is answered once by each mechanism. The sum of all debits never exceeds the budget,
    whichever processes write at once; only what left before it was recorded can exceed it. What
    other ledgers of the same ensemble charged, copies of this one too, is charged here, as far as
    the registry knows, at opening and whenever `exclusive` is entered.

    Assumptions. Mechanisms and numbers of queries are chosen without looking at earlier noisy
    answers. If answers choose them, the budget holds all the same where all debits name one
    mechanism, else at a larger delta; what was spent at a time that answers chose does not
    (docs/theory.md, Proposition S4). Whoever may write to the folder is trusted not to rewrite it
    (see `pate_tf.ledger.chain`). The file system honours fsync and file locks.

    Use one object per process, in the thread that made it.
    """

    @classmethod
    def open(
        cls,
        folder: pathlib.Path,
        *,
        ensemble_digest: str,
        delta: float,
        epsilon_budget: float | None = None,
        records: RecordSet | None = None,
        student_runs: Sequence[pathlib.Path] = (),
        acknowledge_reset: bool = False,
        planned_release: PlannedRelease | None = None,
    ) -> "Ledger":
        """Opens the ledger of `folder` for labelling; the first call creates it.

        The registry of this user notes it (`pate_tf.ledger.registry`). Where that can't be kept, a
        `LedgerWarning` says so; others tell of what other ledgers of the ensemble, and other
        ensembles of the same records, have spent.

        Args:
          folder: the sensitive folder of the ensemble; gets mode 0700.
          ensemble_digest: digest of the ensemble; fixed by the first call.
          delta: the delta that the budget holds at; fixed by the first call.
          epsilon_budget: the most that all labels may cost together; fixed by the first call that
            gives one. Default: no budget; everything is still recorded.
          records: what the ensemble learnt from. Default: not known, so that other ensembles of the
            same records are not recognised.
          student_runs: run folders that the ensemble's students may have gone to, whose statements
            quote its ledger. The ledger's own run is always looked at.
          acknowledge_reset: whether to go on although an earlier ledger of this ensemble, or later
            rows of this one, are gone. A row tells so for ever, and so does every later statement.
            What is known of what was spent is charged again.
          planned_release: how the data-dependent cost will be released, if ever; fixed by the first
            call, before there are votes. Default: what was fixed, at first `PlannedRelease()`.

        Raises:
          ValueError: if delta is outside (0, 1), or the budget is not positive and finite.
          EnsembleMismatch: if the ledger belongs to another ensemble.
          BudgetMismatch: if budget, delta or planned release were fixed to other values.
          LedgerError: if the ledger is damaged, was changed, can't be used, is new where votes, a
            statement or the registry tell of an earlier one, or lacks rows that were seen.
        """
        check_delta(delta)
        if epsilon_budget is not None:
            check_budget(epsilon_budget)
        ledger = cls(
            Account(
                folder,
                ensemble_digest=ensemble_digest,
                records=records,
                acknowledge_reset=acknowledge_reset,
            )
        )
        try:
            ledger._account.open_ledger(
                ensemble_digest=ensemble_digest,
                delta=delta,
                epsilon_budget=epsilon_budget,
                student_runs=student_runs,
                planned_release=planned_release,
            )
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
        ledger = cls(Account(folder))
        try:
            ledger._account.catch_up()
            if ledger._budget.ensemble_digest is None:
                raise LedgerError(f"{folder}: expected an opened ledger, got an empty one")
        except BaseException:
            ledger.close()
            raise
        return ledger

    def close(self) -> None:
        """Closes the files; the ledger can't be used afterwards."""
        self._account.close()

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def raise_budget(
        self, *, epsilon_budget: float, delta: float, i_understand_this_weakens_privacy: bool
    ) -> LedgerRow:
        """Replaces budget and delta; a row reports it for ever.

        Args:
          epsilon_budget: the new budget for everything that this ensemble ever answers.
          delta: the delta that it holds at.
          i_understand_this_weakens_privacy: must be True.

        Raises:
          ValueError: if the change is not acknowledged, a number is out of range, or more was spent
            already.
          LedgerError: if the row can't be written.
        """
        check_delta(delta)
        check_budget(epsilon_budget)
        if not i_understand_this_weakens_privacy:
            raise ValueError("raise_budget: expected the change to be acknowledged, it was not")
        with self.exclusive():
            self._account.check_not_spent(epsilon_budget, delta)
            return self._account.replace_budget(epsilon_budget, delta)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keeps other processes from writing to this ledger; brings this object up to date.

        Raises:
          LedgerError: if another process holds it for two minutes, it was changed, or a copy of it
            went on.
        """
        with self._account.exclusive():
            yield

    def debit(
        self,
        charge: Charge,
        queries: Sequence[bytes] = (),
        *,
        secure_noise: bool,
        has_left: bool = False,
    ) -> int:
        """Charges in the worst case, durably; call it inside `exclusive`.

        Args:
          charge: the mechanism that will answer, or the plan of what will be released.
          queries: digests of the queries to be answered, distinct and not answered yet. What they
            cost is `charge.number_charged` of so many.
          secure_noise: whether the noise is unpredictable; if not, the ledger is marked for good.
          has_left: whether what is charged for has left already. It costs what it costs, so it is
            charged above the budget too: a refusal would only hide it.

        Returns:
          The sequence of the row. No noise may be drawn before this returns.

        Raises:
          BudgetExceeded: if it doesn't fit; nothing is charged.
          LedgerError: if the charge has no finite guarantee or could not be read back, or the row
            can't be made durable; then it may have been charged.
        """
        number = charge.number_charged(len(queries))
        _check_readable(charge)
        self._budget.check_finite(charge)
        if not has_left:
            self.check_affordable(charge, number)
        details = {
            "charge": charge.to_dict(),
            "number": number,
            "num_queries": len(queries),
            "queries_digest": hashlib.sha256(b"".join(queries)).hexdigest(),
            "secure_noise": secure_noise,
            "past": has_left,
            "epsilon_before": self._budget.epsilon_with(charge, 0),
            "epsilon_after": self._budget.epsilon_with(charge, number),
            "delta": self.delta,
        }
        return self._account.write("debit", details).sequence

    def plan_release(self, planned: PlannedRelease) -> None:
        """Fixes how the data-dependent cost is released; call it inside `exclusive`.

        Ledgers have it from their first row; those of earlier versions take it once, marked as
        late.

        Raises:
          BudgetMismatch: if something else was fixed.
        """
        self._account.plan_release(planned)

    def store_release(self, debit: int, kept: Mapping[str, Any]) -> None:
        """Keeps what was drawn, so that it is never drawn again; call it inside `exclusive`.

        Args:
          debit: sequence of the row that paid.
          kept: JSON values: the draw, and what it was drawn for.

        Raises:
          LedgerError: if it can't be made durable; then nothing of it may be published.
        """
        self._account.write("released", {"debit": debit, "kept": kept})

    def store_answers(
        self,
        debit: int,
        queries: Sequence[bytes],
        labels: Sequence[int | None],
        noisy_counts: IntArray | None = None,
    ) -> None:
        """Stores the answers that `debit` paid for; call it inside `exclusive`.

        Args:
          debit: sequence of the row that paid.
          queries: digests of the queries, in the order of `labels`.
          labels: the noisy labels; None where one was withheld.
          noisy_counts: what leaves with the labels, int64 `[num_queries, num_classes]` in units of
            1 / LATTICE votes, or None; rows of withheld labels are not kept.

        Raises:
          LedgerError: if a query was answered before, or they can't be made durable; then no label
            may be released.
        """
        with self._account.transaction():
            self._account.append_answers(debit, queries, labels, noisy_counts)


def _check_readable(charge: Charge) -> None:
    """Raises LedgerError if a row could not be read back: it would lock everybody out."""
    try:
        is_same = charge_from_dict(charge.to_dict()) == charge
    except ValueError as error:
        raise LedgerError(f"expected a registered charge, got another: {error}") from error
    if not is_same:
        raise LedgerError(f"expected a charge whose record gives it back, got {charge.name}")


# What a statement says that no row of its own ledger does: resets, and other ensembles.


LARGEST_DELTA = 0.5


def facts_beyond_the_ledger(ledger: Ledger) -> dict[str, Any]:
    """Returns what a statement says of resets, and of other ensembles of the same records."""
    everything = ledger.all_ensembles()
    epsilon = delta = None
    if everything is not None and not everything.num_unknown:
        delta = ledger.delta
        epsilon, _ = smallest_epsilon(everything.paid, delta)
        if not isfinite(epsilon):  # batches of other ensembles spent more delta than this one's
            spent = sum(
                number * charge.approximate[1]
                for charge, number in everything.paid.items()
                if charge.approximate is not None
            )
            delta = min(delta + spent, LARGEST_DELTA)
            epsilon, _ = smallest_epsilon(everything.paid, delta)
    return {
        "ledger_was_reset": ledger.was_reset,
        "epsilon_all_ensembles": epsilon,
        "delta_all_ensembles": delta,
        "num_ledgers": None if everything is None else everything.num_ledgers,
        "records_are_known": everything is not None and everything.records_are_known,
    }
