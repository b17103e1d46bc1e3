"""Shared training in one call: records are dealt out, a ledger is charged, all rounds are run."""

import functools
import pathlib
from collections.abc import Callable

from pate_tf.aggregation.noise import NoiseSource, SystemNoise
from pate_tf.core.sensitive import PrivateExamples
from pate_tf.data.named_function import Named
from pate_tf.models import catalogue
from pate_tf.selective_sgd import models
from pate_tf.selective_sgd.models import dealt_shares, most_holders
from pate_tf.selective_sgd.privacy import LEDGER, ChargedRun, Privacy
from pate_tf.selective_sgd.private_training import noisy_training
from pate_tf.selective_sgd.settings import Settings
from pate_tf.selective_sgd.training import RoundStatistics, SharedTraining


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
    every call is a run with a ledger of its own, which is charged before the first upload.

    Args:
      private: the records, and where they are features the raw records that these are of
        (`origin`). SENSITIVE.
      settings: how they train.
      model: "cnn", "mlp", "linear", another name that `models.catalogue` takes, or a function of
        the data set that returns a Keras model from raw inputs to logits.
      privacy: what protects uploads. Default: nothing.
      records_each: records of each participant. Default: all are dealt out evenly.
      directory: of the run; the ledger lies below it. Needed with privacy.
      noise: where noise comes from. Default: the operating system's entropy.
      on_round: called after each round.

    Returns:
      The training, all rounds done: `global_model()`, `local_model(participant)`.

    Raises:
      ValueError: if something does not fit; nothing was charged then.
      LedgerError: if the ledger does not suffice, or can't be used.
    """
    rows = dealt_shares(len(private), settings.num_participants, records_each, seed=settings.seed)
    shares = [
        PrivateExamples(private.dataset, private.inputs[one], private.labels[one]) for one in rows
    ]
    built = catalogue.build(
        models.network(model, private.dataset), private.dataset, seed=settings.seed
    )
    privacy, noise = privacy or Privacy(), noise or SystemNoise()
    training: SharedTraining
    if privacy.kind == "none":
        training = SharedTraining(settings, built, shares)
    else:
        if directory is None:
            raise ValueError("directory: expected one with privacy, for the ledger, got none")
        folder = pathlib.Path(directory) / "sensitive" / LEDGER
        with ChargedRun(folder, private.record_set, privacy) as charged:
            training = noisy_training(
                settings,
                built,
                shares,
                privacy=privacy,
                noise=noise,
                pay=functools.partial(charged.begin, secure_noise=noise.is_secure),
                holders=most_holders(rows),
            )
    while training.round < settings.rounds:
        on_round(training.run_round())
    return training
