"""Keras networks that are not compiled: trained by Adam in one traced loop for all teachers.

A process a teacher loses most of its time to starting, tracing and saving; here the graph is traced
once a run (`pate_tf.teachers.training`).
"""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from pate_tf.teachers import kinds
from pate_tf.teachers.kinds import Work
from pate_tf.teachers.settings import TeacherConfig
from pate_tf.teachers.store import TrainedTeacher


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

    def train(self, work: Work, teachers: Sequence[int]) -> Iterator[tuple[int, TrainedTeacher]]:
        """See `TeacherKind.train`."""
        from pate_tf.teachers import cluster, training

        data = training.TeacherData(work.config, work.examples, work.partition)
        if work.is_on_cluster:
            yield from work.devices.train(data, teachers)
        else:
            devices = work.devices or cluster.choose_strategy()
            yield from training.train_on_devices(data, teachers, devices)

    def save(
        self,
        folder: pathlib.Path,
        config: TeacherConfig,
        teachers: Sequence[TrainedTeacher],
        encoder: Any,
    ) -> None:
        """See `TeacherKind.save`."""
        del encoder
        from pate_tf.teachers import ensemble

        arrays = zip(*(teacher.arrays for teacher in teachers), strict=True)
        stacked = [np.stack(of_teachers) for of_teachers in arrays]
        ensemble.save_module(folder, ensemble.networks_module(config, stacked))


kinds.register(Networks())
