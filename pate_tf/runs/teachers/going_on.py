"""Teachers are trained step by step, saved on the way, and go on where they were stopped."""

import time
from collections.abc import Callable, Iterator

from pate_tf.teachers.store import TeacherStore
from pate_tf.teachers.training import (
    TeacherData,
    TeacherState,
    Trainer,
)
from pate_tf.values.arrays import IntArray

SECONDS_A_CALL = 5.0  # of the training loop: how often a long training can be saved
SECONDS_BETWEEN_SAVES = 10.0
MOST_UNSAVED = 16 * 2**20  # bytes of finished teachers

Progress = Callable[[int], object]


def save_all(
    trained: Iterator[tuple[int, TeacherState]], store: TeacherStore, progress: Progress
) -> None:
    """Saves finished teachers, several to a file: every few seconds, or where they get large."""
    unsaved: dict[int, TeacherState] = {}
    sums: IntArray | None = None
    num_bytes, last_save = 0, time.monotonic()
    for teacher, state in trained:
        if state.class_sums is not None:  # of thousands of teachers one is in memory
            sums = state.class_sums if sums is None else sums + state.class_sums
            state.class_sums = None
        unsaved[teacher] = state
        num_bytes += sum(array.nbytes for array in (*state.weights, *state.buffers))
        progress(1)
        if time.monotonic() - last_save > SECONDS_BETWEEN_SAVES or num_bytes > MOST_UNSAVED:
            store.save_finished(unsaved, class_sums=sums)
            unsaved, sums = {}, None
            num_bytes, last_save = 0, time.monotonic()
    store.save_finished(unsaved, class_sums=sums)


def train_here(
    trainer: Trainer, store: TeacherStore, missing: list[int]
) -> Iterator[tuple[int, TeacherState]]:
    """Yields finished teachers; keeps the state of those that take long."""
    num_steps = 1  # the first call traces the graph; later ones adapt to its speed
    for start in range(0, len(missing), trainer.group_size):
        group = missing[start : start + trainer.group_size]
        states = [going_on(trainer.data, store, teacher) for teacher in group]
        longest = max(trainer.data.num_steps(teacher) for teacher in group)
        last_save = time.monotonic()
        while any(
            state.step < trainer.data.num_steps(teacher)
            for teacher, state in zip(group, states, strict=True)
        ):
            began = time.monotonic()
            states = trainer.advance(group, states, num_steps)
            now = time.monotonic()
            speed = num_steps / max(now - began, 1e-3)
            most = min(100.0 * num_steps, float(longest))
            num_steps = max(1, round(min(SECONDS_A_CALL * speed, most)))
            if now - last_save > SECONDS_BETWEEN_SAVES:
                for teacher, state in zip(group, states, strict=True):
                    store.save_training(teacher, state)
                last_save = now
        yield from zip(group, states, strict=True)


def going_on(data: TeacherData, store: TeacherStore, teacher: int) -> TeacherState:
    """Returns what a teacher goes on from."""
    begun = store.load_training(teacher)
    return data.initial_state(teacher) if begun is None else begun
