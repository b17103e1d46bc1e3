"""Keras networks that are not compiled: trained by Adam in one traced loop for all teachers.

A process a teacher loses most of its time to starting, tracing and saving; here the graph is traced
once a run (`pate_tf.teachers.training`).
"""

import pathlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from pate_tf.teachers import kinds, store
from pate_tf.teachers.kinds import Work
from pate_tf.teachers.settings import TeacherConfig
from pate_tf.teachers.store import Finished, TeacherState, TeacherStore

SECONDS_A_CALL = 5.0  # of the training loop: how often a long training can be saved


class Networks(kinds.TeacherKind):
    """Networks of the catalogue, and Keras models of the user's that are not compiled."""

    name = "networks"
    models: ClassVar[Mapping[str, str]] = {
        "cnn": "three small convolutions",
        "wide_cnn": "the same with twice the channels",
        "mlp": "one hidden layer",
        "deeper": "six convolutions with dropout",
        "paper_mnist": "the paper's",
        "paper_svhn": "the paper's for SVHN",
    }
    settings: ClassVar[tuple[str, ...]] = kinds.OF_STEPS
    is_distributed = True
    augments = True

    def takes(self, built: Any) -> bool:
        """See `TeacherKind.takes`."""
        import keras

        return isinstance(built, keras.Model) and not built.compiled

    def check(self, work: Work) -> None:
        """See `TeacherKind.check`."""
        from pate_tf.models import catalogue

        model = catalogue.build(work.config.model, work.config.dataset)
        catalogue.check_draws(model, training=True)

    def definition(self, work: Work) -> dict[str, Any]:
        """See `TeacherKind.definition`."""
        from pate_tf.models.definition import model_definition

        return {"architecture": model_definition(work.config.model, work.learns_on)}

    def train(
        self, work: Work, teachers: Sequence[int], store: TeacherStore
    ) -> Iterator[tuple[int, TeacherState]]:
        """See `TeacherKind.train`. Goes on from unfinished states."""
        from pate_tf.teachers import cluster, training

        data = training.TeacherData(work.config, work.examples, work.partition)
        if work.engine.is_cluster:
            yield from work.engine.devices.train(
                data, teachers, lambda teacher: _going_on(data, store, teacher)
            )
            return
        is_parallel = work.engine.parallelism == "data"
        trainer = training.DataParallelTrainer if is_parallel else training.EnsembleParallelTrainer
        devices = work.engine.devices or cluster.choose_strategy()
        yield from _train_here(trainer(data, devices), store, teachers)

    def save(
        self, folder: pathlib.Path, config: TeacherConfig, finished: Finished, encoder: Any
    ) -> None:
        """See `TeacherKind.save`."""
        del encoder
        from pate_tf.teachers import ensemble

        module = ensemble.networks_module(config, finished.stacked())
        ensemble.save_module(folder, module, ["votes", "counts", "probabilities"])

    def save_each(self, folder: pathlib.Path, config: TeacherConfig, finished: Finished) -> None:
        """See `TeacherKind.save_each`."""
        from pate_tf.teachers import ensemble

        ensemble.save_each(folder, config, finished.stacked())


def _train_here(
    trainer: Any, teacher_store: TeacherStore, teachers: Sequence[int]
) -> Iterator[tuple[int, TeacherState]]:
    """Yields finished teachers; saves the state of those that take long."""
    num_steps = 1  # the first call traces the graph; later ones adapt to its speed
    data = trainer.data
    for start in range(0, len(teachers), trainer.group_size):
        group = teachers[start : start + trainer.group_size]
        states = [_going_on(data, teacher_store, teacher) for teacher in group]
        wanted = [data.num_steps(teacher) for teacher in group]
        last_save = time.monotonic()
        while any(state.step < steps for state, steps in zip(states, wanted, strict=True)):
            began = time.monotonic()
            states = trainer.advance(group, states, num_steps)
            now = time.monotonic()
            speed = num_steps / max(now - began, 1e-3)
            most = min(100.0 * num_steps, float(max(wanted)))
            num_steps = max(1, round(min(SECONDS_A_CALL * speed, most)))
            if now - last_save > store.SECONDS_BETWEEN_SAVES:
                for teacher, state in zip(group, states, strict=True):
                    teacher_store.save_training(teacher, state)
                last_save = now
        yield from zip(group, states, strict=True)


def _going_on(data: Any, teacher_store: TeacherStore, teacher: int) -> TeacherState:
    """Returns what a teacher goes on from."""
    begun = teacher_store.load_training(teacher)
    return data.initial_state(teacher) if begun is None else begun


kinds.register(Networks())
