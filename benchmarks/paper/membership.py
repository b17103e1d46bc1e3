"""Membership inference by the server: whose records did a participant train on?"""

import pathlib

import keras
import numpy as np
import tensorflow as tf

from pate_tf.models import catalogue
from pate_tf.noise import NoiseSource
from pate_tf.selective_sgd import models, payment
from pate_tf.selective_sgd.privacy import Privacy
from pate_tf.selective_sgd.private_training import noisy_training
from pate_tf.selective_sgd.settings import Settings
from pate_tf.selective_sgd.training import SharedTraining
from pate_tf.values.sensitive import PrivateExamples


def membership_auc(
    private: PrivateExamples,
    settings: Settings,
    privacy: Privacy,
    *,
    records_each: int,
    noise: NoiseSource,
    folder: str,
) -> float:
    """Returns how well the server tells a participant's records from others: an AUC.

    The server adds what the first participant uploaded to the parameters that it had downloaded,
    and asks how much the loss of each record falls by that; the falls of all rounds are averaged.

    Args:
      private: records; the participants take the first of them, as many more are nobody's.
      settings: of the run.
      privacy: of the run.
      records_each: of each participant.
      noise: draws noise.
      folder: for the ledgers.
    """
    number = settings.num_participants
    order = np.random.default_rng(settings.seed).permutation(len(private))
    parts = order[: (number + 1) * records_each].reshape(number + 1, -1)
    shares = [
        PrivateExamples(private.dataset, private.inputs[one], private.labels[one]) for one in parts
    ]
    members, others = shares[0], shares[-1]
    model = catalogue.build(
        models.network("mlp", private.dataset), private.dataset, seed=settings.seed
    )
    training = SharedTraining(settings, model, shares[:-1])
    charge = privacy.training(settings, training.view.num_parameters)
    if charge is not None:
        payments = payment.pay(
            pathlib.Path(folder),
            shares[:-1],
            charge,
            privacy,
            paid_before=np.zeros(number, np.int64),
            secure_noise=noise.is_secure,
        )
        training = noisy_training(
            settings, model, shares[:-1], privacy=privacy, payments=payments, noise=noise
        )
    falls = [np.zeros(records_each), np.zeros(records_each)]
    seen: list[tuple[np.ndarray, np.ndarray]] = []
    upload = training._upload

    def watched(participant: int, indices: np.ndarray, values: np.ndarray) -> dict[str, float]:
        if participant == 0:
            before = training.server.values.copy()
            after = before.copy()
            after[indices] += values
            seen.append((before, after))
        return upload(participant, indices, values)

    training._upload = watched  # type: ignore[method-assign]
    for _ in range(settings.rounds):
        training.run_round()
    for before, after in seen:
        for place, examples in enumerate((members, others)):
            losses = [_losses(training, one, examples) for one in (before, after)]
            falls[place] += losses[0] - losses[1]
    return _auc(*falls)


def _losses(
    training: SharedTraining, parameters: np.ndarray, examples: PrivateExamples
) -> np.ndarray:
    model = training.view.assign(parameters, training.view.buffers())
    logits = model(tf.constant(examples.inputs, tf.float32), training=False)
    losses = keras.losses.sparse_categorical_crossentropy(examples.labels, logits, from_logits=True)
    return np.asarray(losses, np.float64)


def _auc(members: np.ndarray, others: np.ndarray) -> float:
    """The probability that a member's number is larger, ties counted half."""
    order = np.sort(others)
    below = np.searchsorted(order, members, "left")
    up_to = np.searchsorted(order, members, "right")
    return float((below + up_to).mean() / (2.0 * len(others)))
