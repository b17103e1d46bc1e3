"""A student of many holders is published: exported, with a statement of what each silo paid."""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

from pate_tf import artifacts
from pate_tf.queries.queried import QueriedLabels
from pate_tf.runs.student.publishing import library_versions
from pate_tf.serving import digest, export
from pate_tf.silos.coordinator import Coordinator
from pate_tf.statement.silos import SilosStatement
from pate_tf.values.public import Pool


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedOfSilos:
    """A student of many holders with the statement that goes with it. Public.

    Attributes:
      statement: what each silo paid, and who saw what.
      student_folder: the exported version.
    """

    statement: SilosStatement
    student_folder: pathlib.Path

    @property
    def folder(self) -> pathlib.Path:
        """What may be published: the student, and the statement beside it."""
        return self.student_folder.parent.parent


def publish(
    model: Any,
    labels: QueriedLabels,
    pool: Pool,
    *,
    coordinator: Coordinator,
    folder: pathlib.Path,
    export_formats: Sequence[str] = (),
) -> PublishedOfSilos:
    """Exports a student, and states what its labels cost each silo.

    Args:
      model: from raw inputs to logits; learnt from these labels and public data alone.
      labels: all that it learnt from, beside the pool.
      pool: what the labels are of.
      coordinator: who asked for them, open.
      folder: `student/` and the statement go there, in JSON and as a page.
      export_formats: of "onnx" and "litert", to write the student in besides.

    Raises:
      ValueError: if the labels are not the coordinator's, or the model can't be exported.
    """
    labels.check_pool(pool)
    if not coordinator.gave(labels.released, pool):
        raise ValueError("labels: expected those of this coordinator's run, got others")
    statement = coordinator.statement(
        dataset=pool.dataset.name,
        query_strategy=labels.strategy,
        student_digest=digest.student_digest(model),
        versions=library_versions(),
    )
    student_folder = export.export_student(
        model, pool.dataset, folder / "student", statement.to_dict(), formats=export_formats
    )
    artifacts.write_json(folder / "privacy_statement.json", statement.to_dict())
    artifacts.write_text(folder / "privacy_statement.md", statement.to_markdown())
    return PublishedOfSilos(statement=statement, student_folder=student_folder)
