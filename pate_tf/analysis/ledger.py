"""What ledgers say: their history, what is spent, what remains, and how many queries still fit.

A roof room, without TensorFlow. Nothing here depends on votes.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pate_tf.accounting.charge import Charge, rounded_up
from pate_tf.analysis import release
from pate_tf.analysis.votes import ledger_folder
from pate_tf.ledger import Ledger, LedgerRow
from pate_tf.ledger.chain import DEBITS, charge_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerSummary:
    """One ledger, data-independent throughout.

    Attributes:
      folder: where it lies.
      history: a line for each row.
      epsilon_budget: None if there is none.
      delta: that the budget holds at.
      was_raised: whether budget or delta ever were.
      was_reset: whether an earlier ledger, or rows of this one, were ever gone.
      epsilon_all_ensembles: at `delta`, of all ensembles of the same private records, as far as
        known to this user on this machine; None if nothing kept account of that.
      num_ledgers: how many ledgers were counted for it.
      records_are_known: whether the records could be compared with those of other ensembles.
      is_secure: whether all noise came from the operating system's entropy.
      epsilon_spent: at `delta`.
      epsilon_remaining: None without a budget.
      last_mechanism: of the last batch of queries that was paid for.
      num_affordable: how many more of it fit; None without a budget.
      num_queries: queries paid for.
      num_answered: queries that got a label.
      has_unpaid_release: whether a draw of an earlier version lies beside it uncharged.
    """

    folder: pathlib.Path
    history: tuple[str, ...]
    epsilon_budget: float | None
    delta: float
    was_raised: bool
    was_reset: bool
    epsilon_all_ensembles: float | None
    num_ledgers: int | None
    records_are_known: bool
    is_secure: bool
    epsilon_spent: float
    epsilon_remaining: float | None
    last_mechanism: Charge | None
    num_affordable: int | None
    num_queries: int
    num_answered: int
    has_unpaid_release: bool


@contextlib.contextmanager
def opened(paths: Sequence[pathlib.Path]) -> Iterator[list[Ledger]]:
    """Opens ledgers, each named by its file or its folder, to look at them.

    Raises:
      LedgerError: if one is missing, damaged or was changed.
    """
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Ledger.read(ledger_folder(path))) for path in paths]


def summarise(ledger: Ledger) -> LedgerSummary:
    """Returns what one ledger says."""
    rows, spent = ledger.history(), ledger.spent()
    charges = [charge_of(row)[0] for row in rows if row.kind in DEBITS]
    together = ledger.all_ensembles()
    last = next((charge for charge in reversed(charges) if charge.answers), None)
    return LedgerSummary(
        folder=ledger.folder,
        history=tuple(_line(row) for row in rows),
        epsilon_budget=ledger.epsilon_budget,
        delta=ledger.delta,
        was_raised=ledger.was_raised,
        was_reset=ledger.was_reset,
        epsilon_all_ensembles=(None if together is None else together.epsilon(ledger.delta)),
        num_ledgers=None if together is None else together.num_ledgers,
        records_are_known=together is not None and together.records_are_known,
        is_secure=ledger.is_secure,
        epsilon_spent=spent.epsilon,
        epsilon_remaining=ledger.remaining(),
        last_mechanism=last,
        num_affordable=None if last is None else ledger.affordable(last),
        num_queries=spent.num_queries,
        num_answered=spent.num_answered,
        has_unpaid_release=release.is_unpaid(ledger),
    )


def _line(row: LedgerRow) -> str:
    details = row.details
    if row.kind == "opened":
        text = f"opened: {_budget(details)}"
        if details.get("acknowledged"):
            text += "; AN EARLIER LEDGER OF THIS ENSEMBLE WAS GONE"
    elif row.kind == "acknowledged":
        text = f"RESET: {len(details['missing']):,} rows that were seen are gone"
    elif row.kind == "planned":
        text = "fixed how the data-dependent cost is released, later than the ledger was opened"
    elif row.kind == "budget":
        before = {
            "epsilon_budget": details["previous_epsilon_budget"],
            "delta": details["previous_delta"],
        }
        verb = "RAISED" if details["raised"] else "set"
        text = f"budget {verb}: {_budget(details)}, before: {_budget(before)}"
    elif row.kind in DEBITS:
        charge, number = charge_of(row)
        if "carried_from" in details:
            past = "; by a row that is gone, or of another ledger"
        else:
            past = "; had left before it was recorded" if details.get("past") else ""
        text = f"paid for {charge.several(number)}{past}{_epsilons(details)}{_seeded(details)}"
    elif row.kind == "released":
        text = f"kept the release that row {details['debit']} paid for"
    else:
        text = (
            f"answered {details['num_answered']:,} of the {details['num_queries']:,} queries that "
            f"row {details['debit']} paid for"
        )
    return f"{row.sequence:>4}  {row.time}  {text}"


def _epsilons(details: Mapping[str, Any]) -> str:
    if "epsilon_after" not in details:  # charged again
        return ""
    known = (details[f"epsilon_{when}"] for when in ("before", "after"))
    before, after = ("infinite" if one is None else rounded_up(one) for one in known)
    return f": epsilon {before} -> {after} at delta {details['delta']:g}"


def _seeded(details: Mapping[str, Any]) -> str:
    return "" if details.get("secure_noise", True) else "; SEEDED NOISE, NOT PRIVATE"


def _budget(details: Mapping[str, Any]) -> str:
    epsilon = details["epsilon_budget"]
    limit = "no limit" if epsilon is None else f"epsilon at most {epsilon:g}"
    return f"{limit} at delta {details['delta']:g}"
