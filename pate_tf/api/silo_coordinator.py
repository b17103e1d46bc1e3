"""A student of many holders is published: exported, with a statement of what each silo paid."""

import dataclasses
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pate_tf.api.student_publishing import library_versions
from pate_tf.api.student_training import learn
from pate_tf.core import artifacts
from pate_tf.core.public import Pool, PublicSplit
from pate_tf.data import catalogue
from pate_tf.net.credentials import COORDINATOR, TlsFiles
from pate_tf.queries.config import QueryConfig
from pate_tf.queries.queried import QueriedLabels
from pate_tf.queries.rounds import check_queries
from pate_tf.serving import digest, export
from pate_tf.serving.served import ServedStudent
from pate_tf.silos.asking import Asking
from pate_tf.silos.coordinator import Coordinator
from pate_tf.silos.roster import Roster
from pate_tf.silos.secure.keys import read_parties
from pate_tf.silos.secure.opening import OpenedHistogram
from pate_tf.silos.server import PartyLine, serve_coordinator
from pate_tf.statement.silos import SilosStatement
from pate_tf.students import evaluation
from pate_tf.students.catalogue import complete
from pate_tf.students.config import StudentSettings


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


# A whole run of a coordinator: silos are asked, a student learns, both are published.


REPORT = "report.json"


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoordinatorRun:
    """What a coordinator needs to work.

    Attributes:
      roster: file of the roster.
      folder: holds the journal, `released/` and `report.json`.
      address: to listen on, `host:port`.
      certificates: folder with `authority.pem`, and `NAME.pem` and `NAME.key` of the coordinator.
      asking: how silos are asked.
      dataset: name that `data.catalogue` knows, or `module:function`.
      data_dir: where the data lie; None for the default.
      pool_size: public samples that form the pool; None for the data set's own number.
      queries: how many, and how they are chosen.
      student: how it is trained.
      parties: the list of parties; None without secure aggregation.
      gather_seconds: how long silos may take to call before the first round.
      name: in the coordinator's certificate.
    """

    roster: pathlib.Path
    folder: pathlib.Path
    address: str
    certificates: pathlib.Path
    asking: Asking
    dataset: str
    data_dir: pathlib.Path | None = None
    pool_size: int | None = None
    queries: QueryConfig
    student: StudentSettings
    parties: pathlib.Path | None = None
    gather_seconds: float = 60.0
    name: str = COORDINATOR


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoordinatorReport:
    """What a coordinator found out. Public.

    Attributes:
      published: the student with its statement.
      num_parties: parties that added up votes; 0 without.
      label_accuracy: share of right labels; None where no public label tells.
      student_accuracy: of the exported student on held-out samples; likewise.
      seconds_per_round: of asking, on average.
    """

    published: PublishedOfSilos
    num_parties: int
    label_accuracy: float | None
    student_accuracy: float | None
    seconds_per_round: float

    def to_dict(self) -> dict[str, Any]:
        """Returns JSON values."""
        statement = self.published.statement
        return {
            "silos": len(statement.silos),
            "parties": self.num_parties,
            "queries_asked": statement.num_queries,
            "queries_answered": statement.num_answered,
            "label_accuracy": self.label_accuracy,
            "student_accuracy": self.student_accuracy,
            "epsilon_per_silo": {one.name: one.epsilon for one in statement.silos},
            "delta": statement.silos[0].delta,
            "seconds_per_round": self.seconds_per_round,
        }


def number_of_parties(path: pathlib.Path) -> int:
    """Returns how many parties a list has.

    Raises:
      ValueError: if the file holds none.
      OSError: if it can't be read.
    """
    return len(read_parties(path))


def coordinate(
    run: CoordinatorRun,
    *,
    on_event: Callable[[str], None] = lambda event: None,
    on_progress: Callable[[set[str], set[str]], None] = lambda replied, waited_for: None,
) -> CoordinatorReport:
    """Asks silos until there are labels, trains a student, and publishes it.

    Killed and started again with the same arguments it goes on from its journal.

    Raises:
      ValueError: if roster, data, parties and silos do not fit each other.
      JournalError: if the journal can't be used.
      OSError: if a file can't be read, or a party is missing.
    """
    roster = Roster.read(run.roster)
    public = catalogue.load_public(run.dataset, data_dir=run.data_dir)
    split = public.split(run.pool_size or public.dataset.pool_size)
    check_queries(run.queries, split.pool)
    student = complete(run.student, split.dataset)
    artifacts.check_can_hold_files(run.folder)
    line = None
    if run.asking.is_secure:
        if run.parties is None:
            raise ValueError("parties: expected the list of parties, got none")
        line = PartyLine(
            read_parties(run.parties), on_opened=lambda opened: on_event(_left_out(opened))
        )
    with Coordinator(
        roster,
        folder=run.folder / "coordinator",
        asking=run.asking,
        secure=None if line is None else line.sums,
        on_progress=on_progress,
    ) as coordinator:
        server = serve_coordinator(
            run.address,
            coordinator.queue,
            files=TlsFiles.of(run.certificates, run.name),
            silos=roster.names,
            parties=line,
        )
        with server:
            on_event(f"listening on port {server.port}")
            called = coordinator.queue.gather(run.gather_seconds, on_progress)
            on_event(f"{len(called)} of {len(roster.names)} silos called")
            started = time.monotonic()
            labels = coordinator.label(
                split.pool,
                num_queries=run.queries.num_queries,
                strategy=run.queries.strategy,
                seed=run.queries.seed,
            )
            seconds = time.monotonic() - started
        if not labels.released.num_answered:
            raise ValueError("queries: expected at least one label, got none; see who refused")
        labels.save(run.folder / artifacts.RELEASED)
        nobody = dataclasses.replace(split.held_out, labels=None)
        watched = PublicSplit(pool=split.pool, held_out=nobody)
        model = learn(student, watched, labels, folder=run.folder / artifacts.RELEASED)
        published = publish(
            model,
            labels,
            split.pool,
            coordinator=coordinator,
            folder=run.folder / artifacts.RELEASED,
        )
        num_rounds = len(coordinator.queue.rounds())
    report = CoordinatorReport(
        published=published,
        num_parties=0 if line is None else len(line.service.names),
        label_accuracy=_value(evaluation.accuracy_in_pool(labels.released, split)),
        student_accuracy=_student_accuracy(published, split),
        seconds_per_round=seconds / max(num_rounds, 1),
    )
    artifacts.write_json(run.folder / REPORT, report.to_dict())
    return report


def _left_out(opened: OpenedHistogram) -> str:
    left_out = ", ".join(opened.left_out)
    return f"a histogram opened; left out: {left_out or 'nobody'}"


def _student_accuracy(published: PublishedOfSilos, split: PublicSplit) -> float | None:
    samples = split.held_out.labelled()
    if samples is None or samples.labels is None:
        return None
    given = ServedStudent(published.student_folder).classify(samples.inputs)
    return float(np.mean(given == samples.labels))


def _value(found: evaluation.Accuracy | None) -> float | None:
    return None if found is None else found.value
