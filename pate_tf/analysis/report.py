"""The numbers of an analysis as rows of a table and as JSON, publishable and sensitive apart.

A roof room, without TensorFlow.
"""

import decimal
import math
from collections.abc import Iterator, Mapping
from typing import Any

from pate_tf.accounting.charge import rounded_up
from pate_tf.accounting.mechanisms import Flag, Mechanism
from pate_tf.accounting.moments import is_two_sided
from pate_tf.analysis.calibration import Calibration
from pate_tf.analysis.guarantees import Analysis, Guarantee
from pate_tf.analysis.ledger import LedgerSummary
from pate_tf.analysis.release_planning import Released
from pate_tf.core import artifacts

# What the tables of an analysis share: a row, and how an epsilon is shown.
#
# A roof room, without TensorFlow.


Row = tuple[str, str]


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
    "dp_accounting": "checked with dp-accounting",
    "with_releases": "with the releases paid for so far",
}
NOT_CHARGED = (
    "NO LEDGER WAS CHARGED: votes of a file have none; if these labels have one, what it says is "
    "too small from here on"
)
NOT_FIXED = (
    "nothing shows that its plan was fixed before there were votes; whoever looked at bounds at "
    "the true votes and chose it by them has given something of the votes away"
)
OWN_CONVERSION = ("composition", "strong_composition", "dp_accounting")


def mechanisms(analysis: Analysis) -> str:
    """Returns every mechanism with its number of queries, in words."""
    return "; ".join(
        f"{number:,} of {charge.summary()}"
        if charge.counted[0] == "query"
        else charge.several(number)
        for charge, number in analysis.num_paid.items()
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
    paid = [
        {**mechanism.to_dict(), "queries": queries}
        for mechanism, queries in analysis.num_paid.items()
    ]
    only = next(iter(analysis.num_paid)).to_dict() if len(paid) == 1 else paid
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
    return (
        "not measured: the public samples have no labels" if accuracy is None else f"{accuracy:.2%}"
    )


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


# What a ledger says as rows of a table and as JSON, all publishable.
#
# A roof room, without TensorFlow.


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


# A calibration as rows of a table and as JSON, all publishable.
#
# A roof room, without TensorFlow.


def calibration_rows(calibration: Calibration) -> list[Row]:
    """Returns the rows of a calibration, all publishable."""
    noise = [
        (
            flag.name if flag.is_inverse or flag.name == field else f"{flag.name} ({field})",
            f"{flag.shown(value):f} {flag.unit}".rstrip(),
        )
        for flag, field, value in _flags(calibration.mechanism)
    ]
    return [
        ("mechanism", calibration.mechanism.name),
        *noise,
        ("queries", f"{calibration.num_queries:,}"),
        (
            "epsilon, data-independent",
            f"{shown(calibration.guarantee.epsilon)} at delta {calibration.delta:g}, both "
            f"directions; target {calibration.target_epsilon:g}",
        ),
    ]


def _flags(mechanism: Mechanism) -> Iterator[tuple[Flag, str, float]]:
    """Yields every flag of a mechanism, with the field that it gives and the field's value."""
    for parameter in mechanism.parameters:
        for flag in parameter.flags:
            yield flag, parameter.field, getattr(mechanism, parameter.field)


def calibration_report(calibration: Calibration) -> dict[str, Any]:
    """Returns the JSON of a calibration."""
    typed = {
        flag.name: float(flag.shown(value)) for flag, _, value in _flags(calibration.mechanism)
    }
    return {
        "lap_scale": None,
        **typed,
        "queries": calibration.num_queries,
        "mechanism": calibration.mechanism.to_dict(),
        "delta": calibration.delta,
        "target_epsilon": calibration.target_epsilon,
        "epsilon_data_independent": calibration.guarantee.epsilon,
        "sensitive": [],
    }
