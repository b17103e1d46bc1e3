"""Trains, measures and exports a student from released labels."""

import dataclasses
import pathlib
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np

from pate_tf.accounting import moments
from pate_tf.accounting.charge import ReleasedLabels
from pate_tf.aggregation.labeller import paid_counts
from pate_tf.aggregation.noise import NoiseSource
from pate_tf.api.labelling import ReleasePlan, Source, release_labels
from pate_tf.api.publishing import Published, publish_model
from pate_tf.api.reporting import QUIET, Reporting
from pate_tf.core import artifacts
from pate_tf.core.public import PublicSplit
from pate_tf.ledger import Ledger, LedgerError, LedgerWarning
from pate_tf.queries.labels import COST_FILE, LABELS_FILE, Labels
from pate_tf.representations.regression import MOST_QUERIES
from pate_tf.serving.export import check_formats
from pate_tf.serving.served import ServedStudent
from pate_tf.statement.check import JSON_FILE, PAGE_FILE
from pate_tf.statement.labels import LabelsStatement
from pate_tf.students import evaluation, training
from pate_tf.students.config import HELD_OUT, OutputSettings, find_student
from pate_tf.students.evaluation import ByClass, by_class
from pate_tf.students.kinds import StudentConfig

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
        batches = [one for one in paid_counts(ledger) if one.debit in released.ledger_rows]
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
    return float(weights.max(axis=1).mean(dtype=np.float64))


def warn_of_noise(labels: Labels, reporting: Reporting) -> None:
    """Warns in one line if noise leaves labels of the pool unsure."""
    found = certainty(labels)
    if found is not None and found < CERTAIN_ENOUGH:
        by_sums = labels.released.noisy_sums is not None
        reporting.warn(
            f"labels: the noise is heavy for {'so few records' if by_sums else 'these teachers'}: "
            f"what all noisy {'sums' if by_sums else 'counts'} say of the pool is {found:.0%} sure "
            f"on average; next time take {'' if by_sums else 'more teachers or '}a larger epsilon, "
            f"and see docs/instead.md for what else bears such noise"
        )


# A student is made: labels are released, it learns from them, it is evaluated and published.


REPORT = "student_report.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Output(OutputSettings):
    """What of a student is written and measured, and where. Public.

    Attributes:
      directory: labels, student and statement go below its `released/`.
    """

    directory: artifacts.RunDirectory


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
    """

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


def check_student(config: StudentConfig, public: PublicSplit, output: Output) -> None:
    """Checks all about a student that can be checked before its labels are charged.

    Raises:
      ValueError: if the student does not fit the data set, or its files can't be written.
    """
    evaluation.check_evaluate_on(output.evaluate_on, public)
    student = find_student(config, public.dataset)
    check_formats(output.export_formats)
    if output.export_formats and not student.can_convert:
        raise ValueError("export_formats: expected none for a forest, which can't be converted")
    check_places(output.directory)


def make_student(
    config: StudentConfig,
    public: PublicSplit,
    *,
    plan: ReleasePlan,
    teachers: Source,
    ledger: Ledger,
    noise: NoiseSource,
    output: Output,
    reporting: Reporting = QUIET,
) -> StudentReport:
    """Releases labels, trains a student on them, publishes it and evaluates what was published.

    Args:
      config: how the student is trained.
      public: the pool, and the samples that evaluate the student.
      plan: which labels are released; of `plan_release` for this pool and these teachers.
      teachers: the ensemble.
      ledger: the ensemble's ledger, open; see `labelling.open_ledger`.
      noise: where privacy noise comes from.
      output: where everything goes.
      reporting: how progress is shown.

    Raises:
      ValueError: if something does not fit; nothing was charged then.
      NothingAnsweredError: if all was charged and no query got a label.
      LedgerError: if the budget does not suffice or the ledger can't be used.
    """
    check_student(config, public, output)
    artifacts.remove_abandoned(output.directory.root)
    labels = release_labels(
        plan, public.pool, teachers=teachers, ledger=ledger, noise=noise, reporting=reporting
    )
    released = output.directory.released
    if output.save_labels:
        labels.save(released)
    if not labels.released.num_answered:
        raise NothingAnsweredError(labels, plan.mechanism.unanswered_advice)
    warn_of_noise(labels, reporting)
    model = learn(config, public, labels, folder=released, verbose=reporting.verbose)
    published = publish_model(
        model,
        labels,
        teachers=teachers,
        ledger=ledger,
        folder=released,
        export_formats=output.export_formats,
    )
    measured = _measure(config, public, labels, published, output, reporting)
    artifacts.hide_host(released)
    return StudentReport(
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


def _measure(
    config: StudentConfig,
    public: PublicSplit,
    labels: Labels,
    published: Published[LabelsStatement],
    output: Output,
    reporting: Reporting,
) -> Measured:
    """Compares labels and the exported student with public labels, and logs the result."""
    samples = evaluation.evaluated_samples(output.evaluate_on, public, queries=labels.queries)
    given = student_accuracy = constant_answer = evaluated_on = found = None
    if samples is not None:
        truth = evaluation.true_labels(samples)
        given, probabilities = ServedStudent(published.student_folder).answer(samples.inputs)
        student_accuracy = evaluation.accuracy(given, truth)
        found = by_class(given, truth, public.dataset.num_classes, probabilities)
        if found.is_constant and len(given) > 1:
            reporting.warn(
                "student: it gives all samples the same answer: its labels may all be of the "
                "commonest class; docs/data.md says what to do about it"
            )
        constant_answer = samples.majority_share
        evaluated_on = output.evaluate_on or HELD_OUT
    measured = Measured(
        label_accuracy=evaluation.accuracy_in_pool(labels.released, public),
        inferred_accuracy=evaluation.accuracy_in_pool(labels.inferred, public),
        student_accuracy=student_accuracy,
        constant_answer=constant_answer,
        evaluated_on=evaluated_on,
        by_class=found,
    )
    statement = published.statement
    logs = training.logs_of(output.directory.released).parent
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
            "dataset": statement.dataset,
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
