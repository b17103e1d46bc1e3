"""Runs shared training from records to a report, in one process or across organizations."""

import contextlib
import dataclasses
import logging
import math
import pathlib
import textwrap
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import Pool, PublicExamples
from pate_tf.core.reporting import LINE_SECONDS, NOT_MEASURED, QUIET, Reporting, RunReport
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.settings import PublicationSettings
from pate_tf.data.named_function import Named
from pate_tf.models.architectures import model_definition
from pate_tf.models.encoder import Encoder
from pate_tf.net.credentials import GIVE_UP_SECONDS
from pate_tf.net.health import Watch
from pate_tf.release.noise import NoiseSource
from pate_tf.representations.catalogue import default_representation, encoder_of
from pate_tf.representations.raw import whitened
from pate_tf.selective_sgd import local_training
from pate_tf.selective_sgd.run_state import ROUND, STATE, DurableRun, LedgerFacts
from pate_tf.selective_sgd.server import ParameterServer, upload_bytes
from pate_tf.selective_sgd.training_settings import Terms, TrainingSettings
from pate_tf.serving.export import export_student, student_digest
from pate_tf.statement.publishing import publication_facts
from pate_tf.statement.several_holders import SharedTrainingStatement

_log = logging.getLogger(__name__)
WHITENED = "whitened"  # the data set's default representation with partial whitening
REPORT = "selective_sgd_report.json"
SAMPLES_PER_BATCH = 500
MAX_NAMES_LENGTH = 200  # maximum length of the list of missing participants in a log line
LINGER_SECONDS = 60.0  # time after training until a message shows which participants are missing


class ModelOnFeatures(tf.Module):
    """A module that maps raw inputs to logits: an encoder, followed by a model."""

    def __init__(self, encoder: Encoder, model: keras.Model) -> None:
        super().__init__()
        self.encoder = encoder
        self.model = model
        self.head = [weight.value for weight in model.weights]

    def __call__(self, inputs: tf.Tensor, training: bool = False) -> Any:
        """Returns logits `[batch, num_classes]` for raw inputs."""
        return self.model(self.encoder(inputs), training=training)


def learn_encoder(name: Named, pool: Pool, *, seed: int, reporting: Reporting = QUIET) -> Encoder:
    """Trains an encoder on a public pool, without labels.

    Args:
        name: name of a representation, see `representations.catalogue.encoder_of`; or "whitened"
            for the data set's default representation, followed by partial whitening.
        pool: public inputs.
        seed: seed of the training.
        reporting: functions that show progress, notes and warnings.
    """
    plain = default_representation(pool.dataset) if name == WHITENED else name
    with reporting.clock("training a representation on the pool"):
        encoder = encoder_of(pool, plain, seed)
        return whitened(encoder, pool) if name == WHITENED else encoder


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedModel:
    """A model that participants trained together, and the facts for its privacy statement.

    Attributes:
        model: the model, which maps raw inputs to logits.
        dataset: data set of the model's inputs.
        settings: settings of the run.
        num_parameters: number of trained parameters.
        facts: facts of each participant's ledger, or of the single ledger that all participants
            share; empty without noise.
    """

    model: keras.Model | tf.Module
    dataset: Dataset
    settings: TrainingSettings
    num_parameters: int
    facts: tuple[LedgerFacts, ...]

    def accuracy(self, samples: PublicExamples | None) -> float | None:
        """Returns the accuracy on public samples; None if no sample has a label."""
        labelled = None if samples is None else samples.labelled()
        if labelled is None:
            return None
        batches = np.array_split(labelled.inputs, -(-len(labelled) // SAMPLES_PER_BATCH))
        answers = [np.argmax(self.model(tf.constant(each, tf.float32)), axis=1) for each in batches]
        return float((np.concatenate(answers) == labelled.labels).mean())

    def costs(self) -> dict[str, Any]:
        """Returns the worst value of each fact over all ledgers, by name.

        The value is None if a ledger lacks the fact.
        """
        costs: dict[str, Any] = {"secure_noise": all(each.secure_noise for each in self.facts)}
        for name in ("epsilon", "delta", "epsilon_source", "delta_source", "num_ledgers"):
            values = [getattr(each, name) for each in self.facts]
            costs[name] = None if not values or None in values else max(values)
        return costs

    def publish(
        self,
        directory: str | pathlib.Path,
        *,
        evaluate_on: PublicExamples | None = None,
        reporting: Reporting = QUIET,
    ) -> RunReport:
        """Exports the model with its privacy statement, and returns a report.

        With noise, the model and the statement are written to `released/`. Without noise, neither
        of them may be published, so both are written to `sensitive/`, and the statement says why.

        Args:
            directory: the run folder.
            evaluate_on: public samples on which the model is evaluated.
            reporting: functions that show progress, notes and warnings.
        """
        run = artifacts.RunDirectory(pathlib.Path(directory))
        settings = self.settings
        costs = self.costs()
        numbers = [each.fewest_records for each in self.facts]
        folder = run.released if self.facts else run.sensitive
        statement = SharedTrainingStatement(
            pool_name=self.dataset.name,
            num_participants=settings.num_participants,
            num_parameters=self.num_parameters,
            upload=settings.upload,
            rounds=settings.rounds,
            protocol=settings.protocol,
            charge=settings.charge(),
            unit=settings.privacy,
            **costs | ({} if self.facts else {"epsilon": math.inf, "delta": 0.0}),
            fewest_records=min(filter(None, numbers), default=None),
            ledger_heads=tuple((each.ledger_sequence, each.ledger_digest) for each in self.facts),
            ledger_was_reset=any(each.was_reset for each in self.facts),
            student_digest=student_digest(self.model),
            **self.dataset.model_facts,
            **publication_facts(PublicationSettings(), folder / "shared_model"),
        )
        with reporting.clock("exporting the model"):
            fields = statement.to_dict()
            exported = export_student(self.model, self.dataset, folder / "shared_model", fields)
            artifacts.write_json(folder / "shared_model_statement.json", fields)
            artifacts.write_text(folder / "shared_model_statement.md", statement.to_markdown())
        num_changes = settings.num_uploaded(self.num_parameters)
        values = {
            **dataclasses.asdict(settings),
            "dataset": self.dataset.name,
            "parameters": self.num_parameters,
            "upload_bytes": upload_bytes(num_changes, self.num_parameters),
            "accuracy_global": self.accuracy(evaluate_on),
            **costs,
            "model_folder": str(exported),
            "seconds": reporting.seconds,
        }
        artifacts.write_json(run.sensitive / REPORT, values, private=True)
        accuracy = values["accuracy_global"]
        guarantees = [
            f"epsilon {guarantee.epsilon:.4g} at delta {guarantee.delta:g}"
            for guarantee in statement.guarantees
        ]
        names = ("privacy", "all releases charged to its source")
        rows = [
            ("accuracy", NOT_MEASURED if accuracy is None else f"{accuracy:.2%}; sensitive"),
            *zip(names, guarantees or ["no guarantee: trained without noise"], strict=False),
            ("exported", str(exported)),
        ]
        return RunReport(values=values, rows=rows)


def train(
    private: PrivateExamples,
    settings: TrainingSettings,
    *,
    model: Named | None = None,
    encoder: Encoder | None = None,
    directory: str | pathlib.Path | None = None,
    acknowledge_reset: bool = False,
    noise: NoiseSource | None = None,
    on_round: Callable[[int, float], object] = lambda round_number, loss: None,
) -> SharedModel:
    """Trains a shared model in this process, on a data set that is split among participants.

    >>> from pate_tf import selective_sgd
    >>> settings = selective_sgd.TrainingSettings(num_participants=4, rounds=2, upload=0.1)
    >>> shared = selective_sgd.train(data.private, settings, model="linear")
    >>> shared.num_parameters
    650

    Without `privacy`, neither the uploads nor the model have a privacy guarantee.

    Args:
        private: SENSITIVE; the private records.
        settings: settings of the training and of the protection of uploads.
        model: "linear", another name in `models.architectures`, or a function that takes the data
            set and returns a Keras model that maps inputs to logits.
        encoder: encoder that was trained only on public samples. Default: the model takes raw
            inputs.
        directory: run folder, which stores the ledger and the state from which a stopped run
            resumes. Required if privacy is "record". Default: nothing is stored.
        acknowledge_reset: whether to resume although rows of the ledger are missing, see
            `DurableRun`.
        noise: noise source. Default: the operating system's entropy.
        on_round: function that is called after each round with the number of the round, from 0,
            and the mean loss. SENSITIVE.

    Raises:
        ValueError: if the arguments contradict each other. In this case, nothing was charged.
        LedgerError: if the ledger can't be used, if the budget is too small, or if a copy of the
            run was resumed.
    """
    shards = local_training.private_shards(private, settings.num_participants, seed=settings.seed)
    dataset = private.dataset
    if encoder is not None:
        dataset = encoder.feature_dataset
        shards = [
            PrivateExamples(dataset, encoder.features(shard.inputs), shard.labels)
            for shard in shards
        ]
    network = local_training.build(model, dataset, seed=settings.seed)
    opened: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if directory is not None:
        opened = DurableRun(
            pathlib.Path(directory),
            "selective_sgd",
            {
                **dataclasses.asdict(settings),
                "encoder": encoder and encoder.digest,
                "architecture": model_definition(network, dataset),
            },
            shards,
            settings=settings,
            source=private.source,
            acknowledge_reset=acknowledge_reset,
        )
    with opened as run:
        records = dict(enumerate(shards))
        participants = local_training.participants_of(
            settings, network, records, run=run, noise=noise
        )
        server = ParameterServer(settings, participants.view.parameters())
        training = local_training.SharedTraining(participants, server)
        if run is not None and ROUND in run.saved:
            server.restore(run.saved)
            training.round = int(run.saved[ROUND])
            if training.round == settings.rounds:
                QUIET.warn_of_stored(run.folder / STATE, "results")
        while training.round < settings.rounds:
            loss = training.run_round()
            if run is not None:
                run.save({**vars(server.state), ROUND: np.array(training.round)})
            on_round(training.round - 1, loss)
        facts = () if run is None or not settings.is_noisy else (run.facts(),)
    view = participants.view
    view.assign(server.released())
    return SharedModel(
        model=network if encoder is None else ModelOnFeatures(encoder, network),
        dataset=private.dataset,
        settings=settings,
        num_parameters=view.num_parameters,
        facts=facts,
    )


def join(
    terms: Terms,
    participant: str,
    shard: PrivateExamples,
    *,
    address: str,
    certificates: pathlib.Path,
    directory: pathlib.Path,
    acknowledge_reset: bool = False,
    watch: Watch = lambda look: None,
    give_up_after: float = GIVE_UP_SECONDS,
) -> pathlib.Path:
    """Runs all rounds of a participant, and returns the path of the final shared parameters.

    If a participant was killed and is started again with the same arguments, it resumes. A
    participant that already has the final parameters does not connect to the server.

    Args:
        terms: terms of the run.
        participant: name of the participant, as on the roster and in its certificate.
        shard: SENSITIVE; records of the participant.
        address: address of the server, HOST:PORT.
        certificates: folder with the certificates of the authority and the participant.
        directory: the run folder.
        acknowledge_reset: see `DurableRun`.
        watch: function that is called once. Its argument is a function that returns the health of
            the participant's connection.
        give_up_after: number of seconds without a connection after which the participant gives up.

    Raises:
        ConnectionError: if the server could not be reached for `give_up_after` seconds.
        ValueError: if the roster, the records and the server do not match (in this case, nothing
            was charged), or if the server refuses an upload.
        PermissionError: if the participant is not on the server's roster.
        LedgerError: if the ledger can't be used, if the budget is too small, or if a copy of the
            run was resumed.
        OSError: if a file can't be read or written.
    """
    from pate_tf.net.credentials import TlsFiles  # needs gRPC, an optional package
    from pate_tf.selective_sgd.network import RemoteServer

    settings = terms.settings
    number = terms.number(participant)
    network = local_training.build(terms.model, shard.dataset, seed=settings.seed)
    identity = {
        "run": terms.run_id.hex(),
        "participant": participant,
        "architecture": model_definition(network, shard.dataset),
    }
    files = TlsFiles.of(certificates, participant)
    with DurableRun(
        directory,
        "participant",
        identity,
        [shard],
        settings=settings,
        source=shard.source,
        acknowledge_reset=acknowledge_reset,
    ) as run:
        path = run.folder / "global_parameters.npz"
        if path.exists():
            _log.info("run %s is over", terms.run)
            return path
        num_parameters = local_training.FlatView(network).num_parameters
        with RemoteServer(
            address, terms, files, num_parameters, run, give_up_after=give_up_after
        ) as server:
            server.join()
            participants = local_training.participants_of(
                settings, network, {number: shard}, run=run, declare=server.join
            )
            training = local_training.SharedTraining(participants, server)
            training.round = int(run.saved.get(ROUND, 0))
            watch(lambda: server.health({"pate_rounds_total": training.round}))
            _log.info("joined run %s, round %d of %d", terms.run, training.round, settings.rounds)
            server.push_again()
            while training.round < settings.rounds:
                training.run_round()
            final = server.pull(number, settings.rounds)
        artifacts.write_arrays(path, {"values": final.values}, private=True)
    return path


def serve(
    terms: Terms,
    *,
    address: str,
    certificates: pathlib.Path,
    directory: pathlib.Path,
    public: PublicExamples,
    reporting: Reporting = QUIET,
    watch: Watch = lambda look: None,
    give_up_after: float = GIVE_UP_SECONDS,
) -> RunReport:
    """Serves all rounds of training, then exports the global model with its privacy statement.

    If a server was killed and is started again with the same arguments, it resumes. After the last
    round, the server waits at most `give_up_after` seconds until all callers have fetched the final
    parameters. To serve the parameters to late callers, start the server again.

    Args:
        terms: terms of the run.
        address: address to listen on, HOST:PORT; with port 0, the system chooses a free port.
        certificates: folder with the certificates of the authority and the coordinator.
        directory: the run folder.
        public: public samples of the data set that the terms name. Those with labels are used to
            evaluate the model.
        reporting: functions that show progress, notes and warnings.
        watch: function that is called once. Its argument is a function that returns the health of
            the server.
        give_up_after: maximum number of seconds to wait for participants that have not fetched the
            final parameters.

    Raises:
        ValueError: if the roster, the data and the stored state do not match.
        OSError: if a file can't be read or written.
    """
    from pate_tf.net.credentials import COORDINATOR, TlsFiles  # needs gRPC, an optional package
    from pate_tf.selective_sgd.network import ParameterService

    settings = terms.settings
    network = local_training.build(terms.model, public.dataset, seed=settings.seed)
    view = local_training.FlatView(network)
    files = TlsFiles.of(certificates, COORDINATOR)
    with DurableRun(directory, "server", {"run": terms.run_id.hex()}) as run:
        server = ParameterServer(settings, view.parameters(), run=run)
        service = ParameterService(server, terms, ledgers=run.folder / "ledgers.json")
        with service.listen(address, files) as listening:
            _log.info("listening on port %d", listening.port)
            watch(lambda: listening.health({"pate_rounds_total": server.round}))
            while names := service.missing():
                some = textwrap.shorten(
                    ", ".join(sorted(names)), MAX_NAMES_LENGTH, placeholder=" ..."
                )
                _log.info("waiting for %s: round %d of %d", some, server.round, settings.rounds)
                service.wait(lambda: not service.missing(), LINE_SECONDS)
            view.assign(server.released())
            shared = SharedModel(
                model=network,
                dataset=public.dataset,
                settings=settings,
                num_parameters=view.num_parameters,
                facts=tuple(service.facts[name] for name in terms.names if name in service.facts),
            )
            report = shared.publish(directory, evaluate_on=public, reporting=reporting)
            linger = min(LINGER_SECONDS, give_up_after)
            service.wait(lambda: len(service.fetched) == len(terms.names), linger)
            if missing := ", ".join(sorted(service.called - service.fetched)):
                _log.warning(
                    f"the run is over; the model was written. Waiting at most {give_up_after:g} "
                    f"seconds for {missing} to fetch it. You can stop this command."
                )
                service.wait(lambda: service.called <= service.fetched, give_up_after)
    return report
