"""Event files for TensorBoard: the table of settings and results."""

import pathlib
import secrets
from collections.abc import Mapping
from typing import Any

import tensorflow as tf
from tensorboard.plugins.hparams import api as hparams_plugin


def write_result(
    folder: pathlib.Path, settings: Mapping[str, Any], results: Mapping[str, float]
) -> None:
    """Writes one row of TensorBoard's HPARAMS page.

    Args:
        folder: of the row; rows in folders side by side are shown together.
        settings: by name; numbers, text and booleans stay what they are, all else becomes text.
        results: by name; each is a scalar at step 0 too.
    """
    values = {
        name: value if isinstance(value, bool | int | float | str) else str(value)
        for name, value in settings.items()
    }
    writer = tf.summary.create_file_writer(str(folder))
    with writer.as_default(step=0):
        hparams_plugin.hparams_config(
            hparams=[hparams_plugin.HParam(name) for name in values],
            metrics=[hparams_plugin.Metric(name) for name in results],
        )
        # Not the folder's path, which tells where somebody keeps their files; nor its name, by
        # which TensorBoard would put the first versions of several students into one row.
        hparams_plugin.hparams(values, trial_id=secrets.token_hex(8))
        for name, value in results.items():
            tf.summary.scalar(name, value)
    writer.close()
