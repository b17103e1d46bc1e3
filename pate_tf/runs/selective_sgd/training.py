"""A whole run of shared training, from plain values to a report.

What `pate_tf.cli.selective_sgd` calls, and any program may.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from pate_tf import artifacts
from pate_tf.data.named_function import Named, name_of
from pate_tf.models import catalogue, fingerprint
from pate_tf.noise import NoiseSource, SystemNoise
from pate_tf.runs.reporting import NOT_MEASURED, QUIET, Reporting, RunReport
from pate_tf.runs.selective_sgd import publishing as shared_model
from pate_tf.runs.selective_sgd.public_features import features_of
from pate_tf.runs.sources import DataSource
from pate_tf.runs.teachers.checks import check_data
from pate_tf.selective_sgd import models, payment
from pate_tf.selective_sgd.evaluation import Evaluation, calibrated_model
from pate_tf.selective_sgd.logs import Logs
from pate_tf.selective_sgd.payment import Payment
from pate_tf.selective_sgd.privacy import Privacy
from pate_tf.selective_sgd.private_training import noisy_training
from pate_tf.selective_sgd.record_gradients import RecordGradients
from pate_tf.selective_sgd.settings import Settings
from pate_tf.selective_sgd.shares import dealt_shares, most_holders
from pate_tf.selective_sgd.store import Store
from pate_tf.selective_sgd.training import SharedTraining
from pate_tf.selective_sgd.upload import dense_bytes
from pate_tf.values.public import PublicExamples
from pate_tf.values.sensitive import PrivateExamples

WATCHED = 2000  # public samples that are looked at after each round
LOCALLY_WATCHED = 1000  # of each participant's local model, at the end
PAID_BEFORE = "paid_before"


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
      ValueError: if something does not fit; nothing was paid then.
      LedgerError: if a participant's budget does not suffice or a ledger can't be used.
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
    store = Store(directory.sensitive / "selective_sgd", identity)
    training, payments, kept = _prepared(asked, model, shares, rows, store, directory)
    samples = features.samples(public).labelled()
    evaluation = None if samples is None else Evaluation(training.view, samples)
    _train(training, store, evaluation, Logs(directory), payments, kept, reporting)
    values = _measured(training, samples, evaluation, store, directory, reporting)
    values = {
        "dataset": examples.dataset.name,
        "participants": settings.num_participants,
        "records_each": int(min(map(len, rows))),
        "model": name_of(asked.model) if asked.model else None,
        "parameters": training.view.num_parameters,
        **{name: getattr(settings, name) for name in ("rounds", "upload", "download", "protocol")},
        "privacy": privacy.kind,
        **values,
        **_paid_values(payments),
    }
    with reporting.clock("exporting the model"):
        published = shared_model.publish(
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
    rows: Sequence[Any],
    store: Store,
    directory: artifacts.RunDirectory,
) -> tuple[SharedTraining, list[Payment], dict[str, Any]]:
    """Returns the training as far as it is, once everybody has paid, and what is kept with it."""
    settings, privacy = asked.settings, asked.privacy
    plain = SharedTraining(settings, model, shares)
    charge = privacy.training(settings, plain.view.num_parameters)
    saved = store.load()
    if charge is None:
        if saved is not None:
            plain.restore(saved)
        return plain, [], {}
    if privacy.kind == "record":
        RecordGradients(plain.view, settings.num_participants)  # before anybody pays
    folder = directory.sensitive / "participants"
    if saved is None:
        # Kept before anybody pays, in the file that rounds are kept in: whoever goes on without
        # it begins anew, and pays anew.
        saved = {PAID_BEFORE: payment.times_paid(folder, shares, charge, privacy)}
        store.save(saved, at_once=True)
    payments = payment.pay(
        folder,
        shares,
        charge,
        privacy,
        paid_before=saved[PAID_BEFORE],
        secure_noise=asked.noise.is_secure,
        holders=most_holders(rows),
    )
    training = noisy_training(
        settings, model, shares, privacy=privacy, payments=payments, noise=asked.noise
    )
    if "round" in saved:
        training.restore(saved)
    return training, payments, {PAID_BEFORE: saved[PAID_BEFORE]}


def _train(
    training: SharedTraining,
    store: Store,
    evaluation: Evaluation | None,
    logs: Logs,
    payments: Sequence[Payment],
    kept: Mapping[str, Any],
    reporting: Reporting,
) -> None:
    rounds = training.settings.rounds
    is_paid = bool(payments)
    with reporting.progress_bar("training together", rounds, "round") as advance:
        advance(training.round)
        while training.round < rounds:
            with store.timed():
                statistics = training.run_round()
            # What was drawn counts as given out from here on: first of all it is kept.
            store.save({**training.state(), **kept}, at_once=is_paid or training.round == rounds)
            accuracy = None
            if evaluation is not None:
                accuracy = evaluation.accuracy(training.global_model(), WATCHED)
            logs.write_round(statistics, accuracy, payments)
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


def _paid_values(payments: Sequence[Payment]) -> dict[str, Any]:
    if not payments:
        return {"epsilon": None, "delta": None}
    return {
        "epsilon": max(one.epsilon for one in payments),
        "delta": payments[0].delta,
        "charge": payments[0].charge.to_dict(),
        "secure_noise": all(one.secure_noise for one in payments),
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
        ("exported", values["model_folder"]),
        ("time", f"{values['seconds']:.1f} s"),
    ]
