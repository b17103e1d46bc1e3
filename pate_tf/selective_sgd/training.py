"""Participants, and the rounds in which they download, train on their records, and upload.

All participants of a process share one traced graph. On CPUs one participant after another beats
several at once for convolutions.
"""

from collections.abc import Mapping
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from pate_tf.core.sensitive import PrivateExamples
from pate_tf.core.validation import IntArray
from pate_tf.selective_sgd.models import FlatView, FloatArray
from pate_tf.selective_sgd.server import Parameters, Upload
from pate_tf.selective_sgd.settings import TrainingSettings

SHUFFLE = 3  # the third number of the seed that orders records


class NotFiniteError(ValueError):
    """Training of one participant came to numbers that are not finite. SENSITIVE that it did."""


def largest(changes: FloatArray, number: int) -> IntArray:
    """Returns the indices of the largest changes in absolute value, ascending, `[number]`.

    They depend on private records: without noise on them they protect no one.
    """
    if number >= len(changes):
        return np.arange(len(changes))
    return np.sort(np.argpartition(-np.abs(changes), number - 1)[:number])


class Participants:
    """SENSITIVE: records of participants, and what they upload of them.

    Without noise nothing here is private: uploads tell about the records they come from, also where
    few are selected.

    Args:
        settings: of the run.
        model: a Keras model from raw inputs to logits.
        records: by the participant's number, from 0.

    Raises:
        ValueError: if model and records do not fit.
    """

    def __init__(
        self,
        settings: TrainingSettings,
        model: keras.Model,
        records: Mapping[int, PrivateExamples],
    ) -> None:
        if not all(map(len, records.values())):
            raise ValueError("records: expected some of every participant, got one without any")
        self.settings, self.records, self.view = settings, records, FlatView(model)
        self._local_sgd = tf.function(self._run, autograph=False, reduce_retracing=True)

    def upload(
        self, participant: int, round_number: int, parameters: Parameters
    ) -> tuple[Upload, float]:
        """Trains on what was downloaded; returns the upload, and the mean local loss.

        Raises:
            NotFiniteError: if the loss or the parameters are not finite.
        """
        settings = self.settings
        change, loss = self.change(participant, round_number, parameters.values)
        indices = largest(change, settings.num_uploaded(self.view.num_parameters))
        values, gamma = change[indices], settings.gamma
        if gamma is not None:
            values = np.clip(values, np.float32(-gamma), np.float32(gamma))
        upload = Upload(
            participant=participant,
            round=round_number,
            version=parameters.version,
            indices=indices,
            values=values,
        )
        return upload, loss

    def change(
        self, participant: int, round_number: int, parameters: FloatArray
    ) -> tuple[FloatArray, float]:
        """Returns how a local epoch of SGD changes the parameters, and the mean loss.

        Raises:
            NotFiniteError: if they are not finite.
        """
        share = self.records[participant]
        generator = np.random.default_rng([self.settings.seed, round_number, SHUFFLE, participant])
        change, loss = self._local_sgd(
            tf.constant(parameters),
            tf.constant(share.inputs),
            tf.constant(share.labels),
            tf.constant(generator.permutation(len(share))),
            tf.constant(self.settings.learning_rate_at(round_number), tf.float32),
        )
        changes = np.asarray(change.numpy())
        with np.errstate(over="ignore"):
            if not np.isfinite([loss.numpy(), np.abs(parameters + changes).max()]).all():
                raise NotFiniteError(
                    "participants: expected a finite loss, got NaN or infinity; try a lower "
                    "learning_rate"
                )
        return changes, float(loss)

    def _run(
        self,
        parameters: tf.Tensor,
        inputs: tf.Tensor,
        labels: tf.Tensor,
        order: tf.Tensor,
        learning_rate: tf.Tensor,
    ) -> Any:
        """Moves the change since the download, not the parameters.

        So one step uploads -learning_rate * gradient to the last bit, not a difference of two
        roundings.
        """
        size = self.settings.batch_size
        num_steps = (tf.size(order) + size - 1) // size

        def body(step: tf.Tensor, change: tf.Tensor, total: tf.Tensor) -> Any:
            batch = order[step * size : (step + 1) * size]
            records = tf.cast(tf.gather(inputs, batch), tf.float32)
            loss, gradient = self.view.loss_and_gradient(
                self.view.pieces(parameters + change), records, tf.gather(labels, batch)
            )
            return step + 1, change - learning_rate * gradient, total + loss

        _, change, total = tf.while_loop(
            lambda step, *_: step < num_steps,
            body,
            (tf.constant(0), tf.zeros_like(parameters), tf.constant(0.0)),
        )
        return change, total / tf.cast(num_steps, tf.float32)


class ServerLink(Protocol):
    """A parameter server as participants see it: in this process, or over a network."""

    def pull(self, participant: int, round_number: int) -> Parameters | None:
        """Returns the parameters of a participant's turn."""

    def push(self, upload: Upload) -> bool:
        """Hands over an upload."""


class SharedTraining:
    """SENSITIVE: rounds of participants, which train on what a server has.

    Args:
        participants: those of this process.
        server: of all participants.

    Attributes:
        round: the round that comes next, from 0.
    """

    def __init__(self, participants: Participants, server: ServerLink) -> None:
        self.participants, self.server = participants, server
        self.round = 0
        self._downloaded: dict[int, Parameters] = {}

    def run_round(self) -> float:
        """Lets every participant take its turn; returns the mean local loss. SENSITIVE.

        Raises:
            ValueError: if an upload was refused or, without noise, a loss is not finite.
        """
        participants, settings = self.participants, self.participants.settings
        # A participant trains while the others of this process upload.
        is_stale = settings.protocol == "asynchronous" and len(participants.records) > 1
        if is_stale and not self._downloaded:
            self._downloaded = {each: self._pull(each, self.round) for each in participants.records}
        losses = []
        for each in participants.records:
            parameters = self._downloaded.pop(each, None) or self._pull(each, self.round)
            upload, loss = participants.upload(each, self.round, parameters)
            self.server.push(upload)
            losses.append(loss)
            if is_stale and self.round + 1 < settings.rounds:
                self._downloaded[each] = self._pull(each, self.round + 1)
        self.round += 1
        return float(np.mean(losses))

    def _pull(self, participant: int, round_number: int) -> Parameters:
        parameters = self.server.pull(participant, round_number)
        if parameters is None:
            raise ValueError(f"participant {participant}: expected its turn, it has not come")
        return parameters
