"""The numbers of an analysis as rows of a table and as JSON, publishable and sensitive apart.

A roof room, without TensorFlow.
"""

import decimal
import math
from collections.abc import Mapping
from typing import Any

from pate_tf import artifacts
from pate_tf.accounting.moments import is_two_sided
from pate_tf.accounting.statement_page import rounded_up
from pate_tf.analysis.accounting import Analysis, Guarantee
from pate_tf.analysis.calibration import Calibration
from pate_tf.analysis.ledger import LedgerSummary, describe
from pate_tf.analysis.release import Released

Row = tuple[str, str]

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
UNPAID = (
    "an earlier version drew a release that this ledger was NEVER CHARGED FOR: it cost more than "
    "it says, until `analysis.py --release=sanitised` of the run takes the draw over"
)
OWN_CONVERSION = ("composition", "strong_composition", "dp_accounting")


def mechanisms(analysis: Analysis) -> str:
    """Returns every mechanism with its number of queries, in words."""
    return "; ".join(
        f"{queries:,} of {describe(mechanism)}" for mechanism, queries in analysis.num_paid.items()
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
    parts = [f"{_number(guarantee.epsilon)} at delta {analysis.config.delta:g}"]
    if guarantee.moment is not None:
        parts.append(f"moment {guarantee.moment:.4g}")
    parts.append(direction)
    if converted:
        parts.append(f"{analysis.config.conversion} conversion")
    return ", ".join(parts)


def _number(epsilon: float) -> str:
    return rounded_up(epsilon) if math.isfinite(epsilon) else "infinite"


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
                f"{_number(found.epsilon)} at delta {found.delta:g}, {direction}, for these votes "
                f"with confidence {found.confidence:.7g}; covers its own release",
            )
        )
        rows.append(
            (
                "epsilon, data-independent, labels and this release",
                f"{_number(found.worst_case_epsilon)} at delta {found.delta:g}, both directions, "
                f"worst case over all data, once the release is published",
            )
        )
    if released.gate is not None:
        gate = released.gate
        rows.append(
            (
                "gate",
                f"{'PASSED: labels may' if gate.passed else 'NOT PASSED: labels may not'} be "
                f"released; epsilon {_number(gate.epsilon)} at delta {gate.delta:g} in total, both "
                f"directions, worst case over all data, passed or not",
            )
        )
    if not released.is_charged:
        rows.append(("release, ledger", NOT_CHARGED))
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


def calibration_rows(calibration: Calibration) -> list[Row]:
    """Returns the rows of a calibration, all publishable."""
    fields = calibration.mechanism.to_dict()
    sigma, gamma = fields.get("sigma"), fields.get("gamma")
    noise = []
    if isinstance(sigma, float):
        noise.append(("sigma", f"{_nine_digits(sigma, decimal.ROUND_CEILING):f} votes"))
    if isinstance(gamma, float):
        scale = _nine_digits(1.0 / gamma, decimal.ROUND_CEILING)
        noise.append(("lap_scale", f"{scale:f} votes"))
        noise.append(("noise_eps (gamma)", f"{_nine_digits(gamma, decimal.ROUND_FLOOR):f}"))
    return [
        ("mechanism", calibration.mechanism.name),
        *noise,
        ("queries", f"{calibration.num_queries:,}"),
        (
            "epsilon, data-independent",
            f"{_number(calibration.guarantee.epsilon)} at delta {calibration.delta:g}, both "
            f"directions; target {calibration.target_epsilon:g}",
        ),
    ]


def _nine_digits(value: float, rounding: str) -> decimal.Decimal:
    """Rounds towards more noise, so that a number typed off the screen still meets the target."""
    return decimal.Context(prec=9, rounding=rounding).create_decimal_from_float(value).normalize()


def calibration_report(calibration: Calibration) -> dict[str, Any]:
    """Returns the JSON of a calibration."""
    fields = calibration.mechanism.to_dict()
    gamma = fields.get("gamma")
    return {
        "queries": calibration.num_queries,
        "mechanism": fields,
        "lap_scale": (
            float(_nine_digits(1.0 / gamma, decimal.ROUND_CEILING))
            if isinstance(gamma, float)
            else None
        ),
        "delta": calibration.delta,
        "target_epsilon": calibration.target_epsilon,
        "epsilon_data_independent": calibration.guarantee.epsilon,
        "sensitive": [],
    }


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
            f"epsilon {_number(summary.epsilon_spent)} at delta {summary.delta:g}, "
            f"data-independent, both directions; {summary.num_queries:,} queries paid for, "
            f"{summary.num_answered:,} labels",
        ),
    ]
    rows[0] = (rows[0][0], rows[0][1] + raised)
    if remaining is not None:
        left = _nine_digits(remaining, decimal.ROUND_FLOOR)
        rows.append(("remains", f"epsilon {left:f} before the budget is reached"))
    if summary.num_affordable is not None and summary.last_mechanism is not None:
        rows.append(
            (
                "still affordable",
                f"{summary.num_affordable:,} queries of {describe(summary.last_mechanism)}",
            )
        )
    if not summary.is_secure:
        rows.append(("WARNING", "noise was drawn from a seed: nothing here is private"))
    return rows + unpaid_rows(summary)


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
        "secure_noise": summary.is_secure,
        "epsilon_spent": _finite(summary.epsilon_spent),
        "epsilon_remaining": summary.epsilon_remaining,
        "affordable_queries": summary.num_affordable,
        "mechanism": None if last is None else last.to_dict(),
        "queries": summary.num_queries,
        "answered": summary.num_answered,
        "has_unpaid_release": summary.has_unpaid_release,
    }


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
        "mechanism": only,
        "delta": analysis.config.delta,
        "conversion": analysis.config.conversion,
        "secure_noise": is_secure,
        "epsilon_data_independent": _finite(analysis.best_data_independent.epsilon),
        "data_independent": {
            kind: _finite(guarantee.epsilon)
            for kind, guarantee in analysis.data_independent.items()
        },
    }
    if released is None:
        return report
    report["plan"] = released.plan.to_dict()
    report["discarded_releases"] = released.num_discarded
    report["ledger_charged"] = released.is_charged
    if released.sanitised is not None:
        report["sanitised"] = {
            "epsilon": _finite(released.sanitised.epsilon),
            "confidence": released.sanitised.confidence,
        }
        report["epsilon_data_independent_with_release"] = _finite(
            released.sanitised.worst_case_epsilon
        )
    if released.gate is not None:
        report["gate"] = {
            "epsilon": _finite(released.gate.epsilon),
            "delta": released.gate.delta,
            "released": released.gate.passed,
        }
    return report


def sensitive_report(analysis: Analysis) -> dict[str, Any]:
    """Returns the JSON of what depends on the votes. Infinity is null."""
    report: dict[str, Any] = {}
    best = analysis.best_bound
    if best is not None:
        report["epsilon_data_dependent"] = _finite(best.epsilon)
        report["order"] = best.moment
        report["bounds"] = {
            bound: {"epsilon": _finite(guarantee.epsilon), "order": guarantee.moment}
            for bound, guarantee in analysis.bounds.items()
        }
    if analysis.smooth_sensitivity is not None:
        report["smooth_sensitivity"] = {
            f"{moment:g}": value for moment, value in analysis.smooth_sensitivity.items()
        }
        report["smooth_sensitivity_bound"] = analysis.smooth_bound
    return report


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def run_rows(run: artifacts.RunDirectory, analysis: Analysis) -> list[Row]:
    """Returns the rows that sum up a run; none unless both scripts left their reports there.

    Raises:
      ValueError: if a report is broken.
    """
    sensitive = run.root / artifacts.SENSITIVE
    files = [sensitive / f"{name}_report.json" for name in ("teachers", "student")]
    if not all(file.exists() for file in files):
        return []
    teachers, student = (artifacts.read_json(file) for file in files)
    best = analysis.best_data_independent
    bound = analysis.best_bound
    delta = f"at delta {analysis.config.delta:g}"
    try:
        rows = [
            ("teachers", f"{teachers['nb_teachers']} on {teachers['dataset']}"),
            ("mean teacher accuracy", f"{teachers['teacher_accuracy_mean']:.2%} (SENSITIVE)"),
            ("queries", f"{student['queries']} asked, {student['answered']} answered"),
            ("accuracy of the noisy labels", f"{student['label_accuracy']:.2%}"),
            ("student accuracy", f"{student['student_accuracy']:.2%}"),
            (
                "epsilon",
                f"{_number(best.epsilon)} {delta}, data-independent, both directions; publishable",
            ),
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{sensitive}: expected whole reports, got others") from error
    if bound is not None:
        # What holds for all votes holds for these.
        epsilon = min(bound.epsilon, best.epsilon)
        rows.append(("epsilon, data-dependent", f"{_number(epsilon)} {delta} (SENSITIVE)"))
    return [
        *rows,
        ("publishable", f"{run.root / artifacts.RELEASED}: labels, student, privacy statement"),
        ("SENSITIVE", f"{sensitive}: teachers, partition, votes, ledger, reports"),
    ]
