"""What a participant does between download and upload: local epochs of its own optimizer.

All participants share one traced graph; what is theirs goes in and comes out as tensors. On CPUs
one participant after another beats several at once for convolutions (see `teachers/training.py`).
"""

import dataclasses
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.selective_sgd.flat_view import Buffers, FlatView, FloatArray
from pate_tf.selective_sgd.settings import Settings
from pate_tf.values.arrays import IntArray

LEARNING_RATE = "learning_rate"


class NotFiniteError(ValueError):
    """Training of one participant came to numbers that are not finite. SENSITIVE that it did."""


@dataclasses.dataclass(repr=False)
class LocalState:
    """SENSITIVE: what stays with a participant.

    Attributes:
      parameters: float32 `[num_parameters]`, its local model.
      buffers: what the model holds beside them.
      slots: the state of its optimizer, over the flat view.
      version: of the server's parameters that it downloaded last.
    """

    parameters: FloatArray
    buffers: Buffers
    slots: list[npt.NDArray[Any]]
    version: int = 0


class LocalTraining:
    """Trains one participant's copy of a model.

    The optimizer moves the *change* since the download, which begins at zero: so one step of plain
    SGD uploads -learning_rate * gradient to the last bit, not a difference of two roundings.

    Args:
      view: of the model.
      settings: of the run.

    Raises:
      ValueError: if Keras knows no such optimizer, or it moves parameters by their own value.
    """

    def __init__(self, view: FlatView, settings: Settings) -> None:
        self._view = view
        self._settings = settings
        self._optimizer = _optimizer(settings)
        # Of whoever is training; nothing stays here between two calls.
        self._change = keras.Variable(np.zeros(view.num_parameters, np.float32))
        self._optimizer.build([self._change])
        self._slots = self._optimizer.variables
        self._rate_place = [one.name for one in self._slots].index(LEARNING_RATE)
        self._first_slots = [variable.numpy() for variable in self._slots]
        self._first_parameters = view.initial()
        self.initial_buffers = view.buffers()
        self._epochs = tf.function(self._run, autograph=False, reduce_retracing=True)

    def initial_state(self) -> LocalState:
        """Returns what a participant begins with: the model as it is now."""
        return LocalState(
            parameters=self._first_parameters.copy(),
            buffers=list(self.initial_buffers),
            slots=[slot.copy() for slot in self._first_slots],
        )

    def run(
        self,
        state: LocalState,
        inputs: npt.NDArray[Any],
        labels: IntArray,
        *,
        learning_rate: float,
        generator: np.random.Generator,
    ) -> tuple[FloatArray, float]:
        """Trains for the local epochs; the state is brought up to date, if nothing is raised.

        Args:
          state: of the participant.
          inputs: its raw records `[num_records, *input_shape]`.
          labels: int64 `[num_records]`.
          learning_rate: of this round.
          generator: draws the order of the records.

        Returns:
          The change of the parameters, float32 `[num_parameters]`, and the mean loss.

        Raises:
          NotFiniteError: if the loss, or anything that would be kept, is not finite.
        """
        order = np.concatenate(
            [generator.permutation(len(labels)) for _ in range(self._settings.local_epochs)]
        )
        slots = list(state.slots)
        slots[self._rate_place] = np.asarray(learning_rate, np.float32)
        change, new_buffers, new_slots, loss = self._epochs(
            tf.constant(state.parameters),
            [tf.constant(one) for one in state.buffers],
            [tf.constant(one) for one in slots],
            tf.constant(inputs),
            tf.constant(labels),
            tf.constant(order),
        )
        with np.errstate(over="ignore"):
            parameters = state.parameters + change.numpy()
        new_buffers = [one.numpy() for one in new_buffers]
        new_slots = [one.numpy() for one in new_slots]
        kept = (loss.numpy(), parameters, *new_buffers, *new_slots)
        if not all(np.isfinite(one).all() for one in kept):
            raise NotFiniteError(
                "participants: expected a finite loss, got NaN or infinity; try a lower "
                "learning_rate, or more damping"
            )
        state.parameters, state.buffers, state.slots = parameters, new_buffers, new_slots
        return change.numpy(), float(loss)

    def _run(
        self,
        parameters: tf.Tensor,
        buffers: list[tf.Tensor],
        slots: list[tf.Tensor],
        inputs: tf.Tensor,
        labels: tf.Tensor,
        order: tf.Tensor,
    ) -> Any:
        size = self._settings.batch_size
        num_steps = (tf.size(order) + size - 1) // size
        self._change.assign(tf.zeros_like(parameters))
        for variable, slot in zip(self._slots, slots, strict=True):
            variable.assign(slot)

        def body(step: tf.Tensor, buffers: Any, total: tf.Tensor) -> Any:
            batch = order[step * size : (step + 1) * size]
            pieces = self._view.pieces(parameters + self._change.value)
            with tf.GradientTape() as tape:
                tape.watch(pieces)
                logits, buffers, own_losses = self._view.model.stateless_call(
                    pieces,
                    buffers,
                    tf.cast(tf.gather(inputs, batch), tf.float32),
                    training=True,
                    return_losses=True,
                )
                losses = keras.losses.sparse_categorical_crossentropy(
                    tf.gather(labels, batch), logits, from_logits=True
                )
                loss = tf.reduce_mean(losses)
                for own_loss in own_losses:
                    loss += tf.cast(own_loss, loss.dtype)
            gradients = tape.gradient(
                loss, pieces, unconnected_gradients=tf.UnconnectedGradients.ZERO
            )
            self._optimizer.apply([self._view.joined(gradients)], [self._change])
            return step + 1, list(buffers), total + loss

        _, buffers, total = tf.while_loop(
            lambda step, *_: step < num_steps, body, (tf.constant(0), buffers, tf.constant(0.0))
        )
        change = tf.identity(self._change.value)
        slots = [tf.identity(variable.value) for variable in self._slots]
        return change, buffers, slots, total / tf.cast(num_steps, tf.float32)


def _optimizer(settings: Settings) -> keras.optimizers.Optimizer:
    try:
        optimizer = keras.optimizers.get(
            {
                "class_name": settings.optimizer,
                "config": {LEARNING_RATE: settings.learning_rate},
            }
        )
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"optimizer: expected a name that Keras knows, such as sgd or adam, got "
            f"{settings.optimizer!r}"
        ) from error
    if optimizer.weight_decay:
        raise ValueError(
            f"optimizer: expected one without weight decay, got {settings.optimizer!r}; a "
            f"regularizer of the model's layers does the same"
        )
    return optimizer
