"""A whole run of a coordinator: silos are asked, a student learns, both are published.

TensorFlow is imported where a student learns.
"""

from __future__ import annotations

import dataclasses
import pathlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pate_tf.accounting.local import SecureFeatureSums, SecureHistogram
from pate_tf.accounting.mechanisms import GaussianFeatureSums
from pate_tf.core import artifacts
from pate_tf.core.public import Pool, PublicSplit
from pate_tf.core.settings import PublicationSettings, setting
from pate_tf.data import catalogue
from pate_tf.net.credentials import COORDINATOR, Limits, TlsFiles
from pate_tf.queries.rounds import QueryConfig
from pate_tf.silos.coordinator import Coordinator
from pate_tf.silos.messages import Mechanism
from pate_tf.silos.roster import Asking, SiloRoster
from pate_tf.statement.silos import SilosStatement
from pate_tf.students.config import StudentSettings, complete, find_student

if TYPE_CHECKING:
    from pate_tf.queries.labels import Labels
    from pate_tf.representations.catalogue import Representation
    from pate_tf.statement.publishing import Published

REPORT, ENCODER = "report.json", "encoder.npz"
DIGITS = 16  # of a digest, for people


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoordinatorRun(PublicationSettings):
    """What a coordinator needs to work. `asking` says how silos are asked but for the mechanism."""

    roster: pathlib.Path = setting(
        pathlib.Path("roster.toml"), help="The silos, and the aggregators with their keys."
    )
    folder: pathlib.Path = setting(
        pathlib.Path("runs/silos"), flag="train_dir", help="Journal, released/ and report.json."
    )
    address: str = setting("localhost:7000", help="To listen on, HOST:PORT.")
    certificates: pathlib.Path = setting(
        pathlib.Path("certificates"), help="Folder with authority.pem, coordinator.pem and its key."
    )
    dataset: str = setting(
        "digits", group="data", help="Data set of the public pool, or module:function."
    )
    data_dir: pathlib.Path | None = setting(
        None, group="data", help="Where the data lie. Default: TensorFlow Datasets' own folder."
    )
    method: str = setting(
        "pate",
        group="method",
        choices=("pate", "feature_sums"),
        help="pate: silos vote on queries of the public pool. feature_sums: the total of all "
        "silos' feature sums opens once, with noise of each, and all of the pool gets labels.",
    )
    epsilon: float | None = setting(
        None,
        group="privacy",
        above=0.0,
        help="With feature_sums: epsilon for each record (or owner) of each silo, at the roster's "
        "delta.",
    )
    least_silos: int | None = setting(
        None,
        group="privacy",
        least=2,
        help="With feature_sums: fewest silos whose total opens. Default: four fifths of the "
        "roster.",
    )
    colluding: int = setting(
        1,
        group="privacy",
        least=1,
        help="With feature_sums: how many of these may add no noise, or pool what they know.",
    )
    representation: str | None = setting(
        None,
        help="With feature_sums: what maps records to features. Default: that of the data set.",
    )
    sigma: float | None = setting(
        None,
        group="privacy",
        above=0.0,
        help="Aggregators add votes up, with noise of this standard deviation, in votes. Default: "
        "each silo randomises its own vote.",
    )
    threshold: int = setting(
        1,
        group="privacy",
        least=1,
        help="How many aggregators may pool what they know.",
    )
    asking: Asking
    queries: QueryConfig
    student: StudentSettings


def publish(
    model: Any,
    labels: Labels,
    *,
    coordinator: Coordinator,
    folder: pathlib.Path,
    export_formats: Sequence[str] = (),
    publication: PublicationSettings = PublicationSettings(),  # noqa: B008 (frozen)
) -> Published[SilosStatement]:
    """Exports a student, and states what its labels cost each silo.

    Args:
        model: from raw inputs to logits; learnt from these labels and public data alone.
        labels: that it learnt from.
        coordinator: that asked for them, open.
        folder: `student/` and the statement go there, in JSON and as a page.
        export_formats: of "onnx" and "litert", to write the student in besides.
        publication: what the statement says of it besides.

    Raises ValueError if the labels are not the coordinator's, or the model can't be exported.
    """
    from pate_tf.serving.signatures import student_digest
    from pate_tf.statement.publishing import export_with, publication_facts

    if not coordinator.gave(labels.released, labels.pool):
        raise ValueError("labels: expected those of this coordinator's run, got others")
    statement = coordinator.statement(
        pool_name=labels.pool.dataset.name,
        query_strategy=labels.strategy,
        student_digest=student_digest(model),
        **publication_facts(publication, folder / "student"),
    )
    return export_with(statement, model, labels, folder, export_formats=export_formats)


def coordinate(
    run: CoordinatorRun,
    *,
    on_event: Callable[[str], None] = lambda event: None,
) -> dict[str, Any]:
    """Asks silos until there are labels, trains a student, and publishes it.

    Killed and started again with the same arguments it goes on from its journal.

    Returns:
        JSON values, also written to `report.json`: silos, aggregators, what each spent, accuracies
        (None where no public sample has a label), and seconds of asking per round.

    Raises:
        ValueError: if roster, data and settings do not fit each other.
        JournalError: if the journal can't be used.
        OSError: if a file can't be read, or an aggregator is missing.
    """
    from pate_tf.queries.rounds import check_queries
    from pate_tf.run.student_run import learn
    from pate_tf.serving.served import ServedStudent
    from pate_tf.silos.transport import AggregatorService, serve_coordinator
    from pate_tf.students import evaluation

    roster = SiloRoster.read(run.roster)
    public = catalogue.load_public(run.dataset, data_dir=run.data_dir)
    split = public.split(public.dataset.pool_size)
    are_sums = run.method == "feature_sums"
    if not are_sums:
        check_queries(run.queries, split.pool)
    find_student(complete(run.student, split.dataset), split.dataset)
    artifacts.check_can_hold_files(run.folder)
    aggregators, asking, representation = None, run.asking, None
    if are_sums or run.sigma is not None:
        number = len(roster.aggregators)
        aggregators = AggregatorService([identity.name for identity in roster.aggregators])
        mechanism: Mechanism
        if are_sums:
            if len(roster.identities) < len(roster.members):
                raise ValueError(f"roster: expected keys of every silo in {run.roster}")
            _release(run, roster, 1, number)  # before anything is trained
            representation = _representation(run, split.pool)
            on_event(
                f"encoder {representation.encoder_.digest[:DIGITS]}, for silos: "
                f"{run.folder / artifacts.RELEASED / ENCODER}"
            )
            width = representation.encoder_.num_features
            mechanism = _release(run, roster, width, number)
            size = 8 * (width + 1) * split.dataset.num_classes * number
            if size > Limits().message_bytes - 2**20:
                raise ValueError(
                    f"representation: expected fewer features than {width:,}: with "
                    f"{split.dataset.num_classes:,} classes a silo would send {size:,} bytes"
                )
            noise = mechanism.total_sigma(len(roster.members))
            on_event(
                f"noise of standard deviation {noise:.3g} on each number: enough for some "
                f"{GaussianFeatureSums(sigma=noise).fewest_of_class:,.0f} records of a class or "
                "more, of all silos together"
            )
        else:
            mechanism = SecureHistogram(
                sigma=run.sigma or 0.0, num_parties=number, threshold=run.threshold
            )
        asking = dataclasses.replace(asking, mechanism=mechanism)
    with Coordinator(
        roster,
        folder=run.folder / "coordinator",
        asking=asking,
        aggregators=() if aggregators is None else aggregators.asks,
        on_event=on_event,
    ) as coordinator:
        files = TlsFiles.of(run.certificates, COORDINATOR)
        with serve_coordinator(
            run.address, coordinator.journal, files=files, aggregators=aggregators
        ) as server:
            on_event(f"listening on port {server.port}")
            called = coordinator.journal.gather(asking.seconds)
            on_event(f"{len(called)} of {len(roster.names)} silos called")
            started = time.monotonic()
            if representation is not None:
                coordinator.open_total(split.pool, representation.encoder_)
            else:
                labels = coordinator.label(
                    split.pool,
                    num_queries=run.queries.num_queries,
                    strategy=run.queries.strategy,
                    seed=run.queries.seed,
                )
            seconds = time.monotonic() - started
        if representation is not None:
            labels = coordinator.label_from_sums(split.pool, representation)
        if not labels.released.num_answered:
            raise ValueError("queries: expected at least one label, got none; see who refused")
        released = run.folder / artifacts.RELEASED
        labels.save(released)
        unlabelled = dataclasses.replace(split.held_out, labels=None)
        watched = PublicSplit(pool=split.pool, held_out=unlabelled)
        model, _ = learn(run.student, watched, labels, folder=released)
        published = publish(
            model, labels, coordinator=coordinator, folder=released, publication=run
        )
        num_rounds = len(coordinator.journal.rounds())
    accuracy = evaluation.accuracy_in_pool(labels.released, split)
    samples, student_accuracy = split.held_out.labelled(), None
    if samples is not None:
        predictions = ServedStudent(published.student_folder).classify(samples.inputs)
        student_accuracy = float(np.mean(predictions == samples.labels))
    statement = published.statement
    asked = {"queries_asked": statement.num_queries, "queries_answered": statement.num_answered}
    report = {
        "method": statement.method,
        "unit": statement.unit,
        "silos": len(statement.silos),
        "aggregators": 0 if aggregators is None else len(aggregators.names),
        **({} if are_sums else asked),
        "label_accuracy": None if accuracy is None else accuracy.value,
        "student_accuracy": student_accuracy,
        "epsilon_per_silo": {silo.name: silo.epsilon for silo in statement.silos},
        "delta": roster.delta,
        "seconds_per_round": seconds / max(num_rounds, 1),
    }
    artifacts.write_json(run.folder / REPORT, report)
    return report


def _representation(run: CoordinatorRun, pool: Pool) -> Representation:
    """Returns the representation of feature sums, and writes its weights where silos get them."""
    from pate_tf.representations import catalogue as representations

    name = run.representation or representations.default_of_sums(pool.dataset)
    representation = representations.Representation(name).fit(pool)
    path = artifacts.RunDirectory(run.folder).root / artifacts.RELEASED / ENCODER
    path.parent.mkdir(parents=True, exist_ok=True)
    if representations.is_known(name):  # else silos have the file or function that it is from
        representations.save_encoder(representation.encoder_, path)
    return representation


def _release(
    run: CoordinatorRun, roster: SiloRoster, num_features: int, num_parties: int
) -> SecureFeatureSums:
    """Returns what silos are asked to share: the least noise within epsilon."""
    if run.epsilon is None:
        raise ValueError("epsilon: expected a number with feature_sums, got none")
    least = run.least_silos or -(-4 * len(roster.members) // 5)
    if least > len(roster.members):
        raise ValueError(f"least_silos: expected at most {len(roster.members)}, got {least}")
    return SecureFeatureSums.for_epsilon(
        run.epsilon,
        delta=roster.delta,
        num_features=num_features,
        least_silos=least,
        colluding=run.colluding,
        num_parties=num_parties,
        threshold=run.threshold,
    )
