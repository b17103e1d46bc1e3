"""A whole run of train_student.py: labels, student, report, and the comparison."""

import dataclasses
import pathlib
from typing import Any

import numpy as np

from pate_tf.accounting.charge import rounded_up
from pate_tf.api.labelling import ReleasePlan, check_teachers, open_ledger, plan_release
from pate_tf.api.reporting import NOT_MEASURED, QUIET, UNEVEN, Reporting, Row, RunReport
from pate_tf.api.settings import Budget, LabelSettings
from pate_tf.api.sources import DataSource, TeacherSource
from pate_tf.api.student_training import (
    REPORT,
    NothingAnsweredError,
    Output,
    StudentReport,
    certainty,
    check_places,
    check_student,
    make_student,
)
from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import PoolLabels, PublicSplit
from pate_tf.queries.queried import QueriedLabels
from pate_tf.students import evaluation
from pate_tf.students.batches import outputs
from pate_tf.students.catalogue import complete
from pate_tf.students.config import DISTILLATION, OutputSettings, StudentConfig, StudentSettings
from pate_tf.students.evaluation import ByClass
from pate_tf.students.supervised import train_distilled
from pate_tf.teachers import voters as counting
from pate_tf.teachers.voters import Voter

# Distillation against labels by plurality: a comparison that is NOT PRIVATE and exports nothing.
#
# It is figure 5 of Papernot et al. 2017 (appendix B.1) for one number of queries: both students
# learn from the same points of the pool, one from the teachers' averaged probabilities, the other
# from the class with most votes, without noise. No ledger is charged, as nothing may leave.


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationReport:
    """SENSITIVE: what the comparison found out; None wherever public labels are missing.

    Attributes:
      distilled: accuracy of the student of the averaged probabilities.
      plurality: accuracy of the student of the labels by plurality.
      plurality_labels: accuracy of those labels.
      constant_answer: public; what always answering the commonest class would get right.
      evaluated_on: public; which samples evaluated both, of `evaluation.EVALUATED_ON`.
    """

    distilled: evaluation.Accuracy | None = dataclasses.field(repr=False)
    plurality: evaluation.Accuracy | None = dataclasses.field(repr=False)
    plurality_labels: evaluation.Accuracy | None = dataclasses.field(repr=False)
    constant_answer: float | None
    evaluated_on: str | None


def compare_distillation(
    config: StudentConfig,
    public: PublicSplit,
    *,
    num_queries: int,
    teachers: Voter,
    temperature: float,
    evaluate_on: str | None = None,
    reporting: Reporting = QUIET,
) -> DistillationReport:
    """Trains and evaluates both students. NOT PRIVATE.

    Args:
      config: how both are trained.
      public: the pool, and the samples that evaluate.
      num_queries: how many of the pool, from the first, both learn from.
      teachers: an ensemble that states probabilities.
      temperature: that teachers and the student of their probabilities divide logits by.
      evaluate_on: which public samples evaluate them, of `evaluation.EVALUATED_ON`; None for the
        held-out ones, if they have labels.
      reporting: how progress is shown; each query is answered twice, by probabilities and by votes.

    Raises:
      ValueError: if sizes or model do not fit, or the teachers answer with labels alone.
    """
    pool = public.pool
    if not 0 < num_queries <= len(pool):
        raise ValueError(
            f"num_queries: expected from 1 to the pool's {len(pool)}, got {num_queries}"
        )
    check_teachers(teachers, pool)
    queries = np.arange(num_queries)
    evaluated = evaluation.evaluated_samples(evaluate_on, public, queries=queries)
    inputs = pool.inputs[:num_queries]
    with reporting.progress_bar("asking teachers", 2 * num_queries, "query") as advance:
        stated = counting.probabilities(teachers, inputs, temperature, advance)
        winners = counting.counts(teachers, inputs, advance).values.argmax(axis=1)
    certain = np.eye(pool.dataset.num_classes, dtype=np.float32)[winners]

    def trained_accuracy(probabilities: np.ndarray, at: float) -> evaluation.Accuracy | None:
        model = train_distilled(
            config,
            pool,
            query_indices=queries,
            probabilities=probabilities,
            temperature=at,
            show_progress=reporting.verbose,
        )
        if evaluated is None:
            return None
        return evaluation.evaluate(lambda raw: outputs(model, raw).argmax(axis=1), evaluated)

    return DistillationReport(
        distilled=trained_accuracy(stated, temperature),
        plurality=trained_accuracy(certain, 1.0),
        plurality_labels=evaluation.accuracy_in_pool(
            PoolLabels(query_indices=queries, labels=winners, num_classes=pool.dataset.num_classes),
            public,
        ),
        constant_answer=None if evaluated is None else evaluated.majority_share,
        evaluated_on=None if evaluated is None else evaluate_on or evaluation.HELD_OUT,
    )


# What a student run or a comparison found out, as rows of a table and as JSON.
#
# All of it is for whoever holds the private data; what may be published of it stands in the privacy
# statement. What public labels would tell is absent where there are none: None in JSON, said in
# rows.


def accuracy_in_words(found: evaluation.Accuracy | None, evaluated_on: str | None) -> str:
    """Returns an accuracy with its interval, and what it was measured on."""
    if found is None:
        return NOT_MEASURED
    low, high = found.interval
    kind = "unqueried" if evaluated_on == evaluation.ALL_UNQUERIED else "held-out"
    return (
        f"{found.value:.2%} on {found.num_samples:,} {kind} samples "
        f"(95 % interval {low:.2%} to {high:.2%})"
    )


def share_in_words(found: evaluation.Accuracy | None) -> str:
    """Returns the share of right labels."""
    return NOT_MEASURED if found is None else f"{found.value:.2%}"


def _accuracy_values(name: str, found: evaluation.Accuracy | None) -> dict[str, Any]:
    return {
        name: None if found is None else found.value,
        f"{name}_interval": None if found is None else list(found.interval),
    }


def _by_class_values(found: ByClass | None) -> dict[str, Any]:
    return {
        "student_balanced_accuracy": None if found is None else found.balanced_accuracy,
        "student_recall": None if found is None else list(found.recall),
        "student_auc": None if found is None else found.auc,
    }


def _by_class_rows(found: ByClass | None, constant_answer: float | None) -> list[Row]:
    """Rows where accuracy says little: a class has more than half again its even share."""
    if found is None or constant_answer is None:
        return []
    if constant_answer * len(found.recall) <= UNEVEN:
        return []
    recall = ", ".join("none" if one is None else f"{one:.1%}" for one in found.recall)
    auc = "not measured" if found.auc is None else f"{found.auc:.3f}"
    return [
        ("student by class", f"balanced accuracy {found.balanced_accuracy:.2%}, AUC {auc}"),
        ("found of each class", recall),
    ]


def student_values(result: StudentReport, *, seconds: float) -> dict[str, Any]:
    """SENSITIVE: returns what a student run found out, as JSON values.

    Args:
      result: of the run.
      seconds: that it took.
    """
    statement, measured = result.published.statement, result.measured
    student, labels, inferred = (
        measured.student_accuracy,
        measured.label_accuracy,
        measured.inferred_accuracy,
    )
    return {
        "dataset": statement.dataset,
        "nb_teachers": statement.num_teachers,
        "queries": statement.num_queries,
        "answered": statement.num_answered,
        "label_accuracy": None if labels is None else labels.value,
        **_accuracy_values("student_accuracy", student),
        **_by_class_values(measured.by_class),
        "evaluated_on": measured.evaluated_on,
        "num_evaluated": None if student is None else student.num_samples,
        "constant_answer_accuracy": measured.constant_answer,
        "query_strategy": statement.query_strategy,
        "query_neighbours": statement.num_neighbours,
        "queries_saved": result.queried.num_inferred,
        "inferred_label_accuracy": None if inferred is None else inferred.value,
        "inferred_label_certainty": certainty(result.queried),
        "mechanism": statement.mechanism.to_dict(),
        "queries_answered": statement.num_answered,
        "epsilon_worst_case": statement.epsilon,
        "epsilon_data_independent": statement.epsilon,
        "epsilon_data_dependent": result.epsilon_data_dependent,
        "epsilon_ensemble": statement.epsilon_ensemble,
        "delta": statement.delta,
        "secure_noise": statement.secure_noise,
        "sensitive": ["epsilon_data_dependent"],
        "student": str(result.published.student_folder),
        "seconds": seconds,
    }


def unanswered_values(
    labels: QueriedLabels, teachers: Voter, *, epsilon_ensemble: float, seconds: float
) -> dict[str, Any]:
    """Returns what a run paid that got no label, as JSON values; none of it is sensitive.

    Args:
      labels: none, and their cost.
      teachers: that were asked.
      epsilon_ensemble: spent by them so far.
      seconds: that it took.
    """
    cost = labels.released.cost
    return {
        "dataset": teachers.dataset.name,
        "nb_teachers": teachers.num_teachers,
        "queries": labels.released.num_queries,
        "answered": 0,
        "queries_answered": 0,
        "query_strategy": labels.strategy,
        "query_neighbours": labels.num_neighbours,
        "mechanism": cost.charge.to_dict(),
        "epsilon_worst_case": cost.epsilon,
        "epsilon_data_independent": cost.epsilon,
        "epsilon_ensemble": epsilon_ensemble,
        "delta": cost.delta,
        "secure_noise": labels.released.secure_noise,
        "student": None,
        "seconds": seconds,
    }


def unanswered_rows(values: dict[str, Any]) -> list[Row]:
    """Returns `unanswered_values` as rows."""
    return [
        ("teachers", f"{values['nb_teachers']} on {values['dataset']}"),
        ("queries", f"{values['queries']} asked, NONE answered: there is no student"),
        (
            "epsilon, paid all the same",
            f"{rounded_up(values['epsilon_worst_case'])} at delta {values['delta']:g}; "
            f"data-independent",
        ),
        (
            "spent by this ensemble so far",
            f"epsilon {rounded_up(values['epsilon_ensemble'])}, data-independent",
        ),
        ("time", f"{values['seconds']:.1f} s"),
    ]


def _how(result: StudentReport) -> str:
    """Returns in words what left, where that is not plain noisy labels."""
    released = result.queried.released
    if released.noisy_sums is not None:
        return ", by noisy sums of records"
    if released.noisy_counts is not None:
        return ", with noisy counts"
    return ", without noise" if released.have_no_noise else ""


def student_rows(result: StudentReport, *, seconds: float) -> list[Row]:
    """SENSITIVE: returns the same as rows; arguments as of `student_values`."""
    statement, measured = result.published.statement, result.measured
    data_dependent, saved = result.epsilon_data_dependent, result.queried.num_inferred
    student = accuracy_in_words(measured.student_accuracy, measured.evaluated_on)
    if measured.constant_answer is not None:
        student += f"; a constant answer: {measured.constant_answer:.2%}"
    lacks = statement.mechanism.lacks
    why_none = f"none: {lacks.get('bounds', 'no bound is known for the mechanism')}"
    if statement.is_adaptive:
        why_none = "none: queries depended on earlier noisy labels"
    rows = [
        ("teachers", f"{statement.num_teachers} on {statement.dataset}"),
        (
            "queries",
            f"{statement.num_queries} asked, {statement.num_answered} answered{_how(result)}",
        ),
        ("accuracy of the noisy labels", share_in_words(measured.label_accuracy)),
    ]
    if saved:
        right = measured.inferred_accuracy
        rows.append(
            ("queries saved", f"{saved}" + (f", labels {right.value:.2%} right" if right else ""))
        )
    if (sure := certainty(result.queried)) is not None:
        rows.append(("sure of these labels", f"{sure:.0%} on average, as far as noise goes"))
    return [
        *rows,
        ("student accuracy", student),
        *_by_class_rows(measured.by_class, measured.constant_answer),
        (
            "epsilon, data-independent",
            f"{rounded_up(statement.epsilon)} at delta {statement.delta:g}; {statement.kind}",
        ),
        (
            "epsilon, data-dependent",
            why_none
            if data_dependent is None
            else f"{data_dependent:.3f} at delta {statement.delta:g}; SENSITIVE: do not publish",
        ),
        (
            "spent by this ensemble so far",
            f"epsilon {rounded_up(statement.epsilon_ensemble)}, data-independent",
        ),
        (
            "student and statement",
            f"{result.published.student_folder.parent.parent} (publishable)",
        ),
        ("time", f"{seconds:.1f} s"),
    ]


def comparison_values(
    result: DistillationReport,
    teachers: Voter,
    *,
    num_queries: int,
    temperature: float,
    seconds: float,
) -> dict[str, Any]:
    """SENSITIVE, NOT PRIVATE: returns what a comparison found out, as JSON values.

    Args:
      result: of the comparison.
      teachers: the ensemble.
      num_queries: that both students learnt from.
      temperature: that logits were divided by.
      seconds: that it took.
    """
    return {
        "private": False,
        "dataset": teachers.dataset.name,
        "nb_teachers": teachers.num_teachers,
        "queries": num_queries,
        "temperature": temperature,
        "evaluated_on": result.evaluated_on,
        "num_evaluated": None if result.distilled is None else result.distilled.num_samples,
        **_accuracy_values("distilled_accuracy", result.distilled),
        **_accuracy_values("plurality_accuracy", result.plurality),
        "plurality_label_accuracy": None
        if result.plurality_labels is None
        else result.plurality_labels.value,
        "constant_answer_accuracy": result.constant_answer,
        "seconds": seconds,
    }


def comparison_rows(
    result: DistillationReport, values: dict[str, Any], file: pathlib.Path
) -> list[Row]:
    """SENSITIVE, NOT PRIVATE: returns the same as rows.

    Args:
      result: of the comparison.
      values: its `comparison_values`.
      file: where they are kept.
    """
    constant = result.constant_answer
    return [
        ("teachers", f"{values['nb_teachers']} on {values['dataset']}"),
        ("queries", f"{values['queries']}, without noise and without charge"),
        (
            f"distilled at temperature {values['temperature']:g}",
            accuracy_in_words(result.distilled, result.evaluated_on),
        ),
        ("labels by plurality", accuracy_in_words(result.plurality, result.evaluated_on)),
        ("accuracy of those labels", share_in_words(result.plurality_labels)),
        ("a constant answer", NOT_MEASURED if constant is None else f"{constant:.2%}"),
        ("exported", "nothing: NOT PRIVATE"),
        ("SENSITIVE", str(file)),
        ("time", f"{values['seconds']:.1f} s"),
    ]


# Whole runs of a student and of a comparison, from plain values to reports.
#
# What `pate_tf.cli.student` calls, and any program may.


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
      labels: which labels are released.
      budget: of the ensemble.
      output: what is written and measured.
    """

    sources: Sources
    settings: StudentSettings
    labels: LabelSettings
    budget: Budget
    output: OutputSettings = dataclasses.field(default_factory=OutputSettings)


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
    """Releases labels, trains a student, publishes it; stores and returns what was found out.

    Where all queries were charged and none got a label there is no student; the report says so.

    Raises:
      ValueError: if something does not fit; nothing was charged then.
      LedgerError: if the budget does not suffice or the ledger can't be used.
    """
    public, teachers, teachers_directory, directory = asked.sources.load(reporting)
    config = complete(asked.settings, public.dataset)
    with reporting.clock("planning"):
        plan = plan_release(asked.labels, teachers, public.pool, delta=asked.budget.delta)
    if plan.description:
        reporting.note(plan.description)
    if plan.is_of_sums:
        config = complete(asked.settings, public.dataset, labels_whole_pool=True)
    output = Output(
        directory=directory,
        save_labels=asked.output.save_labels,
        export_formats=asked.output.export_formats,
        evaluate_on=asked.output.evaluate_on,
    )
    warn_of_raw_pixels(asked.settings, plan, public.dataset, reporting)
    # Before the ledger is opened: what is refused leaves nothing behind.
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
                plan=plan,
                teachers=teachers,
                ledger=ledger,
                noise=asked.labels.noise(),
                output=output,
                reporting=reporting,
            )
        except NothingAnsweredError as error:
            values = unanswered_values(
                error.labels,
                teachers,
                epsilon_ensemble=ledger.spent().epsilon,
                seconds=reporting.seconds,
            )
            rows = unanswered_rows(values)
            return _stored(values, rows, directory, plan=plan, failure=str(error))
    seconds = reporting.seconds
    values = student_values(result, seconds=seconds)
    return _stored(values, student_rows(result, seconds=seconds), directory, plan=plan)


def _stored(
    values: dict[str, Any],
    rows: list[Row],
    directory: artifacts.RunDirectory,
    *,
    plan: ReleasePlan,
    failure: str | None = None,
) -> RunReport:
    """SENSITIVE: writes what a run found out below `sensitive/`, and returns it."""
    if plan.reason is not None:
        values, rows = {**values, "plan": plan.values}, [*rows, ("how chosen", plan.reason)]
    artifacts.write_json(directory.sensitive / REPORT, values, private=True)
    return RunReport(values=values, rows=rows, failure=failure)


def warn_of_raw_pixels(
    settings: StudentSettings, plan: ReleasePlan, dataset: Dataset, reporting: Reporting
) -> None:
    """Says in one line that no augmentation is known where what was asked for needs one."""
    strategy = plan.queries.strategy
    needing = [
        name
        for name, is_asked in (
            ("student consistency", settings.student == "consistency"),
            (f"strategy {strategy}", strategy in ("diverse", "medoids")),
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
    values = comparison_values(
        comparison,
        teachers,
        num_queries=asked.num_queries,
        temperature=asked.temperature,
        seconds=reporting.seconds,
    )
    file = directory.sensitive / "distillation_comparison.json"
    artifacts.write_json(file, values, private=True)
    return RunReport(values=values, rows=comparison_rows(comparison, values, file))
