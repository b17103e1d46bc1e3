"""Students trained on kept labels, and evaluated on what was not asked for."""

import pathlib
import resource
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np

from benchmarks.paper.bench import Bench, Measured
from benchmarks.paper.labels import Asking, draw
from pate_tf.aggregation.noise import NoiseSource
from pate_tf.core.dataset import Dataset
from pate_tf.students.batches import outputs
from pate_tf.students.config import StudentSettings, complete, find_student
from pate_tf.students.evaluation import Accuracy
from pate_tf.students.kinds import StudentConfig


class ResidentMemory(keras.callbacks.Callback):
    """Notes the process' resident memory after every epoch.

    Attributes:
        mebibytes: one number an epoch.
    """

    def __init__(self) -> None:
        """Starts with no epoch."""
        super().__init__()
        self.mebibytes: list[int] = []

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Notes it."""
        del epoch, logs
        pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
        self.mebibytes.append(pages * resource.getpagesize() // 2**20)


def config_of(
    bench: Bench,
    student: str,
    dataset: Dataset,
    *,
    repetition: int = 0,
    steps: int | None = None,
) -> StudentConfig:
    """Returns a student's own defaults, with given steps or, where it has some, the setting's."""
    settings = StudentSettings(
        student=student,
        max_steps=None if student == "random_forest" else steps or bench.setting.student_steps,
        seed=bench.seed + repetition,
    )
    return complete(settings, dataset)


def train(bench: Bench, asking: Asking, student: str, *, steps: int | None = None) -> Measured:
    """Trains a student on kept labels, unless that was done before.

    Its result: right answers `held_out` and `unqueried`, out of `num_held_out` and
    `num_unqueried`; unqueried samples are all public ones that were not asked for, most of which
    it saw without a label, or with an inferred one. `mebibytes`: resident memory of the process
    after each epoch.
    """
    public = bench.workshop.public(asking.ensemble.dataset)
    config = config_of(bench, student, public.dataset, repetition=asking.draw, steps=steps)
    drawn = draw(bench, asking)

    def measure(noise: NoiseSource) -> dict[str, Any]:
        del noise
        memory = ResidentMemory()
        model = find_student(config, public.dataset).train(
            config,
            drawn.labels,
            bench.workshop.split(asking.ensemble.dataset).pool,
            callbacks=[memory],
        )
        right = outputs(model, public.inputs).argmax(axis=1) == public.labels
        unqueried = np.ones(len(public), np.bool_)
        unqueried[drawn.queries] = False
        held_out = right[public.dataset.pool_size :]
        return {
            "held_out": int(held_out.sum()),
            "num_held_out": len(held_out),
            "unqueried": int(right[unqueried].sum()),
            "num_unqueried": int(unqueried.sum()),
            "mebibytes": memory.mebibytes,
        }

    return bench.unit("student", {"asking": asking.to_dict(), "student": config.to_dict()}, measure)


def held_out(measured: Measured) -> Accuracy:
    """Accuracy on the held-out samples."""
    result = measured.result
    return Accuracy(result["held_out"] / result["num_held_out"], result["num_held_out"])


def unqueried(measured: Measured) -> Accuracy:
    """Accuracy on all samples whose label was not asked for."""
    result = measured.result
    return Accuracy(result["unqueried"] / result["num_unqueried"], result["num_unqueried"])
