"""Whole runs of a student and of a comparison, from plain values to reports.

What `pate_tf.cli.student` calls, and any program may.
"""

import dataclasses
import pathlib
from typing import Any

from pate_tf import artifacts
from pate_tf.accounting.recommendation import Recommendation
from pate_tf.runs.reporting import QUIET, Reporting, Row, RunReport
from pate_tf.runs.sources import DataSource, TeacherSource
from pate_tf.runs.student import report as student_report
from pate_tf.runs.student.class_sums import SumsPlan
from pate_tf.runs.student.comparison import compare_distillation
from pate_tf.runs.student.labels import Budget, LabelRequest, check_request, open_ledger
from pate_tf.runs.student.making import (
    REPORT,
    NothingAnsweredError,
    Output,
    check_places,
    check_student,
    make_student,
)
from pate_tf.runs.student.target import TargetRequest
from pate_tf.students.catalogue import complete
from pate_tf.students.config import StudentSettings
from pate_tf.teachers.voters import Voter
from pate_tf.values.dataset import Dataset
from pate_tf.values.public import PublicSplit

DISTILLATION = "distillation"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sources:
    """Who is asked about what.

    Attributes:
      data: the public samples.
      pool_size: how many of them, from the first, form the pool; None for the data set's own.
      teachers: the ensemble.
      folder: run folder of the student; None for that of the teachers.
    """

    data: DataSource
    pool_size: int | None = None
    teachers: TeacherSource
    folder: pathlib.Path | None = None

    def load(
        self, reporting: Reporting
    ) -> tuple[PublicSplit, Voter, artifacts.RunDirectory, artifacts.RunDirectory]:
        """Returns public samples, teachers, their run folder and that of the student.

        Raises:
          ValueError: if data or teachers are missing, or do not fit.
        """
        if self.folder is not None:
            check_places(artifacts.RunDirectory(self.folder))
        examples = self.data.load_public(reporting)
        public = examples.split(self.pool_size or examples.dataset.pool_size)
        directory = self.teachers.directory(examples.dataset.name)
        own = artifacts.RunDirectory(self.folder) if self.folder else directory
        return public, self.teachers.load(public), directory, own


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentRun:
    """A student, in plain values.

    Attributes:
      sources: who is asked about what.
      settings: how the student learns.
      request: which labels are bought, or what they may cost.
      budget: of the ensemble.
      save_labels: see `Output`.
      export_formats: see `Output`.
      evaluate_on: see `Output`.
    """

    sources: Sources
    settings: StudentSettings
    request: LabelRequest | TargetRequest
    budget: Budget
    save_labels: bool = True
    export_formats: tuple[str, ...] = ()
    evaluate_on: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComparisonRun:
    """A comparison without privacy, in plain values; see `compare_distillation`.

    Attributes:
      sources: who is asked about what.
      settings: how both students learn: as the supervised one does.
      num_queries: how many of the pool both learn from.
      temperature: that logits are divided by.
      evaluate_on: see `Output`.
    """

    sources: Sources
    settings: StudentSettings
    num_queries: int
    temperature: float
    evaluate_on: str | None = None


def run(asked: StudentRun, reporting: Reporting = QUIET) -> RunReport:
    """Buys labels, trains a student, publishes it; keeps and returns what was found out.

    Where all was paid and no label left there is no student, and the report says so.

    Raises:
      ValueError: if something does not fit; nothing was charged then.
      LedgerError: if the budget does not suffice or the ledger can't be used.
    """
    public, teachers, teachers_directory, directory = asked.sources.load(reporting)
    config = complete(asked.settings, public.dataset)
    request = asked.request
    plan: Recommendation | SumsPlan | None = None
    if isinstance(request, TargetRequest):
        with reporting.clock("planning"):
            plan = request.plan_for(teachers, public.pool, delta=asked.budget.delta)
        reporting.note(plan.in_words())
        request = request.planned(plan)
        config = complete(
            asked.settings, public.dataset, labels_whole_pool=isinstance(plan, SumsPlan)
        )
    output = Output(
        directory=directory,
        save_labels=asked.save_labels,
        export_formats=asked.export_formats,
        evaluate_on=asked.evaluate_on,
    )
    warn_of_raw_pixels(asked, public.dataset, reporting)
    # Before the ledger is opened: what is refused leaves nothing behind.
    check_request(request, public.pool, teachers)
    check_student(config, public, output)
    with (
        open_ledger(
            teachers_directory.sensitive,
            teachers=teachers,
            budget=asked.budget,
            student_runs=[directory.root],
        ) as ledger,
        artifacts.only_writer(directory.released),
    ):
        try:
            result = make_student(
                config,
                public,
                request=request,
                teachers=teachers,
                ledger=ledger,
                output=output,
                reporting=reporting,
            )
        except NothingAnsweredError as error:
            values = student_report.unanswered_values(
                error.labels,
                teachers,
                epsilon_ensemble=ledger.spent().epsilon,
                seconds=reporting.seconds,
            )
            rows = student_report.unanswered_rows(values)
            return _kept(values, rows, directory, plan=plan, failure=str(error))
    seconds = reporting.seconds
    values = student_report.student_values(result, seconds=seconds)
    return _kept(values, student_report.student_rows(result, seconds=seconds), directory, plan=plan)


def _kept(
    values: dict[str, Any],
    rows: list[Row],
    directory: artifacts.RunDirectory,
    *,
    plan: Recommendation | SumsPlan | None,
    failure: str | None = None,
) -> RunReport:
    """SENSITIVE: writes what a run found out below `sensitive/`, and returns it."""
    if plan is not None:
        values, rows = {**values, "plan": plan.to_dict()}, [*rows, ("how chosen", plan.reason)]
    artifacts.write_json(directory.sensitive / REPORT, values, private=True)
    return RunReport(values=values, rows=rows, failure=failure)


def warn_of_raw_pixels(asked: StudentRun, dataset: Dataset, reporting: Reporting) -> None:
    """Says in one line that a recipe which lives on changed images has none to learn from."""
    request = asked.request
    strategy = request.strategy if isinstance(request, TargetRequest) else request.queries.strategy
    needing = [
        name
        for name, is_asked in (
            ("student consistency", asked.settings.student == "consistency"),
            (f"strategy {strategy}", strategy in ("diverse", "typical")),
        )
        if is_asked
    ]
    if dataset.kind == "image" and dataset.augmentation == "none" and needing:
        reporting.warn(
            f"augmentation: none for {dataset.name}, so {' and '.join(needing)} can learn from raw "
            f"pixels alone; say in the Dataset what leaves a label unchanged, such as shift"
        )


def compare(asked: ComparisonRun, reporting: Reporting = QUIET) -> RunReport:
    """Trains both students of a comparison; keeps and returns what was found out. NOT PRIVATE.

    Raises:
      ValueError: if something does not fit.
    """
    public, teachers, _, directory = asked.sources.load(reporting)
    supervised = dataclasses.replace(asked.settings, student="supervised")
    config = dataclasses.replace(complete(supervised, public.dataset), student=DISTILLATION)
    comparison = compare_distillation(
        config,
        public,
        num_queries=asked.num_queries,
        teachers=teachers,
        temperature=asked.temperature,
        evaluate_on=asked.evaluate_on,
        reporting=reporting,
    )
    values = student_report.comparison_values(
        comparison,
        teachers,
        num_queries=asked.num_queries,
        temperature=asked.temperature,
        seconds=reporting.seconds,
    )
    file = directory.sensitive / "distillation_comparison.json"
    artifacts.write_json(file, values, private=True)
    return RunReport(values=values, rows=student_report.comparison_rows(comparison, values, file))
