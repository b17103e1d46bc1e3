"""The numbers of an analysis as rows of a table and as JSON, publishable and sensitive apart.

A roof room, without TensorFlow.
"""

from collections.abc import Mapping
from typing import Any

from pate_tf import artifacts
from pate_tf.accounting.moments import is_two_sided
from pate_tf.analysis.guarantees import Analysis, Guarantee
from pate_tf.analysis.release_request import Released
from pate_tf.analysis.rows import Row, finite_or_none, shown

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
                f"{shown(best.epsilon)} {delta}, data-independent, both directions; publishable",
            ),
        ]
    except (KeyError, TypeError) as error:
        raise ValueError(f"{sensitive}: expected whole reports, got others") from error
    if bound is not None:
        # What holds for all votes holds for these.
        epsilon = min(bound.epsilon, best.epsilon)
        rows.append(("epsilon, data-dependent", f"{shown(epsilon)} {delta} (SENSITIVE)"))
    return [
        *rows,
        ("publishable", f"{run.root / artifacts.RELEASED}: labels, student, privacy statement"),
        ("SENSITIVE", f"{sensitive}: teachers, partition, votes, ledger, reports"),
    ]
