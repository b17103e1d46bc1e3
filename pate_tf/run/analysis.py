"""A whole analysis: account for votes, release once, write what may and what may not be published.

What `pate analysis` calls, and any program may. TensorFlow is not imported.
"""

import contextlib
import dataclasses
import pathlib
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from pate_tf.accounting.charge import Charge
from pate_tf.accounting.cost_release import DEFAULT_PROFILE, PlannedRelease
from pate_tf.accounting.delta import DEFAULT_DELTA
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.analysis import report as reports
from pate_tf.analysis.accounting import (
    Analysis,
    AnalysisConfig,
    Progress,
    analyse,
    with_smooth_sensitivity,
)
from pate_tf.analysis.release import release
from pate_tf.analysis.release_planning import (
    FAILURE,
    SANITISED,
    SMOOTH_SENSITIVITY,
    Released,
    ReleaseRequest,
)
from pate_tf.analysis.votes import (
    LEDGER_FILE,
    VoteSource,
    check_mechanisms,
    ledger_folder,
    read_ledgers,
    read_votes_file,
)
from pate_tf.core import artifacts
from pate_tf.core.reporting import QUIET, Reporting, Row, Table, TablesReport
from pate_tf.core.settings import Settings, setting
from pate_tf.ledger import BudgetExceeded, BudgetMismatch, Ledger, LedgerError
from pate_tf.release.noise import NoiseSource, SystemNoise
from pate_tf.statement import check
from pate_tf.statement.silos import SilosStatement

FILE: Final = "analysis.json"
JOURNAL_FILE: Final = "rounds"  # the folder of a coordinator has it
DEFAULT_OUTPUT: Final = pathlib.Path("runs/analysis")
LEFT_AS_IT_WAS: Final = (
    "left as it was: another ledger, another delta, or queries chosen by noisy labels, which the "
    "release does not cover"
)
NOT_RELEASED: Final = "`release=sanitised` draws one, once; the ledger is charged for it first"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceSettings(Settings):
    """Which votes and ledgers are analysed: a run folder, ledgers, or a file of votes."""

    run: pathlib.Path | None = setting(
        None,
        flag="train_dir",
        help="A run folder: its ledger, with the votes of everything that was charged.",
    )
    ledgers: tuple[pathlib.Path, ...] | None = setting(
        None,
        flag="ledger",
        help="Ledgers, by file or folder, separated by commas: history, spending and what remains; "
        "several are composed, of ensembles trained on the same records. With --statement also "
        "silos' accounts and a coordinator's folder.",
    )
    statement: pathlib.Path | None = setting(
        None,
        help="A statement in JSON to verify: against --ledger, else the ledger of --train_dir, "
        "else that of the run whose released/ folder holds it. An error if they say otherwise. "
        "Alone it reads no votes and writes nothing.",
    )
    counts_file: pathlib.Path | None = setting(
        None,
        help="A .npy file of votes: labels [num_teachers, num_queries], or with --input_is_counts "
        "counts [num_queries, num_classes]. Whole numbers, of integer or float type.",
    )
    input_is_counts: bool = setting(
        False, advanced=True, help="Whether --counts_file holds counts, not labels."
    )
    indices_file: pathlib.Path | None = setting(
        None,
        advanced=True,
        help="A .npy file with the indices of the queries to analyse. Default: all.",
    )
    max_examples: int | None = setting(
        None, least=1, advanced=True, help="How many queries, from the first. Default: all."
    )
    num_classes: int | None = setting(
        None,
        flag="nb_labels",
        least=1,
        advanced=True,
        help="Number of classes, public. Default: as many as --counts_file has counts; 10 for "
        "labels. A class without votes only makes the bounds larger, never too small.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.statement is not None and not self.stores:
            raise ValueError(
                "statement: expected `ledgers` or `run` to verify it against, or a file below the "
                "released/ folder of a run, got neither"
            )
        if self.counts_file is None:
            for name in ("input_is_counts", "indices_file", "max_examples", "num_classes"):
                if getattr(self, name):
                    raise ValueError(f"{name}: expected with `counts_file` alone, got it without")

    @property
    def stores(self) -> tuple[pathlib.Path, ...]:
        """The ledgers; else the `sensitive/` folder of the run, or of the statement's own run."""
        root = self.run
        if root is None and self.statement is not None and self.counts_file is None:
            parents = self.statement.absolute().parents
            root = next((one.parent for one in parents if one.name == artifacts.RELEASED), None)
        return self.ledgers or (() if root is None else (root / artifacts.SENSITIVE,))


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleaseSettings(Settings):
    """What is released of the data-dependent cost, once for the same votes."""

    kinds: tuple[str, ...] | None = setting(
        None,
        flag="release",
        help="What is published about the data-dependent cost: sanitised (an epsilon with noise), "
        "gate (whether the labels may be released, to be asked before they are), both from one "
        "draw; or smooth_sensitivity (noise by smooth sensitivity, and its table); or none. A "
        "draw happens once for the same votes; their ledger is charged for it first, and stores "
        "it. Default: none, but what a --train_dir or --ledger stores is shown again.",
    )
    profile: float | None = setting(
        None,
        above=0.0,
        most=1.0,
        advanced=True,
        help="Releases are planned for hypothetical votes: every query led by this share of the "
        "teachers. A ledger fixed its own before there were votes, this and the rest of the plan, "
        f"and refuses another. Default: {DEFAULT_PROFILE:g}.",
    )
    moment: float | None = setting(
        None,
        flag="release_moment",
        above=0.0,
        advanced=True,
        help="Moment of the release. Default: planned.",
    )
    smoothness: float | None = setting(
        None,
        flag="release_smoothness",
        above=0.0,
        advanced=True,
        help="eta: by how much one teacher may change the logarithm of the smooth cost; beta for "
        "smooth_sensitivity. Default: planned.",
    )
    sigma: float | None = setting(
        None,
        flag="release_sigma",
        above=0.0,
        advanced=True,
        help="Standard deviation of the release's noise, in sensitivities. Default: planned.",
    )
    confidence: float | None = setting(
        None,
        above=0.5,
        below=1.0,
        advanced=True,
        help=f"Probability that the sanitised epsilon is not too low. Default: {1.0 - FAILURE:g}.",
    )
    budget: float | None = setting(
        None,
        flag="gate_budget",
        above=0.0,
        advanced=True,
        help="Largest cost at the moment, natural logarithm, that the gate lets pass. Default: "
        "planned.",
    )
    attempts: int | None = setting(
        None,
        least=1,
        advanced=True,
        help="With --release=gate: how often the gate is tried on these votes in all, in any "
        "folder; its epsilon covers that many. Without it, it covers one and is no worst case.",
    )
    discard_earlier: bool = setting(
        False,
        flag="discard_release",
        advanced=True,
        help="Put the release asked for in the place of an earlier one from the same votes, which "
        "WAS NEVER PUBLISHED. How often that was said is reported.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.kinds == ():
            raise ValueError("kinds: expected what is to be released, or none, got nothing")
        if not self.kinds:
            for field in dataclasses.fields(self):
                if field.name != "kinds" and getattr(self, field.name) not in (None, False):
                    raise ValueError(f"{field.name}: expected a release with it, got none")

    def request(
        self, planned: PlannedRelease, *, delta: float, adaptive: bool, shows_again: bool
    ) -> ReleaseRequest | None:
        """Returns what is to be released; None for nothing.

        Args:
            planned: what the ledger fixed; it stands where nothing else is asked for.
            delta: in total.
            adaptive: whether queries were chosen by earlier noisy labels.
            shows_again: whether a stored draw is shown again without asking.
        """
        kinds = self.kinds
        if kinds is None:
            kinds = (SANITISED,) if shows_again and not adaptive else ("none",)
        if kinds == ("none",):
            return None
        names = ("profile", "moment", "smoothness", "sigma", "confidence")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        return ReleaseRequest(
            kinds=kinds,
            delta=delta,
            planned=dataclasses.replace(planned, **given),
            adaptive=adaptive,
            budget=self.budget,
            attempts=self.attempts,
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunSettings(Settings):
    """What else an analysis does, and where its results go."""

    delta: float | None = setting(
        None,
        group="accounting",
        least=0.0,
        below=1.0,
        help=f"Delta of every epsilon. Default: the ledger's, else {DEFAULT_DELTA:g}.",
    )
    adaptive: bool = setting(
        False,
        group="accounting",
        help="Queries were chosen by looking at earlier noisy labels: only data-independent "
        "accounting holds, and releases are refused.",
    )
    beta: float = setting(
        0.09,
        group="accounting",
        above=0.0,
        advanced=True,
        help="Rate, per teacher, of the smooth sensitivity that --release=smooth_sensitivity "
        "tabulates.",
    )
    output: pathlib.Path | None = setting(
        None,
        group="output",
        flag="output_dir",
        help="Where sensitive/analysis.json, released/analysis.json and sensitive/releases/ go. "
        "Default: the run folder of --train_dir, else runs/analysis.",
    )
    plots: pathlib.Path | None = setting(
        None,
        group="output",
        help="Folder for plots, as PNG files and for TensorBoard: below its sensitive/ and "
        "released/. The gap against the number of teachers needs a file of labels.",
    )
    report_file: str | None = setting(
        None, group="output", help="Where to write what is printed, as JSON (sensitive)."
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnalysisRun:
    """An analysis, in plain values.

    Attributes:
        source: the votes that are accounted for.
        mechanism: how labels are drawn from a file's votes; None for ledgers, which say it.
        said: what the user says of the ledgers' mechanism: name and fields; checked.
        accounting: how costs become an epsilon, at the delta of `settings`, else of the ledgers.
        release: what is released.
        settings: the rest.
    """

    source: SourceSettings
    mechanism: Mechanism | None = None
    said: Mapping[str, object] = dataclasses.field(default_factory=dict)
    accounting: AnalysisConfig = dataclasses.field(default_factory=AnalysisConfig)
    release: ReleaseSettings = dataclasses.field(default_factory=ReleaseSettings)
    settings: RunSettings = dataclasses.field(default_factory=RunSettings)


# Teachers over queries, beyond which a file of votes is probably the other way round.
MOST_TEACHERS_A_QUERY = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class VotesRead:
    """What was read: the votes, a report of each ledger, and the ledgers' delta if it is one."""

    source: VoteSource
    ledgers: tuple[reports.LedgerReport, ...] = ()
    delta: float | None = DEFAULT_DELTA


@dataclasses.dataclass(frozen=True, kw_only=True)
class AnalysisReport:
    """What an analysis found out.

    Attributes:
        analysis: every guarantee; its bounds are SENSITIVE.
        released: publishable; None if nothing was released.
        refusal: why an optional release was left out; None if it was not.
        publishable: what `released/analysis.json` holds.
        sensitive: SENSITIVE; what `sensitive/analysis.json` holds.
    """

    analysis: Analysis
    released: Released | None
    refusal: str | None
    publishable: dict[str, Any]
    sensitive: dict[str, Any] = dataclasses.field(repr=False)


def read_votes(settings: SourceSettings, mechanism: Mechanism | None = None) -> VotesRead:
    """Reads a file of votes, or ledgers and their votes.

    Args:
        settings: which; of a run all votes must be there.
        mechanism: how labels are drawn from a file's votes.

    Raises:
        LedgerError: if a ledger or a run's votes are missing or damaged.
        ValueError: if votes are not of one ensemble, an ensemble is named twice, or a file is
            broken.
    """
    if settings.counts_file is not None and mechanism is not None:
        source = read_votes_file(
            settings.counts_file,
            mechanism,
            input_is_counts=settings.input_is_counts,
            indices_file=settings.indices_file,
            max_examples=settings.max_examples,
            num_classes=settings.num_classes,
        )
        return VotesRead(source=source)
    paths = settings.stores
    if settings.run is not None and not (paths[0] / LEDGER_FILE).exists():
        raise LedgerError(
            f"run: expected a ledger in {paths[0]}, got none; it lies in the run folder of the "
            f"teachers"
        )
    with contextlib.ExitStack() as stack:
        ledgers = [stack.enter_context(Ledger.read(ledger_folder(path))) for path in paths]
        deltas = {ledger.delta for ledger in ledgers}
        return VotesRead(
            source=read_ledgers(ledgers, votes_needed=settings.run is not None),
            ledgers=tuple(reports.ledger_report(ledger) for ledger in ledgers),
            delta=deltas.pop() if len(deltas) == 1 else None,
        )


def account(
    asked: AnalysisRun,
    source: VoteSource,
    request: ReleaseRequest | None,
    *,
    folder: artifacts.RunDirectory,
    noise: NoiseSource,
    progress: Progress | None = None,
) -> AnalysisReport:
    """Accounts for votes, releases what was asked for, and writes both halves of the result.

    Args:
        asked: what to do.
        source: the votes.
        request: what is released; None for nothing.
        folder: where `sensitive/analysis.json`, `released/analysis.json` and draws from files of
            votes go. Nothing is written there before the accounting succeeded. Draws from a
            ledger's votes are charged to the ledger, which stores them.
        noise: of a release; not drawn from if there is a draw already.
        progress: called with (histograms done, histograms in all) while the bound `exact` runs.

    Raises:
        ValueError: if the mechanism lacks a bound, adaptive queries are to have a data-dependent
            cost, or a release is not possible that was asked for.
        LedgerError: if a ledger can't be charged for the release.
        OSError: if a result can't be written.
    """
    folder.check(
        files=[f"{half}/{FILE}" for half in (artifacts.SENSITIVE, artifacts.RELEASED)],
        folders=[artifacts.SENSITIVE, artifacts.RELEASED, f"{artifacts.SENSITIVE}/releases"],
    )
    if asked.settings.adaptive and request is None:
        if asked.accounting.bounds is not None:
            raise ValueError("bounds: expected none for adaptive queries: no such bound holds")
        source = dataclasses.replace(source, groups=None)
    analysis = analyse(source, asked.accounting, progress=progress)
    if request is not None and SMOOTH_SENSITIVITY in request.kinds:
        analysis = with_smooth_sensitivity(analysis, source, beta=asked.settings.beta)
    released, refusal = None, None
    try:
        if request is not None and source.labels_left and source.folder is None:
            raise ValueError("release: expected one ledger, got several: release from each alone")
        if request is not None:
            discards = asked.release.discard_earlier
            place = folder.root / artifacts.SENSITIVE
            released = release(source, request, noise, folder=place, discard_earlier=discards)
    except (ValueError, BudgetExceeded, BudgetMismatch) as error:
        if asked.release.kinds is not None:
            raise
        refusal = str(error)
    if released is not None:
        charged: dict[Charge, int] = {released.plan: 1}
        if source.folder is not None:
            with Ledger.read(source.folder) as ledger:
                charged = {one: number for one, number in ledger.charges.items() if not one.answers}
        analysis = analysis.with_releases(charged)
    is_secure = source.is_secure and (released is None or released.secure_noise)
    publishable = reports.publishable_report(analysis, released, is_secure=is_secure)
    sensitive = reports.sensitive_report(analysis)
    artifacts.write_json(folder.sensitive / FILE, sensitive, private=True)
    artifacts.write_json(folder.released / FILE, publishable)
    return AnalysisReport(
        analysis=analysis,
        released=released,
        refusal=refusal,
        publishable=publishable,
        sensitive=sensitive,
    )


def run(
    asked: AnalysisRun, reporting: Reporting = QUIET, *, noise: NoiseSource | None = None
) -> TablesReport:
    """Accounts for votes, releases what was asked for, keeps and returns what was found out.

    Args:
        asked: what to do.
        reporting: how progress is shown.
        noise: of a release. Default: of the operating system.

    Raises:
        ValueError: if something does not fit; nothing was charged then.
        LedgerError: if a ledger can't be used, or can't be charged for the release.
        OSError: if a result can't be written.
    """
    tables, settings, run_folder = list[Table](), asked.settings, asked.source.run
    if settings.plots is not None:
        artifacts.RunDirectory(settings.plots).check()
    if asked.source.statement is not None:
        fields = artifacts.read_json(asked.source.statement)
        told = check_by_paths(fields, asked.source.stores)
        tables.append(Table(title="Statement", rows=[(str(asked.source.statement), told)]))
        is_alone = asked.source.run is None and not asked.source.ledgers
        if is_alone or fields.get("statement", "labels") != "labels":
            return TablesReport(tables=tables, values={"statement": told})
    read = read_votes(asked.source, asked.mechanism)
    source = read.source
    if (
        source.labels is not None
        and source.labels.num_teachers > MOST_TEACHERS_A_QUERY * source.labels.num_queries
    ):
        reporting.warn(
            f"{asked.source.counts_file}: read as labels of {source.labels.num_teachers} teachers "
            f"for {source.labels.num_queries} queries; transpose it if it is the other way round"
        )
    if asked.source.counts_file is None:
        check_mechanisms(source.num_charged, asked.said)
    delta = read.delta if settings.delta is None else settings.delta
    if delta is None:
        raise ValueError("delta: expected one, as the ledgers differ in theirs, got none")
    asked = dataclasses.replace(
        asked, accounting=dataclasses.replace(asked.accounting, delta=delta)
    )
    request = asked.release.request(
        source.planned_release or PlannedRelease(),
        delta=delta,
        adaptive=settings.adaptive,
        shows_again=source.has_release,
    )
    # Everything that may fail without a draw comes before a ledger is charged for one.
    of_run, drawn, is_stated = list[Row](), list[pathlib.Path](), False
    if run_folder is not None:
        of_run = reports.run_rows(artifacts.RunDirectory(run_folder))
        if request is not None:
            is_stated = check.read_statement(artifacts.RunDirectory(run_folder)) is not None
    if settings.plots is not None:
        from pate_tf.analysis import plots

        with reporting.clock("drawing plots"):
            folder = artifacts.RunDirectory(settings.plots)
            drawn = plots.draw(folder, source, asked.accounting)
    folder = artifacts.RunDirectory(settings.output or run_folder or DEFAULT_OUTPUT)
    with _exact_progress(reporting) as progress:
        found = account(
            asked,
            source,
            request,
            folder=folder,
            noise=noise or SystemNoise(),
            progress=progress,
        )
    for one in read.ledgers:
        if run_folder is not None:
            tables.append(Table(title="Ledger", rows=one.together))
        else:
            tables.append(Table(title=f"History of {one.values['folder']}", lines=one.history))
            tables.append(Table(title="Ledger, publishable", rows=one.balance + one.together))
    is_secure = found.publishable["secure_noise"]
    rows = reports.publishable_rows(found.analysis, found.released, is_secure=is_secure)
    tables.append(Table(title="Publishable", rows=rows))
    if rows := reports.sensitive_rows(found.analysis):
        tables.append(Table(title="SENSITIVE, do not publish", rows=rows, is_sensitive=True))
    left_out = found.refusal
    has_votes = run_folder is not None and source.groups
    if has_votes and request is None and asked.release.kinds is None:
        left_out = NOT_RELEASED
    if left_out is not None:
        tables.append(Table(title="Left out", rows=[("epsilon, sanitised", left_out)]))
    files = [
        ("publishable", str(folder.root / artifacts.RELEASED / FILE)),
        ("SENSITIVE", str(folder.root / artifacts.SENSITIVE / FILE)),
    ]
    is_sanitised = found.released is not None and found.released.sanitised is not None
    if run_folder is not None and is_stated and is_sanitised:
        page = check.add_release(artifacts.RunDirectory(run_folder))
        told = f"{page}, now with the sanitised epsilon" if page else LEFT_AS_IT_WAS
        files.append(("privacy statement", told))
    files += [(f"plot, {path.parent.name}", str(path)) for path in drawn]
    tables.append(Table(title="Written to", rows=files))
    if of_run:
        tables.append(Table(title="The run", rows=of_run))
    values = {**found.publishable, **found.sensitive, "sensitive": list(found.sensitive)}
    if read.ledgers:
        values["ledgers"] = [one.values for one in read.ledgers]
    return TablesReport(tables=tables, values=values)


def check_by_paths(fields: Mapping[str, Any], paths: tuple[pathlib.Path, ...]) -> str:
    """Checks a statement of any system against ledgers, accounts and a coordinator's folder.

    Raises:
        ValueError: if one of them says otherwise.
        LedgerError: if one is missing or damaged.
    """
    journals = [path for path in paths if (path / JOURNAL_FILE).exists()]
    with check.opened_stores([path for path in paths if path not in journals]) as stores:
        statement = check.check_statement(fields, *stores)
    for path in journals:
        if not isinstance(statement, SilosStatement):
            raise ValueError(f"statement: expected one of silos for the coordinator's {path}")
        statement.check_journal(_answers_of_silos(path, statement))
    return "agrees with the ledger" if len(paths) == 1 else f"agrees with {len(paths)} ledgers"


def _answers_of_silos(
    folder: pathlib.Path, statement: SilosStatement
) -> dict[str, Counter[Charge]]:
    """Returns what each silo answered in a run, as its coordinator's journal has it."""
    from pate_tf.silos.journal import CoordinatorJournal
    from pate_tf.silos.messages import Refusal

    charges: dict[str, Counter[Charge]] = {one.name: Counter() for one in statement.silos}
    with contextlib.closing(CoordinatorJournal(statement.run_id, list(charges), folder)) as journal:
        for one in journal.rounds():
            replies = journal.replies(one.number)
            if not set(one.mechanisms) <= set(charges):
                raise ValueError("statement: expected the silos of the coordinator's journal")
            for name, reply in replies.items():
                if not isinstance(reply, Refusal):
                    charges[name][one.mechanisms[name]] += len(one.queries)
    return charges


@contextlib.contextmanager
def _exact_progress(reporting: Reporting) -> Iterator[Progress]:
    """Shows a bar while the bound `exact` runs."""
    with contextlib.ExitStack() as stack:
        bars: list[Any] = []

        def show(done: int, total: int) -> None:
            if done == 1:
                bar = reporting.progress_bar("exact", total, "histogram")
                bars.append(stack.enter_context(bar))
            bars[-1](1)

        yield show
