"""Trained teachers on disk, so that a stopped run resumes where it stopped.

A folder holds `config.json` and files of finished teachers (`finished-<first>-<last>.npz`). Every
file appears whole or not at all.
"""

import dataclasses
import pathlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts
from pate_tf.core.source import PRIVATE_RECORDS, check_same_settings, private_digest

CONFIG = "config.json"
SECONDS_BETWEEN_SAVES = 10.0
MOST_UNSAVED = 16 * 2**20  # bytes of finished teachers

Arrays = list[npt.NDArray[Any]]


@dataclasses.dataclass(repr=False)
class TrainedTeacher:
    """SENSITIVE: what one teacher learnt.

    Attributes:
        arrays: trainable weights of a Keras model, then its buffers (moving averages, dropout
            seeds); of other kinds all that they learnt.
        losses: float32 `[step]`, the loss of each step.
    """

    arrays: Arrays
    losses: npt.NDArray[np.float32] = dataclasses.field(
        default_factory=lambda: np.zeros(0, np.float32)
    )


def finished_teachers(folder: pathlib.Path) -> list[int]:
    """Returns the teachers of a folder that are trained, ascending."""
    return sorted(
        teacher
        for path in folder.glob("finished-*.npz")
        for teacher in artifacts.read_arrays(path, ["teachers"])["teachers"].tolist()
    )


class TeacherStore:
    """SENSITIVE: the training folder of an ensemble."""

    def __init__(
        self,
        folder: pathlib.Path,
        settings: Mapping[str, Any],
        private: Sequence[npt.NDArray[Any]],
    ) -> None:
        """Opens or creates the folder, in a run's `sensitive/`.

        Args:
            folder: of the teachers.
            settings: public JSON values by name, which fix the result of the training.
            private: arrays that do so, too: records, labels, partition. A keyed digest is stored.

        Raises:
            ValueError: if the folder holds teachers of other settings or records.
        """
        self._folder = artifacts.make_sensitive_folder(folder)
        settings = {**settings, PRIVATE_RECORDS: private_digest(folder.parent, *private)}
        if (folder / CONFIG).exists():
            stored = artifacts.read_json(folder / CONFIG)
            check_same_settings(stored, settings, folder=folder, holds="teachers")
        else:
            artifacts.write_json(folder / CONFIG, settings, private=True)

    def save_all(
        self,
        trained: Iterable[tuple[int, TrainedTeacher]],
        progress: Callable[[int], object],
    ) -> None:
        """Saves finished teachers, several to a file: every few seconds, or where they get large.

        `progress` is called with the number of teachers that got done since its last call.
        """
        unsaved: dict[int, TrainedTeacher] = {}
        num_bytes, last_save = 0, time.monotonic()
        for teacher, result in trained:
            unsaved[teacher] = result
            num_bytes += sum(array.nbytes for array in result.arrays)
            progress(1)
            if time.monotonic() - last_save > SECONDS_BETWEEN_SAVES or num_bytes > MOST_UNSAVED:
                self._save(unsaved)
                unsaved = {}
                num_bytes, last_save = 0, time.monotonic()
        self._save(unsaved)

    def _save(self, teachers: Mapping[int, TrainedTeacher]) -> None:
        if not teachers:
            return
        arrays: dict[str, npt.NDArray[Any]] = {"teachers": np.array(sorted(teachers), np.int64)}
        for teacher, result in teachers.items():
            arrays[f"{teacher}/losses"] = result.losses
            arrays |= {f"{teacher}/{place}": array for place, array in enumerate(result.arrays)}
        name = f"finished-{min(teachers):06d}-{max(teachers):06d}.npz"
        artifacts.write_arrays(self._folder / name, arrays, private=True)

    def load(self) -> list[TrainedTeacher]:
        """Returns all trained teachers, in the order of their numbers."""
        teachers: dict[int, TrainedTeacher] = {}
        for path in sorted(self._folder.glob("finished-*.npz")):
            arrays = artifacts.read_arrays(path)
            parts: dict[int, Arrays] = {number: [] for number in arrays.pop("teachers").tolist()}
            losses = {number: arrays.pop(f"{number}/losses") for number in parts}
            for name, array in arrays.items():  # in the order that they were written in
                parts[int(name.partition("/")[0])].append(array)
            teachers |= {number: TrainedTeacher(parts[number], losses[number]) for number in parts}
        return [teachers[number] for number in sorted(teachers)]
