"""What a student run or a comparison found out, as rows of a table and as JSON.

All of it is for whoever holds the private data; what may be published of it stands in the privacy
statement. What public labels would tell is absent where there are none: None in JSON, said in rows.
"""

import pathlib
from typing import Any

from pate_tf.accounting.charge import rounded_up
from pate_tf.queries.queried import QueriedLabels
from pate_tf.runs.reporting import NOT_MEASURED, UNEVEN, Row
from pate_tf.runs.student.certainty import certainty
from pate_tf.runs.student.comparison import DistillationReport
from pate_tf.runs.student.making import StudentReport
from pate_tf.students import evaluation
from pate_tf.students.by_class import ByClass
from pate_tf.teachers.voters import Voter


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
