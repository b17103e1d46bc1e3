"""Shared training, from settings to a report: in one process, or one end across organisations."""

import contextlib
import dataclasses
import functools
import pathlib
import time
from collections.abc import Callable, Sequence
from math import sqrt
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.accounting.delta import check_delta
from pate_tf.accounting.noisy_training import Training
from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import PublicExamples
from pate_tf.core.reporting import NOT_MEASURED, QUIET, Reporting, RunReport
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.settings import PublicationSettings
from pate_tf.core.source import PrivateSource
from pate_tf.data import catalogue as data_catalogue
from pate_tf.data.data import read_records
from pate_tf.data.data_source import DataSource
from pate_tf.data.named_function import Named, name_of
from pate_tf.models import catalogue
from pate_tf.models.definition import model_definition
from pate_tf.models.encoder import Encoder
from pate_tf.representations.catalogue import (
    check_representation,
    default_representation,
    encoder_of,
)
from pate_tf.representations.raw import whitened
from pate_tf.selective_sgd import models
from pate_tf.selective_sgd.joined import JoinedParticipant, until_answered
from pate_tf.selective_sgd.models import FlatView
from pate_tf.selective_sgd.private_training import training_with
from pate_tf.selective_sgd.roster import Roster
from pate_tf.selective_sgd.run_state import ROUND, ChargedRun, LedgerFacts, RunState
from pate_tf.selective_sgd.server import Server
from pate_tf.selective_sgd.settings import (
    ParameterServerRun,
    ParticipantRun,
    Privacy,
    Settings,
    SharedRun,
)
from pate_tf.selective_sgd.training import RoundStatistics, SharedTraining
from pate_tf.selective_sgd.upload import FloatArray, dense_bytes
from pate_tf.serving.export import export_student
from pate_tf.serving.signatures import student_digest
from pate_tf.statement.publishing import publication_facts
from pate_tf.statement.shared_training import SharedTrainingStatement

WHITENED = "whitened"  # the default representation, partly whitened
DEALT = "dealt"
WATCHED = 2000  # public samples that are evaluated after each round
TOGETHER = 500  # samples of one call of the model
LOCALLY_WATCHED = 1000  # of each participant's local model, at the end
REPORT = "selective_sgd_report.json"
LOOK_SECONDS = 1.0


# The global model on public samples: its accuracy, its buffers, and event files of a run.


class Evaluation:
    """Accuracy of a model's copies on labelled public samples.

    Args:
        view: of the model.
        samples: public; every one has a label.
    """

    def __init__(self, view: FlatView, samples: PublicExamples) -> None:
        self._model, self._samples = view.model, samples
        self._answers = tf.function(self._answer, autograph=False, reduce_retracing=True)

    def accuracy(self, model: keras.Model, most: int | None = None) -> float:
        """Returns the share of correct answers.

        Args:
            model: what the view's model holds now; the same object.
            most: how many samples are used, from the first. Default: all.
        """
        inputs, labels = self._samples.inputs[:most], self._samples.labels
        if model is not self._model or labels is None:
            raise ValueError("evaluation: expected the model of the view, and labels")
        answers = [
            self._answers(tf.constant(inputs[start : start + TOGETHER])).numpy()
            for start in range(0, len(inputs), TOGETHER)
        ]
        return float((np.concatenate(answers) == labels[:most]).mean())

    def _answer(self, inputs: tf.Tensor) -> tf.Tensor:
        return tf.argmax(self._model(tf.cast(inputs, tf.float32), training=False), axis=1)


def calibrated_model(
    view: FlatView, parameters: FloatArray, samples: PublicExamples | None
) -> keras.Model:
    """Returns the global model with buffers from public samples alone.

    The statistics of batch normalization stay with each participant; for the model that is shared
    they are those of public inputs. Other buffers, or all without samples, are as the model was
    built, whichever participant's the view's model held before.
    """
    model = view.assign(parameters)
    is_moving = [not one.dtype.startswith(("int", "uint")) for one in model.non_trainable_variables]
    if samples is None or not any(is_moving):
        return model
    trained = [one.value for one in model.trainable_variables]
    buffers = [one.value for one in model.non_trainable_variables]
    for _ in range(max(1, 200 // (-(-len(samples) // TOGETHER)))):
        for start in range(0, min(len(samples), 20 * TOGETHER), TOGETHER):
            inputs = tf.constant(samples.inputs[start : start + TOGETHER], tf.float32)
            _, buffers = model.stateless_call(trained, buffers, inputs, training=True)
    return view.assign(parameters, [keras.ops.convert_to_numpy(one) for one in buffers])


class Logs:
    """SENSITIVE: event files of a run for TensorBoard, `sensitive/logs/selective_sgd`.

    A round is a step.

    Args:
        directory: of the run.
    """

    def __init__(self, directory: artifacts.RunDirectory) -> None:
        logs = artifacts.make_sensitive_folder(directory.sensitive / "logs")
        self._folder = logs / "selective_sgd"
        self._writer = tf.summary.create_file_writer(str(self._folder))

    def write_round(
        self, statistics: RoundStatistics, accuracy: float | None, epsilon: float | None
    ) -> None:
        """Writes what a round was like.

        Args:
            statistics: of the round.
            accuracy: of the global model on some public samples; None where they have no labels.
            epsilon: of the ledger; None without privacy.
        """
        with self._writer.as_default(step=statistics.round + 1):
            if np.isfinite(statistics.loss):
                tf.summary.scalar("loss/local_mean", statistics.loss)
            tf.summary.scalar("upload/bytes", statistics.upload_bytes)
            tf.summary.scalar("upload/fraction", statistics.fraction_uploaded)
            tf.summary.scalar("upload/staleness", statistics.staleness)
            if accuracy is not None:
                tf.summary.scalar("accuracy/global", accuracy)
            if epsilon is not None:
                tf.summary.scalar("privacy/epsilon", epsilon)
        self._writer.flush()

    def write_participants(self, accuracies: npt.NDArray[np.float64]) -> None:
        """Writes the accuracy of every local model `[num_participants]`; participants are steps."""
        with self._writer.as_default():
            for participant, accuracy in enumerate(accuracies):
                tf.summary.scalar("accuracy/by_participant", accuracy, step=participant)
        self.close()

    def close(self) -> None:
        """Closes the files."""
        self._writer.close()
        artifacts.make_private(self._folder)


# A run.


@dataclasses.dataclass(frozen=True, kw_only=True)
class Features:
    """A fixed map, learnt from public inputs only, from raw inputs to what is trained on.

    Attributes:
        dataset: of what is trained on.
        encoder: from raw inputs to features; None where inputs stay as they are.
    """

    dataset: Dataset
    encoder: Encoder | None = None

    def records(self, private: PrivateExamples) -> PrivateExamples:
        """Returns a participant's records as features, known as the raw records that they are of.

        Each depends on its own record alone, and on its place.
        """
        if self.encoder is None:
            return private
        return PrivateExamples(
            self.dataset,
            self.encoder.features(private.inputs),
            private.labels,
            source=private.source,
        )

    def samples(self, public: PublicExamples) -> PublicExamples:
        """Returns public samples as features."""
        if self.encoder is None:
            return public
        return PublicExamples(self.dataset, self.encoder.features(public.inputs), public.labels)

    def served(self, model: keras.Model) -> keras.Model | tf.Module:
        """Returns a model from raw inputs to logits."""
        return model if self.encoder is None else _OnFeatures(self.encoder, model)


class _OnFeatures(tf.Module):
    """A model behind an encoder."""

    def __init__(self, encoder: Encoder, model: keras.Model) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = [weight.value for weight in model.weights]
        self._model = model

    def __call__(self, inputs: tf.Tensor, training: bool = False) -> Any:
        """Returns logits `[batch, num_classes]` of raw inputs."""
        return self._model(self.encoder(inputs), training=training)


def features_of(
    name: Named | None, public: PublicExamples, reporting: Reporting, *, seed: int
) -> Features:
    """Learns features of the data set's public pool, without labels.

    Args:
        name: as of `representations.catalogue.encoder_of`; "whitened" for the data set's default,
            partly whitened; None for inputs as they are.
        public: public samples; the first of them are the pool.
        reporting: how progress is shown.
        seed: of the learning.

    Raises:
        ValueError: if there is no such representation, or it does not fit.
    """
    dataset = public.dataset
    if name is None:
        return Features(dataset=dataset)
    plain = default_representation(dataset) if name == WHITENED else name
    check_representation(plain, dataset)
    with reporting.clock("training a representation on the pool"):
        pool = public.split(dataset.pool_size).pool
        encoder = encoder_of(pool, plain, seed)
        if name == WHITENED:
            encoder = whitened(encoder, pool)
    length = sqrt(encoder.num_views)  # each view's is 1
    return Features(
        dataset=dataclasses.replace(
            dataset,
            kind="tabular",
            input_shape=(encoder.num_features,),
            value_range=(-length, length),
            augmentation="none",
            input_type="float32",
        ),
        encoder=encoder,
    )


# What every run ends with: the exported model, its statement, a report.


def _published(
    view: FlatView,
    parameters: FloatArray,
    samples: PublicExamples | None,
    *,
    features: Features,
    dataset: Dataset,
    settings: Settings,
    privacy: Privacy,
    charge: Training | None,
    facts: Sequence[LedgerFacts],
    holders: int,
    fewest_records: int,
    directory: artifacts.RunDirectory,
    publication: PublicationSettings,
    reporting: Reporting,
) -> dict[str, Any]:
    """Exports the global model and its statement, and returns what a report says of them.

    With noise they go below `released/`. Without noise nothing may be published: they go below
    `sensitive/`, and the statement says why.
    """
    unit = privacy.unit if charge else None
    costs = _costs(facts)
    folder = directory.released if facts else directory.sensitive
    with reporting.clock("exporting the model"):
        model = features.served(calibrated_model(view, parameters, samples))
        statement = SharedTrainingStatement(
            pool_name=dataset.name,
            num_participants=settings.num_participants,
            num_parameters=view.num_parameters,
            upload=settings.upload,
            rounds=settings.rounds,
            protocol=settings.protocol,
            charge=charge,
            unit=unit,
            **costs,
            holders=holders if unit == "record" else 1,
            fewest_records=fewest_records if unit == "record" else None,
            ledger_heads=tuple(one.ledger_head for one in facts),
            ledger_was_reset=any(one.was_reset for one in facts),
            student_digest=student_digest(model),
            **publication_facts(publication, folder / "shared_model"),
        )
        exported = export_student(model, dataset, folder / "shared_model", statement.to_dict())
        artifacts.write_json(folder / "shared_model_statement.json", statement.to_dict())
        artifacts.write_text(folder / "shared_model_statement.md", statement.to_markdown())
    return {
        "dataset": dataset.name,
        "participants": settings.num_participants,
        "parameters": view.num_parameters,
        **{name: getattr(settings, name) for name in ("rounds", "upload", "download", "protocol")},
        "privacy": privacy.kind,
        **costs,
        "model_folder": str(exported),
    }


def _costs(facts: Sequence[LedgerFacts]) -> dict[str, Any]:
    """Returns what ledgers say together, the worst of each; None for what one does not know."""
    names = ("epsilon", "delta", "epsilon_source", "delta_source", "num_ledgers")
    each = {name: [getattr(one, name) for one in facts] for name in names}
    return {
        **{
            name: None if not found or None in found else max(found) for name, found in each.items()
        },
        "secure_noise": all(one.secure_noise for one in facts),
    }


def _report(
    values: dict[str, Any], directory: artifacts.RunDirectory, reporting: Reporting
) -> RunReport:
    """Stores a report, and returns it with its rows."""

    def percent(name: str) -> str:
        return NOT_MEASURED if values[name] is None else f"{values[name]:.2%}; sensitive"

    values["seconds"] = reporting.seconds
    artifacts.write_json(directory.sensitive / REPORT, values, private=True)
    turns = f"{values['participants']}, {values['rounds']} rounds, {values['protocol']}"
    rows = [("data set", values["dataset"])]
    if "records_each" in values:
        rows = [("data set", f"{values['dataset']}, {values['records_each']:,} records each")]
    rows += [
        ("participants", turns),
        ("model", f"{values['parameters']:,} parameters"),
        ("accuracy of the global model", percent("accuracy_global")),
    ]
    if "upload_bytes" in values:
        share = values["upload_bytes"] / values["dense_bytes"]
        rows += [
            ("mean accuracy of local models", percent("accuracy_local_mean")),
            ("an upload", f"{values['upload_bytes']:,.0f} bytes, {share:.2%} of all changes"),
        ]
    epsilon, epsilon_all = values["epsilon"], values["epsilon_source"]
    if epsilon is None:
        rows.append(("privacy", "none: there is no guarantee"))
    else:
        number = values["num_ledgers"]
        of_all = (
            "not known"
            if epsilon_all is None
            else f"epsilon {epsilon_all:.4g} at delta {values['delta_source']:g}, {number} "
            f"ledger{'' if number == 1 else 's'}"
        )
        rows += [
            ("privacy", f"epsilon {epsilon:.4g} at delta {values['delta']:g}"),
            ("all releases charged to its source", of_all),
        ]
    rows += [("exported", values["model_folder"]), ("time", f"{values['seconds']:.1f} s")]
    return RunReport(values=values, rows=rows)


# All participants in one process.


def run(
    asked: SharedRun, data: DataSource | None = None, reporting: Reporting = QUIET
) -> RunReport:
    """Trains together, exports the global model with its statement, returns what was found out.

    A stopped run goes on in the same folder where it stopped.

    Args:
        asked: settings.
        data: private records, which are dealt out, and public samples that measure the model.
            Default: the digits.
        reporting: how progress is shown.

    Raises:
        ValueError: if something does not fit; nothing was charged then.
        LedgerError: if the ledger does not suffice, can't be used, or a copy of the run went on.
    """
    source = data or DataSource()
    if asked.source_name is not None:
        source = dataclasses.replace(source, source_name=asked.source_name)
    examples, public = source.load_private(reporting), source.load_public(reporting)
    if difference := public.dataset.difference(examples.dataset):
        raise ValueError(f"dataset: expected the same on both sides, got others: {difference}")
    return train_on(asked, examples, public, reporting)


def train_on(
    asked: SharedRun,
    examples: PrivateExamples,
    public: PublicExamples,
    reporting: Reporting = QUIET,
) -> RunReport:
    """As `run`, on data that are at hand."""
    settings, privacy = asked.settings, asked.privacy
    privacy.check(settings)  # before anything is stored
    if privacy.kind != "none":
        is_record = privacy.unit == "record"
        number = len(examples) if is_record else settings.num_participants
        check_delta(privacy.delta, number, privacy.unit)
    features = features_of(asked.representation, public, reporting, seed=settings.seed)
    raw, holders = models.dealt(examples, settings, asked.records_each)
    shares = [features.records(share) for share in raw]
    fewest = min(map(len, shares))
    builder = models.network(asked.model, features.dataset)
    model = catalogue.build(builder, features.dataset, seed=settings.seed)
    name = f"runs/selective_sgd-{examples.dataset.name}-{settings.num_participants}"
    directory = artifacts.RunDirectory(asked.folder or pathlib.Path(name))
    artifacts.remove_abandoned(directory.root)
    public_settings = {
        **dataclasses.asdict(settings),
        **dataclasses.asdict(privacy),
        "representation": asked.representation,
        "architecture": model_definition(builder, features.dataset),
    }
    folder = artifacts.make_sensitive_folder(directory.sensitive / "selective_sgd")
    with artifacts.only_writer(folder), contextlib.ExitStack() as stack:
        state = RunState(
            folder,
            public_settings,
            private=[array for share in shares for array in (share.inputs, share.labels)],
            privacy=privacy,
            source=examples.source,
            acknowledge_reset=asked.acknowledge_reset,
        )
        charged = state.charged
        stack.enter_context(charged or contextlib.nullcontext())
        noise = asked.noise()
        training = training_with(
            privacy,
            settings,
            model,
            shares,
            begin=None if charged is None else charged.beginning(noise),
            noise=noise,
            holders=holders,
        )
        if ROUND in state.saved:
            training.restore(state.saved)
        samples = features.samples(public).labelled()
        evaluation = None if samples is None else Evaluation(training.view, samples)
        seconds = _train(training, state, evaluation, Logs(directory), reporting)
        measured = _measured(training, samples, evaluation, directory, reporting)
        facts = [] if charged is None else [charged.facts()]
    values = _published(
        training.view,
        training.released_parameters(),
        samples,
        features=features,
        dataset=examples.dataset,
        settings=settings,
        privacy=privacy,
        charge=training.charge,
        facts=facts,
        holders=holders,
        fewest_records=fewest,
        directory=directory,
        publication=asked,
        reporting=reporting,
    )
    values |= {
        **measured,
        "records_each": fewest,
        "model": name_of(asked.model) if asked.model else None,
        # The first round, which traces, aside if possible.
        "seconds_a_round": float(np.median(seconds[1:] or seconds)) if seconds else None,
    }
    return _report(values, directory, reporting)


def _train(
    training: SharedTraining,
    state: RunState,
    evaluation: Evaluation | None,
    logs: Logs,
    reporting: Reporting,
) -> list[float]:
    """Runs the rounds that are left; returns their seconds."""
    rounds = training.settings.rounds
    seconds: list[float] = []
    epsilon = None if training.facts is None else training.facts.epsilon
    with reporting.progress_bar("training together", rounds, "round") as advance:
        advance(training.round)
        while training.round < rounds:
            began = time.monotonic()
            statistics = training.run_round()
            seconds.append(time.monotonic() - began)
            state.save(training.state(), at_once=training.round == rounds)
            accuracy = None
            if evaluation is not None:
                accuracy = evaluation.accuracy(training.global_model(), WATCHED)
            logs.write_round(statistics, accuracy, epsilon)
            advance(1)
    logs.close()
    return seconds


def _measured(
    training: SharedTraining,
    samples: PublicExamples | None,
    evaluation: Evaluation | None,
    directory: artifacts.RunDirectory,
    reporting: Reporting,
) -> dict[str, Any]:
    """Returns accuracies and traffic. SENSITIVE."""
    values: dict[str, Any] = {"accuracy_global": None, "accuracy_local_mean": None}
    if evaluation is not None:
        with reporting.clock("evaluating"):
            model = calibrated_model(training.view, training.released_parameters(), samples)
            values["accuracy_global"] = evaluation.accuracy(model)
            local = np.array(
                [
                    evaluation.accuracy(training.local_model(participant), LOCALLY_WATCHED)
                    for participant in range(training.settings.num_participants)
                ]
            )
        Logs(directory).write_participants(local)
        values["accuracy_local_mean"] = float(local.mean())
        values["accuracy_local_lowest"] = float(local.min())
    return {
        **values,
        **training.traffic,
        "dense_bytes": dense_bytes(training.view.num_parameters),
    }


# One participant of many, across organisations.


def take_part(
    run: ParticipantRun, *, on_event: Callable[[str], None] = lambda event: None
) -> pathlib.Path:
    """Takes all turns of a participant, and returns the file with the parameters of all.

    Killed and started again with the same arguments it goes on where it was.

    Raises:
        ValueError: if roster, records and server do not fit each other; nothing was charged then,
            unless the server refuses an upload.
        PermissionError: if the server does not know the participant.
        LedgerError: if the ledger does not suffice, can't be used, or a copy of the run went on.
        OSError: if a file can't be read or written.
    """
    from pate_tf.net.credentials import TlsFiles  # gRPC comes with an extra
    from pate_tf.selective_sgd.network import ParameterConnection

    roster = Roster.read(run.roster)
    settings, privacy = roster.settings, roster.privacy
    share = _own_records(run, roster)
    if run.source_name is not None:
        share = dataclasses.replace(share, source=PrivateSource.named(run.source_name))
    if privacy.kind == "record":
        check_delta(privacy.delta, len(share))
    builder = models.network(roster.model, share.dataset)
    model = catalogue.build(builder, share.dataset, seed=settings.seed)
    directory = artifacts.RunDirectory(run.folder or pathlib.Path(f"runs/shared-{run.participant}"))
    folder = artifacts.make_sensitive_folder(directory.sensitive / "participant")
    artifacts.remove_abandoned(directory.root)
    public_settings = {
        "run": roster.run_id.hex(),
        "participant": run.participant,
        "architecture": model_definition(builder, share.dataset),
    }
    connection = ParameterConnection(
        run.server,
        files=TlsFiles.of(run.certificates, run.participant),
        run=roster.run_id,
        num_parameters=FlatView(model).num_parameters,
        server=run.server_name,
    )
    with connection, artifacts.only_writer(folder), contextlib.ExitStack() as stack:
        state = RunState(
            folder,
            public_settings,
            private=[share.inputs, share.labels],
            privacy=privacy,
            source=share.source,
            acknowledge_reset=run.acknowledge_reset,
        )
        charged = state.charged
        stack.enter_context(charged or contextlib.nullcontext())
        on_event(f"{run.participant} dials {run.server}")
        noise = run.noise()

        def begin(run_charged: ChargedRun, charge: Training) -> LedgerFacts:
            facts = run_charged.begin(charge, secure_noise=noise.is_secure)
            is_record = privacy.kind == "record"
            declared = dataclasses.replace(facts, num_records=len(share) if is_record else None)
            until_answered(functools.partial(connection.join, declared), on_event=on_event)
            return facts

        participant = JoinedParticipant(
            roster,
            run.participant,
            model,
            share,
            initial=until_answered(connection.join, on_event=on_event),
            begin=None if charged is None else functools.partial(begin, charged),
            noise=noise,
        )
        if ROUND in state.saved:
            participant.restore(state.saved)
        on_event(f"joined {roster.run}, round {participant.round} of {settings.rounds}")
        logs = Logs(directory)
        epsilon = None if charged is None else charged.facts().epsilon
        final = participant.take_part(
            connection,
            save=state.save,
            on_event=on_event,
            on_round=lambda statistics: logs.write_round(statistics, None, epsilon),
        )
        logs.close()
        path = folder / "global_parameters.npz"
        artifacts.write_arrays(path, {"values": final.values}, private=True)
    return path


def _own_records(run: ParticipantRun, roster: Roster) -> PrivateExamples:
    number = roster.number(run.participant)
    if run.records != DEALT:
        dataset = data_catalogue.load_public(roster.dataset, data_dir=run.data_dir).dataset
        return read_records(pathlib.Path(run.records), dataset)
    private = data_catalogue.load_private(roster.dataset, data_dir=run.data_dir)
    return models.dealt(private, roster.settings, None)[0][number]


# The parameter server of participants across organisations.


def serve(
    run: ParameterServerRun,
    reporting: Reporting = QUIET,
    *,
    on_event: Callable[[str], None] = lambda event: None,
) -> RunReport:
    """Serves until all took all turns, exports the global model with its statement.

    Killed and started again with the same arguments it goes on from its state.

    Raises:
        ValueError: if roster, data and state do not fit each other.
        OSError: if a file can't be read or written.
    """
    from pate_tf.net.credentials import TlsFiles  # gRPC comes with an extra
    from pate_tf.selective_sgd import network

    roster = Roster.read(run.roster)
    settings, privacy = roster.settings, roster.privacy
    public = data_catalogue.load_public(roster.dataset, data_dir=run.data_dir)
    builder = models.network(roster.model, public.dataset)
    view = FlatView(catalogue.build(builder, public.dataset, seed=settings.seed))
    charge = privacy.training(settings, view.num_parameters, roster.holders)
    directory = artifacts.RunDirectory(run.folder)
    folder = artifacts.make_sensitive_folder(directory.sensitive / "server")
    artifacts.remove_abandoned(directory.root)
    with artifacts.only_writer(folder):
        server = Server(
            settings, view.initial(), run=roster.run_id, privacy=privacy, folder=folder / "state"
        )
        ledgers = None if charge is None else folder / "ledgers.json"
        service = network.ParameterService(server, roster, ledgers=ledgers)
        files = TlsFiles.of(run.certificates, run.server_name)
        with (
            contextlib.closing(service),
            service.listen(run.address, files) as listening,
        ):
            on_event(f"listening on port {listening.port}")
            total, shown = settings.rounds * settings.num_participants, 0
            with reporting.progress_bar("training together", total, "upload") as advance:
                while shown < total:
                    service.wait_until_over(LOOK_SECONDS)
                    advance(server.version - shown)
                    shown = server.version
            facts = [service.facts[name] for name in roster.names if name in service.facts]
            samples, accuracy = public.labelled(), None
            if samples is not None:
                with reporting.clock("evaluating"):
                    model = calibrated_model(view, server.released(), samples)
                    accuracy = Evaluation(view, samples).accuracy(model)
            records = [one.num_records for one in facts if one.num_records is not None]
            values = _published(
                view,
                server.released(),
                samples,
                features=Features(dataset=public.dataset),
                dataset=public.dataset,
                settings=settings,
                privacy=privacy,
                charge=charge,
                facts=facts,
                holders=roster.holders,
                fewest_records=min(records, default=1),
                directory=directory,
                publication=run,
                reporting=reporting,
            )
            fetched = service.wait_until_fetched(run.linger_seconds)
            if missing := sorted(set(roster.names) - fetched):
                on_event(f"ends before {', '.join(missing)} fetched the final parameters")
    values |= {"run": roster.run, "model": roster.model, "accuracy_global": accuracy}
    return _report(values, directory, reporting)
