"""What TensorBoard shows of shared training. Sensitive: all of it lies below `sensitive/logs`."""

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf import artifacts
from pate_tf.selective_sgd.training import RoundStatistics


class Logs:
    """Event files of a run in `sensitive/logs/selective_sgd`; a round is a step.

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
