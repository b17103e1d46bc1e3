"""What ledgers say: their history, what is spent, what remains, and how many queries still fit.

A roof room, without TensorFlow. Nothing here depends on votes.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pate_tf.accounting.mechanisms import Mechanism, mechanism_from_dict
from pate_tf.accounting.plan import plan_from_dict
from pate_tf.accounting.statement_page import rounded_up
from pate_tf.analysis import draws
from pate_tf.analysis.votes import ledger_folder
from pate_tf.ledger import Ledger, LedgerRow


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerSummary:
    """One ledger, data-independent throughout.

    Attributes:
      folder: where it lies.
      history: a line for each row.
      epsilon_budget: None if there is none.
      delta: that the budget holds at.
      was_raised: whether budget or delta ever were.
      is_secure: whether all noise came from the operating system's entropy.
      epsilon_spent: at `delta`.
      epsilon_remaining: None without a budget.
      last_mechanism: of the last batch that was paid for.
      num_affordable: how many more queries of it fit; None without a budget.
      num_queries: queries paid for.
      num_answered: queries that got a label.
      has_unpaid_release: whether a draw of an earlier version lies beside it uncharged.
    """

    folder: pathlib.Path
    history: tuple[str, ...]
    epsilon_budget: float | None
    delta: float
    was_raised: bool
    is_secure: bool
    epsilon_spent: float
    epsilon_remaining: float | None
    last_mechanism: Mechanism | None
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
    debits = [row for row in rows if row.kind == "debit"]
    last = mechanism_from_dict(debits[-1].details["mechanism"]) if debits else None
    return LedgerSummary(
        folder=ledger.folder,
        history=tuple(_line(row) for row in rows),
        epsilon_budget=ledger.epsilon_budget,
        delta=ledger.delta,
        was_raised=ledger.was_raised,
        is_secure=ledger.is_secure,
        epsilon_spent=spent.epsilon,
        epsilon_remaining=ledger.remaining(),
        last_mechanism=last,
        num_affordable=None if last is None else ledger.affordable_queries(last),
        num_queries=spent.num_queries,
        num_answered=spent.num_answered,
        has_unpaid_release=draws.is_unpaid(ledger),
    )


def describe(mechanism: Mechanism) -> str:
    """Returns a mechanism in words, such as `laplace_noisy_max, gamma 0.05 (scale 20 votes)`."""
    fields = {name: value for name, value in mechanism.to_dict().items() if name != "name"}
    words = ", ".join(f"{name} {value:g}" for name, value in fields.items())
    gamma = fields.get("gamma")
    scale = f" (scale {1.0 / gamma:g} votes)" if isinstance(gamma, float) else ""
    return f"{mechanism.name}, {words}{scale}"


def _line(row: LedgerRow) -> str:
    details = row.details
    if row.kind == "opened":
        text = f"opened: {_budget(details)}"
    elif row.kind == "budget":
        before = {
            "epsilon_budget": details["previous_epsilon_budget"],
            "delta": details["previous_delta"],
        }
        verb = "RAISED" if details["raised"] else "set"
        text = f"budget {verb}: {_budget(details)}, before: {_budget(before)}"
    elif row.kind == "debit":
        text = (
            f"paid for {details['num_queries']:,} queries of "
            f"{describe(mechanism_from_dict(details['mechanism']))}: "
            f"{_epsilons(details)}{_seeded(details)}"
        )
    elif row.kind == "release":
        plan = plan_from_dict(details["plan"])
        past = "; had left before it was recorded" if details.get("past") else ""
        text = (
            f"paid for one release of the data-dependent cost ({plan.release}, sigma "
            f"{plan.sigma:.4g}{past}): {_epsilons(details)}{_seeded(details)}"
        )
    elif row.kind == "released":
        text = f"kept the release that row {details['debit']} paid for"
    else:
        text = (
            f"answered {details['num_answered']:,} of the {details['num_queries']:,} queries that "
            f"row {details['debit']} paid for"
        )
    return f"{row.sequence:>4}  {row.time}  {text}"


def _epsilons(details: Mapping[str, Any]) -> str:
    before, after = (rounded_up(details[f"epsilon_{when}"]) for when in ("before", "after"))
    return f"epsilon {before} -> {after} at delta {details['delta']:g}"


def _seeded(details: Mapping[str, Any]) -> str:
    return "" if details.get("secure_noise", True) else "; SEEDED NOISE, NOT PRIVATE"


def _budget(details: Mapping[str, Any]) -> str:
    epsilon = details["epsilon_budget"]
    limit = "no limit" if epsilon is None else f"epsilon at most {epsilon:g}"
    return f"{limit} at delta {details['delta']:g}"
