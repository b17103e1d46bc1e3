"""Classifiers on features of a public representation: solved for, thousands of them in seconds."""

import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from pate_tf.teachers import kinds
from pate_tf.teachers.kinds import Work
from pate_tf.teachers.settings import TeacherConfig
from pate_tf.teachers.store import Finished, TeacherState, TeacherStore


class ClosedForm(kinds.TeacherKind):
    """Ridge regression, nearest mean and nearest neighbour (`pate_tf.models.closed_form`)."""

    name = "closed_form"
    models: ClassVar[Mapping[str, str]] = {
        "ridge": "linear least squares on features of --representation, in closed form",
        "nearest_mean": "on such features, the nearest mean of a class",
        "nearest_neighbour": "on such features, the nearest record",
    }
    representation = "required"

    def train(
        self, work: Work, teachers: Sequence[int], store: TeacherStore
    ) -> Iterator[tuple[int, TeacherState]]:
        """See `TeacherKind.train`."""
        from pate_tf.models import closed_form
        from pate_tf.teachers import on_features

        del store
        encoder: Any = work.encoder
        for teacher, features, labels in on_features.features_of_shares(
            work.examples, work.partition, teachers, encoder
        ):
            arrays = closed_form.fit(
                str(work.config.model),
                features,
                labels,
                num_classes=work.config.dataset.num_classes,
                num_views=encoder.num_views,
                scale=encoder.scale,
            )
            yield teacher, TeacherState(arrays)

    def save(
        self, folder: pathlib.Path, config: TeacherConfig, finished: Finished, encoder: Any
    ) -> None:
        """See `TeacherKind.save`."""
        from pate_tf.models import closed_form
        from pate_tf.teachers import ensemble

        model = str(config.model)
        # Not named here: the module has a copy.
        module = ensemble.features_module(
            config,
            finished.stacked()
            if closed_form.is_linear(model)
            else closed_form.stack(model, finished.each()),
            encoder,
        )
        ensemble.save_module(folder, module, ["votes", "counts"])


kinds.register(ClosedForm())
