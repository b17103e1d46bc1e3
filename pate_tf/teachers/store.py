"""Trained teachers on disk, so that a stopped run goes on where it stopped.

A folder holds `config.json`, files of finished teachers (`finished-<first>-<last>.npz`) and the
unfinished state of teachers in training (`training-<teacher>.npz`). Every file appears whole or
not at all.
"""

import collections
import json
import os
import pathlib
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts
from pate_tf.core.validation import IntArray
from pate_tf.models import fingerprint
from pate_tf.teachers.training import TeacherState

CONFIG = "config.json"
CLASS_SUMS = "class_sums"
_SLOTS = ("weights", "buffers", "first_moments", "second_moments")


class TeacherStore:
    """Sensitive: the training folder of an ensemble."""

    def __init__(self, folder: pathlib.Path, identity: Mapping[str, Any]) -> None:
        """Opens or creates the folder.

        Args:
          folder: where the files are kept, below `sensitive/`.
          identity: JSON values that fix the result of the training: configuration, digests of
            data and partition.

        Raises:
          ValueError: if the folder holds teachers of another identity, or of a version that kept
            less of it: nobody can tell then whether they are the same.
        """
        self._folder = artifacts.make_sensitive_folder(folder)
        path = folder / CONFIG
        # A trip through JSON turns tuples into lists, as they are read back.
        wanted = json.loads(json.dumps(identity))
        if path.exists():
            _check_identity(artifacts.read_json(path), wanted, folder)
        else:
            artifacts.write_json(path, wanted, private=True)

    def finished(self) -> set[int]:
        """Returns the teachers that are trained."""
        return {teacher for path in _finished_paths(self._folder) for teacher in _teachers(path)}

    def save_finished(
        self, teachers: Mapping[int, TeacherState], *, class_sums: IntArray | None = None
    ) -> None:
        """Keeps weights and losses of trained teachers; drops their unfinished states.

        Args:
          teachers: by their numbers.
          class_sums: of all their records together; None where they have none.
        """
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
        if class_sums is not None:
            arrays[CLASS_SUMS] = class_sums
        name = f"finished-{min(teachers):06d}-{max(teachers):06d}.npz"
        artifacts.write_arrays(self._folder / name, arrays, private=True)
        for teacher in teachers:
            self._training_path(teacher).unlink(missing_ok=True)

    def save_training(self, teacher: int, state: TeacherState) -> None:
        """Keeps the unfinished state of a teacher."""
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
        slots = {}
        for slot in _SLOTS:
            names = [name for name in arrays if name.startswith(f"{slot}/")]
            slots[slot] = [arrays[f"{slot}/{index}"] for index in range(len(names))]
        return TeacherState(
            slots["weights"],
            slots["buffers"],
            slots["first_moments"],
            slots["second_moments"],
            arrays["losses"],
        )

    def merge(self, folders: Sequence[pathlib.Path]) -> None:
        """Takes over the finished teachers of other folders, all of them or none.

        Raises:
          ValueError: if a folder keeps no teachers or those of another identity, or a teacher
            stands in two of them.
        """
        check_kept(folders)
        identity = artifacts.read_json(self._folder / CONFIG)
        paths = []
        known = self.finished()
        for folder in folders:
            _check_identity(artifacts.read_json(folder / CONFIG), identity, folder)
            for path in _finished_paths(folder):
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


def check_kept(folders: Sequence[pathlib.Path]) -> None:
    """Raises ValueError unless each folder keeps teachers; creates nothing."""
    for folder in folders:
        if not os.path.isfile(folder / CONFIG):
            raise ValueError(f"merge_from: expected trained teachers in {folder}, got none")


def load_finished(
    folder: pathlib.Path, num_teachers: int
) -> tuple[list[npt.NDArray[Any]], list[npt.NDArray[np.float32]]]:
    """Stacks what all teachers learned.

    Returns:
      Weights, then buffers, each `[num_teachers, ...]`; and the losses `[step]` of each teacher.

    Raises:
      ValueError: if a teacher is missing or a file is broken.
    """
    stacked: list[npt.NDArray[Any]] = []
    losses: dict[int, npt.NDArray[np.float32]] = {}
    for by_teacher, some_losses in _files(folder):  # thousands of teachers: one file in memory
        for teacher, arrays in by_teacher.items():
            if not stacked:
                stacked = [np.empty((num_teachers, *one.shape), one.dtype) for one in arrays]
            for slot, array in zip(stacked, arrays, strict=True):
                slot[teacher] = array
        losses |= some_losses
    _check_complete(losses, num_teachers)
    return stacked, [losses[teacher] for teacher in range(num_teachers)]


def read_finished(
    folder: pathlib.Path, num_teachers: int
) -> tuple[list[list[npt.NDArray[Any]]], list[npt.NDArray[np.float32]]]:
    """Returns the arrays and the losses of each teacher, in the order of the teachers.

    Raises:
      ValueError: if a teacher is missing or a file is broken.
    """
    by_teacher, losses = read_all_finished(folder)
    _check_complete(by_teacher, num_teachers)
    teachers = range(num_teachers)
    return [by_teacher[teacher] for teacher in teachers], [losses[teacher] for teacher in teachers]


def read_class_sums(folder: pathlib.Path) -> IntArray | None:
    """Returns the sums by class of all records of the teachers that are trained. SENSITIVE.

    None where they are not known of each: of teachers without features, or that an earlier version
    trained.

    Raises:
      ValueError: if a file is broken.
    """
    total: IntArray | None = None
    for path in _finished_paths(folder):
        arrays = artifacts.read_arrays(path, [CLASS_SUMS], lacking_ok=True)
        if CLASS_SUMS not in arrays:
            return None
        found: IntArray = arrays[CLASS_SUMS]
        total = found if total is None else total + found
    return total


def read_all_finished(
    folder: pathlib.Path,
) -> tuple[dict[int, list[npt.NDArray[Any]]], dict[int, npt.NDArray[np.float32]]]:
    """Returns the arrays and the losses of each teacher that is trained, by its number.

    Raises:
      ValueError: if a file is broken.
    """
    by_teacher: dict[int, list[npt.NDArray[Any]]] = {}
    losses: dict[int, npt.NDArray[np.float32]] = {}
    for some_teachers, some_losses in _files(folder):
        by_teacher |= some_teachers
        losses |= some_losses
    return by_teacher, losses


def _files(
    folder: pathlib.Path,
) -> Iterator[tuple[dict[int, list[npt.NDArray[Any]]], dict[int, npt.NDArray[np.float32]]]]:
    """Yields the arrays and the losses of each teacher of one file after another."""
    for path in _finished_paths(folder):
        losses: dict[int, npt.NDArray[np.float32]] = {}
        by_teacher: dict[int, list[npt.NDArray[Any]]] = {}
        arrays = artifacts.read_arrays(path)
        sizes = collections.Counter(name.partition("/")[0] for name in arrays)
        stacked = [arrays[f"stacked/{index}"] for index in range(sizes["stacked"])]
        for place, teacher in enumerate(arrays["teachers"].tolist()):
            own = [arrays[f"{teacher}/{index}"] for index in range(sizes[str(teacher)])]
            by_teacher[teacher] = own or [array[place] for array in stacked]
            losses[teacher] = arrays.get(f"losses/{teacher}", np.zeros(0, np.float32))
        yield by_teacher, losses


def _check_complete(teachers: Container[int], num_teachers: int) -> None:
    missing = [one for one in range(num_teachers) if one not in teachers]
    if missing:
        raise ValueError(
            f"teachers: expected {num_teachers} trained ones, {len(missing)} are missing, "
            f"the first is {missing[0]}"
        )


def _finished_paths(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(folder.glob("finished-*.npz"))


def _teachers(path: pathlib.Path) -> list[int]:
    teachers: list[int] = artifacts.read_arrays(path, ["teachers"])["teachers"].tolist()
    return teachers


def _shapes(arrays: Sequence[npt.NDArray[Any]]) -> tuple[Any, ...]:
    return tuple((array.dtype.str, array.shape) for array in arrays)


def _check_identity(
    found: Mapping[str, Any], wanted: Mapping[str, Any], folder: pathlib.Path
) -> None:
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ValueError(
            f"{folder} holds teachers of an earlier version, which noted no {missing[0]} to "
            f"compare; choose another folder; an ensemble exported from this one can still be asked"
        )
    differs = fingerprint.difference(found, wanted)
    if differs:
        raise ValueError(
            f"{folder} holds other teachers ({differs}); choose another folder or remove it"
        )
