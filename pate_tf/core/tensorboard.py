"""Writes scalars (with descriptions) and rows of the HPARAMS page for TensorBoard."""

import pathlib
import secrets
from collections.abc import Mapping
from typing import Any, Final

import tensorflow as tf
from tensorboard.plugins.hparams import api as hparams_plugin

TAGS: Final[Mapping[str, str]] = {
    "progress/teachers_done": "Number of trained teachers.",
    "loss": "SENSITIVE: percentiles of the teachers' losses at each step.",
    "accuracy": "SENSITIVE: percentiles of the teachers' accuracies on the records of each step.",
    "result/mean_accuracy": "SENSITIVE: mean accuracy of the teachers on public samples.",
    "epoch_accuracy": "Accuracy on public samples outside of the pool.",
    "result/accuracy": "Accuracy of this student version on public samples outside of the pool.",
    "result/epsilon": "Privacy cost of this student version, at the delta of its statement.",
}


def scalar(tag: str, value: Any, step: int | None = None) -> None:
    """Writes a scalar with a tag from `TAGS`. By default, `step` is the current writer's step."""
    with tf.summary.record_if(True):  # for the reason, see `write_result`
        tf.summary.scalar(tag, value, step=step, description=TAGS[tag])


def write_result(
    folder: pathlib.Path, settings: Mapping[str, Any], results: Mapping[str, float]
) -> None:
    """Writes one row of TensorBoard's HPARAMS page.

    Args:
        folder: folder for the row's file. TensorBoard shows the rows of neighboring folders in one
            table.
        settings: settings by name. Values that are not numbers, texts or booleans are converted to
            text.
        results: maps tags of `TAGS` to results, which are also written as scalars at step 0.
    """
    values = {
        name: value if isinstance(value, bool | int | float | str) else str(value)
        for name, value in settings.items()
    }
    writer = tf.summary.create_file_writer(str(folder))
    # Keras' callback records only some steps. If `fit` is interrupted, this restriction remains
    # active in the process.
    with writer.as_default(step=0), tf.summary.record_if(True):
        # Do not use `hparams_config`: with several runs, TensorBoard would use the configuration of
        # one run and hide other settings and results.
        # The ID must not be the path, which reveals where files are stored. It must not be the
        # folder name either: TensorBoard would then merge the first versions of several students
        # into one row.
        hparams_plugin.hparams(values, trial_id=secrets.token_hex(8))
        for tag, value in results.items():
            scalar(tag, value)
    writer.close()
