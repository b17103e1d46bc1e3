"""Runs a complete analysis: computes the privacy cost of votes and writes the results.

On request, the cost is also released with noise. Publishable and sensitive results are written to
separate files. `pate analysis` calls `run`, and other programs can call it, too. This module does
not import TensorFlow.
"""

import contextlib
import dataclasses
import decimal
import math
import pathlib
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

from pate_tf.accounting import composition, moments
from pate_tf.accounting.charge import PlannedRelease, rounded_up
from pate_tf.accounting.composition import Charge
from pate_tf.accounting.conversions import DEFAULT_DELTA, WishedDelta
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.analysis import vote_sources
from pate_tf.analysis.sanitised_epsilon import Released, release
from pate_tf.analysis.vote_sources import MAX_MOMENTS, Analysis, Progress, VoteSource, analyse
from pate_tf.core import artifacts
from pate_tf.core.reporting import QUIET, Reporting, ReportTable, Row, RunReport
from pate_tf.core.settings import TeacherNumber, setting
from pate_tf.ledger import BudgetExceeded, BudgetMismatch, Ledger, LedgerError
from pate_tf.ledger.ledger_file import DATABASE, DEBITS, charge_of
from pate_tf.release.noise import NoiseSource, SystemNoise

FILE: Final = "analysis.json"
DEFAULT_OUTPUT: Final = pathlib.Path("runs/analysis")
KINDS: Final = {"sanitised": "log_cost", "smooth_sensitivity": "smooth_sensitivity"}


# For each table: the name of each value, the label of its row, and the format of the value.
ROWS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = tomllib.loads(
    pathlib.Path(__file__).with_name("rows.toml").read_text()
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnalysisSettings(WishedDelta, TeacherNumber):
    """Settings of an analysis: the votes or ledgers, the release, and the output folder."""

    restated: ClassVar = {
        "num_teachers": {
            "group": "votes",
            "advanced": True,
            "help": "Public number of teachers. Required if there are more teachers than queries.",
        },
        "delta": {
            "group": "accounting",
            "help": f"Delta of every epsilon. Default: the ledger's delta, else {DEFAULT_DELTA:g}.",
        },
    }
    run: pathlib.Path | None = setting(
        None,
        flag="train_dir",
        help="A run folder. Its ledger is analyzed, with all votes that were charged to it.",
    )
    ledgers: tuple[pathlib.Path, ...] | None = setting(
        None,
        flag="ledger",
        help="Shows history, spending and remaining budget of these ledgers (files or folders, "
        "separated by commas). If ledgers belong to the same records, their costs are composed. "
        "With --statement, accounts of silos are also allowed.",
    )
    counts_file: pathlib.Path | None = setting(
        None,
        help="A .npy or .csv file of votes: labels [num_teachers, num_queries], or counts "
        "[num_queries, num_classes] with --input_is_counts. Values are whole numbers, of integer "
        "or float type. The queries must have been chosen without looking at noisy labels.",
    )
    input_is_counts: bool = setting(
        False, advanced=True, help="Whether --counts_file has counts, not labels."
    )
    indices_file: pathlib.Path | None = setting(
        None,
        advanced=True,
        help="A .npy or .csv file with the indices of the queries to analyze. Default: all.",
    )
    max_examples: int | None = setting(
        None,
        least=1,
        advanced=True,
        help="Maximum number of queries to analyze, starting with the first. Default: all.",
    )
    num_classes: int | None = setting(
        None,
        flag="nb_labels",
        least=1,
        advanced=True,
        help="Public number of classes. Default: for counts, the number of columns; for labels, "
        "10. A class without votes never reduces the bounds.",
    )
    bounds: tuple[str, ...] | None = setting(
        None,
        group="accounting",
        flag="bound",
        help="SENSITIVE. Data-dependent bounds to compute, separated by commas. All mechanisms "
        "must support them. paper and tight cover one direction. two_sided, class_aware and "
        "exact (slow) cover both directions. class_aware also uses the counts of all classes. "
        "Default: paper, two_sided and class_aware, if every mechanism has them.",
    )
    num_moments: int | None = setting(
        None,
        group="accounting",
        flag="moments",
        least=1,
        most=MAX_MOMENTS,
        advanced=True,
        help="Use the moments 1, 2, ..., N, as in the paper (N = 8). Default: real "
        f"moments, log-spaced from {moments.DEFAULT_MOMENTS[0]:g} to "
        f"{moments.DEFAULT_MOMENTS[-1]:g}. A moment is the Renyi order minus one.",
    )
    conversion: str = setting(
        "improved",
        group="accounting",
        choices=("improved", "classic"),
        advanced=True,
        help="Conversion from moments to epsilon (natural logarithm). improved: Balle et al. 2020. "
        "classic: Abadi et al. 2016.",
    )
    beta: float = setting(
        0.09,
        group="accounting",
        above=0.0,
        advanced=True,
        help="Rate beta of the smooth sensitivity, per teacher, for --release=smooth_sensitivity.",
    )
    release: str | None = setting(
        None,
        group="release",
        choices=(*KINDS, "none"),
        help="How to publish the data-dependent cost. For the same votes, noise is drawn only "
        "once. The ledger is charged before the draw and stores the result. sanitised: a noisy "
        "epsilon. smooth_sensitivity: the cost with noise scaled to its smooth sensitivity, and a "
        "table. none: nothing is published. Default: the result that the ledger stores, if any.",
    )
    output: pathlib.Path | None = setting(
        None,
        group="output",
        flag="output_dir",
        help="Folder for sensitive/analysis.json, released/analysis.json and sensitive/releases/. "
        "Default: the run folder of --train_dir, else runs/analysis.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        sources = {"train_dir": self.run, "ledger": self.ledgers, "counts_file": self.counts_file}
        named = [name for name, value in sources.items() if value is not None]
        if len(named) != 1:
            raise ValueError(
                "pass exactly one of `counts_file`, `train_dir`, `ledger` and `statement`"
                + (f", not {' and '.join(f'`{name}`' for name in named)}" if named else "")
            )
        for bound in self.bounds or ():
            if bound not in moments.BOUNDS:
                raise ValueError(f"`bounds` can be any of {list(moments.BOUNDS)}, got {bound!r}")


def run(
    settings: AnalysisSettings,
    mechanism: Mechanism | None = None,
    reporting: Reporting = QUIET,
    *,
    noise: NoiseSource | None = None,
) -> RunReport:
    """Computes the privacy cost of votes, writes all results, and returns a report.

    Args:
        settings: votes or ledgers to analyze, kind of release, and output folder.
        mechanism: for a file of votes, the mechanism that answers the queries. None for ledgers,
            which record their mechanisms.
        reporting: functions that show progress, notes and warnings.
        noise: source of the noise of a release. Default: the operating system's entropy.

    Raises:
        ValueError: if settings, votes and mechanism don't match. In this case, nothing is charged.
        LedgerError: if a ledger can't be opened, or can't be charged for the release.
        OSError: if a result can't be written.
    """
    folder = artifacts.RunDirectory(settings.output or settings.run or DEFAULT_OUTPUT)
    folder.check(
        files=[f"{half}/{FILE}" for half in (artifacts.SENSITIVE, artifacts.RELEASED)],
        folders=[artifacts.SENSITIVE, artifacts.RELEASED, f"{artifacts.SENSITIVE}/releases"],
    )
    source, ledgers, delta = _read(settings, mechanism)
    if settings.counts_file is not None:
        reporting.note(f"votes: {source.groups[0].counts.dimensions}")
    # The ledger is charged after all checks, so that only the draw can fail after the charge.
    with _exact_progress(reporting) as progress:
        analysis = analyse(
            source,
            delta=delta,
            bounds=settings.bounds,
            num_moments=settings.num_moments,
            conversion=settings.conversion,
            beta=settings.beta if settings.release == "smooth_sensitivity" else None,
            progress=progress,
        )
    released, refusal = _release(settings, source, folder, noise or SystemNoise(), delta)
    if released is not None:
        charged: dict[Charge, int] = {released.plan: 1}  # a file of votes allows only one draw
        if source.folder is not None:
            with Ledger.read(source.folder) as ledger:
                charges = ledger.charges.items()
                charged = {charge: number for charge, number in charges if not charge.answers}
        analysis = dataclasses.replace(analysis, releases=charged)
    is_secure = source.is_secure and (released is None or released.secure_noise)
    publishable = publishable_values(analysis, released, is_secure=is_secure)
    sensitive = sensitive_values(analysis)
    values = json_values(publishable)
    artifacts.write_json(folder.sensitive / FILE, json_values(sensitive), private=True)
    artifacts.write_json(folder.released / FILE, values)
    files = [
        ("publishable", str(folder.root / artifacts.RELEASED / FILE)),
        ("SENSITIVE", str(folder.root / artifacts.SENSITIVE / FILE)),
    ]
    tables = list[ReportTable]()
    for ledger_values in ledgers:
        if settings.run is None:
            title = f"History of {ledger_values['folder']}"
            tables.append(ReportTable(title=title, lines=ledger_values["history"]))
        rows = rows_of(ledger_values, "ledger")
        tables.append(ReportTable(title="Ledger, publishable", rows=rows))
    rows = rows_of(publishable, "publishable")
    tables.append(ReportTable(title="Publishable", rows=rows))
    if rows := sensitive_rows(analysis):
        tables.append(ReportTable(title="SENSITIVE, do not publish", rows=rows, is_sensitive=True))
    if refusal is not None:
        tables.append(ReportTable(title="Not available", rows=[("epsilon, sanitised", refusal)]))
    tables.append(ReportTable(title="Written to", rows=files))
    values |= {
        **json_values(sensitive),
        "sensitive": list(sensitive),
        "ledgers": [json_values(each) for each in ledgers],
    }
    return RunReport(tables=tables, values=values)


def _release(
    settings: AnalysisSettings,
    source: VoteSource,
    folder: artifacts.RunDirectory,
    noise: NoiseSource,
    delta: float,
) -> tuple[Released | None, str | None]:
    """Returns the new or stored release; or the reason why a stored draw can't be shown again."""
    if settings.release == "none" or (settings.release is None and not source.has_release):
        return None, None
    planned = source.planned_release or PlannedRelease()
    if settings.release is not None:
        planned = dataclasses.replace(planned, release=KINDS[settings.release])
    place = folder.root / artifacts.SENSITIVE
    try:
        return release(source, noise, folder=place, delta=delta, planned=planned), None
    except (ValueError, BudgetExceeded, BudgetMismatch) as error:
        if settings.release is not None:
            raise
        return None, str(error)


def _read(
    settings: AnalysisSettings, mechanism: Mechanism | None
) -> tuple[VoteSource, list[dict[str, Any]], float]:
    """Returns the votes, the report values of each ledger, and delta."""
    if settings.counts_file is not None:
        if mechanism is None:
            raise ValueError("mechanism is required, because a file of votes does not name it")
        source = vote_sources.read_votes_file(
            settings.counts_file,
            mechanism,
            input_is_counts=settings.input_is_counts,
            indices_file=settings.indices_file,
            max_examples=settings.max_examples,
            num_classes=settings.num_classes,
            num_teachers=settings.num_teachers,
        )
        return source, [], DEFAULT_DELTA if settings.delta is None else settings.delta
    paths = list[pathlib.Path]()
    for path in settings.ledgers or ():  # the path of a ledger's file or folder
        if path.is_file() and path.name != DATABASE:
            raise ValueError(f"ledger must be a file {DATABASE} or its folder, got {path}")
        paths.append(path.parent if path.name == DATABASE else path)
    if settings.run is not None:
        paths = [settings.run / artifacts.SENSITIVE]
        if not (paths[0] / DATABASE).exists():
            raise LedgerError(f"train_dir={settings.run} has no ledger: pass the teachers' folder")
    with contextlib.ExitStack() as stack:
        ledgers = [stack.enter_context(Ledger.read(path)) for path in paths]
        source = vote_sources.read_ledgers(ledgers, votes_needed=settings.run is not None)
        deltas = {ledger.delta for ledger in ledgers}
        if settings.delta is not None:
            deltas = {settings.delta}
        if len(deltas) > 1:
            raise ValueError("`delta` is required, because the ledgers have different deltas")
        return source, [ledger_values(ledger) for ledger in ledgers], float(deltas.pop())


@contextlib.contextmanager
def _exact_progress(reporting: Reporting) -> Iterator[Progress]:
    """Shows a progress bar while the bound `exact` is computed."""
    with contextlib.ExitStack() as stack:
        bars: list[Any] = []

        def show(done: int, total: int) -> None:
            if done == 1:
                bar = reporting.progress_bar(desc="exact", total=total, unit="histogram")
                bars.append(stack.enter_context(bar))
            bars[-1].update()

        yield show


# Results as JSON values and as rows of tables. Publishable and sensitive results are separate.


def shown(epsilon: float) -> str:
    """Returns an epsilon as text for a table, rounded up."""
    return rounded_up(epsilon) if math.isfinite(epsilon) else "infinite"


def rows_of(values: Mapping[str, Any], table: str) -> list[Row]:
    """Returns one row for each value, with epsilons rounded up; skips None and False."""
    texts = {
        name: shown(value) if name.startswith("epsilon") and isinstance(value, float) else value
        for name, value in values.items()
    }
    return [
        (label.format_map(texts), text.format_map(texts))
        for name, (label, text) in ROWS[table].items()
        if values.get(name) not in (None, False)
    ]


def json_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns values as JSON values; infinity becomes None."""
    finite = {name: None if value == math.inf else value for name, value in values.items()}
    return {
        name: json_values(value) if isinstance(value, Mapping) else value
        for name, value in finite.items()
    }


def publishable_values(
    analysis: Analysis, released: Released | None, *, is_secure: bool
) -> dict[str, Any]:
    """Returns the publishable results. They depend on the votes only through the noisy release."""
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
            "direction": moments.direction(released.plan.bound),
        }
    return values


def sensitive_values(analysis: Analysis) -> dict[str, Any]:
    """Returns the results that depend on the votes and may not be published."""
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
    """Returns `sensitive_values` as rows."""
    bounds = [
        (
            f"epsilon, data-dependent, {bound}",
            f"{shown(epsilon)} at delta {analysis.delta:g}, moment {moment:.4g}, "
            f"{moments.direction(bound)}, {analysis.conversion} conversion",
        )
        for bound, (epsilon, moment) in analysis.bounds.items()
    ]
    return bounds + [
        (f"smooth sensitivity, moment {moment:.4g}", f"{value:.6g} of the total cost")
        for moment, value in analysis.smooth_sensitivity.items()
    ]


def ledger_values(ledger: Ledger) -> dict[str, Any]:
    """Returns the report values of a ledger. They do not depend on votes and may be published."""
    spent = ledger.spent()
    delta = ledger.delta
    charges = [charge_of(row)[0] for row in ledger.history() if row.kind in DEBITS]
    last = next((charge for charge in reversed(charges) if charge.answers), None)
    number = None if last is None else ledger.affordable(last)
    remaining = ledger.remaining()
    source = ledger.source_spending()
    left = decimal.Context(prec=9, rounding=decimal.ROUND_FLOOR)
    epsilon_source = None if source is None else source.epsilon(delta)
    raised = "; RAISED after first use" if ledger.was_raised else ""
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
    """Yields a line of text for each row of a ledger, with the total epsilon up to this row."""
    charges = Counter[Charge]()
    of_sums = set[int]()
    for row in ledger.history():
        details = row.details
        if row.kind in DEBITS:
            charge, number = charge_of(row)
            charges[charge] += number
            of_sums |= {row.sequence} if charge.releases_feature_sums else set()
            text = f"charged {charge.several(number)}"
            if "carried_from" in details:
                text += "; repeats the charge of a missing row or another ledger"
            if not details.get("secure_noise", True):
                text += "; SEEDED NOISE, NOT PRIVATE"
            epsilon, _ = composition.smallest_epsilon(charges, ledger.delta)
            text += f": epsilon {shown(epsilon)} in total"
        elif row.kind in ("opened", "budget"):
            verb = "opened" if row.kind == "opened" else "budget set"
            verb = "budget RAISED" if details.get("raised") else verb
            text = f"{verb}: {_limit(details['epsilon_budget'], details['delta'])}"
            if details.get("acknowledged"):
                text += "; AN EARLIER LEDGER OF THIS ENSEMBLE WAS MISSING"
        elif row.kind == "acknowledged":
            text = f"RESET: {len(details['missing']):,} rows that existed before are missing"
        elif row.kind == "planned":
            text = "fixed how the data-dependent cost is released, after the ledger was opened"
        elif "num_answered" in details and details["debit"] not in of_sums:
            text = (
                f"answered {details['num_answered']:,} of the {details['num_queries']:,} queries "
                f"that row {details['debit']} charged"
            )
        else:
            text = f"stored the result that row {details['debit']} charged"
        yield f"{row.sequence:>4}  {row.time}  {text}"
