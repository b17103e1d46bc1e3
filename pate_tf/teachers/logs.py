"""What TensorBoard shows of the teachers. SENSITIVE: all of it lies below `sensitive/logs`."""

import contextlib
import pathlib
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from pate_tf.core import artifacts, event_files
from pate_tf.teachers.settings import TeacherConfig

PERCENTILES = {"lowest": 0, "10th": 10, "median": 50, "90th": 90, "highest": 100}
SECONDS_BETWEEN = 1.0


def logs_of(run_directory: artifacts.RunDirectory) -> pathlib.Path:
    """Returns the folder that TensorBoard reads, made if it is missing: `sensitive/logs/teachers`.

    Percentiles of the loss have folders of their own in it, so that they share a chart.
    """
    return artifacts.make_sensitive_folder(run_directory.sensitive / "logs") / "teachers"


@contextlib.contextmanager
def throughput(
    run_directory: artifacts.RunDirectory, num_done: int
) -> Iterator[Callable[[int], None]]:
    """Writes how many teachers are done, and how many a second, about once a second.

    `num_done` are done before. Yields a function to call with how many more are done.
    """
    writer = tf.summary.create_file_writer(str(logs_of(run_directory)))
    last_done, last_time = num_done, time.monotonic()

    def write() -> None:
        nonlocal last_done, last_time
        now = time.monotonic()
        speed = (num_done - last_done) / max(now - last_time, 1e-9)
        with writer.as_default(step=num_done):
            tf.summary.scalar("progress/teachers_done", num_done)
            tf.summary.scalar("progress/teachers_per_second", speed)
        writer.flush()
        last_done, last_time = num_done, now

    def add(count: int) -> None:
        nonlocal num_done
        num_done += count
        if time.monotonic() - last_time > SECONDS_BETWEEN:
            write()

    try:
        yield add
        if num_done > last_done:
            write()
    finally:
        writer.close()
        artifacts.make_private(logs_of(run_directory))


def write_losses(
    run_directory: artifacts.RunDirectory, losses: Sequence[npt.NDArray[np.float32]]
) -> None:
    """Writes percentiles over the ensemble of the loss at each step, of `[step]` of each teacher.

    At a step count those teachers that do one, with a finite loss.
    """
    longest = max(map(len, losses))
    padded = np.full((len(losses), longest), np.nan, np.float32)
    for row, values in zip(padded, losses, strict=True):
        row[: len(values)] = np.where(np.isfinite(values), values, np.nan)
    steps = np.flatnonzero(~np.isnan(padded).all(axis=0))
    for name, percentile in PERCENTILES.items():
        writer = tf.summary.create_file_writer(str(logs_of(run_directory) / name))
        with writer.as_default():
            values = np.nanpercentile(padded[:, steps], percentile, axis=0)
            for step, value in zip(steps.tolist(), values, strict=True):
                tf.summary.scalar("loss", value, step=step + 1)
        writer.close()
    artifacts.make_private(logs_of(run_directory))


def write_accuracies(
    run_directory: artifacts.RunDirectory,
    config: TeacherConfig,
    accuracies: npt.NDArray[np.float64],
    gaps: npt.NDArray[np.float64],
) -> None:
    """Writes every percentile of accuracies and of the votes' gaps, and the settings.

    The percentile takes the place of the step. A gap, between the class with most votes and the
    next, is a share of the teachers, `[num_samples]`: how much noise the labels of such inputs
    stand.
    """
    folder = logs_of(run_directory)
    writer = tf.summary.create_file_writer(str(folder))
    with writer.as_default():
        for percentile in range(101):
            for name, values in (
                ("accuracy/by_percentile", accuracies),
                ("votes/gap_by_percentile", gaps),
            ):
                tf.summary.scalar(name, np.percentile(values, percentile), step=percentile)
    writer.close()
    settings = {**config.to_dict(), "dataset": config.dataset.name}
    results = {
        "result/mean_accuracy": float(accuracies.mean()),
        "result/lowest_accuracy": float(accuracies.min()),
        "result/highest_accuracy": float(accuracies.max()),
    }
    event_files.write_result(folder, settings, results)
    artifacts.make_private(folder)
