"""What is checked before teachers are trained: data, places, workers."""

import pathlib
import time
from collections.abc import Sequence
from typing import Any

from pate_tf import artifacts
from pate_tf.runs.reporting import Reporting
from pate_tf.teachers import cluster, store
from pate_tf.values.public import PublicExamples
from pate_tf.values.sensitive import PrivateExamples

REPORT = "teachers_report.json"
PATIENCE = 600.0  # seconds until workers that never answer are an error


def wait_for_workers(config: dict[str, Any], reporting: Reporting) -> None:
    """Waits until all workers answer, and says once which ones don't.

    Raises:
      ValueError: if an address is none, or some don't answer within ten minutes.
    """
    missing = cluster.missing_workers(config)
    if missing:
        reporting.warn(
            f"TF_CONFIG: waiting for the workers {', '.join(missing)}, which don't answer"
        )
    with reporting.clock("waiting for workers"):
        began = time.monotonic()
        while missing:
            if time.monotonic() - began > PATIENCE:
                raise ValueError(f"TF_CONFIG: expected workers, got none at {', '.join(missing)}")
            time.sleep(1.0)
            missing = cluster.missing_workers(config)


def check_places(directory: artifacts.RunDirectory) -> None:
    """Checks that all can be written that teachers write.

    Raises:
      ValueError: if something can't.
    """
    sensitive = artifacts.SENSITIVE
    directory.check(
        files=[f"{sensitive}/{REPORT}"],
        folders=[
            *(sensitive, f"{sensitive}/teachers", f"{sensitive}/teachers/ensemble"),
            *(f"{sensitive}/logs", f"{sensitive}/logs/teachers"),
        ],
    )


def kept_teachers(runs: Sequence[artifacts.RunDirectory]) -> list[pathlib.Path]:
    """Returns the folders where other runs keep their teachers; creates none.

    Raises:
      ValueError: if one keeps none.
    """
    folders = [run.teachers for run in runs]
    store.check_kept(folders)
    return folders


def check_data(examples: PrivateExamples, public: PublicExamples, num_classes: int | None) -> None:
    """Checks data before anything is trained on them.

    Raises:
      ValueError: if both sides are not of one data set, or the number of classes is not the
        expected one.
    """
    dataset = examples.dataset
    if num_classes not in (None, dataset.num_classes):
        raise ValueError(
            f"num_classes: {dataset.name} has {dataset.num_classes} classes, got {num_classes}"
        )
    if difference := public.dataset.difference(dataset):
        raise ValueError(
            f"dataset: expected public samples of the private records' data set {dataset.name}, "
            f"got others: {difference}"
        )
