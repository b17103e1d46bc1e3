"""Runs the server process of a silo or an aggregator, which answers the coordinator's requests."""

import dataclasses
import functools
import multiprocessing
import pathlib
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, ClassVar

from pate_tf.accounting.composition import smallest_epsilon
from pate_tf.accounting.local import SecureFeatureSums
from pate_tf.core import artifacts
from pate_tf.core.environment import start_worker
from pate_tf.core.public import PublicExamples
from pate_tf.core.reporting import QUIET
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.settings import Settings, setting
from pate_tf.core.source import PrivateSource
from pate_tf.data.data_source import DataSource
from pate_tf.data.loaded_data import read_records
from pate_tf.data.named_function import call_function, is_named_function
from pate_tf.ledger.journal import Store
from pate_tf.ledger.ledger_file import DATABASE
from pate_tf.models.forest import RANDOM_FOREST
from pate_tf.net.credentials import GIVE_UP_SECONDS, TlsFiles
from pate_tf.net.health import CONTACT, Watch
from pate_tf.silos.roster import METHODS, JointMethod, Policy, SiloRoster
from pate_tf.silos.silo import Silo, SiloSums, SiloTeacher

POLICY = "policy.toml"
KEYS = "keys.json"
JOURNAL = "journal"
ENDED = "ended"
DIGITS = 16  # messages show this many digits of a digest
OVER = "the run is over"


@dataclasses.dataclass(frozen=True, kw_only=True)
class SiloRun(DataSource, JointMethod):
    """Settings of the `pate silo` command: files, records and teacher of a silo."""

    restated: ClassVar = {
        "method": {
            "group": "",
            "help": "pate: a teacher votes on public inputs. feature_sums: no teacher is trained; "
            "the features of --data are summed per class, and secret-shared with noise.",
        },
        "representation": {
            "help": "With feature_sums: how to compute features of a record; must equal the "
            "coordinator's setting. Features are learned from public samples in --data_dir. The "
            "default depends on the data set."
        },
    }
    folder: pathlib.Path = setting(
        flag="silo_dir", help="Folder with the silo's policy.toml, sensitive ledger and teacher."
    )
    certificates: pathlib.Path = setting(
        pathlib.Path("certificates"),
        help="Folder with authority.pem, and the silo's NAME.pem and NAME.key.",
    )
    roster: pathlib.Path | None = setting(
        None, help="Roster with the keys of the aggregators, for secure aggregation."
    )
    acknowledge_reset: bool = setting(
        False,
        flag="reset_account_i_understand",
        help="Continue even if an earlier ledger of this silo, or its last rows, are missing. "
        "Their known cost is charged again, and the ledger records this permanently.",
    )
    records: pathlib.Path | None = setting(
        None,
        flag="data",
        help="A .npz file with inputs and labels, and with the owner of each record if the policy "
        "protects owners. Alternatives: --private=FILE --schema=FILE, or two folders of images.",
    )
    teacher: str | None = setting(
        None,
        help="A trained teacher: the folder of a SavedModel, a .keras file, or module:function. "
        "The function takes the Dataset and returns a scikit-learn classifier, a Keras model, or "
        "a function from inputs to labels. Default: a teacher is trained on --data.",
    )
    model: str = setting(RANDOM_FOREST, help="Model to train, as in `pate teachers`.")
    encoder: pathlib.Path | None = setting(
        None,
        help="With feature_sums, instead of --representation: a copy of the coordinator's file "
        "TRAIN_DIR/released/encoder.npz. It contains only weights, no code.",
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class AggregatorRun(Settings):
    """Settings of the `pate aggregator` command."""

    folder: pathlib.Path = setting(
        flag="aggregator_dir",
        help="Folder of the aggregator with its keys and journal. Never restore it from a copy.",
    )
    name: str | None = setting(None, help="Create and print keys for an aggregator of this name.")
    roster: pathlib.Path = setting(
        pathlib.Path("roster.toml"), help="Roster with the keys of silos and aggregators."
    )
    coordinator: str = setting("localhost:7000", help="Address of the coordinator, HOST:PORT.")
    certificates: pathlib.Path = setting(
        pathlib.Path("certificates"),
        help="Folder with authority.pem, and this aggregator's NAME.pem and NAME.key.",
    )


def serve(
    run: SiloRun,
    *,
    on_event: Callable[[str], None] = lambda event: None,
    watch: Watch = lambda look: None,
    give_up_after: float = GIVE_UP_SECONDS,
) -> None:
    """Runs a silo: answers the coordinator's queries until the coordinator ends the run.

    The end of the run is recorded in a file. A silo that is started again after the end of a run
    serves the next run. If such a restarted silo can't reach a coordinator for `give_up_after`
    seconds, it ends without an error, because there may be no next run.

    Args:
        run: settings of the silo, from the command line.
        on_event: function that is called with each log message.
        watch: function that is called once with a function that returns the silo's health; see
            `pate_tf.net.health.serve_health`.
        give_up_after: the silo gives up after this many seconds without a connection.

    Raises:
        ConnectionError: if the coordinator could not be reached for `give_up_after` seconds, unless
            an earlier run had ended.
        ValueError: if the policy, the teacher and the roster do not match.
        PermissionError: if the coordinator doesn't know the silo.
        LedgerError: if the ledger can't be used.
        OSError: if a file can't be read.
    """
    from pate_tf.silos.transport import TaskConnection  # needs grpcio

    policy = Policy.read(run.folder / POLICY)
    was_over = (run.folder / ENDED).exists()
    files = TlsFiles.of(run.certificates, policy.silo)
    with (
        open_silo(run, policy, on_event=on_event) as silo,
        TaskConnection(policy.coordinator, files=files) as connection,
    ):
        (run.folder / ENDED).unlink(missing_ok=True)
        on_event(f"{silo.name} connects to {policy.coordinator}")
        connection.contact = run.folder / CONTACT
        watch(lambda: connection.health(status(run.folder)))
        try:
            connection.serve(
                silo.result,
                on_event=lambda event: on_event(f"{silo.name}: {event}"),
                give_up_after=give_up_after,
            )
        except ConnectionError:
            if not was_over:
                raise
        artifacts.write_text(run.folder / ENDED, f"{OVER}\n")
        on_event(f"{silo.name}: {OVER}")


def open_silo(run: SiloRun, policy: Policy, *, on_event: Callable[[str], None]) -> Silo:
    """Opens a silo with its ledger, roster, and teacher or feature sums.

    Args:
        run: settings of the silo, from the command line.
        policy: policy of the silo, read from the silo's folder.
        on_event: function that is called with each log message; messages contain nothing about
            the data.

    Raises:
        ValueError: if the policy, the teacher and the roster do not match.
        LedgerError: if the ledger can't be used.
        OSError: if a file can't be read.
    """
    from pate_tf.silos.protocol import Keys  # needs cryptography

    are_sums = run.method == "feature_sums"
    if not any((name == SecureFeatureSums.name) == are_sums for name in policy.allowed):
        other = METHODS[not are_sums]
        raise ValueError(f"method must be {other}, as in {POLICY}, got {run.method}")
    artifacts.remove_abandoned(run.folder)
    folder = artifacts.make_sensitive_folder(run.folder / artifacts.SENSITIVE)
    roster = None if run.roster is None else SiloRoster.read(run.roster)
    source = run.named_source
    keys = None
    if source is None and run.records is not None:
        source = PrivateSource.of_file(run.records)
    elif source is None and run.files is not None and run.files.private is not None:
        source = PrivateSource.of_file(run.files.private, run.files.name)
    content: SiloTeacher | SiloSums
    if are_sums:
        keys = Keys.load_or_create(folder / KEYS, policy.silo)
        if roster is None or keys.identity not in roster.identities:
            raise ValueError(
                f"roster: {run.roster} must list {policy.silo} with the keys in its folder. Add "
                "the output of `pate silo keys`."
            )
        # A worker process computes the sums, so this process contains no TensorFlow and no records.
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, spawn, start_worker) as process:
            content = process.submit(make_sums, run).result()
        on_event(f"{policy.silo}: feature sums for encoder {content.encoder_digest[:DIGITS]}")
    else:
        content = make_teacher(run, folder)
        on_event(f"{policy.silo}: the teacher is ready")
    return Silo(
        policy,
        content,
        folder=folder,
        roster=roster,
        keys=keys,
        source=source,
        acknowledge_reset=run.acknowledge_reset,
    )


def status(folder: pathlib.Path) -> dict[str, float]:
    """Returns metrics of the privacy budget that a silo has spent. The silo may be running.

    Charges depend only on the policy and on public queries, so they reveal nothing about records.
    `METRICS` lists the metrics.

    Raises:
        ValueError: if the folder contains no valid policy.
        LedgerError: if the ledger can't be used.
        OSError: if a file can't be read.
    """
    policy = Policy.read(folder / POLICY)
    sensitive = folder / artifacts.SENSITIVE
    has_ledger = (sensitive / DATABASE).exists()
    with Store(sensitive if has_ledger else None, read_only=has_ledger) as account:
        account.catch_up()
    spent = smallest_epsilon(account.charges, policy.delta)[0]
    return {
        "pate_run_over": float((folder / ENDED).exists()),
        "pate_rounds_total": account.num_debits,
        "pate_epsilon_budget": policy.epsilon_budget,
        "pate_epsilon_spent": spent,
        "pate_epsilon_left": max(policy.epsilon_budget - spent, 0.0),
    }


def make_sums(run: SiloRun) -> SiloSums:
    """SENSITIVE: computes the feature sums of the silo's records.

    Args:
        run: settings of the silo, from the command line.

    Raises:
        ValueError: if no records are given, or they do not match the data set or the encoder.
        OSError: if a file can't be read.
    """
    examples, public = _examples(run)
    from pate_tf.release.feature_sums import Summands, sums_of_records
    from pate_tf.representations import catalogue as representations

    dataset = examples.dataset
    no_pool = None
    if run.encoder is not None:
        encoder = representations.load_encoder(run.encoder, dataset)
    else:
        public = run.load_public(QUIET) if public is None else public
        pool = public.split(dataset.pool_size).pool
        no_pool = None if pool else pool
        name = run.representation or representations.default_of_sums(dataset, has_pool=bool(pool))
        encoder = representations.encoder_of(pool, name, 0)
    return SiloSums(
        values=sums_of_records(examples, encoder, Summands.of(encoder, no_pool)),
        encoder_digest=encoder.digest,
        unit="record" if examples.owners is None else "owner",
        num_records=len(examples),
    )


def make_teacher(run: SiloRun, folder: pathlib.Path) -> SiloTeacher:
    """SENSITIVE: loads or trains the silo's teacher; a teacher is trained only once.

    Args:
        run: settings of the silo, from the command line.
        folder: sensitive folder in which a trained teacher is stored.

    Raises:
        ValueError: if neither a teacher nor records are given, or they do not match the data set.
        OSError: if a file can't be read.
    """
    model: Any
    if run.teacher is None:
        examples, public = _examples(run)
        from pate_tf.teachers.teacher_set import Teachers

        dataset = examples.dataset
        dataset.require_classes("teacher")
        public = run.load_public(QUIET) if public is None else public
        pool = public.split(dataset.pool_size).pool if len(public) else None
        teachers = Teachers(run.model, num_teachers=1, directory=folder / "teacher")
        teachers.fit(examples, pool)
        model = lambda queries: teachers.votes(queries)[0]  # noqa: E731
    else:
        dataset = run.load_dataset()
        dataset.require_classes("teacher")
        if is_named_function(run.teacher) and not pathlib.Path(run.teacher).exists():
            model = call_function(run.teacher, dataset, flag="teacher", is_private=True)
        else:
            from pate_tf.teachers.foreign import load_model

            model = pathlib.Path(run.teacher)
            load_model(model)  # Raises now; later, an unreadable model would vote for class 0.
    return SiloTeacher(
        model,
        num_classes=dataset.num_classes,
        input_shape=dataset.input_shape,
        input_type=dataset.input_type,
    )


def _examples(run: SiloRun) -> tuple[PrivateExamples, PublicExamples | None]:
    """Returns the silo's records, and the public samples that were loaded with them, or None."""
    if run.files is not None:
        public = run.files.load_public()
        return run.files.load_private(public), public
    if run.records is None:
        raise ValueError("data is required: a .npz file of the silo's records. Or pass `private`.")
    return read_records(run.records, run.load_dataset()), None


def serve_aggregator(
    run: AggregatorRun,
    *,
    on_event: Callable[[str], None] = lambda event: None,
    watch: Watch = lambda look: None,
    give_up_after: float = GIVE_UP_SECONDS,
) -> None:
    """Runs an aggregator: answers the coordinator's tasks until the coordinator ends the run.

    See `serve` for the arguments.

    Raises:
        ConnectionError: if the coordinator could not be reached for `give_up_after` seconds.
        ValueError: if the aggregator has no keys or is not on the roster.
        PermissionError: if the coordinator doesn't know the aggregator.
        LedgerError: if the aggregator's journal can't be used.
        OSError: if a file can't be read.
    """
    from pate_tf.silos.transport import TaskConnection, task_result  # needs grpcio

    keys, aggregator, roster = open_aggregator(run)
    name = keys.identity.name
    with (
        aggregator,
        TaskConnection(
            run.coordinator, files=TlsFiles.of(run.certificates, name), is_aggregator=True
        ) as connection,
    ):
        on_event(f"{name} connects to {run.coordinator}")
        connection.contact = run.folder / CONTACT
        watch(lambda: connection.health(aggregator_status(run.folder)))
        connection.serve(
            functools.partial(task_result, aggregator, roster),
            on_event=on_event,
            give_up_after=give_up_after,
        )
        on_event(f"{name}: {OVER}")


def open_aggregator(run: AggregatorRun) -> tuple[Any, Any, SiloRoster]:
    """Opens an aggregator; returns its `Keys`, the `Aggregator` and the roster.

    Args:
        run: settings of the aggregator, from the command line.

    Raises:
        ValueError: if the aggregator has no keys or is not on the roster.
        LedgerError: if the aggregator's journal can't be used.
        OSError: if a file can't be read.
    """
    from pate_tf.silos.aggregator import Aggregator  # needs cryptography
    from pate_tf.silos.protocol import Keys

    path = run.folder / KEYS
    if not path.exists():
        raise ValueError(f"aggregator_dir: {run.folder} contains no keys. Create them with `name`.")
    keys = Keys.load_or_create(path, str(artifacts.read_json(path).get("name")))
    roster = SiloRoster.read(run.roster)
    name = keys.identity.name
    if keys.identity not in roster.aggregators:
        raise ValueError(f"roster: {run.roster} must list {name} with the keys in its folder")
    return keys, Aggregator(keys, run.folder / JOURNAL), roster


def aggregator_status(folder: pathlib.Path) -> dict[str, float]:
    """Returns the number of sums that an aggregator has released, as a metric."""
    return {"pate_rounds_total": len([*(folder / JOURNAL).glob("*/batch.release")])}
