"""The complete run of a coordinator: it queries silos, trains a student and publishes it.

TensorFlow is imported only to train the student.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import pathlib
import time
from collections.abc import Callable
from typing import Any, ClassVar

from pate_tf.accounting.local import SecureFeatureSums, SecureHistogram
from pate_tf.core import artifacts
from pate_tf.core.public import Pool
from pate_tf.core.reporting import QUIET
from pate_tf.core.settings import ProtectedUnit, setting
from pate_tf.data.data_source import DataSource
from pate_tf.net.credentials import COORDINATOR, GIVE_UP_SECONDS, Limits, TlsFiles
from pate_tf.net.health import CONTACT, Watch
from pate_tf.planning.release_settings import (
    FEATURE_SUMS,
    Output,
    PublicLabelUse,
    ReleasePlan,
    WishedEpsilon,
)
from pate_tf.queries.strategies import QueryConfig
from pate_tf.silos.coordinator import Coordinator
from pate_tf.silos.messages import Mechanism
from pate_tf.silos.roster import Asking, JointMethod, SiloRoster
from pate_tf.students.student_kinds import StudentSettings

JOURNAL = "coordinator"
REPORT = "report.json"
ENCODER = "encoder.npz"
DIGITS = 16  # messages show this many digits of a digest


@dataclasses.dataclass(frozen=True, kw_only=True)
class CoordinatorRun(DataSource, Output, JointMethod, WishedEpsilon, PublicLabelUse, ProtectedUnit):
    """Settings of the `pate coordinator` command.

    The attribute `asking` contains the settings for querying silos, but no mechanism.
    """

    restated: ClassVar = {
        "epsilon": {
            "help": "With feature_sums: epsilon for each record (or owner) of each silo, at the "
            "roster's delta."
        },
        "unit": {
            "group": "asking",
            "advanced": False,
            "help": "With feature_sums: unit of privacy in the silos, a record or an owner.",
        },
    }
    roster: pathlib.Path = setting(
        pathlib.Path("roster.toml"), help="File with the names and keys of silos and aggregators."
    )
    folder: pathlib.Path = setting(
        pathlib.Path("runs/silos"),
        flag="train_dir",
        help="Folder for the journal, released/ and report.json.",
    )
    address: str = setting("localhost:7000", help="HOST:PORT to listen on.")
    certificates: pathlib.Path = setting(
        pathlib.Path("certificates"), help="Folder with authority.pem, coordinator.pem and its key."
    )
    least_silos: int | None = setting(
        None,
        group="privacy",
        least=2,
        help="With feature_sums: minimum number of silos that must contribute sums. Default: four "
        "fifths of the roster.",
    )
    colluding: int = setting(
        1,
        group="privacy",
        least=1,
        help="With feature_sums: maximum number of silos in a total that collude or add no noise.",
    )
    sigma: float | None = setting(
        None,
        group="privacy",
        above=0.0,
        help="Standard deviation of the noise, in votes, that aggregators add to the sum of votes. "
        "Default: each silo randomizes its own vote, without aggregators.",
    )
    threshold: int = setting(1, group="privacy", least=1, help="How many aggregators may collude.")
    asking: Asking
    queries: QueryConfig
    student: StudentSettings


def coordinate(
    run: CoordinatorRun,
    *,
    transport: Callable[[SiloRoster, Any], Any] | None = None,
    on_event: Callable[[str], None] = lambda event: None,
    watch: Watch = lambda look: None,
    give_up_after: float = GIVE_UP_SECONDS,
) -> dict[str, Any]:
    """Collects labels from silos, trains a student, and publishes it.

    If the coordinator is killed and started again with the same arguments, it resumes from its
    journal. After the report is written, the coordinator tells all connected silos and aggregators
    that the run is over. The coordinator waits at most `give_up_after` seconds for silos and
    aggregators that do not call again. If the coordinator is started again after the end of the
    run, it sends no queries and causes no charge; it only tells late callers that the run is over.

    Args:
        run: settings of the coordinator, from the command line.
        transport: function that takes the roster and `coordinator_services`, and returns a context
            manager that serves them. The context manager does not have to tell silos about the end
            of the run. If `transport` is given, each aggregator may take up to `asking.seconds` for
            each step. Default: a `TlsServer` with the run's address and certificates.
        on_event: function that is called with each log message.
        watch: function that is called once with a function that returns the coordinator's health,
            see `pate_tf.net.health.serve_health`; used only with the default transport.
        give_up_after: seconds to wait for unreachable silos and aggregators at the end.

    Returns:
        The JSON values that are also written to `report.json`: the numbers of silos and
        aggregators, the epsilon of each silo, accuracies (None if no public sample has a label),
        and the duration of each round in seconds.

    Raises:
        ValueError: if roster, data and settings contradict each other.
        JournalError: if the journal can't be used.
        OSError: if a file can't be read, or an aggregator is missing.
    """
    roster = SiloRoster.read(run.roster)  # before TensorFlow is imported
    from pate_tf.net.calls import TlsServer  # needs grpcio
    from pate_tf.queries.strategies import check_queries
    from pate_tf.run.pipeline import RunData, execute
    from pate_tf.run.student import Student, measured_rows
    from pate_tf.silos.transport import AggregatorService, coordinator_services

    public = run.load_public(QUIET)
    split = public.split(public.dataset.pool_size)
    pool = split.pool
    are_sums = run.method == FEATURE_SUMS
    if not pool and not are_sums:
        raise ValueError("method must be feature_sums if there are no public inputs, got pate")
    if not are_sums:
        check_queries(run.queries, pool)
    trains_on_labels = run.trains_on_labels(pool, run.method)
    artifacts.RunDirectory(run.folder).check(files=[REPORT])
    student = Student.from_settings(
        run.student, directory=run.folder / artifacts.RELEASED, is_locked=True
    )
    # The student is checked first, because training an encoder takes longer.
    student.check(
        pool,
        run.folder / artifacts.RELEASED,
        export_formats=run.export_formats,
        labels_whole_pool=are_sums,
    )
    files: Any = None if transport else TlsFiles.of(run.certificates, COORDINATOR)
    representation = None
    mechanism: Mechanism | None = run.asking.mechanism  # None if each silo has its own mechanism
    if are_sums:
        mechanism, representation = _mechanism_of_sums(run, roster, pool, on_event)
    elif run.sigma is not None:
        mechanism = SecureHistogram(
            sigma=run.sigma, num_parties=len(roster.aggregators), threshold=run.threshold
        )
    plan = ReleasePlan(
        mechanism=mechanism,
        queries=run.queries,
        representation=representation,
        trains_on_labels=trains_on_labels,
    )
    asking = dataclasses.replace(run.asking, mechanism=mechanism)
    aggregators = None
    if asking.mechanism is not None:
        patience = {} if transport is None else {"seconds": asking.seconds}
        aggregators = AggregatorService([each.name for each in roster.aggregators], **patience)
    with Coordinator(
        roster,
        folder=run.folder / JOURNAL,
        asking=asking,
        aggregators=() if aggregators is None else aggregators.asks,
        on_event=on_event,
    ) as coordinator:
        services = coordinator_services(coordinator.journal, aggregators)
        if transport is not None:
            coordinator.enter_context(transport(roster, services))
        else:
            server = TlsServer(run.address, files=files, services=services)
            coordinator.enter_context(server)
            server.contact = run.folder / CONTACT
            watch(lambda: server.health(coordinator.journal.numbers()))
            on_event(f"listening on port {server.port}")
        silos = Silos(coordinator, asking.seconds, on_event)
        fitted = execute(plan, RunData(public=split), silos, student, run, folder=run.folder)
        statement: Any = fitted.published.statement  # a SilosStatement
        report = {
            "method": statement.method,
            "unit": statement.unit,
            "silos": len(statement.silos),
            "aggregators": 0 if aggregators is None else len(aggregators.names),
            **fitted.published.measured,
            "rows": measured_rows(fitted.published.measured, pool.dataset),
            "epsilon_per_silo": {silo.name: silo.epsilon for silo in statement.silos},
            "delta": roster.delta,
            "seconds_per_round": silos.seconds / max(len(coordinator.journal.rounds), 1),
        }
        if not are_sums:
            report["queries_asked"] = statement.num_queries
            report["queries_answered"] = statement.num_answered
        artifacts.write_json(run.folder / REPORT, report)
        if transport is None and (untold := ", ".join(server.end())):
            on_event(
                f"the run is over, and student and report are written. Waiting at most "
                f"{give_up_after:g} seconds to tell {untold} so. You can stop this command."
            )
            server.end(give_up_after)
    return report


@dataclasses.dataclass
class Silos:
    """Provides labels from silos for `pipeline.execute`. Each silo charges its own ledger.

    Attributes:
        coordinator: the coordinator that queries the silos.
        patience: seconds to wait for silos that have not connected yet.
        on_event: function that is called with each log message.
        seconds: duration of the queries, in seconds.
    """

    coordinator: Coordinator
    patience: float
    on_event: Callable[[str], None]
    seconds: float = 0.0

    def fit(self, data: Any) -> None:
        """Waits until all silos have connected, at most `patience` seconds. Charges nothing."""
        del data
        called = self.coordinator.journal.gather(self.patience)
        number = len(self.coordinator.roster.names)
        self.on_event(f"{len(called)} of {number} silos called")

    def labels(self, plan: ReleasePlan, pool: Pool) -> Any:
        """Returns labels from the silos, each of which charges the plan's mechanism."""
        started = time.monotonic()
        labels: Any
        if plan.representation is None:
            labels = self.coordinator.label(
                pool,
                num_queries=plan.queries.num_queries,
                strategy=plan.queries.strategy,
                seed=plan.queries.seed,
            )
            self.seconds = time.monotonic() - started
        else:
            self.coordinator.open_total(pool, plan.representation.encoder_)
            self.seconds = time.monotonic() - started
            labels = self.coordinator.label_from_sums(
                pool, plan.representation, trains_on_labels=plan.trains_on_labels
            )
        if not plan.trains_on_labels:
            return labels
        from pate_tf.run.labeller import with_public_labels  # imports TensorFlow

        return with_public_labels(labels)


def _mechanism_of_sums(
    run: CoordinatorRun, roster: SiloRoster, pool: Pool, on_event: Callable[[str], None]
) -> tuple[SecureFeatureSums, Any]:
    """Returns the mechanism for feature sums, with the least noise within epsilon.

    Also returns the fitted representation, after its weights were written to a file for the silos.
    """
    from pate_tf.representations import catalogue as representations

    least = run.least_silos or -(-4 * len(roster.members) // 5)
    number = len(roster.aggregators)
    if len(roster.identities) < len(roster.members):
        raise ValueError(f"roster: {run.roster} must list the keys of every silo")
    if run.epsilon is None:
        raise ValueError("epsilon is required with feature_sums")
    if least > len(roster.members):
        raise ValueError(f"least_silos must be at most {len(roster.members)}, got {least}")
    mechanism_of = functools.partial(
        SecureFeatureSums.for_epsilon,
        run.epsilon,
        delta=roster.delta,
        least_silos=least,
        colluding=run.colluding,
        num_parties=number,
        threshold=run.threshold,
        unit=run.unit,
    )
    mechanism_of(num_features=1, has_moments=not pool)  # raises before anything is trained
    has_pool = len(pool) > 0
    num_classes = pool.dataset.num_classes
    name = run.representation or representations.default_of_sums(pool.dataset, has_pool=has_pool)
    representations.check_representation(name, pool.dataset, has_pool=has_pool)
    representation = representations.Representation(name).fit(pool)
    encoder = representation.encoder_
    where = "from the schema"
    if has_pool and representations.is_known(name):  # otherwise, silos build the encoder themselves
        where = str(artifacts.RunDirectory(run.folder).released / ENCODER)
        representations.save_encoder(encoder, pathlib.Path(where))
    on_event(f"encoder {encoder.digest[:DIGITS]}, for silos: {where}")
    mechanism: SecureFeatureSums = mechanism_of(
        num_features=encoder.num_features, has_moments=not has_pool
    )
    size = 8 * math.prod(mechanism.shape(num_classes)) * number
    if size > Limits().message_bytes - 2**20:
        raise ValueError(
            f"representation must have fewer features than {encoder.num_features:,}: with "
            f"{num_classes:,} classes, a silo would send {size:,} bytes"
        )
    noise = mechanism.total_sigma(len(roster.members))
    on_event(f"noise of standard deviation {noise:.3g} on each number")
    return mechanism, representation
