"""Ensembles, noisy labels and students of an experiment. Each is made once and stored."""

import dataclasses
import functools
import pathlib
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

import pate_tf
from benchmarks import uci
from benchmarks.harness import Measurement, Measurements, data_dir_of, separate_registry
from pate_tf.accounting.mechanisms import Mechanism
from pate_tf.analysis.sanitised_epsilon import log_cost_epsilon, plan_release, prepare_draw
from pate_tf.analysis.vote_sources import analyse
from pate_tf.core import artifacts
from pate_tf.core.checks import IntArray
from pate_tf.data.datasets import SOURCES
from pate_tf.release.noise import SystemNoise

PAPER, OURS = "the paper", "ours"
RESULTS, REPRODUCED = PAGES = ("results", "reproduce")  # in docs/notes


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """A row of an experiment's table.

    Attributes:
        cells: by heading; the first cell names the measurement.
        numbers: numbers for the picture.
    """

    cells: Mapping[str, str]
    numbers: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ensemble:
    """The definition of an ensemble.

    Attributes:
        dataset: data set whose private records are partitioned among the teachers.
        num_teachers: 1 for a model without privacy.
        model: name of a teacher's model; None for the data set's default network.
    """

    dataset: str
    num_teachers: int
    model: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Queries:
    """Labels of some teachers, and the student that learns from them.

    Attributes:
        ensemble: the teachers.
        mechanism: draws the labels and accounts for them.
        num_queries: number of labeled inputs of the pool.
        strategy: strategy that chooses queries, by its name in `pate_tf.queries`.
        student: name in `pate_tf.students`.
        steps: steps of the student's training; None for its default.
        repetition: selects other noise, other queries and another training.
    """

    ensemble: Ensemble
    mechanism: Mechanism
    num_queries: int
    strategy: str = "first"
    student: str = "supervised"
    steps: int | None = None
    repetition: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Laboratory:
    """The place where experiments run.

    Attributes:
        measurements: stored results; their seed is also the seed of all training.
        folder: sensitive; holds ensembles and their votes.
        data_dir: folder of the data sets; None for the folders next to the checkout.
        images: image data sets of the paper's experiments.
        is_quick: whether sizes are small enough to show within minutes that everything runs.
    """

    measurements: Measurements
    folder: pathlib.Path
    data_dir: pathlib.Path | None
    images: Sequence[str]
    is_quick: bool

    def is_missing(self, dataset: str) -> bool:
        """Returns whether a data set is missing here, and prints a note if so."""
        folder = data_dir_of(dataset, self.data_dir)
        builder = SOURCES[dataset].builder if dataset in SOURCES else dataset
        missing = folder is not None and not (folder / builder).is_dir()
        if missing:
            print(f"  {dataset}: left out, it is not prepared in {folder}", flush=True)
        return missing

    def available_images(self) -> list[str]:
        """Returns the image data sets that are prepared here."""
        return [dataset for dataset in self.images if not self.is_missing(dataset)]

    def data(self, dataset: str) -> pate_tf.Data:
        """Returns a data set: always the same object, whose features are computed once."""
        return _loaded(dataset, data_dir_of(dataset, self.data_dir))

    def truth(self, dataset: str) -> IntArray:
        """Returns the true labels of the public samples: pool, then held-out samples."""
        public = self.data(dataset).public
        if public.pool.true_labels is None or public.held_out.labels is None:
            raise ValueError(f"{dataset}: expected labels of the public samples, got none")
        return np.concatenate([public.pool.true_labels, public.held_out.labels])

    def votes(self, ensemble: Ensemble) -> IntArray:
        """SENSITIVE: returns all votes on the public samples, `[num_teachers, num_samples]`."""
        artifacts.make_sensitive_folder(self.folder)
        name = "-".join(map(str, dataclasses.astuple(ensemble)))
        run = self.folder / f"{name}-seed{self.measurements.seed}"
        path = run / "votes.npz"
        if not path.exists():
            data = self.data(ensemble.dataset)
            with separate_registry():
                teachers = pate_tf.Teachers(
                    ensemble.model,
                    num_teachers=ensemble.num_teachers,
                    directory=run,
                    seed=self.measurements.seed,
                ).fit(data.private)
            inputs = np.concatenate([data.pool.inputs, data.held_out.inputs])
            artifacts.write_arrays(path, {"labels": teachers.votes(inputs)}, private=True)
        return artifacts.read_arrays(path)["labels"]

    def counts(self, ensemble: Ensemble) -> IntArray:
        """SENSITIVE: returns votes for each class, `[num_samples, num_classes]`."""
        classes = np.arange(self.data(ensemble.dataset).dataset.num_classes)
        return np.stack([(self.votes(ensemble) == label).sum(axis=0) for label in classes], axis=1)

    def ensemble(self, ensemble: Ensemble) -> Measurement:
        """Returns accuracies of single teachers and of their plurality, on all public samples."""

        def measure() -> dict[str, float]:
            truth = self.truth(ensemble.dataset)
            correct = self.votes(ensemble) == truth
            pool_size = self.data(ensemble.dataset).dataset.pool_size
            return {
                "mean": float(correct.mean()),
                "worst": float(correct.mean(axis=1).min()),
                "best": float(correct.mean(axis=1).max()),
                "plurality": float((self.counts(ensemble).argmax(axis=1) == truth).mean()),
                "held_out": float(correct[:, pool_size:].mean()),
            }

        return self.measurements.of("ensemble", dataclasses.asdict(ensemble), measure)

    def student(self, queries: Queries) -> Measurement:
        """Returns the cost of labels, their accuracy, and the accuracy of a student.

        `held_out` and `unqueried`: accuracy of the student on the held-out samples and on all
        public samples that were not queried; None without a label. `labels` and `training_labels`:
        accuracy of the released labels and of all labels that the student learns from. `paper`,
        `exact`, `sanitised`, `worst_case`: see `costs`.
        """
        dataset = queries.ensemble.dataset

        def measure() -> dict[str, Any]:
            data, truth = self.data(dataset), self.truth(dataset)
            pool_size, seed = len(data.pool), self.measurements.seed + queries.repetition
            with separate_registry() as folder, warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # labels may all be withheld
                teachers = pate_tf.Teachers.from_votes(
                    self.votes(queries.ensemble)[:, :pool_size], directory=folder / "run"
                )
                delta = delta_of(dataset)
                with pate_tf.Labeller(teachers, queries.mechanism, delta=delta) as labeller:
                    labels = labeller.label(
                        data.pool, queries.num_queries, strategy=queries.strategy, seed=seed
                    )
            training = labels.training_labels
            result = {
                "num_labels": len(labels),
                "num_inferred": len(labels.inferred.labels),
                "labels": float((labels.labels == truth[labels.query_indices]).mean())
                if len(labels)
                else 0.0,
                "training_labels": float((training.labels == truth[training.query_indices]).mean())
                if len(labels)
                else 0.0,
                **costs(
                    self.counts(queries.ensemble)[labels.queries], queries.mechanism, delta=delta
                ),
            }
            if not len(labels):
                return {**result, "held_out": None, "unqueried": None}
            steps = 60 if self.is_quick and queries.student != "random_forest" else queries.steps
            student = pate_tf.Student(queries.student, steps=steps, seed=seed)
            student.fit(data.pool, labels)
            inputs = np.concatenate([data.pool.inputs, data.held_out.inputs])
            correct = student.predict(inputs) == truth
            is_queried = np.isin(np.arange(len(truth)), labels.queries)
            return {
                **result,
                "held_out": float(correct[pool_size:].mean()),
                "unqueried": float(correct[~is_queried].mean()),
            }

        config = {**dataclasses.asdict(queries), "mechanism": queries.mechanism.to_dict()}
        return self.measurements.of("student", config, measure)

    def repeated(self, queries: Queries, repetitions: int) -> list[Mapping[str, Any]]:
        """Returns results of `student` for several repetitions."""
        return [
            self.student(dataclasses.replace(queries, repetition=number)).result
            for number in range(repetitions)
        ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experiment:
    """A table or figure.

    Attributes:
        title: a heading.
        about: description of the measurement.
        rows: measures.
        draw: draws the picture from the rows' numbers; None without a picture.
        page: its page, one of `PAGES`.
    """

    title: str
    about: str
    rows: Callable[[Laboratory], Iterator[Row]]
    draw: Callable[[Figure, Sequence[Mapping[str, Any]]], None] | None = None
    page: str = RESULTS


@functools.cache
def _loaded(dataset: str, data_dir: pathlib.Path | None) -> pate_tf.Data:
    return pate_tf.Data.load(uci.FUNCTIONS.get(dataset, dataset), data_dir=data_dir)


def delta_of(dataset: str) -> float:
    """Returns the delta of the paper's epsilons for a data set."""
    return 1e-6 if dataset == "svhn" else 1e-5


def costs(
    counts: npt.NDArray[np.int64], mechanism: Mechanism, *, delta: float
) -> dict[str, float | None]:
    """Returns epsilons of labels by kind of accounting; None if a kind does not apply.

    `paper`: the paper's bound at moments 1 to 8, classic conversion. `exact`: exact and two-sided,
    or the worst case if it is smaller. `sanitised`: a privately released data-dependent epsilon, as
    if it were the only publication. `worst_case`: epsilon of the labels only, for all data.

    Args:
        counts: votes for each class, `[num_queries, num_classes]`.
        mechanism: draws the labels.
        delta: delta of all epsilons.
    """
    worst_case = analyse(counts, mechanism, delta=delta, bounds=()).epsilon
    epsilons: dict[str, float | None] = dict.fromkeys(("paper", "exact", "sanitised"))
    epsilons["worst_case"] = worst_case
    if "paper" in mechanism.bounds:
        as_published = {"num_moments": 8, "conversion": "classic", "bounds": ("paper",)}
        paper = analyse(counts, mechanism, delta=delta, **as_published)
        epsilons["paper"] = paper.bounds["paper"][0]
    if not mechanism.bounds:
        return epsilons
    exact = analyse(counts, mechanism, delta=delta, bounds=("exact",)).bounds["exact"][0]
    epsilons["exact"] = min(exact, worst_case)
    if mechanism.withholds:
        return epsilons
    plan = plan_release(
        mechanism,
        num_queries=len(counts),
        num_teachers=int(counts[0].sum()),
        num_classes=counts.shape[1],
        delta=delta,
    )
    drawn = prepare_draw(counts, mechanism, plan, delta)(SystemNoise().discrete_gaussian)
    epsilons["sanitised"] = log_cost_epsilon(drawn["steps"], mechanism, plan, delta).epsilon
    return epsilons
