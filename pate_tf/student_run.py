"""A whole student run: ask and pay, train, evaluate, export, state what it cost.

A roof room: the one place where both halves of the house meet. What crosses from the sensitive
half is `ReleasedLabels`, which only the labeller makes.
"""

import contextlib
import dataclasses
import importlib.metadata
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pate_tf import artifacts
from pate_tf.accounting import kept_release, moments, statement_page
from pate_tf.accounting.mechanisms import Mechanism, mechanism_from_dict
from pate_tf.accounting.statement import PrivacyStatement, Sanitised
from pate_tf.aggregation import labeller
from pate_tf.aggregation.graph import VoteAggregation
from pate_tf.aggregation.noise import NoiseSource
from pate_tf.ledger import Ledger
from pate_tf.ledger.database import DATABASE
from pate_tf.queries.catalogue import find_strategy
from pate_tf.queries.config import QueryConfig
from pate_tf.queries.rounds import QueriedLabels, ask_in_rounds, check_queries
from pate_tf.records import IntArray, PoolLabels, PublicExamples, ReleasedLabels
from pate_tf.serving import digest, export, formats
from pate_tf.serving.served import ServedStudent
from pate_tf.students import catalogue, evaluation, held_out, training
from pate_tf.students.config import StudentConfig
from pate_tf.teachers.voters import Voter, covers

LIBRARIES = ("pate_tf", "tensorflow", "keras", "opendp", "numpy", "scipy")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudentReport:
    """What a student run found out.

    Attributes:
      queried: the labels that the student learnt from, and what was paid for them.
      label_accuracy: of the noisy labels, against the public labels.
      inferred_accuracy: of the labels that came without a query; None if there are none.
      student_accuracy: of the exported student on the samples that evaluate it.
      constant_answer: what always answering their commonest class would get right.
      statement: what may be published beside it.
      epsilon_data_dependent: SENSITIVE; of the batches that paid for the labels, two-sided; None
        where queries depended on earlier noisy labels, for which no such bound holds.
      student_folder: the exported version.
    """

    queried: QueriedLabels
    label_accuracy: evaluation.Accuracy
    inferred_accuracy: evaluation.Accuracy | None
    student_accuracy: evaluation.Accuracy
    constant_answer: float
    statement: PrivacyStatement
    epsilon_data_dependent: float | None
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
    queries: QueryConfig,
    teachers: Voter,
    ledger: Ledger,
    mechanism: Mechanism,
    noise: NoiseSource,
    run_directory: artifacts.RunDirectory,
    save_labels: bool = True,
    export_formats: Sequence[str] = (),
    evaluate_on: str = evaluation.HELD_OUT,
    choosing: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    voting_progress: Callable[[int], object] | None = None,
    show_progress: bool = False,
) -> StudentReport:
    """Has queries of the pool labelled, trains a student on them, exports and states.

    Args:
      config: how the student is trained.
      public: the public samples.
      pool_size: how many of them, from the first, form the pool; the rest evaluates.
      queries: how many of the pool are put to the teachers, and how they are chosen.
      teachers: the ensemble.
      ledger: the ensemble's ledger, open.
      mechanism: draws the labels and accounts for them.
      noise: where privacy noise comes from.
      run_directory: labels, student and statement go below `released/`.
      save_labels: whether the labels are kept in `released/labels.npz`.
      export_formats: of "onnx" and "litert", to write the student in besides.
      evaluate_on: which public samples evaluate the student, of `evaluation.EVALUATED_ON`.
      choosing: entered for as long as queries are chosen.
      voting_progress: called with the number of queries voted on since its last call.
      show_progress: whether training shows a progress bar.

    Raises:
      ValueError: if sizes or model do not fit; nothing was charged then.
      LedgerError: if the budget does not suffice or the ledger can't be used.
    """
    dataset = public.dataset
    student_side, _ = public.split(pool_size)
    pool = student_side.pool()
    check_queries(queries, pool)
    evaluation.check_evaluate_on(evaluate_on)
    if teachers.dataset != dataset:
        raise ValueError(
            f"teachers: expected an ensemble for {dataset.name}, got one for "
            f"{teachers.dataset.name}"
        )
    strategy = find_strategy(queries.strategy)
    if strategy.is_adaptive and not covers(teachers, pool.inputs):
        raise ValueError(
            f"query_strategy: expected labels of the whole pool for {queries.strategy}, whose "
            f"later queries nobody knows beforehand, got labels of a part of it"
        )
    artifacts.remove_abandoned(run_directory.root)
    student = catalogue.find_student(config, dataset)  # what does not fit must not cost budget
    formats.check_formats(export_formats)
    if export_formats and not student.can_convert:
        raise ValueError("export_formats: expected none for a forest, which can't be converted")

    gate = labeller.Labeller(
        voter=lambda inputs: teachers.votes(inputs, voting_progress),
        ledger=ledger,
        noise=noise,
        noisy_winners=VoteAggregation(dataset.num_classes).label,
        num_classes=dataset.num_classes,
    )

    def ask(indices: IntArray) -> ReleasedLabels:
        return gate.label(
            pool.inputs[indices],
            mechanism=mechanism,
            query_indices=indices,
            adaptive=strategy.is_adaptive,
            num_later=queries.num_queries - len(indices),
        )

    queried = ask_in_rounds(queries, pool, ask, choosing=choosing)
    released = queried.released
    if save_labels:
        artifacts.write_arrays(
            run_directory.released / "labels.npz",
            {"query_indices": released.query_indices, "labels": released.labels},
        )
    logs = training.logs_of(run_directory.released)
    model = student.train(
        config,
        queried.labels,
        pool,
        folder=run_directory.released,
        callbacks=[held_out.HeldOut(public.split(pool_size)[1], logs)],
        show_progress=show_progress,
    )
    statement = PrivacyStatement.of(
        released,
        dataset=dataset.name,
        unit=teachers.unit,
        num_teachers=teachers.num_teachers,
        query_strategy=queries.strategy,
        epsilon_ensemble=ledger.spent().epsilon,
        epsilon_budget=ledger.epsilon_budget,
        budget_was_raised=ledger.was_raised,
        ledger_head=(ledger.head.sequence, ledger.head.digest),
        student_digest=digest.student_digest(model),
        versions=_versions(),
        sanitised=None if strategy.is_adaptive else _kept_release(ledger),
    )
    folder = export.export_student(
        model,
        dataset,
        run_directory.released / "student",
        statement.to_dict(),
        formats=export_formats,
    )
    artifacts.write_json(run_directory.released / "privacy_statement.json", statement.to_dict())
    artifacts.write_text(
        run_directory.released / "privacy_statement.md", statement_page.to_markdown(statement)
    )
    evaluated = evaluation.evaluated_samples(
        evaluate_on, public, pool_size=pool_size, queries=queried.queries
    )
    given = ServedStudent(folder).classify(evaluated.inputs)
    label_accuracy = _label_accuracy(released, student_side)
    student_accuracy = evaluation.accuracy(given, evaluated.labels)
    held_out.write_version(
        logs.parent / "versions" / folder.name,
        evaluated,
        given,
        settings={
            **dataclasses.asdict(config),
            "dataset": dataset.name,
            "num_teachers": teachers.num_teachers,
            "queries": queries.num_queries,
            "query_strategy": queries.strategy,
            "mechanism": released.mechanism,
        },
        results={
            "result/student_accuracy": student_accuracy.value,
            "result/label_accuracy": label_accuracy.value,
            "result/epsilon": statement.epsilon,
        },
    )
    return StudentReport(
        queried=queried,
        label_accuracy=label_accuracy,
        inferred_accuracy=_label_accuracy(queried.inferred, student_side)
        if queried.num_inferred
        else None,
        student_accuracy=student_accuracy,
        constant_answer=evaluated.majority_share,
        statement=statement,
        epsilon_data_dependent=_data_dependent_epsilon(ledger, released),
        student_folder=folder,
    )


def _kept_release(ledger: Ledger) -> Sanitised | None:
    """Returns what was released of all labels of an ensemble, if it was and none came since."""
    kept = ledger.kept_release()
    if kept is None or not kept.get("secure_noise", True):
        return None
    # Answers are only ever added, so that as many as then are the same as then.
    if kept["key"]["plan"]["num_queries"] != ledger.num_answered:
        return None
    delta = kept["key"]["delta"] or ledger.delta
    return Sanitised.of(
        kept_release.sanitised_epsilon(kept, delta=delta, paid_epsilon=ledger.spent(delta).epsilon)
    )


def _label_accuracy(labels: PoolLabels, examples: PublicExamples) -> evaluation.Accuracy:
    return evaluation.accuracy(labels.labels, examples.labels[labels.query_indices])


def _data_dependent_epsilon(ledger: Ledger, released: ReleasedLabels) -> float | None:
    """Sensitive: two-sided epsilon, at the true votes, of the batches that paid for the labels.

    None if a batch depended on earlier noisy labels: its realised cost is itself random.
    """
    total = 0.0 * moments.DEFAULT_MOMENTS
    for paid in labeller.paid_counts(ledger):
        if paid.debit in released.ledger_rows:
            if paid.adaptive:
                return None
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
