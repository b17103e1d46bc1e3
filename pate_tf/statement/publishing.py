"""Exports a student with its statement, after its labels are verified against the ledger."""

import dataclasses
import datetime
import hmac
import importlib.metadata
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar, cast

from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.mechanisms.base import ReleasesFeatureSums
from pate_tf.core import artifacts
from pate_tf.core.settings import PublicationSettings
from pate_tf.ledger import Ledger
from pate_tf.queries.labels import Labels
from pate_tf.queries.strategies import inputs_at
from pate_tf.release.feature_sums import of_other_data
from pate_tf.release.noise import check_drawable
from pate_tf.release.noisy_sums import mechanism_of_estimate, sums_in_ledger
from pate_tf.release.votes import cost_of_labels, query_digests
from pate_tf.representations import catalogue, pretrained
from pate_tf.serving.export import export_student, student_digest
from pate_tf.serving.served import SCHEMA
from pate_tf.statement import JSON_FILE, PAGE_FILE
from pate_tf.statement.labels_statement import LabelsStatement
from pate_tf.statement.privacy_statement import PrivacyStatement, delta_text, epsilon_text
from pate_tf.statement.report import MODEL_CARD, PAGE

LIBRARIES = ("pate_tf", "tensorflow", "keras", "opendp", "numpy", "scipy")
ASK_AGAIN: Final = "ask again, what was charged once is free"

Stated = TypeVar("Stated", bound=PrivacyStatement)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Published(Generic[Stated]):
    """A student with the statement that goes with it. Public.

    >>> import pate_tf
    >>> published = student.publish(folder / "released")
    >>> published.student_folder.name.isdigit(), published.statement.unit
    (True, 'record')

    Attributes:
        statement: what the student's labels cost.
        student_folder: the exported version.
        measured: accuracies on public samples with labels, as JSON values; empty where none was
            measured.
    """

    statement: Stated
    student_folder: pathlib.Path
    measured: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def folder(self) -> pathlib.Path:
        """What may be published: the student and its statement."""
        return self.student_folder.parent.parent

    def __repr__(self) -> str:
        first = next(iter(self.statement.guarantees), None)
        cost = ""
        if first is not None:
            cost = f", epsilon {epsilon_text(first.epsilon)} at delta {delta_text(first.delta)}"
        return f"Published(<{self.student_folder}{cost}; {self.folder / PAGE_FILE}>)"


def publish_model(
    model: Any,
    labels: Labels,
    *,
    teachers: Any,
    ledger: Ledger,
    folder: pathlib.Path,
    export_formats: Sequence[str] = (),
    publication: PublicationSettings = PublicationSettings(),  # noqa: B008 (frozen)
    estimated_accuracy: tuple[float, float, float, float] | None = None,
    estimate_is_apart: bool = False,
) -> Published[LabelsStatement]:
    """Exports a student's model, and states what its labels cost.

    Args:
        model: from raw inputs to logits; learned from these labels and public data alone.
        labels: that it learned from.
        teachers: the ensemble that was asked, or the feature sums.
        ledger: its ledger, open.
        folder: `student/` and the statement go there, in JSON and as a page.
        export_formats: of "onnx" and "litert", to write the student in as well.
        publication: what the statement says of it besides.
        estimated_accuracy: as of `LabelsStatement`.
        estimate_is_apart: as of `LabelsStatement`.

    Raises:
        ValueError: if the labels were not charged to the ledger, or the model can't be exported.
    """
    if teachers.dataset != labels.pool.dataset:
        raise of_other_data(teachers, labels.pool)
    if ledger.ensemble_digest != teachers.digest:
        raise ValueError("teachers: expected those of the ledger that was charged, got others")
    check_charged(labels, ledger)
    encoder = None
    name = teachers.representation
    if name is not None and not catalogue.is_known(name):  # a person brought it
        weights = (teachers.encoder_digest or "unknown")[:16]
        encoder = f"{pretrained.public_name(name)}, weights {weights}"
    statement = LabelsStatement.of(
        labels.released,
        ledger,
        pool_name=labels.pool.dataset.name,
        num_teachers=teachers.num_teachers,  # None of feature sums
        query_strategy=labels.strategy,
        choice=labels.choice,
        predicts=labels.pool.dataset.target_in_words or None,
        target_range=labels.pool.dataset.target_range,
        estimated_accuracy=estimated_accuracy,
        estimate_charge=estimated_accuracy
        and mechanism_of_estimate(estimated_accuracy[3], labels.released.cost.unit),
        estimate_is_apart=estimate_is_apart,
        encoder=encoder,
        # Of owners the number of records is private.
        num_records=teachers.num_records if teachers.unit == "record" else None,
        student_digest=student_digest(model),
        **publication_facts(publication, folder / "student"),
    )
    return export_with(
        statement, model, labels, folder, export_formats=export_formats, seal=ledger.mac
    )


def export_with(
    statement: Stated,
    model: Any,
    labels: Labels,
    folder: pathlib.Path,
    *,
    export_formats: Sequence[str] = (),
    seal: Callable[[Mapping[str, Any]], str] | None = None,
) -> Published[Stated]:
    """Writes a student's next version with its statement, and the statement in the folder.

    Args:
        statement: of its labels.
        model: from raw inputs to logits.
        labels: that it learned from.
        folder: `student/`, the statement and, of a table, its schema go there.
        export_formats: as `publish_model` takes them.
        seal: as `export_student` takes it.

    Raises:
        ValueError: if the model can't be exported.
    """
    values, dataset = statement.to_dict(), labels.pool.dataset
    student_folder = export_student(
        model, dataset, folder / "student", values, formats=export_formats, seal=seal
    )
    if dataset.schema is not None:
        artifacts.write_text(folder / SCHEMA, dataset.schema.to_toml())
    artifacts.write_json(folder / JSON_FILE, values)
    artifacts.write_text(folder / PAGE_FILE, statement.to_markdown())
    for name in (PAGE, MODEL_CARD):  # of an earlier version
        (folder / name).unlink(missing_ok=True)
    return Published(statement=statement, student_folder=student_folder)


def check_charged(labels: Labels, ledger: Ledger) -> None:
    """Checks that labels were charged to a ledger, wherever they were stored since.

    Of labels from sums the noisy sums are compared; that labels follow from these is sealed, as to
    work them out again would take minutes.

    Raises:
        ValueError: if the ledger holds other answers, or these at another delta, or anything about
            them was changed, such as how queries were chosen.
    """
    released = labels.released
    cost, counts = released.cost, released.noisy_counts
    mechanism = cast(Mechanism, cost.charge)
    check_drawable(mechanism)
    if isinstance(mechanism, ReleasesFeatureSums):
        with ledger.exclusive():
            numbers, rows = sums_in_ledger(ledger, mechanism)
        sums = released.noisy_sums
        is_stored = sums is not None and tuple(sums.ravel().tolist()) == numbers
        num_distinct = len(rows)  # each of which charged all sums
    else:
        inputs = inputs_at(labels.pool, labels.queries)
        digests = query_digests(inputs, mechanism, labels.pool.dataset.target_in_words)
        num_distinct = len(set(digests))
        with ledger.exclusive():
            answers = ledger.stored_answers(sorted(set(digests)))
        stored = {
            # Counts that this batch has and others have not are left out of all.
            (index, answer.label, None if counts is None else answer.noisy_counts)
            for index, digest in zip(labels.queries.tolist(), digests, strict=True)
            if (answer := answers.get(digest)) is not None and answer.label is not None
        }
        claimed = zip(
            released.query_indices.tolist(),
            released.labels.tolist(),
            [None] * len(released.labels) if counts is None else map(tuple, counts.tolist()),
            strict=True,
        )
        rows = tuple(sorted({answer.debit for answer in answers.values()}))
        is_stored = len(answers) == num_distinct and stored == set(claimed)
    if not is_stored or rows != released.ledger_rows:
        raise ValueError("labels: expected labels that were charged to this ledger, got others")
    expected = cost_of_labels(
        ledger, mechanism, num_distinct=num_distinct, rows=rows, unit=cost.unit
    )
    if cost.delta != ledger.delta or not cost.epsilon >= expected.epsilon:
        raise ValueError(
            f"labels: expected epsilon {expected.epsilon:g} at the ledger's delta "
            f"{ledger.delta:g}, got {cost.epsilon:g} at {cost.delta:g}: {ASK_AGAIN}"
        )
    if not hmac.compare_digest(labels.seal or "", ledger.mac(labels.record())):
        raise ValueError(
            f"labels: expected what this ledger released, and how it was chosen, got something "
            f"that was changed since: {ASK_AGAIN}"
        )


def publication_facts(publication: PublicationSettings, folder: pathlib.Path) -> dict[str, Any]:
    """Returns what a statement says of its publication: names, date, versions of libraries.

    Args:
        publication: what the holder says.
        folder: where the model's versions lie.
    """
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    versions = {"python": sys.version.split()[0]}
    for name in LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed as a package"
    return {
        "holder": publication.holder,
        "purpose": publication.purpose,
        "run_name": publication.run_name or f"{date}-{artifacts.next_version(folder)}",
        "date": date,
        "versions": versions,
    }
