"""Publishes a student with its statement, after stored labels are checked against the ledger."""

import dataclasses
import hmac
import importlib.metadata
import pathlib
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from pate_tf.accounting.mechanisms import Mechanism, mechanism_from_dict
from pate_tf.accounting.released_labels import ReleasedLabels
from pate_tf.aggregation import labeller
from pate_tf.aggregation.feature_sums import sums_digest
from pate_tf.aggregation.labeller import cost_of_labels
from pate_tf.analysis import release_results as kept_release
from pate_tf.api.labelling import check_teachers
from pate_tf.core import artifacts
from pate_tf.core.public import Pool
from pate_tf.ledger import Ledger
from pate_tf.ledger.ledger import facts_beyond_the_ledger
from pate_tf.queries.queried import QueriedLabels
from pate_tf.queries.strategies import find_strategy
from pate_tf.serving import digest, export
from pate_tf.statement import page as statement_page
from pate_tf.statement.privacy_statement import PrivacyStatement, Sanitised
from pate_tf.teachers.records import KnowsRecords
from pate_tf.teachers.voters import Voter

# Labels that were kept meanwhile are held against the ledger that paid for them.


NOT_PAID: Final = "labels: expected labels that this ledger paid for, got others"


def check_paid(labels: QueriedLabels, pool: Pool, ledger: Ledger) -> None:
    """Checks that a ledger paid for labels, whoever kept them meanwhile.

    Raises:
      ValueError: if they are of another pool, the ledger did not give these answers or holds them
        at another delta, or anything about them was changed, such as how queries were chosen.
    """
    labels.check_pool(pool)
    released = labels.released
    mechanism = mechanism_from_dict(released.cost.charge.to_dict())
    if mechanism.adds_records:
        num_distinct, rows = 1, _check_sums(released, mechanism, ledger)
    else:
        num_distinct, rows = _check_answers(labels, mechanism, pool, ledger)
    expected = cost_of_labels(
        ledger, mechanism, num_distinct=num_distinct, rows=rows, unit=released.cost.unit
    )
    cost = released.cost
    if cost.delta != ledger.delta or not cost.epsilon >= expected.epsilon:
        raise ValueError(
            f"labels: expected epsilon {expected.epsilon:g} at the ledger's delta "
            f"{ledger.delta:g}, got {cost.epsilon:g} at {cost.delta:g}: ask again, what was paid "
            f"for is free"
        )
    if not hmac.compare_digest(labels.seal or "", ledger.recognise(labels.record())):
        raise ValueError(
            "labels: expected what this ledger gave out, and how it was chosen, got something that "
            "was changed since: ask again, what was paid for is free"
        )


def _check_sums(released: ReleasedLabels, mechanism: Mechanism, ledger: Ledger) -> tuple[int, ...]:
    """Returns the row that paid for noisy sums, if the ledger has them.

    That the labels follow from these is sealed; to work them out again would take minutes.
    """
    digest = sums_digest(mechanism)
    with ledger.exclusive():
        answer = ledger.stored_answers([digest]).get(digest)
    sums = released.noisy_sums
    given = None if sums is None else tuple(sums.ravel().tolist())
    if answer is None or given != answer.noisy_counts or released.ledger_rows != (answer.debit,):
        raise ValueError(NOT_PAID)
    return (answer.debit,)


def _check_answers(
    labels: QueriedLabels, mechanism: Mechanism, pool: Pool, ledger: Ledger
) -> tuple[int, tuple[int, ...]]:
    """Returns how many different queries were answered, and the rows that paid, if they did."""
    released = labels.released
    digests = labeller.query_digests(labels.asked(pool), mechanism)
    with ledger.exclusive():
        answers = ledger.stored_answers(sorted(set(digests)))
    given = [answers.get(digest) for digest in digests]
    counts = released.noisy_counts
    known = {
        # Counts that this batch has and others have not are left out of all.
        (index, answer.label, None if counts is None else answer.noisy_counts)
        for index, answer in zip(labels.queries.tolist(), given, strict=True)
        if answer is not None and answer.label is not None
    }
    said = set(
        zip(
            released.query_indices.tolist(),
            released.labels.tolist(),
            [None] * len(released.labels) if counts is None else map(tuple, counts.tolist()),
            strict=True,
        )
    )
    rows = tuple(sorted({answer.debit for answer in given if answer is not None}))
    if None in given or known != said or rows != released.ledger_rows:
        raise ValueError(NOT_PAID)
    return len(set(digests)), rows


# A student is published: exported, with a statement of what its labels cost.


STATEMENT, PAGE = "privacy_statement.json", "privacy_statement.md"
LIBRARIES = ("pate_tf", "tensorflow", "keras", "opendp", "numpy", "scipy")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """A student with the statement that goes with it. Public.

    Attributes:
      statement: what the student's labels cost.
      student_folder: the exported version.
    """

    statement: PrivacyStatement
    student_folder: pathlib.Path

    @property
    def folder(self) -> pathlib.Path:
        """What may be published: the student, and the statement beside it."""
        return self.student_folder.parent.parent

    def _repr_html_(self) -> str:
        return self.statement._repr_html_()


def publish(
    model: Any,
    labels: QueriedLabels,
    pool: Pool,
    *,
    teachers: Voter,
    ledger: Ledger,
    folder: pathlib.Path,
    export_formats: Sequence[str] = (),
) -> Published:
    """Exports a student, and states what its labels cost.

    Args:
      model: as `learn` returns it, or a Keras model that learnt from these labels alone.
      labels: all that it learnt from, beside the pool.
      pool: what the labels are of.
      teachers: the ensemble that was asked.
      ledger: its ledger, which paid.
      folder: `student/` and the statement go there, in JSON and as a page.
      export_formats: of "onnx" and "litert", to write the student in besides.

    Raises:
      ValueError: if the ledger did not pay for the labels, or the model can't be exported.
    """
    check_teachers(teachers, pool)
    if ledger.ensemble_digest != teachers.digest:
        raise ValueError("teachers: expected those whose ledger paid for the labels, got others")
    check_paid(labels, pool, ledger)
    is_adaptive = find_strategy(labels.strategy).is_adaptive
    # A later payment with predictable noise spoils the ensemble's earlier labels too.
    released = dataclasses.replace(labels.released, secure_noise=ledger.is_secure)
    statement = PrivacyStatement.of(
        released,
        dataset=pool.dataset.name,
        num_teachers=teachers.num_teachers,
        query_strategy=labels.strategy,
        choice=labels.choice,
        num_neighbours=labels.num_neighbours,
        epsilon_ensemble=ledger.spent().epsilon,
        epsilon_ensemble_replaced=(
            ledger.replaced_owner_epsilon() if teachers.unit == "owner" else None
        ),
        epsilon_budget=ledger.epsilon_budget,
        budget_was_raised=ledger.was_raised,
        **facts_beyond_the_ledger(ledger),
        num_records=_num_records(teachers),
        ledger_head=(ledger.head.sequence, ledger.head.digest),
        student_digest=digest.student_digest(model),
        versions=library_versions(),
        sanitised=None if is_adaptive else _kept_release(ledger),
    )
    student_folder = export.export_student(
        model, pool.dataset, folder / "student", statement.to_dict(), formats=export_formats
    )
    artifacts.write_json(folder / STATEMENT, statement.to_dict())
    artifacts.write_text(folder / PAGE, statement_page.to_markdown(statement))
    return Published(statement=statement, student_folder=student_folder)


def _kept_release(ledger: Ledger) -> Sanitised | None:
    """Returns what was released of all labels of an ensemble, if it was and none came since."""
    kept = ledger.stored_release()
    if kept is None or not kept.get("secure_noise", True):
        return None
    # Answers are only ever added, so that as many as then are the same as then. What withheld all
    # of its labels was paid for and told something, too.
    kinds = [row.kind for row in ledger.history()]
    since = kinds[len(kinds) - kinds[::-1].index("released") :]
    if kept["key"]["plan"]["num_queries"] != ledger.num_answered or "answers" in since:
        return None
    delta = kept["key"]["delta"] or ledger.delta
    return Sanitised.of(
        kept_release.sanitised_epsilon(kept, delta=delta, paid_epsilon=ledger.spent(delta).epsilon),
        plan_was_fixed=kept.get("plan_was_fixed", False),
    )


def _num_records(teachers: Voter) -> int | None:
    """Returns how many private records there are, where that is public and known."""
    if teachers.unit != "record" or not isinstance(teachers, KnowsRecords):
        return None
    return None if teachers.records is None else teachers.records.num_records


def library_versions() -> Mapping[str, str]:
    """Returns the version of each library that takes part, and of Python."""
    found: dict[str, Any] = {"python": sys.version.split()[0]}
    for name in LIBRARIES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = "not installed as a package"
    return found
