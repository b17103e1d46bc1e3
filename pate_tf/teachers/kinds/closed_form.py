"""Classifiers on features of a public representation: solved for, thousands of them in seconds."""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

from pate_tf.teachers import kinds
from pate_tf.teachers.kinds import TrainedTeacher, Work


class ClosedForm(kinds.TeacherKind):
    """Ridge regression, nearest mean and nearest neighbor (`pate_tf.models.closed_form`)."""

    name = "closed_form"
    models: ClassVar[Mapping[str, str]] = {
        "ridge": "linear least squares on features of --representation, in closed form",
        "nearest_mean": "on such features, the nearest mean of a class",
        "nearest_neighbour": "on such features, the nearest record",
    }
    representation = "required"

    def train(self, work: Work, teachers: Sequence[int]) -> Iterator[tuple[int, TrainedTeacher]]:
        """See `TeacherKind.train`."""
        from pate_tf.models import closed_form

        encoder: Any = work.encoder
        for teacher, features, labels in work.shards(teachers):
            arrays = closed_form.fit(
                str(work.config.model),
                features,
                labels,
                num_classes=work.config.dataset.num_classes,
                num_views=encoder.num_views,
                scale=encoder.scale,
            )
            yield teacher, TrainedTeacher(arrays)

    def save(self, folder: pathlib.Path, work: Work, teachers: Sequence[TrainedTeacher]) -> None:
        """See `TeacherKind.save`."""
        import tensorflow as tf

        from pate_tf.models import closed_form
        from pate_tf.teachers import ensemble

        config, encoder = work.config, cast(Any, work.encoder)
        stacked = closed_form.stack(str(config.model), [teacher.arrays for teacher in teachers])
        module = ensemble.features_module(config, stacked, encoder)
        tf.saved_model.save(module, str(folder), signatures={"votes": module.votes})


kinds.register(ClosedForm())
