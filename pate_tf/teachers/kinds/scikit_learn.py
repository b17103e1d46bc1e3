"""Classifiers of scikit-learn: fitted in processes side by side, one file, asked in threads.

Fitting a small classifier is mostly Python, which threads can't share; asking one is compiled code,
which they can.
"""

import concurrent.futures
import pathlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts, validation
from pate_tf.core.sensitive import Votes
from pate_tf.teachers import kinds
from pate_tf.teachers.kinds import Work
from pate_tf.teachers.processes import in_order, num_cores
from pate_tf.teachers.settings import TeacherConfig
from pate_tf.teachers.store import TrainedTeacher
from pate_tf.teachers.voters import Ensemble, Progress

FILE = "classifiers.npz"
ENCODER = "encoder"  # folder of a SavedModel, of classifiers on features


class Classifiers(kinds.TeacherKind):
    """Random forests, and unfitted classifiers of scikit-learn that a function returns."""

    name = "scikit_learn"
    models: ClassVar[Mapping[str, str]] = {"random_forest": "a random forest of scikit-learn"}
    representation = "optional"

    def takes(self, built: Any) -> bool:
        """See `TeacherKind.takes`."""
        from pate_tf.models import classifier

        return classifier.is_storable_classifier(built)

    def check(self, work: Work) -> None:
        """See `TeacherKind.check`."""
        from pate_tf.models import classifier

        classifier.check_learns(work.config.model, work.learns_on)

    def definition(self, work: Work) -> dict[str, Any]:
        """See `TeacherKind.definition`."""
        from pate_tf.models import forest
        from pate_tf.models.definition import definition_of

        estimator = definition_of(forest.unfitted(work.config.model, work.learns_on))
        return {f"estimator {name}": value for name, value in estimator.items()}

    def train(self, work: Work, teachers: Sequence[int]) -> Iterator[tuple[int, TrainedTeacher]]:
        """See `TeacherKind.train`. The result does not depend on the number of processes.

        Other processes than this one fit only a model that they can import.
        """
        from pate_tf.models import classifier

        config = work.config
        arguments = (
            (
                *(config.model, work.learns_on, inputs, labels),
                int(np.random.SeedSequence([config.seed, teacher]).generate_state(1)[0]),
            )
            for teacher, inputs, labels in work.shards(teachers)
        )
        num_processes = min(work.num_processes or num_cores(), len(teachers))
        fitted = in_order(classifier.fit, arguments, num_processes=num_processes)
        for teacher in sorted(teachers):
            yield teacher, TrainedTeacher(next(fitted))

    def save(
        self,
        folder: pathlib.Path,
        config: TeacherConfig,
        teachers: Sequence[TrainedTeacher],
        encoder: Any,
    ) -> None:
        """See `TeacherKind.save`."""
        arrays = {
            f"{place}/{part}": array
            for place, teacher in enumerate(teachers)
            for part, array in enumerate(teacher.arrays)
        }
        artifacts.write_arrays(folder / FILE, arrays, private=True)
        if encoder is not None:
            from pate_tf.teachers import ensemble

            ensemble.save_encoder(folder / ENCODER, encoder)

    def load(self, folder: pathlib.Path, config: TeacherConfig) -> Ensemble:
        """See `TeacherKind.load`."""
        return ClassifierEnsemble(folder, config)


class ClassifierEnsemble(Ensemble):
    """SENSITIVE: an ensemble of scikit-learn's classifiers, loaded to be asked for votes."""

    def __init__(self, folder: pathlib.Path, config: TeacherConfig) -> None:
        """Loads what `Classifiers.save` wrote.

        Raises:
            ValueError: if it does not hold classifiers, or their encoder is missing.
        """
        from pate_tf.models import classifier

        arrays = artifacts.read_arrays(folder / FILE)
        parts: list[list[npt.NDArray[Any]]] = [[] for _ in range(config.num_teachers)]
        for name, array in arrays.items():  # in the order that they were written in
            parts[int(name.partition("/")[0])].append(array)
        self._classifiers = [classifier.from_arrays(of_teacher) for of_teacher in parts]
        learnt = artifacts.digest_arrays(arrays[name] for name in sorted(arrays))
        self._encoder: Any = None
        if config.representation is not None:
            from pate_tf.teachers import ensemble

            self._encoder = ensemble.SavedEncoder(folder / ENCODER, config.dataset)
            learnt += self._encoder.digest
            self.encoder_digest = self._encoder.digest
        super().__init__(config, learnt)

    def votes(self, inputs: npt.NDArray[Any], progress: Progress | None = None) -> Votes:
        """See `Voter.votes`."""
        validation.shape(["num_queries", *self.dataset.input_shape], queries=inputs)
        rows = inputs if self._encoder is None else self._encoder.features(inputs)
        with (
            warnings.catch_warnings(),
            concurrent.futures.ThreadPoolExecutor(num_cores()) as threads,
        ):
            warnings.simplefilter("ignore")  # what they are about can follow from records
            labels = list(threads.map(lambda fitted: fitted.predict(rows), self._classifiers))
        if progress is not None:
            progress(len(inputs))
        return Votes(np.stack(labels), self.dataset.num_classes)


kinds.register(Classifiers())
