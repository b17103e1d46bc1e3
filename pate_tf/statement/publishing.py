"""Exports a student with its privacy statement, if its labels match the ledger."""

import dataclasses
import datetime
import hmac
import importlib.metadata
import pathlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar, cast

from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.accounting.mechanisms.base import ReleasesFeatureSums
from pate_tf.core import artifacts
from pate_tf.core.reporting import card
from pate_tf.core.settings import PublicationSettings
from pate_tf.ledger import Ledger
from pate_tf.queries.labels import Labels
from pate_tf.queries.strategies import inputs_at
from pate_tf.release.feature_sums import of_other_data
from pate_tf.release.noise import check_drawable
from pate_tf.release.noisy_sums import EstimatedAccuracy, mechanism_of_estimate, sums_in_ledger
from pate_tf.release.votes import cost_of_labels, query_digests
from pate_tf.representations import catalogue, pretrained
from pate_tf.serving.export import export_student, student_digest
from pate_tf.serving.served import SCHEMA
from pate_tf.statement import JSON_FILE, PAGE_FILE
from pate_tf.statement.labels_statement import LabelsStatement
from pate_tf.statement.privacy_statement import PrivacyStatement, delta_text, epsilon_text
from pate_tf.statement.report import MODEL_CARD, PAGE

LIBRARIES = ("pate_tf", "tensorflow", "keras", "opendp", "numpy", "scipy")
ASK_AGAIN: Final = "Label again: queries that were already charged cost nothing."

Stated = TypeVar("Stated", bound=PrivacyStatement)


@dataclasses.dataclass(frozen=True, kw_only=True, repr=False)
class Published(Generic[Stated]):
    """Public: an exported student with its privacy statement.

    >>> import pate_tf
    >>> published = student.publish(folder / "released")
    >>> published.student_folder.name.isdigit(), published.statement.unit
    (True, 'record')

    Attributes:
        statement: privacy statement with the cost of the student's labels.
        student_folder: folder of the exported version.
        measured: accuracies on labeled public samples, as JSON values; empty without labels.
    """

    statement: Stated
    student_folder: pathlib.Path
    measured: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def folder(self) -> pathlib.Path:
        """Publishable folder with the student and its statement."""
        return self.student_folder.parent.parent

    def __repr__(self) -> str:
        first = next(iter(self.statement.guarantees), None)
        cost = ""
        if first is not None:
            cost = f", epsilon {epsilon_text(first.epsilon)} at delta {delta_text(first.delta)}"
        return f"Published(<{self.student_folder}{cost}; {self.folder / PAGE_FILE}>)"

    def _repr_html_(self) -> str:
        return card(self) + self.statement._repr_html_()


def publish_model(
    model: Any,
    labels: Labels,
    *,
    teachers: Any,
    ledger: Ledger,
    folder: pathlib.Path,
    export_formats: Sequence[str] = (),
    publication: PublicationSettings = PublicationSettings(),  # noqa: B008 (frozen)
    quality: Mapping[str, float] = MappingProxyType({}),
    estimated_accuracy: EstimatedAccuracy | None = None,
    estimate_is_apart: bool = False,
) -> Published[LabelsStatement]:
    """Exports a student's model with its privacy statement.

    Args:
        model: model that maps raw inputs to logits, and that learned only from these labels and
            public data.
        labels: labels from which the model learned.
        teachers: ensemble of teachers that voted, or feature sums.
        ledger: open ledger of these teachers or sums.
        folder: folder for `student/` and for the statement in JSON and as a page.
        export_formats: additional formats, "onnx" or "litert".
        publication: additional facts for the statement.
        quality: results on labeled public samples, see `PrivacyStatement`.
        estimated_accuracy: accuracy estimate, its interval and its epsilon, see `LabelsStatement`.
        estimate_is_apart: whether the estimate and the labels use different records.

    Raises:
        ValueError: if the labels were not charged to the ledger, or the model can't be exported.
    """
    if teachers.dataset != labels.pool.dataset:
        raise of_other_data(teachers, labels.pool)
    if ledger.ensemble_digest != teachers.digest:
        raise ValueError("teachers must be the teachers whose ledger was charged")
    check_charged(labels, ledger)
    encoder = None
    name = teachers.representation
    if name is not None and not catalogue.is_known(name):  # a user's encoder
        weights = (teachers.encoder_digest or "unknown")[:16]
        encoder = f"{pretrained.public_name(name)}, weights {weights}"
    statement = LabelsStatement.of(
        labels.released,
        ledger,
        pool_name=labels.pool.dataset.name,
        num_teachers=teachers.num_teachers,  # None for feature sums
        query_strategy=labels.strategy,
        choice=labels.choice,
        target_range=labels.pool.dataset.target_range,
        estimated_accuracy=estimated_accuracy,
        estimate_charge=estimated_accuracy
        and mechanism_of_estimate(estimated_accuracy[3], labels.released.cost.unit),
        estimate_is_apart=estimate_is_apart,
        encoder=encoder,
        # If owners are protected, the number of records is private.
        num_records=teachers.num_records if teachers.unit == "record" else None,
        student_digest=student_digest(model),
        quality=quality,
        **facts_of(labels),
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
    """Exports the next version of a student, and writes its privacy statement.

    Args:
        statement: privacy statement of the labels.
        model: model that maps raw inputs to logits.
        labels: labels from which the model learned.
        folder: folder for `student/`, the statement and, if the data are a table, the schema.
        export_formats: additional formats, "onnx" or "litert".
        seal: function that authenticates the manifest, see `export_student`.

    Raises:
        ValueError: if the model can't be exported.
    """
    values = statement.to_dict()
    dataset = labels.pool.dataset
    student_folder = export_student(
        model, dataset, folder / "student", values, formats=export_formats, seal=seal
    )
    if dataset.schema is not None:
        artifacts.write_text(folder / SCHEMA, dataset.schema.to_toml())
    artifacts.write_json(folder / JSON_FILE, values)
    artifacts.write_text(folder / PAGE_FILE, statement.to_markdown())
    for name in (PAGE, MODEL_CARD):  # pages of an earlier version
        (folder / name).unlink(missing_ok=True)
    return Published(statement=statement, student_folder=student_folder)


def check_charged(labels: Labels, ledger: Ledger) -> None:
    """Checks that labels were charged to a ledger, even if they were loaded from a file.

    For labels from sums, the noisy sums are compared with the ledger. Inferring the labels again
    would take minutes, so instead a seal proves that the labels were inferred from the sums.

    Raises:
        ValueError: if the ledger has different answers or a different delta, or if a fact about the
            labels, such as the choice of queries, was changed.
    """
    released = labels.released
    cost = released.cost
    counts = released.noisy_counts
    mechanism = cast(Mechanism, cost.charge)
    check_drawable(mechanism)
    if isinstance(mechanism, ReleasesFeatureSums):
        with ledger.exclusive():
            numbers, rows = sums_in_ledger(ledger, mechanism)
        sums = released.noisy_sums
        is_stored = sums is not None and tuple(sums.ravel().tolist()) == numbers
        num_distinct = len(rows)  # each row contains the charge for all sums
    else:
        inputs = inputs_at(labels.pool, labels.queries)
        digests = query_digests(inputs, mechanism, labels.pool.dataset.target_in_words)
        num_distinct = len(set(digests))
        with ledger.exclusive():
            answers = ledger.stored_answers(sorted(set(digests)))
        stored = {
            # Noisy counts are compared only if the labels have noisy counts.
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
        raise ValueError("labels must be labels that were charged to this ledger")
    expected = cost_of_labels(
        ledger, mechanism, num_distinct=num_distinct, rows=rows, unit=cost.unit
    )
    if cost.delta != ledger.delta or not cost.epsilon >= expected.epsilon:
        raise ValueError(
            f"labels must have epsilon {expected.epsilon:g} at the ledger's delta "
            f"{ledger.delta:g}, got {cost.epsilon:g} at {cost.delta:g}. {ASK_AGAIN}"
        )
    if not hmac.compare_digest(labels.seal or "", ledger.mac(labels.record())):
        raise ValueError(
            f"labels: the labels or the choice of their queries were changed after the ledger "
            f"released them. {ASK_AGAIN}"
        )


def facts_of(labels: Labels) -> dict[str, Any]:
    """Returns facts about a student for its statement, such as the format of its inputs."""
    number = labels.pool.num_labeled if labels.has_public_labels else 0
    return {**labels.pool.dataset.model_facts, "num_public_labels": number}


def publication_facts(publication: PublicationSettings, folder: pathlib.Path) -> dict[str, Any]:
    """Returns facts about the publication for a statement: names, date and library versions.

    Args:
        publication: facts from the data holder. If the holder or the purpose is None, the earlier
            version's is used.
        folder: folder that contains the versions of the model.
    """
    earlier = folder.parent / JSON_FILE
    stated = artifacts.read_json(earlier) if earlier.exists() else {}
    date = datetime.datetime.now(datetime.UTC).date().isoformat()
    versions = {"python": sys.version.split()[0]}
    for name in LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed as a package"
    return {
        "holder": publication.holder or stated.get("holder"),
        "purpose": publication.purpose or stated.get("purpose"),
        "run_name": publication.run_name or f"{date}-{artifacts.next_version(folder)}",
        "date": date,
        "versions": versions,
    }
