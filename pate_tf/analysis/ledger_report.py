"""What a ledger says as rows of a table and as JSON, all publishable.

A roof room, without TensorFlow.
"""

import decimal
from typing import Any

from pate_tf.analysis.ledger import LedgerSummary
from pate_tf.analysis.rows import Row, finite_or_none, shown

RESET = (
    "this ledger was reset: an earlier one, or rows of it, were gone; what is not known of them is "
    "not counted"
)
UNPAID = (
    "an earlier version drew a release that this ledger was NEVER CHARGED FOR: it cost more than "
    "it says, until a sanitised release of the run takes the draw over"
)


def ledger_rows(summary: LedgerSummary) -> list[Row]:
    """Returns what one ledger says beside its history, all publishable."""
    budget, remaining = summary.epsilon_budget, summary.epsilon_remaining
    raised = "; was RAISED after its first use" if summary.was_raised else ""
    rows = [
        (
            "budget",
            "no limit" if budget is None else f"epsilon {budget:g} at delta {summary.delta:g}",
        ),
        (
            "spent",
            f"epsilon {shown(summary.epsilon_spent)} at delta {summary.delta:g}, "
            f"data-independent, both directions; {summary.num_queries:,} queries paid for, "
            f"{summary.num_answered:,} labels",
        ),
    ]
    rows[0] = (rows[0][0], rows[0][1] + raised)
    if remaining is not None:
        context = decimal.Context(prec=9, rounding=decimal.ROUND_FLOOR)
        left = context.create_decimal_from_float(remaining).normalize()
        rows.append(("remains", f"epsilon {left:f} before the budget is reached"))
    if summary.num_affordable is not None and summary.last_mechanism is not None:
        rows.append(
            (
                "still affordable",
                summary.last_mechanism.several(summary.num_affordable),
            )
        )
    if not summary.is_secure:
        rows.append(("WARNING", "noise was drawn from a seed: nothing here is private"))
    return rows + together_rows(summary) + unpaid_rows(summary)


def together_rows(summary: LedgerSummary) -> list[Row]:
    """Returns what all known ensembles of the same private records have spent, all publishable."""
    rows = [("WARNING", RESET)] if summary.was_reset else []
    if summary.epsilon_all_ensembles is None:
        return [*rows, ("all ensembles of these records", "NOT CHECKED: no registry of ledgers")]
    counted = "1 ledger" if summary.num_ledgers == 1 else f"{summary.num_ledgers} ledgers"
    if not summary.records_are_known:
        counted += "; its records are not known, so that others of them were not recognised"
    return [
        *rows,
        (
            "all ensembles of these records",
            f"epsilon {shown(summary.epsilon_all_ensembles)} at delta {summary.delta:g}, "
            f"data-independent, as far as known on this machine: {counted}",
        ),
    ]


def unpaid_rows(summary: LedgerSummary) -> list[Row]:
    """Returns a warning if a draw was never charged for."""
    return [("WARNING", UNPAID)] if summary.has_unpaid_release else []


def ledger_report(summary: LedgerSummary) -> dict[str, Any]:
    """Returns the JSON of one ledger."""
    last = summary.last_mechanism
    return {
        "folder": str(summary.folder),
        "history": list(summary.history),
        "epsilon_budget": summary.epsilon_budget,
        "delta": summary.delta,
        "budget_was_raised": summary.was_raised,
        "ledger_was_reset": summary.was_reset,
        "epsilon_all_ensembles": (
            None
            if summary.epsilon_all_ensembles is None
            else finite_or_none(summary.epsilon_all_ensembles)
        ),
        "num_ledgers": summary.num_ledgers,
        "records_are_known": summary.records_are_known,
        "secure_noise": summary.is_secure,
        "epsilon_spent": finite_or_none(summary.epsilon_spent),
        "epsilon_remaining": summary.epsilon_remaining,
        "affordable_queries": summary.num_affordable,
        "mechanism": None if last is None else last.to_dict(),
        "queries": summary.num_queries,
        "answered": summary.num_answered,
        "has_unpaid_release": summary.has_unpaid_release,
    }
