"""How often each teacher is right on public samples. SENSITIVE."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from pate_tf import artifacts
from pate_tf.models import classifier
from pate_tf.models.encoder import Encoder
from pate_tf.runs.teachers.going_on import Progress
from pate_tf.students.evaluation import true_labels
from pate_tf.teachers import classifiers, logs
from pate_tf.teachers import ensemble as ensembles
from pate_tf.teachers.config import TeacherConfig
from pate_tf.teachers.store import read_all_finished
from pate_tf.values.public import PublicExamples
from pate_tf.values.sensitive import Votes

VOTES_A_PART = 2**18  # that are in memory at a time
# Of all teachers: asking thousands of them about all samples would take longer than training them,
# and tell no more.
MOST_VOTES = 2**22
FEWEST_SAMPLES = 256


@dataclasses.dataclass(frozen=True)
class Accuracies:
    """Sensitive: how each teacher asked did on public samples.

    Attributes:
      values: accuracy of each, float64 `[num_asked]`.
      balanced: mean recall of the classes, likewise.
      num_constant: how many give all samples the same answer.
    """

    values: np.ndarray = dataclasses.field(repr=False)
    balanced: np.ndarray = dataclasses.field(repr=False)
    num_constant: int = dataclasses.field(repr=False)

    @property
    def mean(self) -> float:
        """Mean over the teachers."""
        return float(self.values.mean())


def enough(public: PublicExamples, num_teachers: int) -> PublicExamples:
    """Returns samples enough to measure teachers by: all, or fewer, evenly spaced among them.

    Args:
      public: samples with labels.
      num_teachers: which together give `MOST_VOTES` votes at most, or on `FEWEST_SAMPLES` samples.
    """
    number = max(FEWEST_SAMPLES, MOST_VOTES // num_teachers)
    if len(public) <= number:
        return public
    places = np.linspace(0, len(public) - 1, number).astype(np.int64)
    labels = None if public.labels is None else public.labels[places]
    return PublicExamples(public.dataset, public.inputs[places], labels)


def evaluate(
    ensemble: ensembles.Ensemble | classifiers.ClassifierEnsemble,
    public: PublicExamples,
    run_directory: artifacts.RunDirectory,
    progress: Progress | None = None,
) -> Accuracies:
    """Compares every teacher's votes with the public labels; logs percentiles to TensorBoard.

    Raises:
      ValueError: if a sample has no label.
    """
    accuracies, gaps = _measured(
        lambda inputs: ensemble.votes(inputs, progress), public, ensemble.num_teachers
    )
    logs.write_accuracies(run_directory, ensemble.config, accuracies.values)
    logs.write_gaps(run_directory, gaps)
    return accuracies


def evaluate_finished(
    config: TeacherConfig,
    public: PublicExamples,
    run_directory: artifacts.RunDirectory,
    progress: Progress | None = None,
    *,
    encoder: Encoder | None = None,
) -> Accuracies:
    """Compares the votes of those teachers that are trained so far with the public labels.

    Args:
      config: what they were trained with.
      public: the samples.
      run_directory: the run, of which one teacher at least is trained.
      progress: called with the number of samples done since its last call.
      encoder: what teachers on features take for an input.

    Raises:
      ValueError: if a file of the run is broken, or a sample has no label.
    """
    by_teacher, _ = read_all_finished(run_directory.teachers)
    teachers = [by_teacher[teacher] for teacher in sorted(by_teacher)]

    def votes(inputs: npt.NDArray[Any]) -> Votes:
        if classifier.is_classifier(config.model, config.dataset):
            return classifiers.votes_of(config, teachers, inputs, progress, encoder=encoder)
        return ensembles.votes_of(config, teachers, inputs, progress, encoder=encoder)

    return _measured(votes, public, len(teachers))[0]


def _measured(
    votes_on: Callable[[npt.NDArray[Any]], Votes], public: PublicExamples, num_teachers: int
) -> tuple[Accuracies, npt.NDArray[np.float64]]:
    """SENSITIVE: accuracies `[num_teachers]`, and gaps `[num_samples]` between first and second.

    A gap is a share of the teachers. Votes on few samples are in memory at a time.
    """
    truth = true_labels(public)
    num_classes = public.dataset.num_classes
    # By teacher and class: how many samples were given the class, and how many of them rightly.
    given = np.zeros((num_teachers, num_classes), np.int64)
    right = np.zeros_like(given)
    gaps = np.empty(len(truth))
    size = max(1, VOTES_A_PART // num_teachers)
    for start in range(0, len(truth), size):
        part = slice(start, start + size)
        votes = votes_on(public.inputs[part])
        for one in range(num_classes):
            is_given = votes.labels == one
            given[:, one] += is_given.sum(axis=1)
            right[:, one] += is_given[:, truth[part] == one].sum(axis=1)
        first_two = np.sort(votes.counts().values, axis=1)[:, -2:]
        gaps[part] = (first_two[:, 1] - first_two[:, 0]) / num_teachers
    sizes = np.bincount(truth, minlength=num_classes)
    accuracies = Accuracies(
        values=right.sum(axis=1) / len(truth),
        balanced=(right[:, sizes > 0] / sizes[sizes > 0]).mean(axis=1),
        num_constant=int((given.max(axis=1) == len(truth)).sum()),
    )
    return accuracies, gaps
