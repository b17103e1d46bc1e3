"""The numbers of an analysis as rows of a table and as JSON, publishable and sensitive apart."""

import dataclasses
import decimal
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pate_tf.accounting import composition
from pate_tf.accounting.charge import Charge, rounded_up
from pate_tf.accounting.moments import is_two_sided
from pate_tf.analysis.accounting import Analysis
from pate_tf.analysis.release_planning import Released
from pate_tf.core import artifacts
from pate_tf.ledger import Ledger, LedgerRow
from pate_tf.ledger.journal import DEBITS, charge_of

Row = tuple[str, str]
NOT_MEASURED = "not measured: these public samples have no labels"


def shown(epsilon: float) -> str:
    """Returns an epsilon as a table has it, rounded up."""
    return rounded_up(epsilon) if math.isfinite(epsilon) else "infinite"


def finite_or_none(value: float) -> float | None:
    """Returns a number as JSON has it: None stands for infinity."""
    return value if math.isfinite(value) else None


NOT_CHARGED = (
    "NO LEDGER WAS CHARGED: votes of a file have none; if these labels have one, what it says is "
    "too small from here on"
)
NOT_FIXED = (
    "nothing shows that its plan was fixed before there were votes; a plan chosen by looking at "
    "bounds at the true votes gives something of the votes away"
)


def publishable_rows(
    analysis: Analysis, released: Released | None, *, is_secure: bool = True
) -> list[Row]:
    """Returns what may be published: nothing in it depends on votes but through a release."""
    charged = "; ".join(
        f"{number:,} of {charge.summary()}"
        if charge.counted[0] == "query"
        else charge.several(number)
        for charge, number in analysis.num_charged.items()
    )
    rows = [("charged", charged or "none")]
    if not is_secure:
        rows.append(("WARNING", "noise was drawn from a seed: nothing here is private"))
    rows += [
        (name, f"{shown(guarantee.epsilon)} at delta {analysis.config.delta:g}, both directions")
        for name, guarantee in (
            ("epsilon, data-independent", analysis.data_independent),
            ("epsilon, data-independent, of the labels alone", analysis.labels_alone),
            ("epsilon by dp-accounting, an upper bound", analysis.by_dp_accounting),
        )
        if guarantee is not None
    ]
    return rows + _release_rows(released)


def sensitive_rows(analysis: Analysis) -> list[Row]:
    """Returns what depends on the votes and may not be published."""
    config, rows = analysis.config, list[Row]()
    for bound, guarantee in analysis.bounds.items():
        parts = [f"{shown(guarantee.epsilon)} at delta {config.delta:g}"]
        if guarantee.moment is not None:
            parts.append(f"moment {guarantee.moment:.4g}")
        parts += [
            "both directions" if is_two_sided(bound) else "forward: the loss under the true data",
            f"{config.conversion} conversion",
        ]
        rows.append((f"epsilon, data-dependent, {bound}", ", ".join(parts)))
    for moment, value in (analysis.smooth_sensitivity or {}).items():
        name = f"smooth sensitivity, {analysis.smooth_bound}, moment {moment:.4g}"
        rows.append((name, f"{value:.6g} of the total cost, natural logarithm"))
    return rows + [
        (
            f"warning, {name}",
            f"the best moment is at an end of the grid ({config.moments[0]:g} to "
            f"{config.moments[-1]:g}); others may give less",
        )
        for name, guarantee in analysis.bounds.items()
        if guarantee.at_end
    ]


def _release_rows(released: Released | None) -> list[Row]:
    if released is None:
        return []
    plan, rows = released.plan, []
    direction = "both directions" if plan.two_sided else "forward"
    if released.sanitised is not None:
        found = released.sanitised
        rows.append(
            (
                "epsilon, sanitised",
                f"{shown(found.epsilon)} at delta {found.delta:g}, {direction}, for these votes "
                f"with confidence {found.confidence:.7g}; covers its own release",
            )
        )
    if released.gate is not None:
        gate = released.gate
        rows.append(
            (
                "gate",
                f"{'PASSED: labels may' if gate.passed else 'NOT PASSED: labels may not'} be "
                f"released; epsilon {shown(gate.epsilon)} at delta {gate.delta:g} in total, both "
                f"directions, {_attempts(released.attempts)}",
            )
        )
    if not released.is_charged:
        rows.append(("release, ledger", NOT_CHARGED))
    if not released.plan_was_fixed:
        rows.append(("release, plan", NOT_FIXED))
    budget = "" if plan.budget is None else f", budget {plan.budget:.4g}"
    rows.append(
        (
            "release plan",
            f"{plan.release} of {plan.bound}: moment {plan.moment:.4g}, smoothness "
            f"{plan.smoothness:.4g}, sigma {plan.sigma:.4g}{budget}, failure {plan.failure:.3g}; "
            f"made for {plan.profile}",
        )
    )
    if released.num_discarded:
        rows.append(
            (
                "release, discarded draws",
                f"{released.num_discarded}, stated by the user never to have been published",
            )
        )
    return rows


def _attempts(attempts: int | None) -> str:
    if attempts is None:
        return (
            "for this one try alone: it can be tried again on the same votes until it passes, "
            "which costs more; `attempts=N` covers N tries"
        )
    tries = "one try" if attempts == 1 else f"{attempts} tries"
    return (
        f"worst case over all data, passed or not, if the gate has {tries} on these votes in all, "
        f"with plans made beforehand"
    )


def publishable_report(
    analysis: Analysis, released: Released | None, *, is_secure: bool = True
) -> dict[str, Any]:
    """Returns the JSON of everything that may be published. Infinity is null."""
    charged = [
        {**mechanism.to_dict(), "queries": queries}
        for mechanism, queries in analysis.num_charged.items()
    ]
    only = next(iter(analysis.num_charged)).to_dict() if len(charged) == 1 else charged
    report: dict[str, Any] = {
        "queries": analysis.num_queries,
        "queries_answered": analysis.num_answered,
        "mechanism": only,
        "delta": analysis.config.delta,
        "conversion": analysis.config.conversion,
        "secure_noise": is_secure,
        "epsilon_data_independent": finite_or_none(analysis.data_independent.epsilon),
    }
    if analysis.labels_alone is not None:
        report["epsilon_labels_alone"] = finite_or_none(analysis.labels_alone.epsilon)
    if analysis.by_dp_accounting is not None:
        report["epsilon_by_dp_accounting"] = finite_or_none(analysis.by_dp_accounting.epsilon)
    if released is None:
        return report
    report["plan"] = released.plan.to_dict()
    report["discarded_releases"] = released.num_discarded
    report["ledger_charged"] = released.is_charged
    report["plan_was_fixed"] = released.plan_was_fixed
    if released.sanitised is not None:
        report["sanitised"] = {
            "epsilon": finite_or_none(released.sanitised.epsilon),
            "confidence": released.sanitised.confidence,
        }
    if released.gate is not None:
        report["gate"] = {
            "epsilon": finite_or_none(released.gate.epsilon),
            "delta": released.gate.delta,
            "released": released.gate.passed,
            "attempts": released.attempts,
            "worst_case": released.attempts is not None,
        }
    return report


def sensitive_report(analysis: Analysis) -> dict[str, Any]:
    """Returns the JSON of what depends on the votes. Infinity is null."""
    report: dict[str, Any] = {}
    best = analysis.best_bound
    if best is not None:
        report["epsilon_data_dependent"] = finite_or_none(best.epsilon)
        report["order"] = best.moment
        report["bounds"] = {
            bound: {"epsilon": finite_or_none(guarantee.epsilon), "order": guarantee.moment}
            for bound, guarantee in analysis.bounds.items()
        }
    if analysis.smooth_sensitivity is not None:
        report["smooth_sensitivity"] = {
            f"{moment:g}": value for moment, value in analysis.smooth_sensitivity.items()
        }
        report["smooth_sensitivity_bound"] = analysis.smooth_bound
    return report


def run_rows(run: artifacts.RunDirectory) -> list[Row]:
    """Returns what the reports of a run say, and where its files lie; none before a student.

    Raises:
        ValueError: if a report is broken.
    """
    sensitive = run.root / artifacts.SENSITIVE
    reports = [
        artifacts.read_json(file) if file.exists() else None
        for file in (sensitive / f"{name}_report.json" for name in ("teachers", "student"))
    ]
    teachers, student = reports
    if student is None:
        return []
    try:
        rows = [
            ("labels", f"{student['queries']} asked, {student['queries_answered']} answered"),
            *(
                (name, NOT_MEASURED if student[field] is None else f"{student[field]:.2%}")
                for name, field in (
                    ("accuracy of the noisy labels", "label_accuracy"),
                    ("student accuracy", "student_accuracy"),
                )
            ),
        ]
        if teachers is not None:
            accuracy = teachers["teacher_accuracy_mean"]
            shown_accuracy = NOT_MEASURED if accuracy is None else f"{accuracy:.2%}"
            rows = [
                ("teachers", f"{teachers['nb_teachers']} on {teachers['dataset']}"),
                ("mean teacher accuracy", f"{shown_accuracy} (SENSITIVE)"),
                *rows,
            ]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{sensitive}: expected whole reports, got others") from error
    return [
        *rows,
        ("publishable", f"{run.root / artifacts.RELEASED}: labels, student, privacy statement"),
        ("SENSITIVE", f"{sensitive}: teachers or sums, votes, ledger, reports"),
    ]


# What one ledger says as rows of tables and as JSON, all publishable.


RESET = (
    "this ledger was reset: an earlier one, or rows of it, were gone; what is not known of them is "
    "not counted"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LedgerReport:
    """What one ledger says; data-independent throughout.

    Attributes:
        history: a line for each row.
        balance: budget, what was spent and what remains.
        together: what all known ensembles of the same private records have spent.
        values: all of it as JSON values.
    """

    history: tuple[str, ...]
    balance: list[Row]
    together: list[Row]
    values: dict[str, Any]


def ledger_report(ledger: Ledger) -> LedgerReport:
    """Returns what a ledger says."""
    rows, spent = ledger.history(), ledger.spent()
    charges = [charge_of(row)[0] for row in rows if row.kind in DEBITS]
    last = next((charge for charge in reversed(charges) if charge.answers), None)
    affordable = None if last is None else ledger.affordable(last)
    budget, remaining, delta = ledger.epsilon_budget, ledger.remaining(), ledger.delta
    limit = "no limit" if budget is None else f"epsilon {budget:g} at delta {delta:g}"
    counts = []
    if spent.num_queries or not charges:
        counts.append(f"{spent.num_queries:,} queries charged, {spent.num_answered:,} labels")
    if sums := sum(charge.releases_feature_sums for charge in charges):
        counts.append(f"{sums:,} release{'s' * (sums > 1)} of feature sums")
    balance = [
        ("budget", limit + ("; was RAISED after its first use" if ledger.was_raised else "")),
        (
            "spent",
            f"epsilon {shown(spent.epsilon)} at delta {delta:g}, data-independent, both "
            f"directions; {', '.join(counts)}",
        ),
    ]
    if remaining is not None:
        context = decimal.Context(prec=9, rounding=decimal.ROUND_FLOOR)
        left = context.create_decimal_from_float(remaining).normalize()
        balance.append(("remains", f"epsilon {left:f} before the budget is spent"))
    if affordable is not None and last is not None:
        balance.append(("still affordable", last.several(affordable)))
    if not ledger.is_secure:
        balance.append(("WARNING", "noise was drawn from a seed: nothing here is private"))
    source = ledger.source_spending()
    epsilon = None if source is None else source.epsilon(delta)
    name = None if ledger.source is None else ledger.source.name
    together = [("WARNING", RESET)] if ledger.was_reset else []
    told = "NOT CHECKED: no registry of ledgers"
    if source is not None and epsilon is not None:
        number = source.num_ledgers
        told = (
            f"epsilon {shown(epsilon)} at delta {delta:g}, data-independent, as far as known on "
            f"this machine: {'1 ledger' if number == 1 else f'{number} ledgers'}"
        )
        if source.num_other_units:
            told = (
                f"not known: {source.num_other_units} of {number} ledgers protect owners where "
                f"this one protects records, or records where it protects owners, or it is not "
                f"known which"
            )
    together.append((f"all releases charged to {name or 'this run folder'}", told))
    history = list(_history(rows, delta))
    values = {
        "folder": str(ledger.folder),
        "history": history,
        "epsilon_budget": budget,
        "delta": delta,
        "budget_was_raised": ledger.was_raised,
        "ledger_was_reset": ledger.was_reset,
        "source_name": name,
        "epsilon_source": None if epsilon is None else finite_or_none(epsilon),
        "num_ledgers": None if source is None else source.num_ledgers,
        "secure_noise": ledger.is_secure,
        "epsilon_spent": finite_or_none(spent.epsilon),
        "epsilon_remaining": remaining,
        "affordable_queries": affordable,
        "mechanism": None if last is None else last.to_dict(),
        "queries": spent.num_queries,
        "answered": spent.num_answered,
    }
    return LedgerReport(history=tuple(history), balance=balance, together=together, values=values)


def _history(rows: Sequence[LedgerRow], delta: float) -> Iterator[str]:
    """Yields a line for each row, with the epsilon at `delta` of everything charged by then."""
    charges, debits = Counter[Charge](), dict[int, Charge]()
    for row in rows:
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
            charges[charge] += number
            debits[row.sequence] = charge
            text = f"charged {charge.several(number)}"
            if "carried_from" in details:
                text += "; by a row that is gone, or of another ledger"
            elif details.get("past"):
                text += "; was released before it was recorded"
            if not details.get("secure_noise", True):
                text += "; SEEDED NOISE, NOT PRIVATE"
            epsilon, _ = composition.smallest_epsilon(charges, delta)
            text += f": epsilon {shown(epsilon)} by then"
        elif row.kind == "released":
            text = f"stored the release that row {details['debit']} charged"
        elif debits[details["debit"]].releases_feature_sums:
            text = f"stored the noisy sums that row {details['debit']} charged"
        else:
            text = (
                f"answered {details['num_answered']:,} of the {details['num_queries']:,} queries "
                f"that row {details['debit']} charged"
            )
        yield f"{row.sequence:>4}  {row.time}  {text}"


def _budget(details: Mapping[str, Any]) -> str:
    epsilon = details["epsilon_budget"]
    limit = "no limit" if epsilon is None else f"epsilon at most {epsilon:g}"
    return f"{limit} at delta {details['delta']:g}"
