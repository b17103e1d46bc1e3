"""The ledger of one ensemble: what it released, what that cost, and what may still be spent."""

import contextlib
import hashlib
import math
import pathlib
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from pate_tf.accounting.conversions import check_delta
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.plan import ReleasePlan
from pate_tf.ledger import composition
from pate_tf.ledger.budget import Budget
from pate_tf.ledger.chain import Chain, fault_point
from pate_tf.ledger.composition import Paid
from pate_tf.ledger.database import MIGRATIONS
from pate_tf.ledger.rows import (
    BudgetMismatch,
    EnsembleMismatch,
    Head,
    LedgerError,
    LedgerRow,
    Spending,
    StoredAnswer,
)


class Ledger:
    """The budget of one ensemble, kept on disk across runs, processes and crashes.

    Costs are data-independent: they hold for every data set, in both directions, for replacing one
    training record. They add up moment by moment, so mechanisms can be mixed; where all debits
    name one mechanism, its own composition theorem is used if that gives less.

    Guarantees. A debit is durable before its labels exist, and before the noise on a released cost
    is drawn, so what was released never exceeds what was spent. Nothing is ever deleted or changed.
    A query is answered once by each mechanism. The sum of all debits never exceeds the budget,
    whichever processes write at once; only what left before it was recorded can exceed it.

    Assumptions. Mechanisms and numbers of queries are chosen without looking at earlier noisy
    answers, or all debits name one mechanism: the smallest epsilon over all moments is no privacy
    filter for mechanisms mixed adaptively. Whoever may write to the folder is trusted not to
    rewrite it (see `pate_tf.ledger.chain`). The file system honours fsync and file locks.

    Use one object per process, in the thread that made it.
    """

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._budget = Budget()

    @classmethod
    def open(
        cls,
        folder: pathlib.Path,
        *,
        ensemble_digest: str,
        delta: float,
        epsilon_budget: float | None = None,
    ) -> "Ledger":
        """Opens the ledger of `folder` for labelling; the first call creates it.

        Args:
          folder: the sensitive folder of the ensemble; gets mode 0700.
          ensemble_digest: digest of the ensemble; fixed by the first call.
          delta: the delta that the budget holds at; fixed by the first call.
          epsilon_budget: the most that all labels may cost together; fixed by the first call that
            gives one. Default: no budget; everything is still recorded.

        Raises:
          ValueError: if delta is outside (0, 1), or the budget is not positive and finite.
          EnsembleMismatch: if the ledger belongs to another ensemble.
          BudgetMismatch: if budget or delta were fixed to other values.
          LedgerError: if the ledger is damaged, was changed, or can't be used.
        """
        check_delta(delta)
        if epsilon_budget is not None:
            _check_budget(epsilon_budget)
        ledger = cls(Chain(folder, read_only=False, must_exist=False))
        try:
            with ledger.exclusive():
                ledger._settle_ensemble(ensemble_digest, delta, epsilon_budget)
                ledger._settle_budget(delta, epsilon_budget)
                # A process that died after its last row left it unnoted.
                ledger._chain.note_head()
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
        ledger = cls(Chain(folder, read_only=True, must_exist=True))
        try:
            ledger._catch_up()
            if ledger._budget.ensemble_digest is None:
                raise LedgerError(f"{folder}: expected an opened ledger, got an empty one")
        except BaseException:
            ledger.close()
            raise
        return ledger

    def close(self) -> None:
        """Closes the files; the ledger can't be used afterwards."""
        self._chain.close()

    def __enter__(self) -> "Ledger":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def folder(self) -> pathlib.Path:
        """The folder that the ledger lies in."""
        return self._chain.folder

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
    def is_secure(self) -> bool:
        """False for ever once a single debit or release used predictable noise."""
        return self._budget.is_secure

    @property
    def num_answered(self) -> int:
        """How many queries have a label as their answer."""
        return self._budget.num_answered

    def history(self) -> tuple[LedgerRow, ...]:
        """Returns all rows in the order they were written."""
        return tuple(self._chain.rows())

    def totals(self) -> dict[Mechanism, int]:
        """Returns how many queries were paid for, by mechanism, answered or not."""
        return dict(self._budget.paid.queries)

    def paid(self) -> Paid:
        """Returns everything that was paid for, releases of the data-dependent cost too."""
        return self._budget.paid

    def holds(self, head: Head) -> bool:
        """Whether this ledger contains the row that a statement quoted."""
        return self._chain.holds(head)

    def spent(self, delta: float | None = None, *, conversion: str = "improved") -> Spending:
        """Returns what all debits cost; see `compose`.

        Args:
          delta: default: the ledger's own.
          conversion: "improved" (default) or "classic".

        Raises:
          ValueError: if delta is outside (0, 1) or the conversion is unknown.
        """
        return compose([self], delta=self.delta if delta is None else delta, conversion=conversion)

    def remaining(self) -> float | None:
        """Returns the budget less what was spent, at least 0; None if there is no budget.

        Costs don't add up as epsilons: `affordable_queries` says what still fits.
        """
        if self.epsilon_budget is None:
            return None
        return max(0.0, self.epsilon_budget - self.spent().epsilon)

    def affordable_queries(self, mechanism: Mechanism) -> int | None:
        """Returns how many more queries of `mechanism` fit; None if there is no budget."""
        return self._budget.affordable_queries(mechanism)

    def to_dp_events(self) -> Any:
        """Returns one `dp_accounting` event for all debits, for its RDP accountant.

        Noisy max has no event of its own, so each query becomes one that is never cheaper, under
        any neighbouring relation. A mechanism that is 2 gamma private becomes zCDP with rho =
        2 gamma^2, the exponential mechanism with rho = gamma^2 / 2, as its log ratio spans at most
        2 gamma (Bun and Steinke 2016, Proposition 1.4; privacy.md, part D 3). A Gaussian
        noisy max becomes a Gaussian mechanism of sensitivity sqrt(2), a threshold test one of
        sensitivity 1: their noise lies on a lattice, where the Renyi divergence is at most the
        continuous one's (Canonne, Kamath and Steinke 2020, Proposition 5). Randomised response
        would be tighter for pure mechanisms, but the PLD accountant of dp-accounting 0.6 counts a
        self-composed one only once. A draw of the noisy log cost becomes a Gaussian mechanism of
        sensitivity 1 (`ReleasePlan.release_alpha`).

        Returns:
          A `dp_accounting.ComposedDpEvent`, a part for each mechanism and plan.

        Raises:
          ImportError: if the optional package dp-accounting is missing.
          LedgerError: if a release by smooth sensitivity was paid for, which has no event.
        """
        return composition.to_dp_events(self._budget.paid)

    def raise_budget(
        self, *, epsilon_budget: float, delta: float, i_understand_this_weakens_privacy: bool
    ) -> LedgerRow:
        """Replaces budget and delta; a row reports it for ever.

        Args:
          epsilon_budget: the new budget for everything that this ensemble ever answers.
          delta: the delta that it holds at.
          i_understand_this_weakens_privacy: must be True.

        Raises:
          ValueError: if the change is not acknowledged, or a number is out of range.
          LedgerError: if the row can't be written.
        """
        check_delta(delta)
        _check_budget(epsilon_budget)
        if not i_understand_this_weakens_privacy:
            raise ValueError("raise_budget: expected the change to be acknowledged, it was not")
        with self.exclusive():
            return self._replace_budget(epsilon_budget, delta)

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[None]:
        """Keeps other processes from writing to this ledger; brings this object up to date.

        Raises:
          LedgerError: if another process holds it for two minutes, or it was changed.
        """
        with self._chain.exclusive():
            self._catch_up()
            yield

    def stored_answers(self, queries: Sequence[bytes]) -> dict[bytes, StoredAnswer]:
        """Returns the answers that exist already, by query digest."""
        return self._chain.stored_answers(queries)

    def check_affordable(self, mechanism: Mechanism, num_queries: int) -> None:
        """Checks that a whole batch fits in the worst case.

        Raises:
          BudgetExceeded: if it doesn't; the message says how many queries would.
          LedgerError: if the mechanism has no finite guarantee.
        """
        self._budget.check_affordable(mechanism, num_queries)

    def debit(self, mechanism: Mechanism, queries: Sequence[bytes], *, secure_noise: bool) -> int:
        """Charges a batch in the worst case, durably; call it inside `exclusive`.

        Args:
          mechanism: what will answer.
          queries: digests of the queries, distinct and not answered yet.
          secure_noise: whether the noise is unpredictable; if not, the ledger is marked for good.

        Returns:
          The sequence of the row. No noise may be drawn for the batch before this returns.

        Raises:
          BudgetExceeded: if the batch doesn't fit; nothing is charged.
          LedgerError: if the row can't be made durable; it may have been charged.
        """
        num_queries = len(queries)
        self.check_affordable(mechanism, num_queries)
        details = {
            "mechanism": mechanism.to_dict(),
            "num_queries": num_queries,
            "queries_digest": hashlib.sha256(b"".join(queries)).hexdigest(),
            "secure_noise": secure_noise,
            **self._balance(Paid.for_queries(mechanism, num_queries)),
        }
        return self._append("debit", details).sequence

    def debit_release(self, plan: ReleasePlan, *, secure_noise: bool) -> int:
        """Charges one draw of the noisy data-dependent cost, durably; call it inside `exclusive`.

        It costs `plan.release_alpha` at every moment, on all data sets, and the draw may then be
        published with whatever is read from it.

        Args:
          plan: what will be drawn.
          secure_noise: whether the noise is unpredictable; if not, the ledger is marked for good.

        Returns:
          The sequence of the row. No noise may be drawn before this returns.

        Raises:
          BudgetExceeded: if it doesn't fit; nothing is charged.
          LedgerError: if its cost is not finite, or the row can't be made durable; then it may
            have been charged.
        """
        self._budget.check_release(plan)
        return self._pay_release(plan, secure_noise=secure_noise, past=False)

    def record_past_release(
        self, plan: ReleasePlan, kept: Mapping[str, Any], *, secure_noise: bool
    ) -> None:
        """Charges a draw that has left already, also above the budget; call it inside `exclusive`.

        What has left costs what it costs: a refusal would only hide it.

        Args:
          plan: what was drawn.
          kept: as of `store_release`.
          secure_noise: as of `debit_release`.

        Raises:
          LedgerError: as `debit_release`.
        """
        self._budget.check_finite_release(plan)
        debit = self._pay_release(plan, secure_noise=secure_noise, past=True)
        self.store_release(debit, kept)

    def store_release(self, debit: int, kept: Mapping[str, Any]) -> None:
        """Keeps what was drawn, so that it is never drawn again; call it inside `exclusive`.

        Args:
          debit: sequence of the row that paid.
          kept: JSON values: the draw, and what it was drawn for.

        Raises:
          LedgerError: if it can't be made durable; then nothing of it may be published.
        """
        self._append("released", {"debit": debit, "kept": kept})

    def kept_release(self) -> Mapping[str, Any] | None:
        """Returns what `store_release` kept last; None if there was no draw."""
        found = [row.details["kept"] for row in self._chain.rows() if row.kind == "released"]
        return found[-1] if found else None

    def store_answers(
        self, debit: int, queries: Sequence[bytes], labels: Sequence[int | None]
    ) -> None:
        """Stores the answers that `debit` paid for; call it inside `exclusive`.

        Args:
          debit: sequence of the row that paid.
          queries: digests of the queries, in the order of `labels`.
          labels: the noisy labels; None where a threshold withheld one.

        Raises:
          LedgerError: if a query was answered before, or they can't be made durable; then no label
            may be released.
        """
        self._commit(lambda: self._chain.append_answers(debit, queries, labels))

    def _settle_ensemble(
        self, ensemble_digest: str, delta: float, epsilon_budget: float | None
    ) -> None:
        if self._budget.ensemble_digest is None:
            # The published head is a hash of everything from here on; the salt keeps it from
            # confirming a guess at the ensemble, and so at the private data.
            details = {
                "schema_version": len(MIGRATIONS),
                "salt": secrets.token_hex(32),
                "ensemble_digest": ensemble_digest,
                "epsilon_budget": epsilon_budget,
                "delta": delta,
            }
            self._append("opened", details)
        if self.ensemble_digest != ensemble_digest:
            raise EnsembleMismatch(
                f"{self.folder}: expected the ensemble {self.ensemble_digest[:16]}..., got "
                f"{ensemble_digest[:16]}...: this ledger was opened for another ensemble"
            )

    def _settle_budget(self, delta: float, epsilon_budget: float | None) -> None:
        old = self.epsilon_budget
        is_first = old is None and epsilon_budget is not None
        if delta != self.delta or not (is_first or epsilon_budget in (None, old)):
            raise BudgetMismatch(
                f"{self.folder}: expected epsilon_budget {old} and delta {self.delta}, fixed at "
                f"first use, got {epsilon_budget} and {delta}"
            )
        if epsilon_budget is not None and is_first:
            self._replace_budget(epsilon_budget, delta)

    def _replace_budget(self, epsilon_budget: float, delta: float) -> LedgerRow:
        old = math.inf if self.epsilon_budget is None else self.epsilon_budget
        details = {
            "epsilon_budget": epsilon_budget,
            "delta": delta,
            "previous_epsilon_budget": self.epsilon_budget,
            "previous_delta": self.delta,
            "raised": epsilon_budget > old or delta > self.delta,
        }
        return self._append("budget", details)

    def _pay_release(self, plan: ReleasePlan, *, secure_noise: bool, past: bool) -> int:
        details = {
            "plan": plan.to_dict(),
            "secure_noise": secure_noise,
            "past": past,
            **self._balance(Paid.for_release(plan)),
        }
        return self._append("release", details).sequence

    def _balance(self, more: Paid) -> dict[str, float]:
        return {
            "epsilon_before": self._budget.epsilon_by_moments(Paid()),
            "epsilon_after": self._budget.epsilon_by_moments(more),
            "delta": self.delta,
        }

    def _append(self, kind: str, details: Mapping[str, Any]) -> LedgerRow:
        return self._commit(lambda: self._chain.append(kind, details))

    def _commit(self, append: Callable[[], LedgerRow]) -> LedgerRow:
        with self._chain.transaction():
            row = append()
            fault_point(f"{row.kind}_written")
        self._budget.record(row)
        fault_point(f"{row.kind}_committed")
        self._chain.note_head()
        fault_point(f"{row.kind}_noted")
        return row

    def _catch_up(self) -> None:
        with self._chain.transaction():
            rows = self._chain.catch_up()
        for row in rows:
            self._budget.record(row)


def compose(ledgers: Sequence[Ledger], *, delta: float, conversion: str = "improved") -> Spending:
    """Returns what several ledgers cost together, for ensembles trained on the same records.

    Everything paid counts, whether or not its labels were ever released.

    Args:
      ledgers: the ledgers; none of them twice.
      delta: the one delta that the sum holds at.
      conversion: from moments to epsilon, "improved" (default) or "classic"; with "classic" no
        composition theorem other than moments is used.

    Raises:
      ValueError: if delta is outside (0, 1) or the conversion is unknown.
    """
    paid = sum((ledger.paid() for ledger in ledgers), Paid())
    epsilon, moment = composition.smallest_epsilon(paid, delta, conversion=conversion)
    return Spending(
        epsilon=epsilon,
        delta=delta,
        moment=moment,
        num_queries=paid.queries.total(),
        num_answered=sum(ledger.num_answered for ledger in ledgers),
    )


def _check_budget(epsilon_budget: float) -> None:
    if not 0.0 < epsilon_budget < math.inf:
        raise ValueError(f"epsilon_budget: expected above 0 and finite, got {epsilon_budget}")
