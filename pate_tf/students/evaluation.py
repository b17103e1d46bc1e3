"""How good a student is on public samples that it got no label for."""

import pathlib
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf
from scipy.stats import binomtest, mannwhitneyu

from pate_tf.core import tensorboard
from pate_tf.core.public import UNKNOWN, PoolLabels, PublicExamples, PublicSplit
from pate_tf.core.validation import IntArray
from pate_tf.students.batches import outputs
from pate_tf.students.training import averaged_or_own


def measure(
    labels: IntArray, truth: IntArray, probabilities: npt.NDArray[np.floating]
) -> dict[str, Any]:
    """Compares labels `[num_samples]` with true ones, and their probabilities; JSON values.

    Args:
        labels: what a student answered.
        truth: true labels, `[num_samples]`, at least one.
        probabilities: of the classes, `[num_samples, num_classes]`.

    Returns:
        `accuracy` with its 95 % Wilson score interval `accuracy_interval`; `recall` of each class,
        None for one without samples, and their mean `balanced_accuracy`; `auc`, the area under the
        curve of true against false positives, of the second class of two, else the mean of each
        class against the others, None where a class has no sample; `majority_accuracy` of the
        most frequent class; and the expected `calibration_error`: over bins of confidence a tenth
        wide, the mean difference of confidence and accuracy by the number of samples (Guo et al.
        2017, https://arxiv.org/abs/1706.04599).
    """
    is_correct, num_classes = labels == truth, probabilities.shape[1]
    interval = binomtest(int(is_correct.sum()), len(truth)).proportion_ci(method="wilson")
    recall = [
        float(is_correct[truth == label].mean()) if (truth == label).any() else None
        for label in range(num_classes)
    ]
    auc = None
    if None not in recall and num_classes > 1:
        areas = []
        for label in [1] if num_classes == 2 else range(num_classes):
            scores, is_positive = probabilities[:, label].astype(np.float64), truth == label
            # Pairs of a positive and a negative whose scores are in that order; ties are half.
            pairs = mannwhitneyu(scores[is_positive], scores[~is_positive], method="asymptotic")
            areas.append(pairs.statistic / (is_positive.sum() * (~is_positive).sum()))
        auc = float(np.mean(areas))
    confidence = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    places = np.minimum((confidence * 10).astype(np.int64), 9)
    gaps = np.bincount(places, confidence - is_correct)
    return {
        "num_evaluated": len(truth),
        "accuracy": float(is_correct.mean()),
        "accuracy_interval": [float(interval.low), float(interval.high)],
        "majority_accuracy": float(np.bincount(truth).max() / len(truth)),
        "balanced_accuracy": float(np.mean([share for share in recall if share is not None])),
        "recall": recall,
        "auc": auc,
        "calibration_error": float(np.abs(gaps).sum() / len(truth)),
    }


def recall_in_words(recall: float | None) -> str:
    """Returns a class's recall in per cent; that there was no sample of it, for None."""
    return "no sample" if recall is None else f"{recall:.1%}"


def accuracy_in_pool(labels: PoolLabels, public: PublicSplit) -> float | None:
    """Returns the accuracy of labels of the pool; None if no true label of them is known."""
    if public.pool_labels is None:
        return None
    truth = public.pool_labels[labels.query_indices]
    is_known = truth != UNKNOWN
    return float((labels.labels == truth)[is_known].mean()) if is_known.any() else None


NUM_SAMPLES = 1_000


class HeldOutAccuracy(keras.callbacks.Callback):
    """Writes the held-out accuracy after every epoch.

    The true labels are public and serve TensorBoard alone: a student comes out the same with and
    without it.
    """

    def __init__(self, samples: PublicExamples, logs: pathlib.Path) -> None:
        """Takes held-out samples with labels, of which the first 1,000 count, and the logs."""
        super().__init__()
        self._inputs = samples.inputs[:NUM_SAMPLES]
        self._labels = np.asarray(samples.labels)[:NUM_SAMPLES]
        self._writer = tf.summary.create_file_writer(str(logs / "held_out"))

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Writes the accuracy."""
        del logs
        predictions = outputs(averaged_or_own(self.model), self._inputs).argmax(axis=1)
        with self._writer.as_default(step=epoch):
            # Keras' own name for the accuracy in training, so that both share a chart.
            tensorboard.scalar("epoch_accuracy", (predictions == self._labels).mean())
        self._writer.flush()
