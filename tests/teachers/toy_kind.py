"""A kind of teacher in one file: each teacher answers the commonest label of its share."""

import numpy as np

from pate_tf.core import artifacts
from pate_tf.core.sensitive import Votes
from pate_tf.teachers import kinds
from pate_tf.teachers.store import TeacherState
from pate_tf.teachers.voters import Ensemble

FILE = "commonest.npz"


class Commonest(kinds.TeacherKind):
    name = "toy"
    models = {"commonest": "the commonest label of the share"}  # noqa: RUF012

    def train(self, work, teachers, store):
        for teacher in teachers:
            labels = work.examples.labels[work.partition.records_of(teacher)]
            counts = np.bincount(labels, minlength=work.config.dataset.num_classes)
            yield teacher, TeacherState([counts.argmax()[np.newaxis]])

    def save(self, folder, config, finished, encoder):
        (labels,) = finished.stacked()
        artifacts.write_arrays(folder / FILE, {"labels": labels}, private=True)

    def load(self, saved):
        return Answers(saved, artifacts.read_arrays(saved.folder / FILE)["labels"])


class Answers(Ensemble):
    def __init__(self, saved, labels):
        super().__init__(saved, artifacts.digest_array(labels))
        self.labels = labels

    def _votes(self, inputs, progress):
        if progress is not None:
            progress(len(inputs))
        return Votes(np.repeat(self.labels, len(inputs), axis=1), self.dataset.num_classes)


def add() -> None:
    """A setup of scripts."""
    kinds.register(Commonest())


add()
