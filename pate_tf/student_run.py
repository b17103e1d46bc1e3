"""A whole student run: ask and pay, train, evaluate, export, state what it cost.

A roof room: the one place where both halves of the house meet. What crosses from the sensitive
half is `ReleasedLabels`, which only the labeller makes.
"""

import dataclasses
import importlib.metadata
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from pate_tf import artifacts
from pate_tf.accounting import moments
from pate_tf.accounting.mechanisms import Mechanism, mechanism_from_dict
from pate_tf.accounting.statement import PrivacyStatement
from pate_tf.aggregation import labeller
from pate_tf.aggregation.graph import VoteAggregation
from pate_tf.aggregation.noise import NoiseSource
from pate_tf.ledger import Ledger
from pate_tf.ledger.database import DATABASE
from pate_tf.records import PublicExamples, ReleasedLabels
from pate_tf.serving import export
from pate_tf.students import catalogue, evaluation
from pate_tf.students.config import StudentConfig
from pate_tf.teachers.voters import Voter

LIBRARIES = ("pate_tf", "tensorflow", "keras", "opendp", "numpy", "scipy")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentReport:
    """What a student run found out.

    Attributes:
      released: the labels that the student learnt from.
      label_accuracy: of the noisy labels, against the public labels.
      student_accuracy: of the exported student on the held-out samples.
      statement: what may be published beside it.
      epsilon_data_dependent: SENSITIVE; of the batches that paid for the labels, two-sided.
      student_folder: the exported version.
    """

    released: ReleasedLabels
    label_accuracy: evaluation.Accuracy
    student_accuracy: evaluation.Accuracy
    statement: PrivacyStatement
    epsilon_data_dependent: float
    student_folder: pathlib.Path


def open_ledger(
    folder: pathlib.Path,
    *,
    teachers: Voter,
    delta: float,
    epsilon_budget: float | None,
    replace_budget: bool = False,
) -> Ledger:
    """Opens an ensemble's ledger.

    Args:
      folder: the sensitive folder beside the ensemble.
      teachers: the ensemble that the ledger belongs to.
      delta: fixed at first use.
      epsilon_budget: fixed at the first use that gives one; None for no limit.
      replace_budget: whether to put the new numbers in the place of the old ones, for ever on
        record.

    Raises:
      ValueError: if a budget is to be replaced by none.
      LedgerError: if the ledger is damaged, or belongs to another ensemble or other numbers.
    """
    if not replace_budget or not (folder / DATABASE).exists():
        return Ledger.open(
            folder, ensemble_digest=teachers.digest, delta=delta, epsilon_budget=epsilon_budget
        )
    if epsilon_budget is None:
        raise ValueError("new_budget_i_understand: expected an --epsilon_budget, got none")
    with Ledger.read(folder) as existing:
        old_delta, old_budget = existing.delta, existing.epsilon_budget
    ledger = Ledger.open(
        folder, ensemble_digest=teachers.digest, delta=old_delta, epsilon_budget=old_budget
    )
    try:
        ledger.raise_budget(
            epsilon_budget=epsilon_budget, delta=delta, i_understand_this_weakens_privacy=True
        )
    except BaseException:
        ledger.close()
        raise
    return ledger


def run_student(
    *,
    config: StudentConfig,
    public: PublicExamples,
    pool_size: int,
    num_queries: int,
    teachers: Voter,
    ledger: Ledger,
    mechanism: Mechanism,
    noise: NoiseSource,
    run_directory: artifacts.RunDirectory,
    save_labels: bool = True,
    voting_progress: Callable[[int], object] | None = None,
    show_progress: bool = False,
) -> StudentReport:
    """Labels the first queries of the pool, trains a student on them, exports and states.

    Args:
      config: how the student is trained.
      public: the public samples.
      pool_size: how many of them, from the first, form the pool; the rest evaluates.
      num_queries: how many of the pool, from the first, are put to the teachers.
      teachers: the ensemble.
      ledger: the ensemble's ledger, open.
      mechanism: draws the labels and accounts for them.
      noise: where privacy noise comes from.
      run_directory: labels, student and statement go below `released/`.
      save_labels: whether the labels are kept in `released/labels.npz`.
      voting_progress: called with the number of queries voted on since its last call.
      show_progress: whether training shows a progress bar.

    Raises:
      ValueError: if sizes or model do not fit; nothing was charged then.
      LedgerError: if the budget does not suffice or the ledger can't be used.
    """
    dataset = public.dataset
    student_side, held_out = public.split(pool_size)
    pool = student_side.pool()
    if not 0 < num_queries <= len(pool):
        raise ValueError(f"queries: expected from 1 to the pool's {len(pool)}, got {num_queries}")
    if teachers.dataset != dataset:
        raise ValueError(
            f"teachers: expected an ensemble for {dataset.name}, got one for "
            f"{teachers.dataset.name}"
        )
    artifacts.remove_abandoned(run_directory.root)
    student = catalogue.find_student(config, dataset)  # what does not fit must not cost budget

    gate = labeller.Labeller(
        voter=lambda inputs: teachers.votes(inputs, voting_progress),
        ledger=ledger,
        noise=noise,
        noisy_winners=VoteAggregation(dataset.num_classes).label,
        num_classes=dataset.num_classes,
    )
    released = gate.label(pool.inputs[:num_queries], mechanism=mechanism)
    if save_labels:
        artifacts.write_arrays(
            run_directory.released / "labels.npz",
            {"query_indices": released.query_indices, "labels": released.labels},
        )
    model = student.train(
        config, released, pool, folder=run_directory.released, show_progress=show_progress
    )
    statement = PrivacyStatement.of(
        released,
        dataset=dataset.name,
        unit=teachers.unit,
        num_teachers=teachers.num_teachers,
        epsilon_ensemble=ledger.spent().epsilon,
        epsilon_budget=ledger.epsilon_budget,
        budget_was_raised=ledger.was_raised,
        ledger_head=(ledger.head.sequence, ledger.head.digest),
        student_digest=artifacts.digest_arrays(model.get_weights()),
        versions=_versions(),
    )
    folder = export.export_student(
        model, dataset, run_directory.released / "student", statement.to_dict()
    )
    artifacts.write_json(run_directory.released / "privacy_statement.json", statement.to_dict())
    artifacts.write_text(run_directory.released / "privacy_statement.md", statement.to_markdown())
    return StudentReport(
        released=released,
        label_accuracy=evaluation.accuracy(
            released.labels, student_side.labels[released.query_indices]
        ),
        student_accuracy=evaluation.evaluate(export.ServedStudent(folder).classify, held_out),
        statement=statement,
        epsilon_data_dependent=_data_dependent_epsilon(ledger, released),
        student_folder=folder,
    )


def _data_dependent_epsilon(ledger: Ledger, released: ReleasedLabels) -> float:
    """Sensitive: two-sided epsilon, at the true votes, of the batches that paid for the labels."""
    total = 0.0 * moments.DEFAULT_MOMENTS
    for paid in labeller.paid_counts(ledger):
        if paid.debit in released.ledger_rows:
            mechanism = mechanism_from_dict(paid.mechanism)
            total = total + moments.data_dependent_alphas(
                paid.counts.values[paid.answered],
                mechanism,
                moments.DEFAULT_MOMENTS,
                bound="class_aware" if "class_aware" in mechanism.bounds else "two_sided",
                num_unanswered=int((~paid.answered).sum()),
            )
    epsilon, _ = moments.epsilon_from_alphas(total, moments.DEFAULT_MOMENTS, released.delta)
    return min(epsilon, released.epsilon)


def _versions() -> Mapping[str, str]:
    found: dict[str, Any] = {"python": sys.version.split()[0]}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed as a package"
    return found
