"""The ledger of one ensemble: what it released, what that cost, and what may still be spent."""

import contextlib
import hashlib
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.charges import charge_from_dict
from pate_tf.accounting.conversions import check_delta
from pate_tf.accounting.planned_release import PlannedRelease
from pate_tf.ledger.account import Account, check_budget
from pate_tf.ledger.rows import LedgerError, LedgerRow
from pate_tf.ledger.view import LedgerView
from pate_tf.values.arrays import IntArray
from pate_tf.values.record_set import RecordSet


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
