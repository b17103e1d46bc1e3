"""Shared training in one call: records are dealt out, everybody pays, all rounds are run."""

import pathlib
from collections.abc import Callable

from pate_tf.data.named_function import Named
from pate_tf.models import catalogue
from pate_tf.noise import NoiseSource, SystemNoise
from pate_tf.selective_sgd import models, payment
from pate_tf.selective_sgd.privacy import Privacy
from pate_tf.selective_sgd.private_training import noisy_training
from pate_tf.selective_sgd.settings import Settings
from pate_tf.selective_sgd.shares import dealt_shares, most_holders
from pate_tf.selective_sgd.training import RoundStatistics, SharedTraining
from pate_tf.values.sensitive import PrivateExamples


def train(
    private: PrivateExamples,
    settings: Settings,
    *,
    model: Named | None = None,
    privacy: Privacy | None = None,
    records_each: int | None = None,
    directory: str | pathlib.Path | None = None,
    noise: NoiseSource | None = None,
    on_round: Callable[[RoundStatistics], object] = lambda statistics: None,
) -> SharedTraining:
    """Trains a model together, on records of one data set that are dealt out.

    >>> from pate_tf import selective_sgd
    >>> settings = selective_sgd.Settings(num_participants=4, rounds=2, upload=0.1)
    >>> shared = selective_sgd.train(data.private, settings, model="mlp")
    >>> shared.global_model().count_params()
    20426

    Without `privacy` what is uploaded has no privacy guarantee, and neither has the model. With it
    every participant's ledger is charged before its first upload.

    Args:
      private: the records. SENSITIVE.
      settings: how they train.
      model: "cnn", "mlp", "linear", another name that `models.catalogue` takes, or a function of
        the data set that returns a Keras model from raw inputs to logits.
      privacy: what protects uploads. Default: nothing.
      records_each: records of each participant. Default: all are dealt out evenly.
      directory: of the run; each participant's ledger lies below it. Needed with privacy.
      noise: where noise comes from. Default: the operating system's entropy.
      on_round: called after each round.

    Returns:
      The training, all rounds done: `global_model()`, `local_model(participant)`.

    Raises:
      ValueError: if something does not fit; nothing was paid then.
      LedgerError: if a participant can't pay.
    """
    rows = dealt_shares(len(private), settings.num_participants, records_each, seed=settings.seed)
    shares = [
        PrivateExamples(private.dataset, private.inputs[one], private.labels[one]) for one in rows
    ]
    built = catalogue.build(
        models.network(model, private.dataset), private.dataset, seed=settings.seed
    )
    training = SharedTraining(settings, built, shares)
    privacy, noise = privacy or Privacy(), noise or SystemNoise()
    charge = privacy.training(settings, training.view.num_parameters)
    if charge is not None:
        if directory is None:
            raise ValueError("directory: expected one with privacy, for the ledgers, got none")
        folder = pathlib.Path(directory) / "sensitive" / "participants"
        before = payment.times_paid(folder, shares, charge, privacy)
        payments = payment.pay(
            folder,
            shares,
            charge,
            privacy,
            paid_before=before,
            secure_noise=noise.is_secure,
            holders=most_holders(rows),
        )
        training = noisy_training(
            settings, built, shares, privacy=privacy, payments=payments, noise=noise
        )
    while training.round < settings.rounds:
        on_round(training.run_round())
    return training
