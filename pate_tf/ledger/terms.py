"""What a ledger is opened with and holds its user to: ensemble, budget, delta, planned release."""

import hashlib
import math
import pathlib
import secrets
from collections import Counter
from collections.abc import Sequence

from pate_tf.accounting import composition
from pate_tf.accounting.charge import rounded_up
from pate_tf.accounting.charges import charge_from_dict
from pate_tf.accounting.planned_release import PlannedRelease
from pate_tf.ledger.account import Account
from pate_tf.ledger.database import MIGRATIONS
from pate_tf.ledger.memory import Missing, warn
from pate_tf.ledger.payments import PAYMENTS, payment_identity
from pate_tf.ledger.rows import BudgetMismatch, EnsembleMismatch, LedgerError, LedgerRow


def settle(
    account: Account,
    *,
    ensemble_digest: str,
    delta: float,
    epsilon_budget: float | None,
    student_runs: Sequence[pathlib.Path],
    acknowledge_reset: bool,
    planned_release: PlannedRelease | None,
) -> None:
    """Opens an account that is new, else holds it to what it was opened with.

    Call it inside `Chain.exclusive`. For arguments and errors see `Ledger.open`.
    """
    account.catch_up()
    if account.opened is None:
        _open_first(
            account,
            ensemble_digest,
            delta,
            epsilon_budget,
            student_runs=student_runs,
            acknowledge_reset=acknowledge_reset,
            planned_release=planned_release or PlannedRelease(),
        )
    if account.budget.ensemble_digest != ensemble_digest:
        raise EnsembleMismatch(
            f"{account.folder}: expected the ensemble that this ledger was opened for, got "
            f"another ensemble"
        )
    _settle_budget(account, delta, epsilon_budget)
    if planned_release is not None:
        plan_release(account, planned_release)
    missing = account.missing()
    if missing is not None:
        if not acknowledge_reset:
            raise LedgerError(missing.reason)
        account.commit(lambda: _acknowledge(account, missing, delta=account.budget.delta))
    # A process that died after its last row left it unnoted.
    account.chain.note_head()
    account.note(account.history())
    _warn_of_others(account)


def plan_release(account: Account, planned: PlannedRelease) -> None:
    """Fixes how the data-dependent cost is released; see `Ledger.plan_release`."""
    fixed = account.budget.planned_release
    if fixed is None:
        account.append("planned", {"release": planned.to_dict()})
    elif planned != fixed:
        said, known = planned.to_dict(), fixed.to_dict()
        differing = [name for name in known if said[name] != known[name]]
        raise BudgetMismatch(
            f"{account.folder}: expected "
            + ", ".join(f"{name} {known[name] or 'as planned'}" for name in differing)
            + " of the release, fixed when the ledger was opened, before there were votes; got "
            + ", ".join(f"{said[name] or 'as planned'}" for name in differing)
        )


def replace_budget(account: Account, epsilon_budget: float, delta: float) -> LedgerRow:
    """Puts another budget and delta in force; a row reports it for ever."""
    known = account.budget
    old = math.inf if known.epsilon_budget is None else known.epsilon_budget
    details = {
        "epsilon_budget": epsilon_budget,
        "delta": delta,
        "previous_epsilon_budget": known.epsilon_budget,
        "previous_delta": known.delta,
        "raised": epsilon_budget > old or delta > known.delta,
    }
    return account.append("budget", details)


def check_not_spent(account: Account, epsilon_budget: float, delta: float) -> None:
    """Raises ValueError if more than a new budget was spent already."""
    spent, _ = composition.smallest_epsilon(account.budget.paid, delta)
    if spent > epsilon_budget:
        raise ValueError(
            f"epsilon_budget: expected at least what this ensemble has spent, epsilon "
            f"{rounded_up(spent)} at delta {delta:g}, got {epsilon_budget:g}"
        )


def check_budget(epsilon_budget: float) -> None:
    """Raises ValueError unless a budget is positive and finite."""
    if not 0.0 < epsilon_budget < math.inf:
        raise ValueError(f"epsilon_budget: expected above 0 and finite, got {epsilon_budget}")


def _open_first(
    account: Account,
    ensemble_digest: str,
    delta: float,
    epsilon_budget: float | None,
    *,
    student_runs: Sequence[pathlib.Path],
    acknowledge_reset: bool,
    planned_release: PlannedRelease,
) -> None:
    memory = account.memory
    missing = None
    if memory is not None:
        missing = memory.missing_before(ensemble_digest, student_runs)
    if missing is not None and not acknowledge_reset:
        if not missing.left_nothing:
            raise LedgerError(missing.reason)
        warn(
            f"{account.folder}: there was a ledger here, which was deleted with all that it paid "
            f"for; what is known of it is charged again, and every statement says so"
        )
    # The published head is a hash of everything from here on; the salt keeps it from
    # confirming a guess at the ensemble, and so at the private data.
    details = {
        "schema_version": len(MIGRATIONS),
        "salt": secrets.token_hex(32),
        "ensemble_digest": ensemble_digest,
        "epsilon_budget": epsilon_budget,
        "delta": delta,
        "acknowledged": missing is not None,
        # The limit of the ledger that is gone is not known any more.
        "raised": missing is not None,
        "planned_release": planned_release.to_dict(),
    }
    account.commit(
        lambda: [
            account.chain.append("opened", details),
            *(() if missing is None else _acknowledge(account, missing, delta=delta)),
        ]
    )


def _settle_budget(account: Account, delta: float, epsilon_budget: float | None) -> None:
    known = account.budget
    old = known.epsilon_budget
    is_first = old is None and epsilon_budget is not None
    if delta != known.delta or not (is_first or epsilon_budget in (None, old)):
        raise BudgetMismatch(
            f"{account.folder}: expected epsilon_budget {old} and delta {known.delta}, fixed at "
            f"first use, got {epsilon_budget} and {delta}"
        )
    if epsilon_budget is not None and is_first:
        replace_budget(account, epsilon_budget, delta)


def _acknowledge(account: Account, missing: Missing, *, delta: float) -> list[LedgerRow]:
    """Appends what was missing, and charges again for what is known of it."""
    chain = account.chain
    rows = [chain.append("acknowledged", {"missing": list(missing.digests)})]
    paid = Counter(account.budget.paid)
    held = {payment_identity(row) for row in chain.rows() if row.kind in PAYMENTS}
    for lost in missing.payments:
        if lost["carried_from"] in held:
            continue
        held.add(lost["carried_from"])
        charge, number = charge_from_dict(lost["charge"]), int(lost["number"])
        before = composition.moments_epsilon(paid, delta)[0]
        paid[charge] += number
        details = {
            **lost,
            "queries_digest": hashlib.sha256().hexdigest(),
            "past": True,
            "epsilon_before": _finite(before),
            "epsilon_after": _finite(composition.moments_epsilon(paid, delta)[0]),
            "delta": delta,
        }
        rows.append(chain.append("debit", details))
    return rows


def _finite(epsilon: float) -> float | None:
    """Returns an epsilon as JSON has it: None stands for infinity."""
    return epsilon if math.isfinite(epsilon) else None


def _warn_of_others(account: Account) -> None:
    found = account.all_ensembles()
    budget = account.budget
    if found is not None and found.num_unknown:
        warn(
            f"{account.folder}: {found.num_ledgers} ledgers of ensembles of the same private "
            f"records are known; {found.num_unknown} of them paid for something that is unknown "
            f"here, so that nobody can say what they have spent together; import what defines it"
        )
    elif found is not None and dict(budget.paid) != dict(found.paid):
        epsilon = found.epsilon(budget.delta)
        warn(
            f"{account.folder}: {found.num_ledgers} ledgers of ensembles of the same private "
            f"records are known; together they have spent epsilon {epsilon:.4g} at delta "
            f"{budget.delta:g}"
        )
