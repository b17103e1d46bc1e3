"""Runs all steps from private data to a published student.

`run` chooses a plan based on public values (`pate_tf.planning`). `execute` carries out the plan: it
checks everything, fits the source of labels (teachers or feature sums), charges the ledger, draws
the noise, saves the labels, trains the student, estimates its accuracy and publishes it. Commands,
`pate_tf.fit`, `PateClassifier` and the coordinator of silos all use `execute`. These callers differ
only in the source of labels.

These are the steps for one data holder:

- `planning/choose.py` chooses method, mechanism and noise.
- `Labeller.release` (`run/labeller.py`) charges the ledger and draws noisy labels. The method calls
  `release/votes.py` or `release/noisy_sums.py`, which write the charge with `Ledger.debit`
  (`ledger/privacy_ledger.py`) before they draw noise. Mechanisms draw noise with
  `release/noise.py`.
- The labeller calls `postprocessing/label_inference.py`, which infers labels of the whole pool
  (pseudo-labels) from the released values. This step costs no privacy.
- `Student.fit` (`run/student.py`) trains the student with a module of `students/student_kinds`.
- `Student.publish` exports the student, and writes its privacy statement with
  `statement/publishing.py`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import pathlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from pate_tf.accounting.charge import Cost
from pate_tf.core import artifacts
from pate_tf.core.public import Pool, PublicExamples, PublicSplit
from pate_tf.core.reporting import QUIET, Reporting, RunReport, card
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.source import PrivateSource
from pate_tf.data.data_source import DataSource
from pate_tf.data.loaded_data import Data
from pate_tf.models.ridge import RIDGE
from pate_tf.planning import release_settings
from pate_tf.planning.choose import choose
from pate_tf.queries.labels import Labels
from pate_tf.release.feature_sums import FeatureSums, default_folder
from pate_tf.run.labeller import Labeller, delta_of, ledger_home
from pate_tf.run.student import REPORT, Student, student_report
from pate_tf.statement import PAGE_FILE
from pate_tf.statement.report import write_pages

if TYPE_CHECKING:
    from pate_tf.teachers.teacher_set import Teachers
    from pate_tf.teachers.voters import Voter


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunData:
    """The public and private data of a run.

    Attributes:
        public: the pool, and held-out samples on which the student is evaluated.
        private: training records; None if teachers or sums are already stored. SENSITIVE.
        held_back: records for an accuracy estimate, whose cost is charged; None without an
            estimate. SENSITIVE.
        origin: the flags with which the user named the data, for storage in the run folder.
        named_source: named data source that is charged for releases; None for the data source of
            `private`.
    """

    public: PublicSplit
    private: PrivateExamples | None = None
    held_back: PrivateExamples | None = None
    origin: DataSource | None = None
    named_source: PrivateSource | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class OneHolder:
    """Provides labels from the teachers or feature sums of one data holder.

    Attributes:
        source: the teachers or feature sums.
        settings: settings of the release, such as epsilon and mechanism.
        directory: run folder of the source, which contains the source's ledger.
        student_runs: other run folders, which contain students of this source.
        charged_to: data source that is charged, if the user named one; None to charge the source
            of the records.
        reporting: object that shows progress and warnings.
    """

    source: Any
    settings: release_settings.ReleaseSettings
    directory: pathlib.Path
    student_runs: Sequence[pathlib.Path] = ()
    charged_to: PrivateSource | None = None
    reporting: Reporting = QUIET

    def fit(self, data: RunData) -> None:
        """Trains the teachers or sums the features; does nothing without private records."""
        if data.private is None:
            return
        facts: dict[str, Any] = {}
        if isinstance(self.source, FeatureSums):
            facts["flags"] = data.origin and data.origin.flags
        elif data.origin is not None:
            facts = {"data_source": data.origin, "reporting": self.reporting}
        self.source.fit(data.private, data.public.pool, **facts)

    def labels(self, plan: release_settings.ReleasePlan, pool: Pool) -> Labels:
        """Charges the ledger, draws noise from the plan's mechanism, and returns the labels."""
        labeller = Labeller.from_settings(
            self.source,
            self.settings,
            directory=self.directory,
            charged_to=self.charged_to,
            student_runs=self.student_runs,
            reporting=self.reporting,
        )
        with labeller:
            return labeller.release(plan, pool)


@dataclasses.dataclass(frozen=True, repr=False)
class Fitted:
    """The result of a run: the student, the noisy labels, the plan and their source.

    >>> import pate_tf
    >>> data = pate_tf.Data.load("digits")
    >>> sums = pate_tf.FeatureSums(directory=folder / "fitted", representation="raw")
    >>> fitted = pate_tf.fit(
    ...     data, method="feature_sums", epsilon=8.0, delta=1e-5, source=sums,
    ...     student=pate_tf.Student("supervised", steps=20))
    >>> fitted.student.predict(data.held_out).shape, fitted.cost.unit
    ((197,), 'record')

    Attributes:
        student: a model that learned only from the labels and the public pool. Public.
            `fitted.student.publish()` exports it with its privacy statement.
        labels: the noisy labels and their cost. Public.
        plan: the settings of the release, such as mechanism and noise, with reasons. Public.
        source: the teachers or feature sums. SENSITIVE. None after unpickling, because a pickle
            contains only public values.
        published: the exported student and its privacy statement; None if it was not published.
            Public.
    """

    student: Student
    labels: Labels
    plan: release_settings.ReleasePlan
    source: Teachers | Voter | FeatureSums | None
    published: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "source": None}

    @property
    def cost(self) -> Cost:
        """Worst-case cost of the labels, with `epsilon`, `delta`, `unit` and `in_words()`."""
        return self.labels.cost

    def predict(self, inputs: Any) -> npt.NDArray[Any]:
        """Returns the student's predictions, see `Student.predict`."""
        return self.student.predict(inputs)

    def predict_proba(self, inputs: Any) -> npt.NDArray[Any]:
        """Returns the student's class probabilities, see `Student.predict_proba`."""
        return self.student.predict_proba(inputs)

    def evaluate(
        self, inputs: PublicExamples | npt.ArrayLike, labels: npt.ArrayLike | None = None
    ) -> float | None:
        """Returns the student's accuracy, see `Student.evaluate`."""
        return self.student.evaluate(inputs, labels)

    def publish(self, folder: Any = None, **options: Any) -> Any:
        """Publishes the student, see `Student.publish`."""
        return self.student.publish(folder, **options)

    def report(self, folder: pathlib.Path, origin: DataSource | None = None) -> RunReport:
        """Returns the report of the run, and writes it to the run folder.

        The report is written as JSON to `sensitive/`. A page `report.html` and a model card are
        written to `released/`.

        Args:
            folder: the run folder.
            origin: data of the run; the report names the public file.
        """
        report = student_report(self.published, self.student)
        forecast = self.plan.forecast
        values = {
            **report.values,
            "forecast": None if forecast is None else list(forecast[:2]),
            "forecast_values": None if forecast is None else forecast._asdict(),
            "folder": str(folder),
            **({} if origin is None else origin.facts),
        }
        target = artifacts.RunDirectory(folder).sensitive / REPORT
        artifacts.write_json(target, values, private=True)
        page = write_pages(folder)
        inputs = "FOLDER" if self.labels.pool.dataset.kind == "image" else "FILE"
        named = "named after its file; other files with the same people need the same --source_name"
        rows = [
            *[("source", named)] * bool(values.get("is_named_after_file")),
            ("statement", str(page.with_name(PAGE_FILE))),
            ("report", str(page)),
            ("publish", f"only {page.parent}, after `pate audit run --train_dir={folder}`"),
            ("next", f"pate predict --student={folder} --inputs={inputs} --output=predictions.csv"),
        ]
        return RunReport(values=values, rows=[*report.rows, *rows])

    def __repr__(self) -> str:
        return f"Fitted({self.student!r}, {self.labels!r})"

    _repr_html_ = card


def run(
    data: RunData,
    settings: release_settings.RunSettings,
    *,
    source: Teachers | Voter | FeatureSums | None = None,
    source_folder: pathlib.Path | None = None,
    student: Student | None = None,
    reporting: Reporting = QUIET,
) -> tuple[Fitted, pathlib.Path]:
    """Chooses a plan based on public values, carries it out, and returns the result.

    The ledger in the run folder records the charge. If the same run is repeated, nothing more is
    charged.

    Args:
        data: public and private data of the run.
        settings: the user's settings, such as epsilon and the number of teachers.
        source: teachers or feature sums, whether or not they are fitted. Default: chosen by the
            plan.
        source_folder: run folder for a source without a folder.
        student: student with its settings. Default: a student with `settings.student`.
        reporting: object that shows progress and warnings.

    Returns:
        The student, the labels and the plan; and the run folder.

    Raises:
        ForecastError: if the labels are not expected to be better than guessing, or if private data
            are not expected to improve on public labels, unless `accept_forecast` is set. In this
            case, nothing was charged.
        ValueError: if data and settings contradict each other. In this case, nothing was charged.
        LedgerError: if the ledger can't be used.
    """
    pool = data.public.pool
    release = settings.release
    output = settings.output
    if release.budget.evaluate_epsilon is not None and data.held_back is None:
        data = held_apart(data)
    learner = student or Student.from_settings(settings.student, reporting=reporting)
    are_sums = release.method == release_settings.FEATURE_SUMS or isinstance(source, FeatureSums)
    released = None if output.folder is None else output.folder / artifacts.RELEASED
    # The student is checked first, because trying representations takes longer.
    learner.check(pool, released, export_formats=output.export_formats, labels_whole_pool=are_sums)
    known, delta = known_of(data, release, source, source_folder or output.folder, reporting)
    budget = dataclasses.replace(release.budget, delta=delta)
    release = dataclasses.replace(release, budget=budget)
    plan = choose(known, release, reporting)
    for line in plan.notes(pool.majority_share):
        reporting.note(line)
    reporting.confirm()
    if plan.method == release_settings.FEATURE_SUMS and known.sums is not None:
        source = known.sums
        source.settle(pool.dataset, plan.representation)
    elif source is None and plan.voters is not None:
        from pate_tf.teachers.teacher_set import Teachers

        name = f"{data.public.dataset.name}-{plan.voters.num_teachers}"
        source = Teachers(
            RIDGE,  # a closed-form model, which needs few records
            num_teachers=plan.voters.num_teachers,
            directory=output.folder or pathlib.Path("runs") / name,
            representation=release.queries.representation,
            seed=release.queries.seed,
            verbose=reporting.verbose,
        )
    origin = ledger_home(source, source_folder)
    folder = output.folder or origin
    giver = OneHolder(
        source=source,
        settings=dataclasses.replace(release, method=plan.method),
        directory=origin,
        student_runs=[folder],
        charged_to=data.named_source,
        reporting=reporting,
    )
    if student is None:
        learner = Student.from_settings(
            settings.student,
            directory=folder / artifacts.RELEASED,
            reporting=reporting,
            is_locked=True,
        )
    fitted = execute(
        plan, data, giver, learner, output, folder=folder, is_published=settings.is_published
    )
    return fitted, folder


def held_apart(data: RunData) -> RunData:
    """Returns data in which 10 % of the private records are held out for an accuracy estimate."""
    if data.private is None:
        raise ValueError(
            "evaluate_epsilon needs private records that were not used for training, but this run "
            "folder has stored teachers or sums. Use `pate run`, or pass the private records again."
        )
    rest, held_back = Data(private=data.private, public=data.public).hold_back()
    return dataclasses.replace(data, private=rest.private, held_back=held_back)


def execute(
    plan: release_settings.ReleasePlan,
    data: RunData,
    giver: Any,
    student: Student,
    output: release_settings.Output,
    *,
    folder: pathlib.Path,
    is_published: bool = True,
) -> Fitted:
    """Carries out a plan. Everything that can fail is checked before anything is charged.

    Args:
        plan: mechanism, noise, queries and student that were chosen for the release.
        data: public and private data of the run.
        giver: object that provides the labels, such as `OneHolder`. Its method `fit` prepares the
            labels, for example by training teachers, without a charge. Its method `labels` charges
            the cost of the plan, draws the noise and returns the labels.
        student: student that will be trained on the labels.
        output: settings of the files that are written, such as their formats.
        folder: run folder; public files are written to its subfolder `released/`.
        is_published: whether the student is exported with its privacy statement.
    """
    pool = data.public.pool
    released = folder / artifacts.RELEASED
    student.check(
        pool,
        released,
        export_formats=output.export_formats,
        labels_whole_pool=plan.method == release_settings.FEATURE_SUMS,
    )
    giver.fit(data)
    published = None
    with contextlib.ExitStack() as stack:
        if is_published or output.save_labels:
            # The folder is locked first, so that a second command fails before anything is charged.
            stack.enter_context(artifacts.only_writer(released))
        labels = giver.labels(plan, pool)
        if output.save_labels:
            labels.save(released)
        student.fit(pool, labels, held_out=data.public.held_out, fits=plan.student)
        if data.held_back is not None and plan.evaluate_epsilon is not None:
            student.estimate_accuracy(data.held_back, plan.evaluate_epsilon)
        if is_published:
            published = student.publish(
                released,
                evaluate_on=data.public,
                export_formats=output.export_formats,
                holder=output.holder,
                purpose=output.purpose,
                run_name=output.run_name,
            )
    return Fitted(student, labels, plan, getattr(giver, "source", None), published)


def known_of(
    data: RunData,
    settings: release_settings.ReleaseSettings,
    source: Any,
    folder: pathlib.Path | None,
    reporting: Reporting,
) -> tuple[release_settings.Known, float]:
    """Returns public facts about the data and the source of labels, and the delta of the run."""
    pool = data.public.pool
    private = data.private
    voters = None
    sums = source if isinstance(source, FeatureSums) else None
    if source is None:
        sums = FeatureSums(
            directory=folder,
            representation=settings.queries.representation,
            seed=settings.queries.seed,
            verbose=reporting,
        )
    elif sums is None and getattr(source, "is_fitted", True):
        voters = release_settings.Electorate.of(
            getattr(source, "identified", source).for_pool(pool)
        )
    elif sums is None and private is not None:
        _, model, representation, number = source.chosen(private, pool)
        voters = release_settings.Electorate(
            num_teachers=number, model=model, representation=representation
        )
    if private is not None:
        unit = "record" if private.owners is None else "owner"
        number = private.public_size
    else:
        fitted = getattr(source, "identified", source)
        unit = fitted.unit
        number = fitted.num_records if unit == "record" else None
    name = pool.dataset.name
    folders = [folder] if folder else [default_folder(name)]
    if folder is None and (own := getattr(source, "directory", None)) is not None:
        folders = [own]
    # The held-back records are protected, too.
    delta = delta_of(settings.budget, folders, number and number + len(data.held_back or ()), unit)
    known = release_settings.Known.of(pool, unit=unit, num_records=number, voters=voters, sums=sums)
    return known, delta
