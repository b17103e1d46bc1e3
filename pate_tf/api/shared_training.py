"""A whole run of shared training in one process: features, training, publishing."""

import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pate_tf.aggregation.noise import NoiseSource, SystemNoise
from pate_tf.api.publishing import library_versions
from pate_tf.api.reporting import NOT_MEASURED, QUIET, Reporting, RunReport
from pate_tf.api.run_folder import DataSource
from pate_tf.api.teacher_training import check_data
from pate_tf.core import artifacts
from pate_tf.core.dataset import Dataset
from pate_tf.core.public import PublicExamples
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.data.named_function import Named, name_of
from pate_tf.models import catalogue, fingerprint
from pate_tf.models.encoder import Encoder
from pate_tf.representations.catalogue import (
    check_representation,
    default_representation,
    encoder_of,
)
from pate_tf.representations.raw import whitened
from pate_tf.selective_sgd import models
from pate_tf.selective_sgd.evaluation import Evaluation, Logs, calibrated_model
from pate_tf.selective_sgd.models import dealt_shares, most_holders
from pate_tf.selective_sgd.privacy import (
    LEDGER,
    NONCE,
    TOKEN,
    ChargedRun,
    Payment,
    Privacy,
    new_nonce,
)
from pate_tf.selective_sgd.private_training import noisy_training
from pate_tf.selective_sgd.settings import Settings
from pate_tf.selective_sgd.store import Store
from pate_tf.selective_sgd.training import SharedTraining
from pate_tf.selective_sgd.upload import dense_bytes
from pate_tf.serving.export import export_student
from pate_tf.serving.signatures import student_digest
from pate_tf.statement.shared_training import SharedTrainingStatement

# Features of public inputs that a small private model learns on.


WHITENED = "whitened"  # contrastive where inputs are images, else raw; then partly whitened


@dataclasses.dataclass(frozen=True, kw_only=True)
class Features:
    """A fixed map, learnt from public inputs alone, from raw inputs to what is trained on.

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
            origin=private.record_set,
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
    with reporting.clock("learning a representation of the pool"):
        pool = public.split(dataset.pool_size).pool
        encoder = encoder_of(pool, plain, seed, show_progress=reporting.verbose)
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


# A model of shared training is exported, with a statement of what it cost.


def publish(
    model: keras.Model | tf.Module,
    dataset: Dataset,
    settings: Settings,
    payments: Sequence[Payment],
    *,
    num_parameters: int,
    holders: int,
    fewest_records: int,
    directory: artifacts.RunDirectory,
) -> pathlib.Path:
    """Exports the global model and its statement.

    With noise they go below `released/`. Without noise nothing may be published: they go below
    `sensitive/`, and the statement says why.

    Args:
      model: from raw inputs to logits.
      dataset: of the raw inputs.
      settings: of the run that it comes from.
      payments: what each ledger says; none without noise.
      num_parameters: how many were trained.
      holders: how many participants hold one record at most.
      fewest_records: of a participant.
      directory: of the run.

    Returns:
      The exported version's folder.
    """
    charge = payments[0].charge if payments else None
    values = charged_values(payments)
    unit = getattr(charge, "unit", "participant") if charge else None
    statement = SharedTrainingStatement(
        dataset=dataset.name,
        num_participants=settings.num_participants,
        num_parameters=num_parameters,
        upload=settings.upload,
        rounds=settings.rounds,
        protocol=settings.protocol,
        charge=charge,
        unit=unit,
        **values,
        holders=holders if unit == "record" else 1,
        fewest_records=fewest_records if unit == "record" else None,
        ledger_heads=tuple(one.ledger_head for one in payments),
        ledger_was_reset=any(one.was_reset for one in payments),
        student_digest=student_digest(model),
        versions=library_versions(),
    )
    folder = directory.released if payments else directory.sensitive
    exported = export_student(model, dataset, folder / "shared_model", statement.to_dict())
    artifacts.write_json(folder / "shared_model_statement.json", statement.to_dict())
    artifacts.write_text(folder / "shared_model_statement.md", statement.to_markdown())
    return exported


def charged_values(payments: Sequence[Payment]) -> dict[str, Any]:
    """Returns what ledgers say together, the worst of each, for statement and report.

    What one of them does not know, nobody does.
    """
    found = {
        name: [getattr(one, name) for one in payments]
        for name in (
            *("epsilon", "delta", "epsilon_all_ensembles", "delta_all_ensembles"),
            "num_ledgers",
        )
    }
    return {
        **{name: None if not each or None in each else max(each) for name, each in found.items()},
        "secure_noise": all(one.secure_noise for one in payments),
    }


def row_of_all_ensembles(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the row of a report on all that was released of the records; none without privacy."""
    if values["epsilon"] is None:
        return []
    epsilon, number = values["epsilon_all_ensembles"], values["num_ledgers"]
    counted = "1 ledger" if number == 1 else f"{number} ledgers"
    return [
        (
            "all ensembles and runs on these records",
            "not known"
            if epsilon is None
            else f"epsilon {epsilon:.4g} at delta {values['delta_all_ensembles']:g}, {counted}",
        )
    ]


# A whole run of shared training, from plain values to a report.
#
# What `pate_tf.cli.selective_sgd` calls, and any program may.


WATCHED = 2000  # public samples that are looked at after each round
LOCALLY_WATCHED = 1000  # of each participant's local model, at the end


@dataclasses.dataclass(frozen=True, kw_only=True)
class SharedRun:
    """Shared training, in plain values.

    Attributes:
      data: private records, which are dealt out, and public samples that measure the model.
      settings: of the run.
      privacy: what protects uploads.
      model: "cnn" or "mlp" for the paper's, "linear", another name or function that
        `models.catalogue` takes; None for "cnn" where inputs are images, else "mlp".
      representation: features of the public pool that "linear" learns on: "whitened",
        "contrastive" or "raw"; None for inputs as they are.
      records_each: records of each participant; None if all are dealt out evenly. Where there are
        not enough, shares overlap.
      folder: of the run; None for `runs/selective_sgd-DATASET-NUM_PARTICIPANTS`.
      noise: draws noise and records; predictable noise is for tests.
    """

    data: DataSource = dataclasses.field(default_factory=DataSource)
    settings: Settings = dataclasses.field(default_factory=Settings)
    privacy: Privacy = dataclasses.field(default_factory=Privacy)
    model: Named | None = None
    representation: str | None = None
    records_each: int | None = None
    folder: pathlib.Path | None = None
    noise: NoiseSource = dataclasses.field(default_factory=SystemNoise)


def run(asked: SharedRun, reporting: Reporting = QUIET) -> RunReport:
    """Trains together, exports the global model with its statement, returns what was found out.

    A stopped run goes on in the same folder where it stopped.

    Raises:
      ValueError: if something does not fit; nothing was charged then.
      LedgerError: if the ledger does not suffice, can't be used, or a copy of the run went on.
    """
    examples = asked.data.load_private(reporting)
    public = asked.data.load_public(reporting)
    check_data(examples, public, None)
    return train_on(asked, examples, public, reporting)


def train_on(
    asked: SharedRun,
    examples: PrivateExamples,
    public: PublicExamples,
    reporting: Reporting = QUIET,
) -> RunReport:
    """As `run`, on data that are at hand."""
    settings, privacy = asked.settings, asked.privacy
    features = features_of(asked.representation, public, reporting, seed=settings.seed)
    rows = dealt_shares(
        len(examples), settings.num_participants, asked.records_each, seed=settings.seed
    )
    shares = [
        features.records(
            PrivateExamples(examples.dataset, examples.inputs[one], examples.labels[one])
        )
        for one in rows
    ]
    builder = models.network(asked.model, features.dataset)
    model = catalogue.build(builder, features.dataset, seed=settings.seed)
    directory = artifacts.RunDirectory(
        asked.folder
        or pathlib.Path(f"runs/selective_sgd-{examples.dataset.name}-{settings.num_participants}")
    )
    artifacts.remove_abandoned(directory.root)
    identity = {
        **settings.to_dict(),
        **dataclasses.asdict(privacy),
        "representation": asked.representation,
        "architecture": fingerprint.architecture_of(builder, features.dataset),
        "records": artifacts.digest_arrays([share.inputs for share in shares]),
        "labels": artifacts.digest_arrays([share.labels for share in shares]),
    }
    folder = artifacts.make_sensitive_folder(directory.sensitive / "selective_sgd")
    with artifacts.only_writer(folder):
        store = Store(folder, identity)
        saved = store.load() or {}
        charged = None
        if privacy.kind != "none":
            if NONCE not in saved:
                saved = {NONCE: new_nonce()}
                store.save(saved, at_once=True)
            charged = ChargedRun(
                directory.sensitive / LEDGER,
                examples.record_set,
                privacy,
                nonce=saved[NONCE].tobytes(),
            )
        with charged or contextlib.nullcontext():
            training = _prepared(asked, model, shares, most_holders(rows), saved, charged)
            samples = features.samples(public).labelled()
            evaluation = None if samples is None else Evaluation(training.view, samples)
            _train(training, store, evaluation, Logs(directory), charged, saved, reporting)
            values = _measured(training, samples, evaluation, store, directory, reporting)
            payments = [] if charged is None else [charged.payment()]
    values = {
        "dataset": examples.dataset.name,
        "participants": settings.num_participants,
        "records_each": int(min(map(len, rows))),
        "model": name_of(asked.model) if asked.model else None,
        "parameters": training.view.num_parameters,
        **{name: getattr(settings, name) for name in ("rounds", "upload", "download", "protocol")},
        "privacy": privacy.kind,
        **values,
        **charged_values(payments),
    }
    with reporting.clock("exporting the model"):
        published = publish(
            features.served(calibrated_model(training, samples)),
            examples.dataset,
            settings,
            payments,
            num_parameters=training.view.num_parameters,
            holders=most_holders(rows),
            fewest_records=int(min(map(len, rows))),
            directory=directory,
        )
    values |= {"model_folder": str(published), "seconds": reporting.seconds}
    artifacts.write_json(directory.sensitive / "selective_sgd_report.json", values, private=True)
    return RunReport(values=values, rows=_rows(values))


def _prepared(
    asked: SharedRun,
    model: keras.Model,
    shares: Sequence[PrivateExamples],
    holders: int,
    saved: Mapping[str, Any],
    charged: ChargedRun | None,
) -> SharedTraining:
    """Returns the training as far as it is, once it is charged."""
    training: SharedTraining
    if charged is None:
        training = SharedTraining(asked.settings, model, shares)
    else:
        training = noisy_training(
            asked.settings,
            model,
            shares,
            privacy=asked.privacy,
            noise=asked.noise,
            pay=functools.partial(
                charged.begin,
                secure_noise=asked.noise.is_secure,
                round_number=int(saved.get("round", 0)),
                token=bytes(saved.get(TOKEN, b"")),
            ),
            holders=holders,
        )
    if "round" in saved:
        training.restore(saved)
    return training


def _train(
    training: SharedTraining,
    store: Store,
    evaluation: Evaluation | None,
    logs: Logs,
    charged: ChargedRun | None,
    saved: Mapping[str, Any],
    reporting: Reporting,
) -> None:
    rounds = training.settings.rounds
    epsilon = None if charged is None else charged.payment().epsilon
    with reporting.progress_bar("training together", rounds, "round") as advance:
        advance(training.round)
        while training.round < rounds:
            with store.timed():
                statistics = training.run_round()
            if charged is None:
                store.save(training.state(), at_once=training.round == rounds)
            else:
                names = {NONCE: saved[NONCE], TOKEN: new_nonce()}
                store.save({**training.state(), **names}, at_once=True)
                # What was drawn counts as released from here on.
                charged.note(training.round, names[TOKEN].tobytes())
            accuracy = None
            if evaluation is not None:
                accuracy = evaluation.accuracy(training.global_model(), WATCHED)
            logs.write_round(statistics, accuracy, epsilon)
            advance(1)
    logs.close()


def _measured(
    training: SharedTraining,
    samples: PublicExamples | None,
    evaluation: Evaluation | None,
    store: Store,
    directory: artifacts.RunDirectory,
    reporting: Reporting,
) -> dict[str, Any]:
    values: dict[str, Any] = {"accuracy_global": None, "accuracy_local_mean": None}
    if evaluation is not None and samples is not None:
        with reporting.clock("evaluating"):
            values["accuracy_global"] = evaluation.accuracy(calibrated_model(training, samples))
            local = np.array(
                [
                    evaluation.accuracy(training.local_model(participant), LOCALLY_WATCHED)
                    for participant in range(training.settings.num_participants)
                ]
            )
        Logs(directory).write_participants(local)
        values["accuracy_local_mean"] = float(local.mean())
        values["accuracy_local_lowest"] = float(local.min())
    traffic = training.traffic
    return {
        **values,
        "upload_bytes": traffic["upload_bytes"],
        "fraction_uploaded": traffic["fraction_uploaded"],
        "staleness": traffic["staleness"],
        "dense_bytes": dense_bytes(training.view.num_parameters),
        "seconds_a_round": store.seconds_a_round,
    }


def _rows(values: dict[str, Any]) -> list[tuple[str, str]]:
    def percent(name: str) -> str:
        return NOT_MEASURED if values[name] is None else f"{values[name]:.2%}; sensitive"

    share = values["upload_bytes"] / values["dense_bytes"]
    return [
        ("data set", f"{values['dataset']}, {values['records_each']:,} records a participant"),
        (
            "participants",
            f"{values['participants']}, {values['rounds']} rounds, {values['protocol']}",
        ),
        ("model", f"{values['parameters']:,} parameters"),
        ("accuracy of the global model", percent("accuracy_global")),
        ("mean accuracy of local models", percent("accuracy_local_mean")),
        ("an upload", f"{values['upload_bytes']:,.0f} bytes, {share:.2%} of all changes"),
        (
            "privacy",
            "none: there is no guarantee"
            if values["epsilon"] is None
            else f"epsilon {values['epsilon']:.4g} at delta {values['delta']:g}",
        ),
        *row_of_all_ensembles(values),
        ("exported", values["model_folder"]),
        ("time", f"{values['seconds']:.1f} s"),
    ]
