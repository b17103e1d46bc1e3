"""Event files for TensorBoard: pictures, and the table of settings and results."""

import pathlib
import secrets
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf
from tensorboard.plugins.hparams import api as hparams_plugin

from pate_tf.core.dataset import Dataset

MOST_CLASSES_WITH_NUMBERS = 20


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


def confusion_picture(
    dataset: Dataset, *, truth: npt.NDArray[np.int64], given: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint8]:
    """Draws how many samples of each true class got each label.

    Args:
        dataset: names the classes.
        truth: labels `[num_samples]`.
        given: labels `[num_samples]`.

    Returns:
        A picture `[1, height, width, 3]`. Colours are shares of a true class.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    num_classes = dataset.num_classes
    counts = np.zeros((num_classes, num_classes), np.int64)
    np.add.at(counts, (truth, given), 1)
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    figure = Figure(figsize=(6, 6), dpi=80, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    axes = figure.add_subplot(
        title=f"{len(truth):,} samples, {np.trace(counts) / max(len(truth), 1):.2%} right",
        xlabel="label given",
        ylabel="true label",
    )
    axes.imshow(shares, cmap="Blues", vmin=0.0, vmax=1.0)
    if num_classes <= MOST_CLASSES_WITH_NUMBERS:
        names = dataset.class_names or tuple(map(str, range(num_classes)))
        is_long = max(map(len, names)) > 3
        axes.set_xticks(range(num_classes), names, rotation=90 if is_long else 0)
        axes.set_yticks(range(num_classes), names)
        for (row, column), count in np.ndenumerate(counts):
            if count:
                colour = "white" if shares[row, column] > 0.5 else "black"
                axes.text(column, row, str(count), ha="center", va="center", color=colour)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba(), np.uint8)[np.newaxis, ..., :3].copy()
