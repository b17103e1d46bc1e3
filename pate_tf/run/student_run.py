"""Students from plain values to reports: labels are released, a student learns, it is published.

A report is SENSITIVE, for the holder of the private data alone; what of it may be published stands
in the privacy statement. Where the public samples have no labels, accuracies are None.
"""

import dataclasses
import pathlib
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from scipy.special import softmax

from pate_tf.accounting import moments
from pate_tf.accounting.charge import ReleasedLabels, rounded_up
from pate_tf.core import artifacts, event_files
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import PublicSplit
from pate_tf.core.reporting import NOT_MEASURED, QUIET, UNEVEN, Reporting, Row, RunReport
from pate_tf.data.data_source import DataSource
from pate_tf.ledger import Ledger, LedgerError, LedgerWarning
from pate_tf.queries.labels import COST_FILE, LABELS_FILE, Labels
from pate_tf.release.feature_sums import LabelSource, SumsSource
from pate_tf.release.labeller import Labeller, has_linear_model
from pate_tf.release.plan import Budget, LabelPlan, LabelSettings
from pate_tf.release.votes import stored_counts
from pate_tf.representations.regression import MOST_QUERIES
from pate_tf.serving.export import check_formats
from pate_tf.serving.served import ServedStudent
from pate_tf.statement.check import JSON_FILE, PAGE_FILE
from pate_tf.statement.labels import LabelsStatement
from pate_tf.statement.publishing import Published, publish_model
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
from pate_tf.students.kinds import AUTO, LINEAR_HEAD, StudentConfig
from pate_tf.teachers.run_folder import TeacherSource

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
        batches = [batch for batch in stored_counts(ledger) if batch.debit in released.ledger_rows]
    except LedgerError as error:
        text = f"{error}; so the data-dependent epsilon is not known"
        warnings.warn(text, LedgerWarning, stacklevel=2)
        return None
    for batch in batches:
        bounds = [name for name in ("class_aware", "two_sided") if name in batch.mechanism.bounds]
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
    released, inferred = labels.released, labels.inferred
    if released.noisy_sums is not None:
        return labels.certainty
    are_regressed = (
        released.noisy_counts is not None
        and released.cost.charge.releases_counts
        and released.num_answered <= MOST_QUERIES  # else each propagates by itself
    )
    return inferred.certainty if are_regressed and len(inferred.labels) else None


def warn_of_noise(labels: Labels, reporting: Reporting) -> None:
    """Warns in one line if noise leaves labels of the pool unsure."""
    mean_confidence = certainty(labels)
    if mean_confidence is not None and mean_confidence < CERTAIN_ENOUGH:
        by_sums = labels.released.noisy_sums is not None
        reporting.warn(
            f"labels: the noise is heavy for {'so few records' if by_sums else 'these teachers'}: "
            f"what all noisy {'sums' if by_sums else 'counts'} say of the pool is "
            f"{mean_confidence:.0%} sure "
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
        evaluated_on: which samples evaluated it, of `OutputSettings.evaluate_on`.
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
    settings: StudentSettings,
    public: PublicSplit,
    *,
    plan: LabelPlan,
    teachers: LabelSource,
    labeller: Labeller,
    directory: artifacts.RunDirectory,
    output: OutputSettings = OutputSettings(),  # noqa: B008 (frozen)
    reporting: Reporting = QUIET,
) -> StudentReport:
    """Releases labels, trains a student on them, publishes it and evaluates what was published.

    Args:
        settings: how the student is trained; checked by `check_student`.
        public: the pool, and the samples that evaluate the student.
        plan: which labels are released; of `labeller.plan` for this pool.
        teachers: the ensemble, or feature sums.
        labeller: of these, open.
        directory: labels, student and statement go below its `released/`.
        output: what of them is written and measured.
        reporting: how progress is shown.

    Raises:
        ValueError: if something does not fit; nothing was charged then.
        NothingAnsweredError: if all was charged and no query got a label.
        LedgerError: if the budget does not suffice or the ledger can't be used.
    """
    artifacts.remove_abandoned(directory.root)
    labels = labeller.release(plan, public.pool)
    released = directory.released
    if output.save_labels:
        labels.save(released)
    if not labels.released.num_answered:
        raise NothingAnsweredError(labels, plan.mechanism.unanswered_advice)
    model, config = learn(
        settings,
        public,
        labels,
        folder=released,
        may_be_linear=not output.export_formats,
        reporting=reporting,
    )
    with labeller.ledger() as ledger:
        published = publish_model(
            model,
            labels,
            teachers=teachers,
            ledger=ledger,
            folder=released,
            export_formats=output.export_formats,
            publication=output,
        )
        epsilon_data_dependent = data_dependent_epsilon(ledger, labels.released)
    measured = _measure(config, public, labels, published, output.evaluate_on, reporting)
    artifacts.hide_host(released)
    return StudentReport(
        student=config.student,
        labels=labels,
        measured=measured,
        published=published,
        epsilon_data_dependent=epsilon_data_dependent,
    )


def learn(
    settings: StudentSettings,
    public: PublicSplit,
    labels: Labels,
    *,
    initial: keras.Model | None = None,
    folder: pathlib.Path | None = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    may_be_linear: bool = True,
    reporting: Reporting = QUIET,
) -> tuple[Any, StudentConfig]:
    """Trains a student on labels of a pool; warns if noise leaves these unsure.

    Where student, model and training are left open, the linear head of feature sums is taken if
    `Labels.prefers_linear_head`, or if it `fits_better` than what was trained.

    Args:
        settings: how it is trained.
        public: the pool; held-out samples, as far as they have labels, are shown in TensorBoard.
        labels: released now or before.
        initial: as of `StudentConfig`.
        folder: logs and the state of an unfinished run lie below it; None for neither.
        callbacks: called as Keras calls them.
        may_be_linear: False where a student has to be a Keras model.
        reporting: how progress is shown.

    Returns:
        A model that is called as a Keras model is, from raw inputs to logits, and what it was
        trained by.

    Raises:
        ValueError: if student, labels and pool do not fit each other.
        TrainingDivergedError: if a loss or weight became NaN or infinite.
    """
    labels.check_pool(public.pool)
    warn_of_noise(labels, reporting)
    may_be_linear = may_be_linear and initial is None and is_left_open(settings)
    if may_be_linear and labels.prefers_linear_head:
        settings = dataclasses.replace(settings, student=LINEAR_HEAD)
        reporting.note("Student: linear_head, with the model of several rounds of sums.")
    config = complete(
        settings,
        public.dataset,
        labels_whole_pool=labels.released.noisy_sums is not None,
        initial=initial,
        warm_start_from=labels.network,
        certainty=labels.certainty,
    )
    if config.student == LINEAR_HEAD:
        config = dataclasses.replace(config, initial=labels.linear_head)
    shown = public.held_out.labelled()
    if folder and shown is not None:
        callbacks = [evaluation.HeldOutAccuracy(shown, training.logs_of(folder)), *callbacks]
    model = find_student(config, public.dataset).train(
        config,
        labels.training_labels,
        public.pool,
        folder=folder,
        callbacks=callbacks,
        show_progress=reporting.verbose,
    )
    is_trained = config.student != LINEAR_HEAD
    if may_be_linear and is_trained and fits_better(labels.linear_head, model, labels):
        reporting.note(
            "Student: linear_head, as the trained one does not fit the sums clearly better."
        )
        return labels.linear_head, dataclasses.replace(config, student=LINEAR_HEAD)
    return model, config


def fits_better(linear_head: Any, model: Any, labels: Labels) -> bool:
    """Whether a model does not make the released sums clearly likelier than labels' linear head.

    By probabilities on the pool; of tables and texts alone. Clearly is more than the logarithm of
    the likelihood varies by itself. A network that learnt from few inputs of a pool fits its sums
    about as well and errs more on others.

    Args:
        linear_head: of the labels, or None.
        model: that learnt from them.
        labels: released now.
    """
    if linear_head is None or labels.pool.dataset.kind == "image":
        return False
    of_head, of_model = (
        labels.sums.misfit(softmax(outputs(student, labels.pool.inputs), axis=1))
        for student in (linear_head, model)
    )
    return bool(of_head < of_model + np.sqrt(labels.sums.values.size / 2.0))


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
    predictions = accuracy = classes = None
    if samples is not None:
        truth = evaluation.true_labels(samples)
        predictions, probabilities = ServedStudent(published.student_folder).answer(samples.inputs)
        accuracy = evaluation.accuracy(predictions, truth)
        classes = by_class(predictions, truth, public.dataset.num_classes, probabilities)
        if classes.is_constant and len(predictions) > 1:
            reporting.warn(
                "student: it gives all samples the same answer: its labels may all be of the "
                "commonest class; docs/how-to/rare_classes.md says what to do about it"
            )
    measured = Measured(
        label_accuracy=evaluation.accuracy_in_pool(labels.released, public),
        inferred_accuracy=evaluation.accuracy_in_pool(labels.inferred, public),
        student_accuracy=accuracy,
        constant_answer=None if samples is None else samples.majority_share,
        evaluated_on=None if samples is None else evaluate_on or HELD_OUT,
        by_class=classes,
    )
    statement = published.statement
    results = {"result/epsilon": statement.epsilon}
    for name in ("student_accuracy", "label_accuracy"):
        if (measure := getattr(measured, name)) is not None:
            results[f"result/{name}"] = measure.value
    event_files.write_result(
        training.logs_of(published.folder).parent / "versions" / published.student_folder.name,
        {
            **config.to_dict(),
            "dataset": statement.pool_name,
            **({} if statement.num_teachers is None else {"num_teachers": statement.num_teachers}),
            "queries": statement.num_queries,
            "query_strategy": statement.query_strategy,
            "mechanism": statement.mechanism.to_dict(),
        },
        results,
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
    ) -> tuple[PublicSplit, LabelSource, artifacts.RunDirectory, artifacts.RunDirectory]:
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
        source_directory = self.labels_from.directory(examples.dataset.name)
        directory = artifacts.RunDirectory(self.folder) if self.folder else source_directory
        source: LabelSource
        if isinstance(self.labels_from, SumsSource):
            source = self.labels_from.load(public.pool, reporting, delta)
        else:
            source = self.labels_from.load(public)
        return public, source, source_directory, directory


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


def run(request: StudentRun, reporting: Reporting = QUIET) -> RunReport:
    """Releases labels, trains a student, publishes it; stores and returns the report.

    Where all queries were charged and none got a label there is no student; the report says so.

    Raises:
        ValueError: if something does not fit; nothing was charged then.
        LedgerError: if the budget does not suffice or the ledger can't be used.
    """
    sources, budget = request.sources, request.budget
    public, source, source_directory, directory = sources.load(reporting, budget.delta)
    labeller = Labeller.from_settings(
        source,
        request.labels,
        budget,
        directory=source_directory.root,
        charged_to=sources.data.named_source,
        student_runs=[directory.root],
        reporting=reporting,
    )
    with reporting.clock("planning"):
        plan = labeller.plan(public.pool)
    if plan.description:
        reporting.note(plan.description)
    config = complete(
        request.settings, public.dataset, labels_whole_pool=plan.mechanism.releases_feature_sums
    )
    if config.student == LINEAR_HEAD and not has_linear_model(plan, source):
        raise ValueError(
            "student linear_head: expected sums of features of single records, got "
            f"{plan.mechanism.name} for every {source.unit}; take another student"
        )
    if request.labels.strategy is None and not plan.mechanism.releases_feature_sums:
        reporting.note(f"Queries: {plan.queries.strategy} (--query_strategy=auto).")
    if request.settings.student == AUTO:
        reporting.note(f"Student: {config.student}, as recommended for {public.dataset.kind} data.")
    warn_of_raw_pixels(config, plan, public.dataset, reporting)
    # Before the ledger is opened: what is refused leaves nothing behind.
    check_student(config, public, request.output, directory)
    failure = None
    with labeller, artifacts.only_writer(directory.released):
        try:
            result = make_student(
                request.settings,
                public,
                plan=plan,
                teachers=source,
                labeller=labeller,
                directory=directory,
                output=request.output,
                reporting=reporting,
            )
            values, rows = student_report(result, seconds=reporting.seconds)
        except NothingAnsweredError as error:
            values, rows = unanswered_report(
                error, source, epsilon_ledger=labeller.spent().epsilon, seconds=reporting.seconds
            )
            failure = str(error)
    if plan.reason is not None:
        values, rows = {**values, "plan": plan.values}, [*rows, ("how chosen", plan.reason)]
    artifacts.write_json(directory.sensitive / REPORT, values, private=True)
    return RunReport(values=values, rows=rows, failure=failure)


def warn_of_raw_pixels(
    config: StudentConfig, plan: LabelPlan, dataset: Dataset, reporting: Reporting
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


def _labels_report(
    labels: Labels, dataset: str, num_teachers: int | None, epsilon_ledger: float, seconds: float
) -> dict[str, Any]:
    """Returns what every report says of labels and their cost; not sensitive."""
    released, cost = labels.released, labels.released.cost
    return {
        "dataset": dataset,
        "method": "feature_sums" if num_teachers is None else "pate",
        **({} if num_teachers is None else {"nb_teachers": num_teachers}),
        "queries": released.num_queries,
        "answered": released.num_answered,
        "queries_answered": released.num_answered,
        "query_strategy": labels.strategy,
        "query_neighbours": labels.num_neighbours,
        "mechanism": cost.charge.to_dict(),
        "epsilon_worst_case": cost.epsilon,
        "epsilon_data_independent": cost.epsilon,
        "epsilon_ledger": epsilon_ledger,
        "delta": cost.delta,
        "secure_noise": released.secure_noise,
        "seconds": seconds,
    }


def student_report(result: StudentReport, *, seconds: float) -> tuple[dict[str, Any], list[Row]]:
    """SENSITIVE: returns the report of a student as JSON values, and as rows of a table.

    Args:
        result: of the run.
        seconds: that it took.
    """
    statement, measured, labels = result.published.statement, result.measured, result.labels
    released, classes, accuracy = labels.released, measured.by_class, measured.student_accuracy
    inferred, mean_confidence = measured.inferred_accuracy, certainty(labels)
    are_sums = released.noisy_sums is not None
    values = {
        **_labels_report(
            labels,
            statement.pool_name,
            statement.num_teachers,
            statement.epsilon_ledger,
            seconds,
        ),
        "label_accuracy": _value(measured.label_accuracy),
        "student_accuracy": _value(accuracy),
        "student_accuracy_interval": None if accuracy is None else list(accuracy.interval),
        "student_balanced_accuracy": None if classes is None else classes.balanced_accuracy,
        "student_recall": None if classes is None else list(classes.recall),
        "student_auc": None if classes is None else classes.auc,
        "evaluated_on": measured.evaluated_on,
        "num_evaluated": None if accuracy is None else accuracy.num_samples,
        "constant_answer_accuracy": measured.constant_answer,
        "queries_saved": labels.num_inferred,
        "inferred_label_accuracy": _value(inferred),
        "inferred_label_certainty": mean_confidence,
        "found_label_accuracy": _value(
            inferred if are_sums and inferred is not None else measured.label_accuracy
        ),
        "epsilon_data_dependent": result.epsilon_data_dependent,
        "secure_noise": statement.secure_noise,  # of all that the ledger was charged for
        "sensitive": ["epsilon_data_dependent"],
        "student": str(result.published.student_folder),
        "student_kind": result.student,
    }
    if are_sums:
        rows = [
            ("feature sums", f"of {statement.pool_name}; no teacher was asked"),
            ("labels", f"{len(labels.training_labels.labels):,} inputs of the pool, all labelled"),
        ]
    else:
        how = ", with noisy counts" if released.noisy_counts is not None else ""
        how = ", without noise" if released.have_no_noise else how
        answered = f"{released.num_queries} asked, {released.num_answered} answered{how}"
        rows = [
            ("teachers", f"{statement.num_teachers} on {statement.pool_name}"),
            ("queries", answered),
        ]
    rows.append(("accuracy of the noisy labels", _in_percent(measured.label_accuracy)))
    if labels.num_inferred:
        right = f", labels {inferred.value:.2%} right" if inferred else ""
        rows.append(("queries saved", f"{labels.num_inferred}{right}"))
    if mean_confidence is not None:
        rows.append(("certainty of these labels", f"{mean_confidence:.0%} on average"))
    in_words = NOT_MEASURED
    if accuracy is not None:
        low, high = accuracy.interval
        kind = "unqueried" if measured.evaluated_on == ALL_UNQUERIED else "held-out"
        in_words = (
            f"{accuracy.value:.2%} on {accuracy.num_samples:,} {kind} samples "
            f"(95 % interval {low:.2%} to {high:.2%})"
        )
        in_words += f"; the majority class: {measured.constant_answer:.2%}"
    rows.append(("student accuracy", in_words))
    # Accuracy says little of rare classes.
    if classes is not None and (measured.constant_answer or 0.0) * len(classes.recall) > UNEVEN:
        recall = ", ".join("none" if share is None else f"{share:.1%}" for share in classes.recall)
        auc = "not measured" if classes.auc is None else f"{classes.auc:.3f}"
        balanced = f"balanced accuracy {classes.balanced_accuracy:.2%}, AUC {auc}"
        rows += [("student by class", balanced), ("recall of each class", recall)]
    if result.epsilon_data_dependent is not None:
        epsilon = f"{result.epsilon_data_dependent:.3f} at delta {statement.delta:g}"
        data_dependent = f"{epsilon}; SENSITIVE: do not publish"
    elif statement.is_adaptive:
        data_dependent = "none: queries depended on earlier noisy labels"
    else:
        no_bound = "no bound is known for the mechanism"
        data_dependent = f"none: {statement.mechanism.lacks.get('bounds', no_bound)}"
    return values, [
        *rows,
        (
            "epsilon, data-independent",
            f"{rounded_up(statement.epsilon)} at delta {statement.delta:g}; {statement.kind}",
        ),
        ("epsilon, data-dependent", data_dependent),
        ("spent so far", f"epsilon {rounded_up(statement.epsilon_ledger)}, data-independent"),
        ("student and statement", f"{result.published.folder} (publishable)"),
        ("time", f"{seconds:.1f} s"),
    ]


def unanswered_report(
    error: NothingAnsweredError,
    teachers: LabelSource,
    *,
    epsilon_ledger: float,
    seconds: float,
) -> tuple[dict[str, Any], list[Row]]:
    """Returns the report of a run that was charged and got no label; not sensitive.

    Args:
        error: with the labels, of which there are none, and their cost.
        teachers: that were asked.
        epsilon_ledger: spent by them so far.
        seconds: that it took.
    """
    cost, name = error.labels.cost, teachers.dataset.name
    values = _labels_report(error.labels, name, teachers.num_teachers, epsilon_ledger, seconds)
    queries = f"{values['queries']} asked, NONE answered: there is no student"
    return {**values, "student": None}, [
        ("teachers", f"{teachers.num_teachers} on {name}"),
        ("queries", queries),
        (
            "epsilon, charged all the same",
            f"{rounded_up(cost.epsilon)} at delta {cost.delta:g}; data-independent",
        ),
        ("spent so far", f"epsilon {rounded_up(epsilon_ledger)}, data-independent"),
        ("time", f"{seconds:.1f} s"),
    ]


def _value(accuracy: evaluation.Accuracy | None) -> float | None:
    return None if accuracy is None else accuracy.value


def _in_percent(accuracy: evaluation.Accuracy | None) -> str:
    return NOT_MEASURED if accuracy is None else f"{accuracy.value:.2%}"
