"""What a student run or a comparison found out, as rows of a table and as JSON.

A roof room. All of it is for whoever holds the private data; what may be published of it stands in
the privacy statement.
"""

import pathlib
from typing import Any

from pate_tf.accounting.statement_page import rounded_up
from pate_tf.distillation_run import DistillationReport
from pate_tf.student_run import StudentReport
from pate_tf.students import evaluation
from pate_tf.teachers.voters import Voter

Row = tuple[str, str]


def accuracy_in_words(found: evaluation.Accuracy, evaluate_on: str) -> str:
    """Returns an accuracy with its interval, and what it was measured on."""
    low, high = found.interval
    kind = "held-out" if evaluate_on == evaluation.HELD_OUT else "unqueried"
    return (
        f"{found.value:.2%} on {found.num_samples:,} {kind} samples "
        f"(95 % interval {low:.2%} to {high:.2%})"
    )


def student_values(result: StudentReport, *, evaluate_on: str, seconds: float) -> dict[str, Any]:
    """SENSITIVE: returns what a student run found out, as JSON values.

    Args:
      result: of the run.
      evaluate_on: of `evaluation.EVALUATED_ON`.
      seconds: that it took.
    """
    statement, student, inferred = (
        result.statement,
        result.student_accuracy,
        result.inferred_accuracy,
    )
    return {
        "dataset": statement.dataset,
        "nb_teachers": statement.num_teachers,
        "queries": statement.num_queries,
        "answered": statement.num_answered,
        "label_accuracy": result.label_accuracy.value,
        "student_accuracy": student.value,
        "student_accuracy_interval": list(student.interval),
        "evaluated_on": evaluate_on,
        "num_evaluated": student.num_samples,
        "constant_answer_accuracy": result.constant_answer,
        "query_strategy": statement.query_strategy,
        "queries_saved": result.queried.num_inferred,
        "inferred_label_accuracy": inferred.value if inferred else None,
        "mechanism": dict(statement.mechanism),
        "epsilon_data_independent": statement.epsilon,
        "epsilon_data_dependent": result.epsilon_data_dependent,
        "epsilon_ensemble": statement.epsilon_ensemble,
        "delta": statement.delta,
        "secure_noise": statement.secure_noise,
        "sensitive": ["epsilon_data_dependent"],
        "student": str(result.student_folder),
        "seconds": seconds,
    }


def student_rows(result: StudentReport, *, evaluate_on: str, seconds: float) -> list[Row]:
    """SENSITIVE: returns the same as rows; arguments as of `student_values`."""
    statement, inferred = result.statement, result.inferred_accuracy
    data_dependent = result.epsilon_data_dependent
    rows = [
        ("teachers", f"{statement.num_teachers} on {statement.dataset}"),
        ("queries", f"{statement.num_queries} asked, {statement.num_answered} answered"),
        ("accuracy of the noisy labels", f"{result.label_accuracy.value:.2%}"),
    ]
    if inferred:
        rows.append(("queries saved", f"{inferred.num_samples}, labels {inferred.value:.2%} right"))
    return [
        *rows,
        (
            "student accuracy",
            f"{accuracy_in_words(result.student_accuracy, evaluate_on)}; a constant answer: "
            f"{result.constant_answer:.2%}",
        ),
        (
            "epsilon, data-independent",
            f"{rounded_up(statement.epsilon)} at delta {statement.delta:g}; {statement.kind}",
        ),
        (
            "epsilon, data-dependent",
            "none: queries depended on earlier noisy labels"
            if data_dependent is None
            else f"{data_dependent:.3f} at delta {statement.delta:g}; SENSITIVE: do not publish",
        ),
        (
            "spent by this ensemble so far",
            f"epsilon {rounded_up(statement.epsilon_ensemble)}, data-independent",
        ),
        ("student and statement", f"{result.student_folder.parent.parent} (publishable)"),
        ("time", f"{seconds:.1f} s"),
    ]


def comparison_values(
    result: DistillationReport,
    teachers: Voter,
    *,
    num_queries: int,
    temperature: float,
    evaluate_on: str,
    seconds: float,
) -> dict[str, Any]:
    """SENSITIVE, NOT PRIVATE: returns what a comparison found out, as JSON values.

    Args:
      result: of the comparison.
      teachers: the ensemble.
      num_queries: that both students learnt from.
      temperature: that logits were divided by.
      evaluate_on: of `evaluation.EVALUATED_ON`.
      seconds: that it took.
    """
    students = {"distilled": result.distilled, "plurality": result.plurality}
    return {
        "private": False,
        "dataset": teachers.dataset.name,
        "nb_teachers": teachers.num_teachers,
        "queries": num_queries,
        "temperature": temperature,
        "evaluated_on": evaluate_on,
        "num_evaluated": result.distilled.num_samples,
        **{f"{name}_accuracy": found.value for name, found in students.items()},
        **{f"{name}_accuracy_interval": list(found.interval) for name, found in students.items()},
        "plurality_label_accuracy": result.plurality_labels.value,
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
    evaluate_on = values["evaluated_on"]
    return [
        ("teachers", f"{values['nb_teachers']} on {values['dataset']}"),
        ("queries", f"{values['queries']}, without noise and without charge"),
        (
            f"distilled at temperature {values['temperature']:g}",
            accuracy_in_words(result.distilled, evaluate_on),
        ),
        ("labels by plurality", accuracy_in_words(result.plurality, evaluate_on)),
        ("accuracy of those labels", f"{result.plurality_labels.value:.2%}"),
        ("a constant answer", f"{result.constant_answer:.2%}"),
        ("exported", "nothing: NOT PRIVATE"),
        ("SENSITIVE", str(file)),
        ("time", f"{values['seconds']:.1f} s"),
    ]
