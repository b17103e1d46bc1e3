"""What TensorBoard shows of teachers. SENSITIVE: all of it lies below `sensitive/logs`."""

import contextlib
import pathlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core import artifacts
from pate_tf.core.settings import write_result
from pate_tf.teachers.settings import TeacherConfig

PERCENTILES = {"lowest": 0, "10th": 10, "median": 50, "90th": 90, "highest": 100}


def logs_of(directory: artifacts.RunDirectory) -> pathlib.Path:
    """Returns the folder that TensorBoard reads, made if it is missing: `sensitive/logs/teachers`.

    Percentiles of the loss have folders of their own in it, so that they share a chart.
    """
    return artifacts.make_sensitive_folder(directory.sensitive / "logs") / "teachers"


@contextlib.contextmanager
def progress(directory: artifacts.RunDirectory, num_done: int) -> Iterator[Callable[[int], None]]:
    """Writes how many teachers are done; yields a function to call with how many more are."""
    writer = tf.summary.create_file_writer(str(logs_of(directory)))

    def advance(number: int) -> None:
        nonlocal num_done
        num_done += number
        with writer.as_default(step=num_done):
            tf.summary.scalar("progress/teachers_done", num_done)

    try:
        yield advance
    finally:
        writer.close()
        artifacts.make_private(logs_of(directory))


def write_losses(
    directory: artifacts.RunDirectory, losses: Sequence[npt.NDArray[np.float32]]
) -> None:
    """Writes percentiles over the ensemble of the loss at each step, of `[step]` of each teacher.

    At a step count those teachers that do one, with a finite loss.
    """
    padded = np.full((len(losses), max(map(len, losses))), np.nan, np.float32)
    for row, values in zip(padded, losses, strict=True):
        row[: len(values)] = np.where(np.isfinite(values), values, np.nan)
    steps = np.flatnonzero(~np.isnan(padded).all(axis=0))
    for name, percentile in PERCENTILES.items():
        writer = tf.summary.create_file_writer(str(logs_of(directory) / name))
        with writer.as_default():
            values = np.nanpercentile(padded[:, steps], percentile, axis=0)
            for step, value in zip(steps.tolist(), values, strict=True):
                tf.summary.scalar("loss", value, step=step + 1)
        writer.close()
    artifacts.make_private(logs_of(directory))


def write_accuracies(
    directory: artifacts.RunDirectory, config: TeacherConfig, accuracies: npt.NDArray[np.float64]
) -> None:
    """Writes every percentile of accuracies, which takes the place of the step, and settings."""
    folder = logs_of(directory)
    writer = tf.summary.create_file_writer(str(folder))
    with writer.as_default():
        for percentile in range(101):
            value = np.percentile(accuracies, percentile)
            tf.summary.scalar("accuracy/by_percentile", value, step=percentile)
    writer.close()
    settings = {**config.to_dict(), "dataset": config.dataset.name}
    write_result(folder, settings, {"result/mean_accuracy": float(accuracies.mean())})
    artifacts.make_private(folder)
