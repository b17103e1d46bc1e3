"""How a student does on public samples that it never saw, shown in TensorBoard as it trains."""

import pathlib
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from pate_tf import tensorboard
from pate_tf.students.averaging import AveragedStudent
from pate_tf.students.evaluation import true_labels
from pate_tf.values.arrays import IntArray
from pate_tf.values.public import PublicExamples

NUM_SAMPLES = 1_000
EPOCHS_BETWEEN_PICTURES = 5
BATCH = 500


class HeldOutAccuracy(keras.callbacks.Callback):
    """Writes the held-out accuracy after every epoch, and a confusion matrix after some.

    The true labels are public and serve these pictures alone: nothing is returned to the training,
    stops it or chooses among its epochs, so a student comes out the same with and without it.
    """

    def __init__(self, samples: PublicExamples, logs: pathlib.Path) -> None:
        """Takes what to ask.

        Args:
          samples: held out, each with a label; the first 1,000 are asked.
          logs: the folder of the student's logs; these go to `held_out` in it.
        """
        super().__init__()
        self._dataset = samples.dataset
        self._inputs = samples.inputs[:NUM_SAMPLES]
        self._labels = true_labels(samples)[:NUM_SAMPLES]
        self._logs = logs / "held_out"

    def on_train_begin(self, logs: Mapping[str, float] | None = None) -> None:
        """Opens the event file."""
        del logs
        self._writer = tf.summary.create_file_writer(str(self._logs))

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Asks and writes."""
        del logs
        given = self._answers()
        with self._writer.as_default(step=epoch):
            # Keras' own name for the accuracy in training, so that both share a chart.
            tf.summary.scalar("epoch_accuracy", (given == self._labels).mean())
            if (epoch + 1) % EPOCHS_BETWEEN_PICTURES == 0:
                picture = tensorboard.confusion_picture(
                    self._dataset, truth=self._labels, given=given
                )
                tf.summary.image("confusion_matrix", picture)
        self._writer.flush()

    def on_train_end(self, logs: Mapping[str, float] | None = None) -> None:
        """Closes the event file."""
        del logs
        self._writer.close()

    def _answers(self) -> IntArray:
        student = self.model
        logits = student.averaged_logits if isinstance(student, AveragedStudent) else student
        answers = []
        for start in range(0, len(self._inputs), BATCH):
            inputs = tf.constant(self._inputs[start : start + BATCH], tf.float32)
            answers.append(np.argmax(logits(inputs, training=False), axis=1))
        return np.concatenate(answers)


def write_version(
    folder: pathlib.Path,
    samples: PublicExamples | None,
    given: IntArray | None,
    *,
    settings: Mapping[str, Any],
    results: Mapping[str, float],
) -> None:
    """Writes how an exported student did: a confusion matrix, and a row of the HPARAMS page.

    Args:
      folder: of this version's logs.
      samples: public samples, each with the true label; None if there are none.
      given: the student's labels of them, `[num_samples]`; None likewise.
      settings: what the student was made with, by name; public.
      results: accuracies and epsilons that may be published, by name.
    """
    tensorboard.write_result(folder, settings, results)
    if samples is None or given is None:
        return
    picture = tensorboard.confusion_picture(
        samples.dataset, truth=true_labels(samples), given=given
    )
    writer = tf.summary.create_file_writer(str(folder))
    with writer.as_default(step=0):
        tf.summary.image("confusion_matrix", picture)
    writer.close()
