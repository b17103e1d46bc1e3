"""Trained teachers on disk, so that a stopped run goes on where it stopped.

A folder holds `config.json`, files of finished teachers (`finished-<first>-<last>.npz`) and the
unfinished state of teachers in training (`training-<teacher>.npz`). Every file appears whole or not
at all.
"""

import collections
import dataclasses
import os
import pathlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts
from pate_tf.core.source import PRIVATE_RECORDS, check_same_settings, private_digest

CONFIG = "config.json"
SECONDS_BETWEEN_SAVES = 10.0
MOST_UNSAVED = 16 * 2**20  # bytes of finished teachers
_SLOTS = ("weights", "buffers", "first_moments", "second_moments")

Arrays = list[npt.NDArray[Any]]


def _no_losses() -> npt.NDArray[np.float32]:
    return np.zeros(0, np.float32)


@dataclasses.dataclass(repr=False)
class TeacherState:
    """SENSITIVE: what one teacher learnt, and where its training is.

    Attributes:
        weights: trainable weights of a Keras model, in its order; of other kinds all that they
            learnt.
        buffers: non-trainable weights (moving averages, dropout seeds).
        first_moments: Adam's averages of gradients, shaped as the weights; none after training.
        second_moments: Adam's averages of squared gradients, shaped as the weights.
        losses: float32 `[step]`, the loss of each step done so far.
    """

    weights: Arrays
    buffers: Arrays = dataclasses.field(default_factory=list)
    first_moments: Arrays = dataclasses.field(default_factory=list)
    second_moments: Arrays = dataclasses.field(default_factory=list)
    losses: npt.NDArray[np.float32] = dataclasses.field(default_factory=_no_losses)

    @property
    def step(self) -> int:
        """Number of steps done."""
        return len(self.losses)

    def after(self, slots: Sequence[Any], losses: npt.NDArray[np.float32]) -> "TeacherState":
        """Returns the state that further steps lead to, also where a loss is not finite.

        Whether it is follows from the records, so that stopping would reveal some of them. The
        teacher's votes are defined all the same (`ensemble.networks_module`).
        """
        weights, buffers, first, second = ([np.asarray(one) for one in slot] for slot in slots)
        losses = np.concatenate([self.losses, losses])
        return TeacherState(weights, buffers, first, second, losses)


class TeacherStore:
    """Sensitive: the training folder of an ensemble."""

    def __init__(
        self,
        folder: pathlib.Path,
        settings: Mapping[str, Any],
        private: Sequence[npt.NDArray[Any]] = (),
    ) -> None:
        """Opens or creates the folder, in a run's `sensitive/`.

        Args:
            folder: of the teachers.
            settings: public JSON values by name, which fix the result of the training.
            private: arrays that do so, too: records, labels, partition. A keyed digest is stored.

        Raises:
            ValueError: if the folder holds teachers of other settings or records.
        """
        self._settings, self._private = settings, private
        self._folder = artifacts.make_sensitive_folder(folder)
        if (folder / CONFIG).exists():
            self._check_same(folder)
        else:
            artifacts.write_json(folder / CONFIG, self._settings_in(folder), private=True)

    def _settings_in(self, folder: pathlib.Path) -> dict[str, Any]:
        """Returns the settings as a folder stores them: each run has a key of its own."""
        if not self._private:
            return dict(self._settings)
        return {**self._settings, PRIVATE_RECORDS: private_digest(folder.parent, *self._private)}

    def _check_same(self, folder: pathlib.Path) -> None:
        stored = artifacts.read_json(folder / CONFIG)
        check_same_settings(stored, self._settings_in(folder), folder=folder, holds="teachers")

    def finished(self) -> set[int]:
        """Returns the teachers that are trained."""
        return set(Finished(self._folder).teachers)

    def save_all(
        self,
        trained: Iterable[tuple[int, TeacherState]],
        progress: Callable[[int], object],
    ) -> None:
        """Saves finished teachers, several to a file: every few seconds, or where they get large.

        `progress` is called with the number of teachers that got done since its last call.
        """
        unsaved: dict[int, TeacherState] = {}
        num_bytes, last_save = 0, time.monotonic()
        for teacher, state in trained:
            unsaved[teacher] = state
            num_bytes += sum(array.nbytes for array in (*state.weights, *state.buffers))
            progress(1)
            if time.monotonic() - last_save > SECONDS_BETWEEN_SAVES or num_bytes > MOST_UNSAVED:
                self.save_finished(unsaved)
                unsaved = {}
                num_bytes, last_save = 0, time.monotonic()
        self.save_finished(unsaved)

    def save_finished(self, teachers: Mapping[int, TeacherState]) -> None:
        """Writes weights and losses of trained teachers by number; drops unfinished states."""
        if not teachers:
            return
        numbers = sorted(teachers)
        arrays: dict[str, npt.NDArray[Any]] = {"teachers": np.array(numbers, np.int64)}
        by_teacher = {one: [*state.weights, *state.buffers] for one, state in teachers.items()}
        if len(shapes := {_shapes(each) for each in by_teacher.values()}) == 1 and shapes != {()}:
            # Thousands of small teachers as few arrays: each array of a file takes its time.
            for index in range(len(by_teacher[numbers[0]])):
                arrays[f"stacked/{index}"] = np.stack([by_teacher[one][index] for one in numbers])
        else:
            for teacher, parts in by_teacher.items():
                arrays |= {f"{teacher}/{index}": array for index, array in enumerate(parts)}
        for teacher, state in teachers.items():
            if len(state.losses):
                arrays[f"losses/{teacher}"] = state.losses
        name = f"finished-{min(teachers):06d}-{max(teachers):06d}.npz"
        artifacts.write_arrays(self._folder / name, arrays, private=True)
        for teacher in teachers:
            self._training_path(teacher).unlink(missing_ok=True)

    def save_training(self, teacher: int, state: TeacherState) -> None:
        """Writes the unfinished state of a teacher."""
        arrays: dict[str, npt.NDArray[Any]] = {"losses": state.losses}
        for slot in _SLOTS:
            for index, array in enumerate(getattr(state, slot)):
                arrays[f"{slot}/{index}"] = array
        artifacts.write_arrays(self._training_path(teacher), arrays, private=True)

    def load_training(self, teacher: int) -> TeacherState | None:
        """Returns the unfinished state of a teacher, or None if it was not begun."""
        path = self._training_path(teacher)
        if not path.exists():
            return None
        arrays = artifacts.read_arrays(path)
        sizes = collections.Counter(name.partition("/")[0] for name in arrays)
        weights, buffers, first, second = (
            [arrays[f"{slot}/{index}"] for index in range(sizes[slot])] for slot in _SLOTS
        )
        return TeacherState(weights, buffers, first, second, arrays["losses"])

    def merge(self, folders: Sequence[pathlib.Path]) -> None:
        """Takes over the finished teachers of other folders, all of them or none.

        Raises:
            ValueError: if a folder holds no teachers or those of other settings, or a teacher
                stands in two of them.
        """
        check_folders(folders)
        paths = []
        known = self.finished()
        for folder in folders:
            self._check_same(folder)
            for path in sorted(folder.glob("finished-*.npz")):
                own = self._folder / path.name
                if own.exists() and own.read_bytes() == path.read_bytes():
                    continue  # taken over by an earlier call
                teachers = set(_teachers(path))
                if teachers & known:
                    raise ValueError(
                        f"merge_from: expected every teacher once, teacher {min(teachers & known)} "
                        f"stands in {folder} and before it"
                    )
                known |= teachers
                paths.append(path)
        for path in paths:
            artifacts.write_arrays(
                self._folder / path.name, artifacts.read_arrays(path), private=True
            )

    def _training_path(self, teacher: int) -> pathlib.Path:
        return self._folder / f"training-{teacher:06d}.npz"


def check_folders(folders: Sequence[pathlib.Path]) -> None:
    """Raises ValueError unless each folder holds teachers; creates nothing."""
    for folder in folders:
        if not os.path.isfile(folder / CONFIG):
            raise ValueError(f"merge_from: expected trained teachers in {folder}, got none")


class Finished:
    """SENSITIVE: trained teachers of a folder, read a file at a time.

    Attributes:
        teachers: their numbers, ascending.
    """

    def __init__(self, folder: pathlib.Path, num_teachers: int | None = None) -> None:
        """Looks which teachers are trained; ValueError if one of `num_teachers` is missing."""
        self._paths = sorted(folder.glob("finished-*.npz"))
        self.teachers = sorted(one for path in self._paths for one in _teachers(path))
        missing = sorted(set(range(num_teachers or 0)).difference(self.teachers))
        if missing:
            raise ValueError(
                f"teachers: expected {num_teachers} trained ones, {len(missing)} are missing, "
                f"the first is {missing[0]}"
            )

    def each(self) -> list[Arrays]:
        """Returns what each teacher learnt: its arrays, in the order of `teachers`."""
        found = {one: arrays for path in self._paths for one, arrays in _learnt(path)}
        return [found[one] for one in self.teachers]

    def stacked(self) -> Arrays:
        """Returns what the teachers learnt, each array `[num_teachers, ...]`."""
        places = {teacher: place for place, teacher in enumerate(self.teachers)}
        stacked: Arrays = []
        for path in self._paths:  # thousands of teachers: one file in memory
            for teacher, arrays in _learnt(path):
                if not stacked:
                    stacked = [np.empty((len(places), *one.shape), one.dtype) for one in arrays]
                for slot, array in zip(stacked, arrays, strict=True):
                    slot[places[teacher]] = array
        return stacked

    def losses(self) -> list[npt.NDArray[np.float32]]:
        """Returns the losses `[step]` of each teacher, in the order of `teachers`."""
        found: dict[str, npt.NDArray[Any]] = {}
        for path in self._paths:
            found |= artifacts.read_arrays(path)
        return [found.get(f"losses/{teacher}", _no_losses()) for teacher in self.teachers]


def _learnt(path: pathlib.Path) -> Iterator[tuple[int, Arrays]]:
    """Yields each teacher of a file with its arrays."""
    arrays = artifacts.read_arrays(path)
    sizes = collections.Counter(name.partition("/")[0] for name in arrays)
    stacked = [arrays[f"stacked/{index}"] for index in range(sizes["stacked"])]
    for place, teacher in enumerate(arrays["teachers"].tolist()):
        own = [arrays[f"{teacher}/{index}"] for index in range(sizes[str(teacher)])]
        yield teacher, own or [array[place] for array in stacked]


def _teachers(path: pathlib.Path) -> list[int]:
    teachers: list[int] = artifacts.read_arrays(path, ["teachers"])["teachers"].tolist()
    return teachers


def _shapes(arrays: Sequence[npt.NDArray[Any]]) -> tuple[Any, ...]:
    return tuple((array.dtype.str, array.shape) for array in arrays)
