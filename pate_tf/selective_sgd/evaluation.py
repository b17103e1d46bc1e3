"""The global model on public samples: its accuracy, its buffers, and event files of a run."""

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core import artifacts
from pate_tf.core.public import PublicExamples
from pate_tf.selective_sgd.models import FlatView
from pate_tf.selective_sgd.training import RoundStatistics
from pate_tf.selective_sgd.upload import FloatArray

BATCH = 500


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
            self._answers(tf.constant(inputs[start : start + BATCH])).numpy()
            for start in range(0, len(inputs), BATCH)
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
    for _ in range(max(1, 200 // (-(-len(samples) // BATCH)))):
        for start in range(0, min(len(samples), 20 * BATCH), BATCH):
            inputs = tf.constant(samples.inputs[start : start + BATCH], tf.float32)
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
