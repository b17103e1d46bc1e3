"""A whole analysis: account for votes, release once, write what may and what may not be published.

What `pate analysis` calls, and any program may. TensorFlow is not imported.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator
from typing import Any, Final

from pate_tf.accounting import moments
from pate_tf.accounting.charges import PlannedRelease
from pate_tf.accounting.composition import Charge
from pate_tf.accounting.conversions import DEFAULT_DELTA
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.analysis import report as reports
from pate_tf.analysis.accounting import MOST_MOMENTS, Progress, analyse
from pate_tf.analysis.release import Released, release
from pate_tf.analysis.votes import (
    LEDGER_FILE,
    VoteSource,
    ledger_folder,
    read_ledgers,
    read_votes_file,
)
from pate_tf.core import artifacts
from pate_tf.core.reporting import QUIET, Reporting, ReportTable, RunReport
from pate_tf.core.validation import Settings, setting
from pate_tf.ledger import BudgetExceeded, BudgetMismatch, Ledger, LedgerError
from pate_tf.release.noise import NoiseSource, SystemNoise

FILE: Final = "analysis.json"
DEFAULT_OUTPUT: Final = pathlib.Path("runs/analysis")
KINDS: Final = {"sanitised": "log_cost", "smooth_sensitivity": "smooth_sensitivity"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnalysisSettings(Settings):
    """Which votes and ledgers are analyzed, what is released, and where results go."""

    run: pathlib.Path | None = setting(
        None,
        group="votes",
        flag="train_dir",
        help="A run folder: its ledger, with the votes of everything that was charged.",
    )
    ledgers: tuple[pathlib.Path, ...] | None = setting(
        None,
        group="votes",
        flag="ledger",
        help="Ledgers, by file or folder, separated by commas: history, spending and what remains; "
        "several are composed, of ensembles trained on the same records. With --statement also "
        "silos' accounts.",
    )
    counts_file: pathlib.Path | None = setting(
        None,
        group="votes",
        help="A .npy or .csv file of votes, for queries chosen without looking at noisy labels: "
        "labels [num_teachers, num_queries], or with --input_is_counts counts [num_queries, "
        "num_classes]. Whole numbers, of integer or float type.",
    )
    input_is_counts: bool = setting(
        False, group="votes", advanced=True, help="Whether --counts_file holds counts, not labels."
    )
    indices_file: pathlib.Path | None = setting(
        None,
        group="votes",
        advanced=True,
        help="A .npy or .csv file with the indices of the queries to analyze. Default: all.",
    )
    max_examples: int | None = setting(
        None,
        group="votes",
        least=1,
        advanced=True,
        help="How many queries, from the first. Default: all.",
    )
    num_classes: int | None = setting(
        None,
        group="votes",
        flag="nb_labels",
        least=1,
        advanced=True,
        help="Number of classes, public. Default: as many as --counts_file has counts; 10 for "
        "labels. A class without votes only makes the bounds larger, never too small.",
    )
    num_teachers: int | None = setting(
        None,
        group="votes",
        flag="nb_teachers",
        least=1,
        advanced=True,
        help="Number of teachers, public, which confirms labels of more teachers than queries.",
    )
    delta: float | None = setting(
        None,
        group="accounting",
        least=0.0,
        below=1.0,
        help=f"Delta of every epsilon. Default: the ledger's, else {DEFAULT_DELTA:g}.",
    )
    bounds: tuple[str, ...] | None = setting(
        None,
        group="accounting",
        flag="bound",
        help="Data-dependent bounds, separated by commas; every mechanism must have them. "
        "SENSITIVE. paper: the paper's, forward. tight: forward. two_sided: both directions. "
        "class_aware: both directions, by the count of every class. exact: both directions; slow. "
        "Default: those of paper, two_sided and class_aware that it has.",
    )
    num_moments: int | None = setting(
        None,
        group="accounting",
        flag="moments",
        least=1,
        most=MOST_MOMENTS,
        advanced=True,
        help="N: the moments are 1, 2, ..., N, as in the paper (its N is 8). Default: real "
        f"moments, log-spaced from {moments.DEFAULT_MOMENTS[0]:g} to "
        f"{moments.DEFAULT_MOMENTS[-1]:g}. A moment is the Renyi order less one.",
    )
    conversion: str = setting(
        "improved",
        group="accounting",
        choices=("improved", "classic"),
        advanced=True,
        help="From moments to epsilon, natural logarithm. improved: Balle et al. 2020. classic: "
        "Abadi et al. 2016.",
    )
    beta: float = setting(
        0.09,
        group="accounting",
        above=0.0,
        advanced=True,
        help="Rate, per teacher, of the smooth sensitivity that --release=smooth_sensitivity "
        "tabulates.",
    )
    release: str | None = setting(
        None,
        group="release",
        choices=(*KINDS, "none"),
        help="What is published about the data-dependent cost. A draw happens once for the same "
        "votes; their ledger is charged first, and stores it. sanitised: an epsilon with noise. "
        "smooth_sensitivity: the cost with noise by smooth sensitivity, and its table. none: "
        "nothing. Default: none, but what a --train_dir or --ledger stores is shown again.",
    )
    output: pathlib.Path | None = setting(
        None,
        group="output",
        flag="output_dir",
        help="Where sensitive/analysis.json, released/analysis.json and sensitive/releases/ go. "
        "Default: the run folder of --train_dir, else runs/analysis.",
    )
    plots: bool = setting(
        False, group="output", help="Whether to draw epsilon against queries there, as PNG files."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        sources = {"train_dir": self.run, "ledger": self.ledgers, "counts_file": self.counts_file}
        named = [name for name, value in sources.items() if value is not None]
        if len(named) != 1:
            raise ValueError(
                "votes: expected exactly one of `counts_file`, `train_dir` and `ledger`, or "
                f"`statement`, got {' and '.join(f'`{name}`' for name in named) or 'none'}"
            )
        for bound in self.bounds or ():
            if bound not in moments.BOUNDS:
                raise ValueError(f"bounds: expected some of {list(moments.BOUNDS)}, got {bound!r}")


def run(
    settings: AnalysisSettings,
    mechanism: Mechanism | None = None,
    reporting: Reporting = QUIET,
    *,
    noise: NoiseSource | None = None,
) -> RunReport:
    """Accounts for votes, releases what was asked for, writes both halves, returns all of it.

    Args:
        settings: what to do.
        mechanism: what answers the queries of a file; a ledger says it itself.
        reporting: how progress is shown.
        noise: of a release. Default: of the operating system.

    Raises:
        ValueError: if something does not fit; nothing was charged then.
        LedgerError: if a ledger can't be used, or can't be charged for the release.
        OSError: if a result can't be written.
    """
    folder = artifacts.RunDirectory(settings.output or settings.run or DEFAULT_OUTPUT)
    folder.check(
        files=[f"{half}/{FILE}" for half in (artifacts.SENSITIVE, artifacts.RELEASED)],
        folders=[artifacts.SENSITIVE, artifacts.RELEASED, f"{artifacts.SENSITIVE}/releases"],
    )
    source, ledgers = _read(settings, mechanism)
    if settings.counts_file is not None:
        reporting.note(f"votes: {source.groups[0].counts.dimensions}")
    deltas = {values["delta"] for values in ledgers} or {DEFAULT_DELTA}
    if settings.delta is None and len(deltas) > 1:
        raise ValueError("delta: expected one, as the ledgers differ in theirs, got none")
    delta = deltas.pop() if settings.delta is None else settings.delta
    # Everything that may fail without a draw comes before a ledger is charged for one.
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
    plots = list[pathlib.Path]()
    if settings.plots:
        plots = reports.draw(folder, source, analysis, num_moments=settings.num_moments)
    released: Released | None = None
    refusal: str | None = None  # why a stored draw can't be shown again
    if settings.release != "none" and (settings.release is not None or source.has_release):
        planned = source.planned_release or PlannedRelease()
        if settings.release is not None:
            planned = dataclasses.replace(planned, release=KINDS[settings.release])
        place = folder.root / artifacts.SENSITIVE
        try:
            released = release(
                source, noise or SystemNoise(), folder=place, delta=delta, planned=planned
            )
        except (ValueError, BudgetExceeded, BudgetMismatch) as error:
            if settings.release is not None:
                raise
            refusal = str(error)
    if released is not None:
        charged: dict[Charge, int] = {released.plan: 1}
        if source.folder is not None:
            with Ledger.read(source.folder) as ledger:
                charges = ledger.charges.items()
                charged = {charge: number for charge, number in charges if not charge.answers}
        analysis = dataclasses.replace(analysis, releases=charged)
    is_secure = source.is_secure and (released is None or released.secure_noise)
    publishable = reports.publishable_values(analysis, released, is_secure=is_secure)
    sensitive = reports.sensitive_values(analysis)
    values = reports.json_values(publishable)
    artifacts.write_json(folder.sensitive / FILE, reports.json_values(sensitive), private=True)
    artifacts.write_json(folder.released / FILE, values)
    tables = list[ReportTable]()
    for ledger_values in ledgers:
        if settings.run is None:
            title = f"History of {ledger_values['folder']}"
            tables.append(ReportTable(title=title, lines=ledger_values["history"]))
        rows = reports.rows_of(ledger_values, reports.LEDGER)
        tables.append(ReportTable(title="Ledger, publishable", rows=rows))
    rows = reports.rows_of(publishable, reports.PUBLISHABLE)
    tables.append(ReportTable(title="Publishable", rows=rows))
    if rows := reports.sensitive_rows(analysis):
        tables.append(ReportTable(title="SENSITIVE, do not publish", rows=rows, is_sensitive=True))
    if refusal is not None:
        tables.append(ReportTable(title="Left out", rows=[("epsilon, sanitised", refusal)]))
    files = [
        ("publishable", str(folder.root / artifacts.RELEASED / FILE)),
        ("SENSITIVE", str(folder.root / artifacts.SENSITIVE / FILE)),
        *((f"plot, {path.parent.name}", str(path)) for path in plots),
    ]
    tables.append(ReportTable(title="Written to", rows=files))
    values |= {
        **reports.json_values(sensitive),
        "sensitive": list(sensitive),
        "ledgers": [reports.json_values(each) for each in ledgers],
    }
    return RunReport(tables=tables, values=values)


def _read(
    settings: AnalysisSettings, mechanism: Mechanism | None
) -> tuple[VoteSource, list[dict[str, Any]]]:
    """Returns the votes, and what each ledger says."""
    if settings.counts_file is not None:
        if mechanism is None:
            raise ValueError("mechanism: expected what answers the votes of a file, got none")
        source = read_votes_file(
            settings.counts_file,
            mechanism,
            input_is_counts=settings.input_is_counts,
            indices_file=settings.indices_file,
            max_examples=settings.max_examples,
            num_classes=settings.num_classes,
            num_teachers=settings.num_teachers,
        )
        return source, []
    paths = settings.ledgers or ()
    if settings.run is not None:
        paths = (settings.run / artifacts.SENSITIVE,)
        if not (paths[0] / LEDGER_FILE).exists():
            raise LedgerError(
                f"run: expected a run folder with a ledger, got {settings.run}; it lies in that of "
                f"the teachers"
            )
    with contextlib.ExitStack() as stack:
        ledgers = [stack.enter_context(Ledger.read(ledger_folder(path))) for path in paths]
        source = read_ledgers(ledgers, votes_needed=settings.run is not None)
        return source, [reports.ledger_values(ledger) for ledger in ledgers]


@contextlib.contextmanager
def _exact_progress(reporting: Reporting) -> Iterator[Progress]:
    """Shows a bar while the bound `exact` runs."""
    with contextlib.ExitStack() as stack:
        bars: list[Any] = []

        def show(done: int, total: int) -> None:
            if done == 1:
                bar = reporting.progress_bar(desc="exact", total=total, unit="histogram")
                bars.append(stack.enter_context(bar))
            bars[-1].update()

        yield show
