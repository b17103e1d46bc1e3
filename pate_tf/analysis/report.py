"""The numbers of an analysis as rows of a table and as JSON, publishable and sensitive apart."""

import dataclasses
import decimal
import math
from collections.abc import Mapping
from typing import Any

from pate_tf.accounting.charge import rounded_up
from pate_tf.accounting.moments import is_two_sided
from pate_tf.analysis.accounting import Analysis, Guarantee
from pate_tf.analysis.release_planning import Released
from pate_tf.core import artifacts
from pate_tf.ledger import Ledger, LedgerRow
from pate_tf.ledger.chain import DEBITS, charge_of

Row = tuple[str, str]
NOT_MEASURED = "not measured: these public samples have no labels"


def shown(epsilon: float) -> str:
    """Returns an epsilon as a table has it, rounded up."""
    return rounded_up(epsilon) if math.isfinite(epsilon) else "infinite"


def finite_or_none(value: float) -> float | None:
    """Returns a number as JSON has it: None stands for infinity."""
    return value if math.isfinite(value) else None


KINDS = {
    "moments_theorem_2": "moments (Theorem 2)",
    "tight_moments": "moments (tight)",
    "composition": "tightest composition",
    "strong_composition": "strong composition (approximate)",
    "dp_accounting": "an upper bound by dp-accounting, which knows less of a mechanism",
    "with_releases": "with the releases charged so far",
}
NOT_CHARGED = (
    "NO LEDGER WAS CHARGED: votes of a file have none; if these labels have one, what it says is "
    "too small from here on"
)
NOT_FIXED = (
    "nothing shows that its plan was fixed before there were votes; a plan chosen by looking at "
    "bounds at the true votes gives something of the votes away"
)
OWN_CONVERSION = ("composition", "strong_composition", "dp_accounting")


def mechanisms(analysis: Analysis) -> str:
    """Returns every mechanism with its number of queries, in words."""
    return "; ".join(
        f"{number:,} of {charge.summary()}"
        if charge.counted[0] == "query"
        else charge.several(number)
        for charge, number in analysis.num_charged.items()
    )


def publishable_rows(
    analysis: Analysis, released: Released | None, *, is_secure: bool = True
) -> list[Row]:
    """Returns what may be published: nothing in it depends on votes but through a release."""
    rows = [("queries", mechanisms(analysis) or "none")]
    if not is_secure:
        rows.append(("WARNING", "noise was drawn from a seed: nothing here is private"))
    direction = "both directions"
    if "with_releases" in analysis.data_independent:
        direction += ", the labels alone"
    rows += [
        (
            f"epsilon, data-independent, {KINDS[kind]}",
            _guarantee(
                guarantee,
                analysis,
                "both directions" if kind == "with_releases" else direction,
                converted=kind not in OWN_CONVERSION,
            ),
        )
        for kind, guarantee in analysis.data_independent.items()
    ]
    rows += _release_rows(released)
    return rows + _end_of_grid(analysis.data_independent, analysis)


def sensitive_rows(analysis: Analysis) -> list[Row]:
    """Returns what depends on the votes and may not be published."""
    rows = [
        (
            f"epsilon, data-dependent, {bound}",
            _guarantee(
                guarantee,
                analysis,
                "both directions"
                if is_two_sided(bound)
                else "forward: the loss under the true data",
            ),
        )
        for bound, guarantee in analysis.bounds.items()
    ]
    for moment, value in (analysis.smooth_sensitivity or {}).items():
        name = f"smooth sensitivity, {analysis.smooth_bound}, moment {moment:.4g}"
        rows.append((name, f"{value:.6g} of the total cost, natural logarithm"))
    return rows + _end_of_grid(analysis.bounds, analysis)


def _guarantee(
    guarantee: Guarantee, analysis: Analysis, direction: str, *, converted: bool = True
) -> str:
    parts = [f"{shown(guarantee.epsilon)} at delta {analysis.config.delta:g}"]
    if guarantee.moment is not None:
        parts.append(f"moment {guarantee.moment:.4g}")
    parts.append(direction)
    if converted:
        parts.append(f"{analysis.config.conversion} conversion")
    return ", ".join(parts)


def _end_of_grid(guarantees: Mapping[str, Guarantee], analysis: Analysis) -> list[Row]:
    grid = analysis.config.moments
    return [
        (
            f"warning, {name}",
            f"the best moment is at an end of the grid ({grid[0]:g} to {grid[-1]:g}); others may "
            f"give less",
        )
        for name, guarantee in guarantees.items()
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
        rows.append(
            (
                "epsilon, data-independent, labels and this release",
                f"{shown(found.worst_case_epsilon)} at delta {found.delta:g}, both directions, "
                f"worst case over all data, once the release is published",
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
        "epsilon_worst_case": finite_or_none(analysis.best_data_independent.epsilon),
        "epsilon_data_independent": finite_or_none(analysis.best_data_independent.epsilon),
        "data_independent": {
            kind: finite_or_none(guarantee.epsilon)
            for kind, guarantee in analysis.data_independent.items()
        },
    }
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
        report["epsilon_data_independent_with_release"] = finite_or_none(
            released.sanitised.worst_case_epsilon
        )
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
    """Returns what the reports of a run say; none unless both scripts left theirs there.

    Raises:
        ValueError: if a report is broken.
    """
    sensitive = run.root / artifacts.SENSITIVE
    files = [sensitive / f"{name}_report.json" for name in ("teachers", "student")]
    if not all(file.exists() for file in files):
        return []
    teachers, student = (artifacts.read_json(file) for file in files)
    try:
        return [
            ("teachers", f"{teachers['nb_teachers']} on {teachers['dataset']}"),
            (
                "mean teacher accuracy",
                f"{_share(teachers['teacher_accuracy_mean'])} (SENSITIVE)",
            ),
            ("queries", f"{student['queries']} asked, {student['answered']} answered"),
            ("accuracy of the noisy labels", _share(student["label_accuracy"])),
            ("student accuracy", _share(student["student_accuracy"])),
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{sensitive}: expected whole reports, got others") from error


def _share(accuracy: float | None) -> str:
    """Returns an accuracy; None where public samples have no labels."""
    return NOT_MEASURED if accuracy is None else f"{accuracy:.2%}"


def cost_rows(run: artifacts.RunDirectory, analysis: Analysis) -> list[Row]:
    """Returns what a run cost and where its files lie, to stand below `run_rows`."""
    best, bound = analysis.best_data_independent, analysis.best_bound
    delta = f"at delta {analysis.config.delta:g}"
    rows = [
        (
            "epsilon",
            f"{shown(best.epsilon)} {delta}, data-independent, both directions; publishable",
        )
    ]
    if bound is not None:
        # What holds for all votes holds for these.
        epsilon = min(bound.epsilon, best.epsilon)
        rows.append(("epsilon, data-dependent", f"{shown(epsilon)} {delta} (SENSITIVE)"))
    released, sensitive = (run.root / half for half in (artifacts.RELEASED, artifacts.SENSITIVE))
    return [
        *rows,
        ("publishable", f"{released}: labels, student, privacy statement"),
        ("SENSITIVE", f"{sensitive}: teachers, partition, votes, ledger, reports"),
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
    balance = [
        ("budget", limit + ("; was RAISED after its first use" if ledger.was_raised else "")),
        (
            "spent",
            f"epsilon {shown(spent.epsilon)} at delta {delta:g}, data-independent, both "
            f"directions; {spent.num_queries:,} queries charged, {spent.num_answered:,} labels",
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
    everything = ledger.all_ensembles()
    epsilon = None if everything is None else everything.epsilon(delta)
    together = [("WARNING", RESET)] if ledger.was_reset else []
    told = "NOT CHECKED: no registry of ledgers"
    if everything is not None and epsilon is not None:
        number = everything.num_ledgers
        told = (
            f"epsilon {shown(epsilon)} at delta {delta:g}, data-independent, as far as known on "
            f"this machine: {'1 ledger' if number == 1 else f'{number} ledgers'}"
        )
        if everything.num_other_units:
            told = (
                f"not known: {everything.num_other_units} of {number} ledgers protect owners where "
                f"this one protects records, or records where it protects owners, or it is not "
                f"known which"
            )
        elif not everything.records_are_known:
            told += "; its records are not known, so that others of them were not recognised"
    together.append(("all ensembles of these records", told))
    history = tuple(_line(row) for row in rows)
    values = {
        "folder": str(ledger.folder),
        "history": list(history),
        "epsilon_budget": budget,
        "delta": delta,
        "budget_was_raised": ledger.was_raised,
        "ledger_was_reset": ledger.was_reset,
        "epsilon_all_ensembles": None if epsilon is None else finite_or_none(epsilon),
        "num_ledgers": None if everything is None else everything.num_ledgers,
        "records_are_known": everything is not None and everything.records_are_known,
        "secure_noise": ledger.is_secure,
        "epsilon_spent": finite_or_none(spent.epsilon),
        "epsilon_remaining": remaining,
        "affordable_queries": affordable,
        "mechanism": None if last is None else last.to_dict(),
        "queries": spent.num_queries,
        "answered": spent.num_answered,
    }
    return LedgerReport(history=history, balance=balance, together=together, values=values)


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
            past = "; was released before it was recorded" if details.get("past") else ""
        seeded = "" if details.get("secure_noise", True) else "; SEEDED NOISE, NOT PRIVATE"
        text = f"charged {charge.several(number)}{past}{_epsilons(details)}{seeded}"
    elif row.kind == "released":
        text = f"stored the release that row {details['debit']} charged"
    else:
        text = (
            f"answered {details['num_answered']:,} of the {details['num_queries']:,} queries that "
            f"row {details['debit']} charged"
        )
    return f"{row.sequence:>4}  {row.time}  {text}"


def _epsilons(details: Mapping[str, Any]) -> str:
    if "epsilon_after" not in details:  # charged again
        return ""
    known = (details[f"epsilon_{when}"] for when in ("before", "after"))
    before, after = ("infinite" if one is None else rounded_up(one) for one in known)
    return f": epsilon {before} -> {after} at delta {details['delta']:g}"


def _budget(details: Mapping[str, Any]) -> str:
    epsilon = details["epsilon_budget"]
    limit = "no limit" if epsilon is None else f"epsilon at most {epsilon:g}"
    return f"{limit} at delta {details['delta']:g}"
