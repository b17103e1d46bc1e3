"""The numbers of an analysis as JSON values, and as rows of tables; publishable ones apart."""

from __future__ import annotations

import decimal
import io
import math
import pathlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from pate_tf.accounting import composition, conversions
from pate_tf.accounting.charge import rounded_up
from pate_tf.accounting.composition import Charge
from pate_tf.accounting.moments import is_two_sided
from pate_tf.analysis.accounting import Analysis, bound_alphas, moment_grid
from pate_tf.analysis.release import Released
from pate_tf.analysis.votes import AnsweredVotes, VoteSource
from pate_tf.core import artifacts
from pate_tf.core.reporting import Row
from pate_tf.ledger import Ledger
from pate_tf.ledger.journal import DEBITS, charge_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# For each table: name of a value, its label, and what is shown of it.
Labels = tuple[tuple[str, str, str], ...]
SEEDED: Final = "noise was drawn from a seed: nothing here is private"
PUBLISHABLE: Final[Labels] = (
    ("charged", "charged", "{charged}"),
    ("is_seeded", "WARNING", SEEDED),
    (
        "epsilon_data_independent",
        "epsilon, data-independent",
        "{epsilon_data_independent} at delta {delta:g}, both directions",
    ),
    (
        "epsilon_labels_alone",
        "epsilon, data-independent, of the labels alone",
        "{epsilon_labels_alone} at delta {delta:g}, both directions",
    ),
    (
        "epsilon_sanitised",
        "epsilon, sanitised",
        "{epsilon_sanitised} at delta {delta_sanitised:g}, {direction}, for these votes with "
        "confidence {confidence:.7g}; covers its own release",
    ),
    (
        "is_uncharged",
        "release, ledger",
        "NO LEDGER WAS CHARGED: votes of a file have none; if these labels have one, what it says "
        "is too small from here on",
    ),
    (
        "is_late",
        "release, plan",
        "nothing shows that its plan was fixed before there were votes; a plan chosen by looking "
        "at bounds at the true votes gives something of the votes away",
    ),
    (
        "plan",
        "release plan",
        "{plan[release]} of {plan[bound]}: moment {plan[moment]:.4g}, smoothness "
        "{plan[smoothness]:.4g}, sigma {plan[sigma]:.4g}, failure {plan[failure]:.3g}; made for "
        "{plan[profile]}",
    ),
)
LEDGER: Final[Labels] = (
    ("limit", "budget", "{limit}"),
    (
        "epsilon_spent",
        "spent",
        "epsilon {epsilon_spent} at delta {delta:g}, data-independent, both directions; {counts}",
    ),
    ("remains", "remains", "epsilon {remains} before the budget is spent"),
    ("affordable", "still affordable", "{affordable}"),
    ("is_seeded", "WARNING", SEEDED),
    (
        "ledger_was_reset",
        "WARNING",
        "this ledger was reset: an earlier one, or rows of it, were gone; what is not known of "
        "them is not counted",
    ),
    (
        "epsilon_source",
        "all releases charged to {source}",
        "epsilon {epsilon_source} at delta {delta:g}, data-independent, as far as known on this "
        "machine: ledgers: {num_ledgers}",
    ),
    (
        "is_unknown",
        "all releases charged to {source}",
        "NOT KNOWN: no registry of ledgers, or ledgers that protect something else",
    ),
)


def shown(epsilon: float) -> str:
    """Returns an epsilon as a table has it, rounded up."""
    return rounded_up(epsilon) if math.isfinite(epsilon) else "infinite"


def rows_of(values: Mapping[str, Any], labels: Labels) -> list[Row]:
    """Returns a row for each value that is there; epsilons are rounded up."""
    texts = {
        name: shown(value) if name.startswith("epsilon") and isinstance(value, float) else value
        for name, value in values.items()
    }
    return [
        (label.format_map(texts), text.format_map(texts))
        for name, label, text in labels
        if values.get(name) not in (None, False)
    ]


def json_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values as JSON has them: None stands for infinity."""
    return {
        name: json_values(value)
        if isinstance(value, Mapping)
        else None
        if value == math.inf
        else value
        for name, value in values.items()
    }


def publishable_values(
    analysis: Analysis, released: Released | None, *, is_secure: bool
) -> dict[str, Any]:
    """Returns what may be published: nothing depends on votes but through a release."""
    charged = [charge.several(number) for charge, number in analysis.num_charged.items()]
    values: dict[str, Any] = {
        "queries": analysis.num_queries,
        "queries_answered": analysis.num_answered,
        "charged": "; ".join(charged) or "none",
        "mechanisms": [charge.to_dict() for charge in analysis.num_charged],
        "delta": analysis.delta,
        "conversion": analysis.conversion,
        "secure_noise": is_secure,
        "is_seeded": not is_secure,
        "epsilon_data_independent": analysis.epsilon,
    }
    if analysis.releases:
        alone, _ = composition.smallest_epsilon(analysis.num_charged, analysis.delta)
        values["epsilon_labels_alone"] = alone
    if released is not None:
        values |= {
            "plan": released.plan.to_dict(),
            "is_uncharged": not released.is_charged,
            "is_late": not released.sanitised.plan_was_fixed,
            "epsilon_sanitised": released.sanitised.epsilon,
            "delta_sanitised": released.sanitised.delta,
            "confidence": released.sanitised.confidence,
            "direction": "both directions" if is_two_sided(released.plan.bound) else "forward",
        }
    return values


def sensitive_values(analysis: Analysis) -> dict[str, Any]:
    """Returns what depends on the votes. SENSITIVE."""
    values: dict[str, Any] = {}
    if analysis.bounds:
        values["epsilon_data_dependent"] = min(epsilon for epsilon, _ in analysis.bounds.values())
        values["bounds"] = {
            bound: {"epsilon": epsilon, "moment": moment}
            for bound, (epsilon, moment) in analysis.bounds.items()
        }
    if analysis.smooth_sensitivity:
        values["smooth_sensitivity"] = {
            f"{moment:g}": value for moment, value in analysis.smooth_sensitivity.items()
        }
    return values


def sensitive_rows(analysis: Analysis) -> list[Row]:
    """Returns what depends on the votes and may not be published."""
    bounds = [
        (
            f"epsilon, data-dependent, {bound}",
            f"{shown(epsilon)} at delta {analysis.delta:g}, moment {moment:.4g}, "
            f"{'both directions' if is_two_sided(bound) else 'forward'}, "
            f"{analysis.conversion} conversion",
        )
        for bound, (epsilon, moment) in analysis.bounds.items()
    ]
    return bounds + [
        (f"smooth sensitivity, moment {moment:.4g}", f"{value:.6g} of the total cost")
        for moment, value in analysis.smooth_sensitivity.items()
    ]


def ledger_values(ledger: Ledger) -> dict[str, Any]:
    """Returns what a ledger says; data-independent throughout, and publishable."""
    rows, spent, delta = ledger.history(), ledger.spent(), ledger.delta
    charges = [charge_of(row)[0] for row in rows if row.kind in DEBITS]
    last = next((charge for charge in reversed(charges) if charge.answers), None)
    number = None if last is None else ledger.affordable(last)
    remaining, source = ledger.remaining(), ledger.source_spending()
    left = decimal.Context(prec=9, rounding=decimal.ROUND_FLOOR)
    epsilon_source = None if source is None else source.epsilon(delta)
    raised = "; was RAISED after its first use" if ledger.was_raised else ""
    num_sums = sum(charge.releases_feature_sums for charge in charges)
    return {
        "folder": str(ledger.folder),
        "history": list(_history(ledger)),
        "limit": _limit(ledger.epsilon_budget, delta) + raised,
        "epsilon_budget": ledger.epsilon_budget,
        "delta": delta,
        "budget_was_raised": ledger.was_raised,
        "ledger_was_reset": ledger.was_reset,
        "source": "this run folder" if ledger.source is None else ledger.source.name,
        "epsilon_source": epsilon_source,
        "is_unknown": epsilon_source is None,
        "num_ledgers": None if source is None else source.num_ledgers,
        "secure_noise": ledger.is_secure,
        "is_seeded": not ledger.is_secure,
        "epsilon_spent": spent.epsilon,
        "epsilon_remaining": remaining,
        "remains": remaining
        if remaining is None
        else f"{left.create_decimal_from_float(remaining).normalize():f}",
        "affordable": None if last is None or number is None else last.several(number),
        "affordable_queries": number,
        "queries": spent.num_queries,
        "answered": spent.num_answered,
        "counts": f"{spent.num_queries:,} queries charged, {spent.num_answered:,} labels, "
        f"{num_sums:,} releases of feature sums",
    }


def _limit(epsilon_budget: float | None, delta: float) -> str:
    limit = "no limit" if epsilon_budget is None else f"epsilon {epsilon_budget:g}"
    return f"{limit} at delta {delta:g}"


def _history(ledger: Ledger) -> Iterator[str]:
    """Yields a line for each row, with the epsilon of everything charged by then."""
    charges, of_sums = Counter[Charge](), set[int]()
    for row in ledger.history():
        details = row.details
        if row.kind in DEBITS:
            charge, number = charge_of(row)
            charges[charge] += number
            of_sums |= {row.sequence} if charge.releases_feature_sums else set()
            text = f"charged {charge.several(number)}"
            if "carried_from" in details:
                text += "; by a row that is gone, or of another ledger"
            if not details.get("secure_noise", True):
                text += "; SEEDED NOISE, NOT PRIVATE"
            epsilon, _ = composition.smallest_epsilon(charges, ledger.delta)
            text += f": epsilon {shown(epsilon)} by then"
        elif row.kind in ("opened", "budget"):
            verb = "opened" if row.kind == "opened" else "budget set"
            verb = "budget RAISED" if details.get("raised") else verb
            text = f"{verb}: {_limit(details['epsilon_budget'], details['delta'])}"
            if details.get("acknowledged"):
                text += "; AN EARLIER LEDGER OF THIS ENSEMBLE WAS GONE"
        elif row.kind == "acknowledged":
            text = f"RESET: {len(details['missing']):,} rows that were seen are gone"
        elif row.kind == "planned":
            text = "fixed how the data-dependent cost is released, later than the ledger was opened"
        elif "num_answered" in details and details["debit"] not in of_sums:
            text = (
                f"answered {details['num_answered']:,} of the {details['num_queries']:,} queries "
                f"that row {details['debit']} charged"
            )
        else:
            text = f"stored what row {details['debit']} charged"
        yield f"{row.sequence:>4}  {row.time}  {text}"


# Plots of epsilon against queries, publishable and sensitive apart. Matplotlib is imported when the
# first one is drawn.

NUM_POINTS = 24
# Okabe and Ito's colors, told apart by color-blind readers; dashes tell them apart in print.
COLORS = ("#0072B2", "#E69F00", "#D55E00", "#009E73", "#CC79A7")
DASHES = ("-", "-.", "--", ":", (0, (5, 1, 1, 1, 1, 1)))


def draw(
    folder: artifacts.RunDirectory,
    source: VoteSource,
    analysis: Analysis,
    *,
    num_moments: int | None = None,
) -> list[pathlib.Path]:
    """Draws epsilon against queries: data-independent below `released/`, by bounds `sensitive/`.

    Args:
        folder: where the two halves go.
        source: the votes.
        analysis: of these votes: delta, conversion and bounds.
        num_moments: as of `analyse`.

    Returns:
        The PNG files; the second one only if there are votes.

    Raises:
        OSError: if a file can't be written; it is not there then.
    """
    charged = analysis.num_charged
    title = f"at delta {analysis.delta:g}\n{'; '.join(charge.summary() for charge in charged)}"
    prefixes = list(_prefixes(charged))
    lines = {
        "data-independent": (
            [number for number, _ in prefixes],
            [composition.smallest_epsilon(charges, analysis.delta)[0] for _, charges in prefixes],
        )
    }
    path = folder.released / "epsilon_data_independent.png"
    paths = [_save(path, f"Epsilon {title}", lines, is_sensitive=False)]
    if source.groups:
        grid = moment_grid(num_moments)
        blocks = [block for group in source.groups for block in _blocks(group)]
        sizes = [block.counts.num_queries + block.num_unanswered for block in blocks]
        lines = {}
        for bound in analysis.bounds:
            alphas = np.cumsum([bound_alphas([block], bound, grid) for block in blocks], axis=0)
            epsilons = [
                conversions.epsilon_from_alphas(
                    total, grid, analysis.delta, conversion=analysis.conversion
                )[0]
                for total in alphas
            ]
            direction = "both directions" if is_two_sided(bound) else "forward"
            lines[f"{bound} ({direction})"] = (list(np.cumsum(sizes)), epsilons)
        path = folder.sensitive / "epsilon_by_queries.png"
        paths.append(_save(path, f"Data-dependent epsilon {title}", lines, is_sensitive=True))
    return paths


def _save(
    path: pathlib.Path,
    title: str,
    lines: Mapping[str, tuple[list[int], list[float]]],
    *,
    is_sensitive: bool,
) -> pathlib.Path:
    """Writes a figure that says whether it may be published."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 5.0), dpi=120, layout="constrained")
    axes: Axes = figure.add_subplot()
    axes.set_title(title, loc="left", fontsize=11)
    mark = "SENSITIVE, do not publish" if is_sensitive else "publishable"
    figure.supxlabel(mark, x=0.995, ha="right", fontsize=9)
    axes.set_xlabel("queries")
    axes.set_ylabel("epsilon, natural logarithm")
    axes.grid(visible=True, color="#DDDDDD", linewidth=0.6)
    for (label, (queries, epsilons)), color, dashes in zip(
        lines.items(), COLORS, DASHES, strict=False
    ):
        axes.plot(queries, epsilons, label=label, color=color, linestyle=dashes)
    axes.legend(frameon=False, fontsize=9)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    with artifacts.atomic_file(path, private=is_sensitive) as file:
        file.write(buffer.getvalue())
    return path


def _prefixes(num_charged: Mapping[Charge, int]) -> Iterator[tuple[int, dict[Charge, int]]]:
    """Yields numbers of queries and what they consist of, mechanisms one after the other."""
    total = sum(num_charged.values())
    for queries in sorted({round(size) for size in np.geomspace(1, max(total, 1), NUM_POINTS)}):
        left, charged = queries, {}
        for mechanism, number in num_charged.items():
            charged[mechanism] = min(left, number)
            left -= charged[mechanism]
        yield queries, charged


def _blocks(group: AnsweredVotes) -> Iterator[AnsweredVotes]:
    """Yields the group in pieces; unanswered queries are spread evenly over them."""
    answered = group.counts.num_queries
    edges = np.unique(np.linspace(0, answered, NUM_POINTS + 1).astype(np.int64))
    unanswered = edges * group.num_unanswered // max(answered, 1)
    for piece in range(len(edges) - 1):
        yield AnsweredVotes(
            group.mechanism,
            group.counts.take(np.arange(edges[piece], edges[piece + 1])),
            num_unanswered=int(unanswered[piece + 1] - unanswered[piece]),
        )
