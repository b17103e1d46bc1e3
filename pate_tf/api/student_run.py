"""Students from plain values to reports: labels are released, a student learns, it is published.

A report is SENSITIVE, for the holder of the private data alone; what of it may be published stands
in the privacy statement. Where the public samples have no labels, accuracies are None.
"""

import dataclasses
import pathlib
import warnings
from collections.abc import Sequence
from typing import Any, Final

import keras
import numpy as np
from scipy.special import softmax

from pate_tf.accounting import moments
from pate_tf.accounting.charge import ReleasedLabels, rounded_up
from pate_tf.aggregation.labeller import stored_counts
from pate_tf.aggregation.noise import NoiseSource
from pate_tf.api.feature_sums import StoredSums, SumsSource
from pate_tf.api.labelling import (
    ReleasePlan,
    Source,
    check_teachers,
    delta_of,
    has_linear_model,
    open_ledger,
    plan_release,
    release_labels,
)
from pate_tf.api.publishing import Published, publish_model
from pate_tf.api.reporting import NOT_MEASURED, QUIET, UNEVEN, Reporting, Row, RunReport
from pate_tf.api.run_folder import DataSource, TeacherSource
from pate_tf.api.settings import Budget, LabelSettings
from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import PoolLabels, PublicSplit
from pate_tf.ledger import Ledger, LedgerError, LedgerWarning
from pate_tf.queries.labels import COST_FILE, LABELS_FILE, Labels
from pate_tf.representations.regression import MOST_QUERIES
from pate_tf.serving.export import check_formats
from pate_tf.serving.served import ServedStudent
from pate_tf.statement.check import JSON_FILE, PAGE_FILE
from pate_tf.statement.labels import LabelsStatement
from pate_tf.students import evaluation, training
from pate_tf.students.batches import outputs
from pate_tf.students.config import (
    ALL_UNQUERIED,
    HELD_OUT,
    OutputSettings,
    StudentSettings,
    complete,
    find_student,
    is_left_open,
)
from pate_tf.students.evaluation import ByClass, by_class
from pate_tf.students.kinds import AUTO, DISTILLATION, LINEAR_HEAD, StudentConfig
from pate_tf.students.training import train_distilled
from pate_tf.teachers.voters import Voter

# What the labels of one student cost at the true votes. SENSITIVE.


def data_dependent_epsilon(ledger: Ledger, released: ReleasedLabels) -> float | None:
    """Sensitive: two-sided epsilon, at the true votes, of the batches charged for the labels.

    None if a batch depended on earlier noisy labels, whose realised cost is itself random, if no
    two-sided bound of its mechanism is known, or, with a warning, if stored votes are broken:
    nothing that is published depends on them.
    """
    if "bounds" in released.cost.charge.lacks:
        return None
    total = 0.0 * moments.DEFAULT_MOMENTS
    try:
        batches = [one for one in stored_counts(ledger) if one.debit in released.ledger_rows]
    except LedgerError as error:
        text = f"{error}; so the data-dependent epsilon is not known"
        warnings.warn(text, LedgerWarning, stacklevel=2)
        return None
    for batch in batches:
        bounds = [one for one in ("class_aware", "two_sided") if one in batch.mechanism.bounds]
        if batch.adaptive or not bounds:
            return None
        total = total + moments.data_dependent_alphas(
            batch.counts.values[batch.answered],
            batch.mechanism,
            moments.DEFAULT_MOMENTS,
            bound=bounds[0],
            num_unanswered=int((~batch.answered).sum()),
        )
    epsilon, _ = moments.epsilon_from_alphas(total, moments.DEFAULT_MOMENTS, released.cost.delta)
    return min(epsilon, released.cost.epsilon)


# How sure labels of the pool are: from what was released, at no cost. Chosen on the pools of MNIST
# and Fashion-MNIST, where counts that were less sure than this were behind feature sums by points.
CERTAIN_ENOUGH = 0.8


def certainty(labels: Labels) -> float | None:
    """Returns the mean probability of the class of labels that follow from all noisy numbers.

    None where labels were not learnt from counts together, nor from sums. It knows of noise alone,
    not of what all teachers get wrong together, nor of what features don't say.
    """
    released, weights = labels.released, labels.inferred.weights
    if released.noisy_sums is not None:
        return labels.certainty
    if (
        weights is None
        or not len(weights)
        or released.noisy_counts is None
        or not released.cost.charge.releases_counts
        or released.num_answered > MOST_QUERIES  # then each propagates by itself
    ):
        return None
    return labels.inferred.certainty


def warn_of_noise(labels: Labels, reporting: Reporting) -> None:
    """Warns in one line if noise leaves labels of the pool unsure."""
    found = certainty(labels)
    if found is not None and found < CERTAIN_ENOUGH:
        by_sums = labels.released.noisy_sums is not None
        reporting.warn(
            f"labels: the noise is heavy for {'so few records' if by_sums else 'these teachers'}: "
            f"what all noisy {'sums' if by_sums else 'counts'} say of the pool is {found:.0%} sure "
            f"on average; next time take {'' if by_sums else 'more teachers or '}a larger epsilon, "
            "and see docs/explanation/alternatives.md"
        )


# A student is made: labels are released, it learns from them, it is evaluated and published.


REPORT = "student_report.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """What public labels say about a student; None where there are no such labels. Public.

    Attributes:
        label_accuracy: of the noisy labels.
        inferred_accuracy: of the labels that came without a query; None also if there are none.
        student_accuracy: of the exported student on the samples that evaluate it.
        constant_answer: accuracy of the majority-class baseline on them.
        evaluated_on: which samples evaluated it, of `evaluation.EVALUATED_ON`.
        by_class: recall and AUC of each class.
    """

    label_accuracy: evaluation.Accuracy | None
    inferred_accuracy: evaluation.Accuracy | None
    student_accuracy: evaluation.Accuracy | None
    constant_answer: float | None
    evaluated_on: str | None
    by_class: ByClass | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentReport:
    """What a student run measured.

    Attributes:
        labels: that the student learnt from, with their cost.
        measured: how many labels and answers are right, where public labels tell.
        published: the student and its statement.
        epsilon_data_dependent: SENSITIVE; see `data_dependent_epsilon`.
        student: its kind, by name.
    """

    student: str
    labels: Labels
    measured: Measured
    published: Published[LabelsStatement]
    epsilon_data_dependent: float | None = dataclasses.field(repr=False)


class NothingAnsweredError(ValueError):
    """All queries were charged and none got a label, so there is nothing to learn from.

    Attributes:
        labels: none, with their cost.
    """

    def __init__(self, labels: Labels, advice: str) -> None:
        cost = labels.released.cost
        super().__init__(
            f"queries: expected at least one label of {labels.released.num_queries}, got none, and "
            f"{cost.in_words()} was charged: {advice}"
        )
        self.labels = labels


def check_places(directory: artifacts.RunDirectory) -> None:
    """Checks that all can be written that a student's run writes.

    Raises:
        ValueError: if something can't.
    """
    released, logs = artifacts.RELEASED, training.logs_of(pathlib.Path(artifacts.RELEASED))
    directory.check(
        files=[
            f"{artifacts.SENSITIVE}/{REPORT}",
            *(f"{released}/{name}" for name in (LABELS_FILE, COST_FILE, JSON_FILE, PAGE_FILE)),
        ],
        folders=[
            artifacts.SENSITIVE,
            *(released, f"{released}/student", f"{released}/{training.UNFINISHED}"),
            *(str(logs / name) for name in ("", "train", "held_out")),
            str(logs.parent / "versions"),
        ],
    )


def check_student(
    config: StudentConfig,
    public: PublicSplit,
    output: OutputSettings,
    directory: artifacts.RunDirectory,
) -> None:
    """Checks all about a student that can be checked before its labels are charged.

    Raises:
        ValueError: if the student does not fit the data set, or its files can't be written.
    """
    evaluation.check_evaluate_on(output.evaluate_on, public)
    student = find_student(config, public.dataset)
    check_formats(output.export_formats)
    if output.export_formats and not student.can_convert:
        what = "a linear head" if student.name == LINEAR_HEAD else "a forest"
        raise ValueError(f"export_formats: expected none for {what}, which can't be converted")
    check_places(directory)


def make_student(
    config: StudentConfig,
    public: PublicSplit,
    *,
    plan: ReleasePlan,
    teachers: Source,
    ledger: Ledger,
    noise: NoiseSource,
    directory: artifacts.RunDirectory,
    output: OutputSettings = OutputSettings(),  # noqa: B008 (frozen)
    may_be_linear: bool = False,
    reporting: Reporting = QUIET,
) -> StudentReport:
    """Releases labels, trains a student on them, publishes it and evaluates what was published.

    Args:
        config: how the student is trained; with `public` and `output` checked by `check_student`.
        public: the pool, and the samples that evaluate the student.
        plan: which labels are released; of `plan_release` for this pool and these teachers.
        teachers: the ensemble, or feature sums.
        ledger: theirs, open; see `labelling.open_ledger`.
        noise: where privacy noise comes from.
        directory: labels, student and statement go below its `released/`.
        output: what of them is written and measured.
        may_be_linear: whether the linear head is taken instead where `Labels.prefers_linear_head`,
            or where it `fits_better`.
        reporting: how progress is shown.

    Raises:
        ValueError: if something does not fit; nothing was charged then.
        NothingAnsweredError: if all was charged and no query got a label.
        LedgerError: if the budget does not suffice or the ledger can't be used.
    """
    artifacts.remove_abandoned(directory.root)
    labels = release_labels(
        plan, public.pool, teachers=teachers, ledger=ledger, noise=noise, reporting=reporting
    )
    released = directory.released
    if output.save_labels:
        labels.save(released)
    if not labels.released.num_answered:
        raise NothingAnsweredError(labels, plan.mechanism.unanswered_advice)
    warn_of_noise(labels, reporting)
    if may_be_linear and labels.prefers_linear_head:
        settings = StudentSettings(student=LINEAR_HEAD, seed=config.seed)
        config = complete(settings, public.dataset)
        reporting.note("Student: linear_head, with the model of several rounds of sums.")
    config = config.going_on_from(labels.network, labels.certainty)
    model = learn(config, public, labels, folder=released, verbose=reporting.verbose)
    if may_be_linear and fits_better(labels.linear_head, model, labels):
        model, config = labels.linear_head, dataclasses.replace(config, student=LINEAR_HEAD)
        reporting.note(FITS_BETTER)
    published = publish_model(
        model,
        labels,
        teachers=teachers,
        ledger=ledger,
        folder=released,
        export_formats=output.export_formats,
        publication=output,
    )
    measured = _measure(config, public, labels, published, output.evaluate_on, reporting)
    artifacts.hide_host(released)
    return StudentReport(
        student=config.student,
        labels=labels,
        measured=measured,
        published=published,
        epsilon_data_dependent=data_dependent_epsilon(ledger, labels.released),
    )


def learn(
    config: StudentConfig,
    public: PublicSplit,
    labels: Labels,
    *,
    folder: pathlib.Path | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    verbose: bool = False,
) -> Any:
    """Trains a student on labels of a pool.

    Args:
        config: how it is trained.
        public: the pool; held-out samples, as far as they have labels, are shown in TensorBoard.
        labels: released now or before.
        folder: logs and the state of an unfinished run lie below it; None for neither.
        callbacks: called as Keras calls them.
        verbose: whether a progress bar is drawn.

    Returns:
        A model that is called as a Keras model is, from raw inputs to logits.

    Raises:
        ValueError: if student, labels and pool do not fit each other.
        TrainingDivergedError: if a loss or weight became NaN or infinite.
    """
    labels.check_pool(public.pool)
    if config.student == LINEAR_HEAD:
        config = dataclasses.replace(config, initial=labels.linear_head)
    config = config.going_on_from(labels.network, labels.certainty)
    student = find_student(config, public.dataset)
    shown = public.held_out.labelled()
    logging = (
        [evaluation.HeldOutAccuracy(shown, training.logs_of(folder))]
        if folder and shown is not None
        else []
    )
    return student.train(
        config,
        labels.training_labels,
        public.pool,
        folder=folder,
        callbacks=[*logging, *callbacks],
        show_progress=verbose,
    )


FITS_BETTER: Final = (
    "Student: linear_head, as the trained one does not fit the sums clearly better."
)


def fits_better(linear_head: Any, model: Any, labels: Labels) -> bool:
    """Whether a model does not make the released sums clearly likelier than labels' linear head.

    By probabilities on the pool; of tables and texts alone. Clearly is more than the logarithm of
    the likelihood varies by itself. A network that learnt from few inputs of a pool fits its sums
    about as well and errs more on others: so it was on `packages`, `hastie` and `digits` of
    benchmarks/own_data.py, while on `quantiles` it was clearly ahead, and right.

    Args:
        linear_head: of the labels, or None.
        model: that learnt from them.
        labels: released now.
    """
    if linear_head is None or labels.pool.dataset.kind == "image":
        return False
    head, other = (
        labels.sums.misfit(softmax(outputs(one, labels.pool.inputs), axis=1))
        for one in (linear_head, model)
    )
    return bool(head < other + np.sqrt(labels.sums.values.size / 2.0))


def _measure(
    config: StudentConfig,
    public: PublicSplit,
    labels: Labels,
    published: Published[LabelsStatement],
    evaluate_on: str | None,
    reporting: Reporting,
) -> Measured:
    """Compares labels and the exported student with public labels, and logs the result."""
    samples = evaluation.evaluated_samples(evaluate_on, public, queries=labels.queries)
    given = student_accuracy = constant_answer = evaluated_on = found = None
    if samples is not None:
        truth = evaluation.true_labels(samples)
        given, probabilities = ServedStudent(published.student_folder).answer(samples.inputs)
        student_accuracy = evaluation.accuracy(given, truth)
        found = by_class(given, truth, public.dataset.num_classes, probabilities)
        if found.is_constant and len(given) > 1:
            reporting.warn(
                "student: it gives all samples the same answer: its labels may all be of the "
                "commonest class; docs/how-to/rare_classes.md says what to do about it"
            )
        constant_answer = samples.majority_share
        evaluated_on = evaluate_on or HELD_OUT
    measured = Measured(
        label_accuracy=evaluation.accuracy_in_pool(labels.released, public),
        inferred_accuracy=evaluation.accuracy_in_pool(labels.inferred, public),
        student_accuracy=student_accuracy,
        constant_answer=constant_answer,
        evaluated_on=evaluated_on,
        by_class=found,
    )
    statement = published.statement
    logs = training.logs_of(published.folder).parent
    accuracies = {
        "result/student_accuracy": measured.student_accuracy,
        "result/label_accuracy": measured.label_accuracy,
    }
    evaluation.write_version(
        logs / "versions" / published.student_folder.name,
        samples,
        given,
        settings={
            **config.to_dict(),
            "dataset": statement.pool_name,
            **({} if statement.num_teachers is None else {"num_teachers": statement.num_teachers}),
            "queries": statement.num_queries,
            "query_strategy": statement.query_strategy,
            "mechanism": statement.mechanism.to_dict(),
        },
        results={
            **{name: found.value for name, found in accuracies.items() if found is not None},
            "result/epsilon": statement.epsilon,
        },
    )
    return measured


# Whole runs of train_student.py.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sources:
    """Where public samples and labels come from, and where the student goes.

    Attributes:
        data: the public samples.
        pool_size: how many of them, from the first, form the pool; None for the data set's own.
        labels_from: teachers, or feature sums.
        folder: run folder of the student; None for that of the teachers or sums.
    """

    data: DataSource
    pool_size: int | None = None
    labels_from: TeacherSource | SumsSource
    folder: pathlib.Path | None = None

    def load(
        self, reporting: Reporting, delta: float | None = None
    ) -> tuple[PublicSplit, Source, artifacts.RunDirectory, artifacts.RunDirectory]:
        """Returns public samples, teachers or sums, their run folder and that of the student.

        Args:
            reporting: how progress is shown.
            delta: of labels; None where it is not known yet.

        Raises:
            ValueError: if data, teachers or sums are missing, or do not fit.
        """
        if self.folder is not None:
            check_places(artifacts.RunDirectory(self.folder))
        examples = self.data.load_public(reporting)
        public = examples.split(self.pool_size or examples.dataset.pool_size)
        directory = self.labels_from.directory(examples.dataset.name)
        own = artifacts.RunDirectory(self.folder) if self.folder else directory
        if isinstance(self.labels_from, SumsSource):
            return public, self.labels_from.load(public.pool, reporting, delta), directory, own
        return public, self.labels_from.load(public), directory, own


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentRun:
    """A student, in plain values.

    Attributes:
        sources: where public samples and labels come from.
        settings: how the student learns.
        labels: which labels are released.
        budget: of everything released from these teachers or sums.
        output: what is written and measured.
    """

    sources: Sources
    settings: StudentSettings
    labels: LabelSettings
    budget: Budget
    output: OutputSettings = dataclasses.field(default_factory=OutputSettings)


def run(asked: StudentRun, reporting: Reporting = QUIET) -> RunReport:
    """Releases labels, trains a student, publishes it; stores and returns the report.

    Where all queries were charged and none got a label there is no student; the report says so.

    Raises:
        ValueError: if something does not fit; nothing was charged then.
        LedgerError: if the budget does not suffice or the ledger can't be used.
    """
    public, source, source_directory, directory = asked.sources.load(reporting, asked.budget.delta)
    delta = delta_of(asked.budget, source_directory.sensitive, source)
    with reporting.clock("planning"):
        plan = plan_release(asked.labels, source, public.pool, delta=delta)
    if plan.description:
        reporting.note(plan.description)
    config = complete(
        asked.settings, public.dataset, labels_whole_pool=plan.mechanism.releases_feature_sums
    )
    if config.student == LINEAR_HEAD and not has_linear_model(plan, source):
        raise ValueError(
            "student linear_head: expected sums of features of single records, got "
            f"{plan.mechanism.name} for every {source.unit}; take another student"
        )
    if asked.labels.strategy is None and not plan.mechanism.releases_feature_sums:
        reporting.note(f"Queries: {plan.queries.strategy} (--query_strategy=auto).")
    if asked.settings.student == AUTO:
        reporting.note(f"Student: {config.student}, as recommended for {public.dataset.kind} data.")
    warn_of_raw_pixels(config, plan, public.dataset, reporting)
    # Before the ledger is opened: what is refused leaves nothing behind.
    check_student(config, public, asked.output, directory)
    failure = None
    with (
        open_ledger(
            source_directory.sensitive,
            teachers=source,
            budget=asked.budget,
            source=asked.sources.data.named_source,
            student_runs=[directory.root],
        ) as ledger,
        artifacts.only_writer(directory.released),
    ):
        try:
            result = make_student(
                config,
                public,
                plan=plan,
                teachers=source,
                ledger=ledger,
                noise=asked.labels.noise(),
                directory=directory,
                output=asked.output,
                may_be_linear=is_left_open(asked.settings) and not asked.output.export_formats,
                reporting=reporting,
            )
            values, rows = student_report(result, seconds=reporting.seconds)
            values["student_kind"] = result.student
        except NothingAnsweredError as error:
            values, rows = unanswered_report(
                error, source, epsilon_ledger=ledger.spent().epsilon, seconds=reporting.seconds
            )
            failure = str(error)
    if plan.reason is not None:
        values, rows = {**values, "plan": plan.values}, [*rows, ("how chosen", plan.reason)]
    artifacts.write_json(directory.sensitive / REPORT, values, private=True)
    return RunReport(values=values, rows=rows, failure=failure)


def warn_of_raw_pixels(
    config: StudentConfig, plan: ReleasePlan, dataset: Dataset, reporting: Reporting
) -> None:
    """Warns in one line if student or strategy need an augmentation and none is known."""
    strategy = plan.queries.strategy
    needing = ["student consistency"] * (config.student == "consistency")
    needing += [f"strategy {strategy}"] * (strategy in ("diverse", "medoids"))
    if dataset.kind == "image" and dataset.augmentation == "none" and needing:
        reporting.warn(
            f"augmentation: none for {dataset.name}, so {' and '.join(needing)} can learn from raw "
            f"pixels alone; say in the Dataset what leaves a label unchanged, such as shift"
        )


def student_report(result: StudentReport, *, seconds: float) -> tuple[dict[str, Any], list[Row]]:
    """SENSITIVE: returns the report of a student as JSON values, and as rows of a table.

    Args:
        result: of the run.
        seconds: that it took.
    """
    statement, measured, labels = result.published.statement, result.measured, result.labels
    num_teachers, saved = statement.num_teachers, labels.num_inferred
    sure, by_class = certainty(labels), measured.by_class
    inferred, data_dependent = measured.inferred_accuracy, result.epsilon_data_dependent
    values = {
        "dataset": statement.pool_name,
        "method": statement.method,
        **({} if num_teachers is None else {"nb_teachers": num_teachers}),
        "queries": statement.num_queries,
        "answered": statement.num_answered,
        "label_accuracy": _value(measured.label_accuracy),
        **_accuracy_values("student_accuracy", measured.student_accuracy),
        "student_balanced_accuracy": None if by_class is None else by_class.balanced_accuracy,
        "student_recall": None if by_class is None else list(by_class.recall),
        "student_auc": None if by_class is None else by_class.auc,
        "evaluated_on": measured.evaluated_on,
        "num_evaluated": _number(measured.student_accuracy),
        "constant_answer_accuracy": measured.constant_answer,
        "query_strategy": statement.query_strategy,
        "query_neighbours": statement.num_neighbours,
        "queries_saved": saved,
        "inferred_label_accuracy": _value(inferred),
        "inferred_label_certainty": sure,
        "found_label_accuracy": _value(
            measured.label_accuracy
            if inferred is None or labels.released.noisy_sums is None
            else inferred
        ),
        "mechanism": statement.mechanism.to_dict(),
        "queries_answered": statement.num_answered,
        "epsilon_worst_case": statement.epsilon,
        "epsilon_data_independent": statement.epsilon,
        "epsilon_data_dependent": data_dependent,
        "epsilon_ledger": statement.epsilon_ledger,
        "delta": statement.delta,
        "secure_noise": statement.secure_noise,
        "sensitive": ["epsilon_data_dependent"],
        "student": str(result.published.student_folder),
        "seconds": seconds,
    }
    accuracy = accuracy_in_words(measured.student_accuracy, measured.evaluated_on)
    if measured.constant_answer is not None:
        accuracy += f"; the majority class: {measured.constant_answer:.2%}"
    right = f", labels {inferred.value:.2%} right" if inferred else ""
    rows = [
        *_asked_rows(values, result),
        ("accuracy of the noisy labels", _in_percent(measured.label_accuracy)),
        *([("queries saved", f"{saved}{right}")] if saved else []),
        *([] if sure is None else [("certainty of these labels", f"{sure:.0%} on average")]),
        ("student accuracy", accuracy),
        *_by_class_rows(by_class, measured.constant_answer),
        (
            "epsilon, data-independent",
            f"{rounded_up(statement.epsilon)} at delta {statement.delta:g}; {statement.kind}",
        ),
        ("epsilon, data-dependent", _data_dependent_in_words(result)),
        ("spent so far", f"epsilon {rounded_up(statement.epsilon_ledger)}, data-independent"),
        (
            "student and statement",
            f"{result.published.student_folder.parent.parent} (publishable)",
        ),
        ("time", f"{seconds:.1f} s"),
    ]
    return values, rows


def _asked_rows(values: dict[str, Any], result: StudentReport) -> list[Row]:
    """Rows that say what was released, and of what."""
    released, data = result.labels.released, values["dataset"]
    if released.noisy_sums is not None:
        asked = f"{len(result.labels.training_labels.labels):,} inputs of the pool, all labelled"
        return [("feature sums", f"of {data}; no teacher was asked"), ("labels", asked)]
    how = ", with noisy counts" if released.noisy_counts is not None else ""
    how = ", without noise" if released.have_no_noise else how
    return [
        ("teachers", f"{values['nb_teachers']} on {data}"),
        ("queries", f"{values['queries']} asked, {values['answered']} answered{how}"),
    ]


def _data_dependent_in_words(result: StudentReport) -> str:
    statement = result.published.statement
    if result.epsilon_data_dependent is not None:
        epsilon = f"{result.epsilon_data_dependent:.3f} at delta {statement.delta:g}"
        return f"{epsilon}; SENSITIVE: do not publish"
    if statement.is_adaptive:
        return "none: queries depended on earlier noisy labels"
    return f"none: {statement.mechanism.lacks.get('bounds', 'no bound is known for the mechanism')}"


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
        ("recall of each class", recall),
    ]


def unanswered_report(
    error: NothingAnsweredError, teachers: Source, *, epsilon_ledger: float, seconds: float
) -> tuple[dict[str, Any], list[Row]]:
    """Returns the report of a run that was charged and got no label; not sensitive.

    Args:
        error: with the labels, of which there are none, and their cost.
        teachers: that were asked.
        epsilon_ledger: spent by them so far.
        seconds: that it took.
    """
    labels, released = error.labels, error.labels.released
    cost = released.cost
    values = {
        "dataset": teachers.dataset.name,
        "method": "pate",
        "nb_teachers": teachers.num_teachers,
        "queries": released.num_queries,
        "answered": 0,
        "queries_answered": 0,
        "query_strategy": labels.strategy,
        "query_neighbours": labels.num_neighbours,
        "mechanism": cost.charge.to_dict(),
        "epsilon_worst_case": cost.epsilon,
        "epsilon_data_independent": cost.epsilon,
        "epsilon_ledger": epsilon_ledger,
        "delta": cost.delta,
        "secure_noise": released.secure_noise,
        "student": None,
        "seconds": seconds,
    }
    return values, [
        ("teachers", f"{values['nb_teachers']} on {values['dataset']}"),
        ("queries", f"{values['queries']} asked, NONE answered: there is no student"),
        (
            "epsilon, charged all the same",
            f"{rounded_up(cost.epsilon)} at delta {cost.delta:g}; data-independent",
        ),
        ("spent so far", f"epsilon {rounded_up(epsilon_ledger)}, data-independent"),
        ("time", f"{seconds:.1f} s"),
    ]


def accuracy_in_words(found: evaluation.Accuracy | None, evaluated_on: str | None) -> str:
    """Returns an accuracy with its interval, and what it was measured on."""
    if found is None:
        return NOT_MEASURED
    low, high = found.interval
    kind = "unqueried" if evaluated_on == ALL_UNQUERIED else "held-out"
    return (
        f"{found.value:.2%} on {found.num_samples:,} {kind} samples "
        f"(95 % interval {low:.2%} to {high:.2%})"
    )


def _in_percent(found: evaluation.Accuracy | None) -> str:
    return NOT_MEASURED if found is None else f"{found.value:.2%}"


def _value(found: evaluation.Accuracy | None) -> float | None:
    return None if found is None else found.value


def _number(found: evaluation.Accuracy | None) -> int | None:
    return None if found is None else found.num_samples


def _accuracy_values(name: str, found: evaluation.Accuracy | None) -> dict[str, Any]:
    return {
        name: _value(found),
        f"{name}_interval": None if found is None else list(found.interval),
    }


# Distillation against labels by plurality: a comparison that is NOT PRIVATE and exports nothing.
#
# It is figure 5 of Papernot et al. 2017 (appendix B.1) for one number of queries: both students
# learn from the same points of the pool, one from the teachers' averaged probabilities, the other
# from the class with most votes, without noise. No ledger is charged, as nothing may be published.


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationReport:
    """SENSITIVE: accuracies of a comparison; None wherever public labels are missing.

    Attributes:
        distilled: of the student of the averaged probabilities.
        plurality: of the student of the labels by plurality.
        plurality_labels: of those labels.
        constant_answer: public; of the majority class.
        evaluated_on: public; which samples evaluated both, of `evaluation.EVALUATED_ON`.
    """

    distilled: evaluation.Accuracy | None = dataclasses.field(repr=False)
    plurality: evaluation.Accuracy | None = dataclasses.field(repr=False)
    plurality_labels: evaluation.Accuracy | None = dataclasses.field(repr=False)
    constant_answer: float | None
    evaluated_on: str | None


def compare(
    sources: Sources,
    settings: StudentSettings,
    *,
    num_queries: int,
    temperature: float,
    evaluate_on: str | None = None,
    reporting: Reporting = QUIET,
) -> RunReport:
    """Trains both students of a comparison; stores and returns the report. NOT PRIVATE.

    Args:
        sources: of the public samples, and of teachers.
        settings: how both students learn: as the supervised one does.
        num_queries: as of `compare_distillation`.
        temperature: as there.
        evaluate_on: as there.
        reporting: how progress is shown.

    Raises:
        ValueError: if something does not fit.
    """
    public, teachers, _, directory = sources.load(reporting)
    if isinstance(teachers, StoredSums):
        raise ValueError("student distillation: expected teachers, got feature sums")
    config = complete(dataclasses.replace(settings, student="supervised"), public.dataset)
    found = compare_distillation(
        dataclasses.replace(config, student=DISTILLATION),
        public,
        num_queries=num_queries,
        teachers=teachers,
        temperature=temperature,
        evaluate_on=evaluate_on,
        reporting=reporting,
    )
    values = {
        "private": False,
        "dataset": teachers.dataset.name,
        "nb_teachers": teachers.num_teachers,
        "queries": num_queries,
        "temperature": temperature,
        "evaluated_on": found.evaluated_on,
        "num_evaluated": _number(found.distilled),
        **_accuracy_values("distilled_accuracy", found.distilled),
        **_accuracy_values("plurality_accuracy", found.plurality),
        "plurality_label_accuracy": _value(found.plurality_labels),
        "constant_answer_accuracy": found.constant_answer,
        "seconds": reporting.seconds,
    }
    file = directory.sensitive / "distillation_comparison.json"
    constant = found.constant_answer
    rows = [
        ("teachers", f"{values['nb_teachers']} on {values['dataset']}"),
        ("queries", f"{num_queries}, without noise and without charge"),
        (
            f"distilled at temperature {temperature:g}",
            accuracy_in_words(found.distilled, found.evaluated_on),
        ),
        ("labels by plurality", accuracy_in_words(found.plurality, found.evaluated_on)),
        ("accuracy of those labels", _in_percent(found.plurality_labels)),
        ("the majority class", NOT_MEASURED if constant is None else f"{constant:.2%}"),
        ("exported", "nothing: NOT PRIVATE"),
        ("SENSITIVE", str(file)),
        ("time", f"{values['seconds']:.1f} s"),
    ]
    artifacts.write_json(file, values, private=True)
    return RunReport(values=values, rows=rows)


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
        reporting: how progress is shown; each query is answered twice, by probabilities and votes.

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
        stated = teachers.probabilities(inputs, temperature, advance)
        winners = teachers.counts(inputs, advance).values.argmax(axis=1)

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

    num_classes = pool.dataset.num_classes
    return DistillationReport(
        distilled=trained_accuracy(stated, temperature),
        plurality=trained_accuracy(np.eye(num_classes, dtype=np.float32)[winners], 1.0),
        plurality_labels=evaluation.accuracy_in_pool(
            PoolLabels(query_indices=queries, labels=winners, num_classes=num_classes), public
        ),
        constant_answer=None if evaluated is None else evaluated.majority_share,
        evaluated_on=None if evaluated is None else evaluate_on or HELD_OUT,
    )
