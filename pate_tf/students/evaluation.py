"""How good a student is on public samples that it got no label for."""

import dataclasses
import pathlib
from collections.abc import Mapping

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score

from pate_tf.core import event_files
from pate_tf.core.public import UNKNOWN, PoolLabels, PublicExamples, PublicSplit
from pate_tf.core.validation import IntArray
from pate_tf.students.batches import outputs
from pate_tf.students.training import AveragedStudent


@dataclasses.dataclass(frozen=True)
class Accuracy:
    """A share of correct answers with what the number of samples leaves open.

    Attributes:
        value: correct answers over samples.
        num_samples: how many samples it was measured on.
    """

    value: float
    num_samples: int

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % Wilson score interval."""
        right = round(self.value * self.num_samples)
        interval = binomtest(right, self.num_samples).proportion_ci(method="wilson")
        return float(interval.low), float(interval.high)


def accuracy(labels: npt.ArrayLike, truth: npt.ArrayLike) -> Accuracy:
    """Compares labels `[num_samples]` with the truth `[num_samples]`.

    Raises:
        ValueError: if there are none, or their numbers differ.
    """
    predictions, expected = np.asarray(labels), np.asarray(truth)
    if predictions.shape != expected.shape or predictions.ndim != 1 or not predictions.size:
        raise ValueError(
            f"accuracy: expected two lists of labels of one length, got "
            f"{list(predictions.shape)} and {list(expected.shape)}"
        )
    return Accuracy(float((predictions == expected).mean()), predictions.size)


def accuracy_in_pool(labels: PoolLabels, public: PublicSplit) -> Accuracy | None:
    """Returns how many labels of the pool are right; None if no true label of them is known."""
    if public.pool_labels is None:
        return None
    truth = public.pool_labels[labels.query_indices]
    is_known = truth != UNKNOWN
    return accuracy(labels.labels[is_known], truth[is_known]) if is_known.any() else None


def true_labels(samples: PublicExamples) -> IntArray:
    """Returns the labels of samples that all have one, as `PublicExamples.labelled` gives them.

    Raises:
        ValueError: if a sample has none.
    """
    if samples.labels is None or (samples.labels == UNKNOWN).any():
        raise ValueError("samples: expected a label of each, got samples without")
    return samples.labels


@dataclasses.dataclass(frozen=True)
class ByClass:
    """What public labels say of answers, class by class: what accuracy hides of rare classes.

    Attributes:
        recall: of each class, the share of its samples that were given it; None for a class without
            samples.
        auc: area under the curve of true against false positives, of the second class of two, else
            the mean of each class against the others; None where a class has no sample.
        is_constant: whether all answers are the same.
    """

    recall: tuple[float | None, ...]
    auc: float | None
    is_constant: bool

    @property
    def balanced_accuracy(self) -> float:
        """Mean recall of the classes that have samples."""
        return float(np.mean([recall for recall in self.recall if recall is not None]))


def by_class(
    labels: IntArray, truth: IntArray, num_classes: int, probabilities: npt.NDArray[np.floating]
) -> ByClass:
    """Compares labels `[num_samples]` with true ones, class by class.

    Args:
        labels: what a student answered.
        truth: true labels, `[num_samples]`.
        num_classes: number of classes.
        probabilities: of the classes, `[num_samples, num_classes]`.
    """
    recall = tuple(
        float((labels[truth == label] == label).mean()) if (truth == label).any() else None
        for label in range(num_classes)
    )
    auc = None
    if None not in recall and num_classes > 1:
        areas = [
            roc_auc_score(truth == label, probabilities[:, label].astype(np.float64))
            for label in ([1] if num_classes == 2 else range(num_classes))
        ]
        auc = float(np.mean(areas))
    return ByClass(recall, auc, is_constant=bool((labels == labels[0]).all()))


@dataclasses.dataclass(frozen=True)
class Calibration:
    """How well probabilities tell how many answers are right.

    Attributes:
        confidence: mean probability of the class that was given.
        error: expected calibration error: over bins of confidence a tenth wide, the mean difference
            of confidence and accuracy by the number of samples
            (Guo et al. 2017, https://arxiv.org/abs/1706.04599).
        bins: of those with samples, `confidence`, `accuracy` and `number`, in rising order.
    """

    confidence: float
    error: float
    bins: tuple[Mapping[str, float], ...]


def calibration(
    labels: IntArray, truth: IntArray, probabilities: npt.NDArray[np.floating]
) -> Calibration:
    """Compares the probabilities `[num_samples, num_classes]` of labels with the truth."""
    confidence = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    is_correct = (labels == truth).astype(np.float64)
    places = np.minimum((confidence * 10).astype(np.int64), 9)
    bins = tuple(
        {
            "confidence": float(confidence[places == place].mean()),
            "accuracy": float(is_correct[places == place].mean()),
            "number": int((places == place).sum()),
        }
        for place in np.unique(places)
    )
    error = sum(part["number"] * abs(part["confidence"] - part["accuracy"]) for part in bins)
    return Calibration(float(confidence.mean()), float(error / len(labels)), bins)


NUM_SAMPLES = 1_000
EPOCHS_BETWEEN_PICTURES = 5


class HeldOutAccuracy(keras.callbacks.Callback):
    """Writes the held-out accuracy after every epoch, and a confusion matrix after some.

    The true labels are public and serve these pictures alone: a student comes out the same with and
    without it.
    """

    def __init__(self, samples: PublicExamples, logs: pathlib.Path) -> None:
        """Takes held-out samples with labels, of which the first 1,000 count, and the logs."""
        super().__init__()
        self._dataset = samples.dataset
        self._inputs = samples.inputs[:NUM_SAMPLES]
        self._labels = true_labels(samples)[:NUM_SAMPLES]
        self._logs = logs / "held_out"

    def on_train_begin(self, logs: Mapping[str, float] | None = None) -> None:
        """Opens the event file."""
        del logs
        self._writer = tf.summary.create_file_writer(str(self._logs))

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Writes the accuracy, every five epochs the confusion matrix."""
        del logs
        student = self.model
        logits = student.averaged_logits if isinstance(student, AveragedStudent) else student
        predictions = outputs(logits, self._inputs).argmax(axis=1)
        with self._writer.as_default(step=epoch):
            # Keras' own name for the accuracy in training, so that both share a chart.
            tf.summary.scalar("epoch_accuracy", (predictions == self._labels).mean())
            if (epoch + 1) % EPOCHS_BETWEEN_PICTURES == 0:
                picture = event_files.confusion_picture(
                    self._dataset, truth=self._labels, given=predictions
                )
                tf.summary.image("confusion_matrix", picture)
        self._writer.flush()
