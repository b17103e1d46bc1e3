"""Classifiers of scikit-learn: fitted in processes side by side, one file, asked in threads.

Fitting a small classifier is mostly Python, which threads can't share; asking one is compiled code,
which they can.
"""

import collections
import concurrent.futures
import itertools
import pathlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from pate_tf.core import artifacts
from pate_tf.core.sensitive import Votes
from pate_tf.core.validation import IntArray
from pate_tf.teachers import kinds
from pate_tf.teachers.kinds import Work
from pate_tf.teachers.processes import in_order, num_cores
from pate_tf.teachers.settings import TeacherConfig
from pate_tf.teachers.store import Finished, TeacherState, TeacherStore
from pate_tf.teachers.voters import Ensemble, Progress, Saved, by_teacher

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

    def train(
        self, work: Work, teachers: Sequence[int], store: TeacherStore
    ) -> Iterator[tuple[int, TeacherState]]:
        """See `TeacherKind.train`. The result does not depend on the number of processes.

        Other processes than this one fit only a model that they can import.
        """
        from pate_tf.models import classifier

        del store
        config, examples = work.config, work.examples
        dataset, records = work.learns_on, work.partition.all_records()
        shares: Iterator[tuple[int, npt.NDArray[Any], IntArray]]
        if work.encoder is None:
            order = list(teachers)
            shares = (
                (one, examples.inputs[records[one]], examples.labels[records[one]]) for one in order
            )
        else:
            from pate_tf.teachers import on_features

            order = sorted(teachers)
            shares = on_features.features_of_shares(examples, work.partition, order, work.encoder)

        def arguments(teacher: int, inputs: npt.NDArray[Any], labels: IntArray) -> tuple[Any, ...]:
            seed = int(np.random.SeedSequence([config.seed, teacher]).generate_state(1)[0])
            return config.model, dataset, inputs, labels, seed

        fitted = in_order(
            classifier.fit,
            itertools.starmap(arguments, shares),
            num_processes=min(work.engine.num_processes or num_cores(), len(order)),
        )
        for teacher in order:
            yield teacher, TeacherState(next(fitted))

    def save(
        self, folder: pathlib.Path, config: TeacherConfig, finished: Finished, encoder: Any
    ) -> None:
        """See `TeacherKind.save`; ValueError if a teacher's arrays hold no classifier."""
        arrays = {
            f"{place}/{part}": array
            for place, parts in enumerate(finished.each())
            for part, array in enumerate(parts)
        }
        _classifiers(arrays, config.num_teachers)
        artifacts.write_arrays(folder / FILE, arrays, private=True)
        if encoder is not None:
            from pate_tf.teachers import ensemble

            ensemble.save_encoder(folder / ENCODER, encoder)

    def load(self, saved: Saved) -> Ensemble:
        """See `TeacherKind.load`."""
        return ClassifierEnsemble(saved)


def _classifiers(arrays: Mapping[str, npt.NDArray[Any]], num_teachers: int) -> list[Any]:
    """Rebuilds the classifiers of all teachers from the arrays `<teacher>/<part>`."""
    from pate_tf.models import classifier

    sizes = collections.Counter(name.partition("/")[0] for name in arrays)
    names = [[f"{t}/{part}" for part in range(sizes[str(t)])] for t in range(num_teachers)]
    if not all(names) or arrays.keys() != {name for parts in names for name in parts}:
        raise ValueError(f"expected the arrays of {num_teachers} teachers, got others")
    rebuilt = []
    for teacher, parts in enumerate(names):
        try:
            rebuilt.append(classifier.from_arrays([arrays[name] for name in parts]))
        except ValueError as error:
            raise ValueError(f"teacher {teacher}: {error}") from error
    return rebuilt


class ClassifierEnsemble(Ensemble):
    """SENSITIVE: an ensemble of scikit-learn's classifiers, loaded to be asked for votes."""

    def __init__(self, saved: Saved) -> None:
        """Loads what `Classifiers.save` wrote.

        Raises:
            ValueError: if it does not hold classifiers, or their encoder is missing.
        """
        arrays = artifacts.read_arrays(saved.folder / FILE)
        self._classifiers = _classifiers(arrays, saved.config.num_teachers)
        learnt = artifacts.digest_arrays(arrays[name] for name in sorted(arrays))
        self._encoder: Any = None
        num_features = int(np.prod(saved.config.dataset.input_shape))
        if saved.config.representation is not None:
            from pate_tf.teachers import ensemble

            self._encoder = ensemble.SavedEncoder(saved.folder / ENCODER, saved.config.dataset)
            learnt += self._encoder.digest
            self.encoder_digest = self._encoder.digest
            num_features = self._encoder.num_features
        expected = (num_features, saved.config.dataset.num_classes)
        for one in self._classifiers:  # of scikit-learn's others it is checked at the vote
            got = (getattr(one, "num_features", None), getattr(one, "num_classes", None))
            if None not in got and got != expected:
                raise ValueError(
                    f"expected forests of {expected[0]} features and {expected[1]} classes, got "
                    f"{got[0]} and {got[1]}"
                )
        super().__init__(saved, learnt)

    def _votes(self, inputs: npt.NDArray[Any], progress: Progress | None) -> Votes:
        rows = inputs if self._encoder is None else self._encoder.features(inputs)
        labels: IntArray = np.empty((self.num_teachers, len(rows)), np.int64)
        with (
            warnings.catch_warnings(),
            concurrent.futures.ThreadPoolExecutor(num_cores()) as threads,
        ):
            warnings.simplefilter("ignore")  # what they are about can follow from records
            answers = threads.map(lambda one: one.predict(rows), self._classifiers)
            for teacher in range(self.num_teachers):
                try:
                    labels[teacher] = next(answers)
                except ValueError as error:
                    raise ValueError(f"teacher {teacher}: {error}") from error
                by_teacher(progress, teacher, self.num_teachers, len(rows))
        return Votes(labels, self.dataset.num_classes)


kinds.register(Classifiers())
