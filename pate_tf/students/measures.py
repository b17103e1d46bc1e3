"""Quality measures of a student on labeled public samples, such as accuracy and recall.

The target is a class, a number or several labels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import binomtest

from pate_tf.core.checks import FloatArray, IntArray, RealArray
from pate_tf.core.dataset import CLASS, NUMBER, Dataset
from pate_tf.core.public import area_under_curve, areas_of_labels, r_squared
from pate_tf.core.reporting import Row, amount


def measure(
    predictions: npt.NDArray[Any],
    truth: npt.NDArray[Any],
    probabilities: RealArray,
    dataset: Dataset,
) -> dict[str, Any]:
    """Compares a student's predictions with the true values; returns JSON values.

    Args:
        predictions: predicted classes `[num_samples]`, numbers `[num_samples]`, or several labels
            per sample `[num_samples, num_labels]`.
        truth: true values, in the same shape as `predictions`. There must be at least one sample.
        probabilities: predicted probabilities of the classes or labels; ignored if the target is a
            number.
        dataset: data set of the samples, which defines the type of target.
    """
    if dataset.target == CLASS:
        return measure_classes(predictions, truth, probabilities)
    if dataset.target == NUMBER:
        return measure_numbers(predictions.astype(np.float64), truth)
    return measure_labels(predictions, truth, probabilities)


def measure_numbers(predictions: FloatArray, truth: FloatArray) -> dict[str, Any]:
    """Compares predicted numbers with true numbers, both `[num_samples]`; returns JSON values.

    Returns:
        `r_squared`, see `core.public.r_squared`; `root_mean_squared_error` and
        `mean_absolute_error` in the unit of the numbers; and, with the prefix `constant_`, both
        errors of the best constant predictions, which are the mean and the median of the samples.
    """
    errors = truth - predictions
    of_mean = truth - truth.mean()
    of_median = truth - np.median(truth)
    return {
        "num_evaluated": len(truth),
        "r_squared": r_squared(predictions, truth),
        "root_mean_squared_error": float(np.sqrt(np.square(errors).mean())),
        "mean_absolute_error": float(np.abs(errors).mean()),
        "constant_root_mean_squared_error": float(np.sqrt(np.square(of_mean).mean())),
        "constant_mean_absolute_error": float(np.abs(of_median).mean()),
    }


def measure_labels(
    predictions: IntArray, truth: IntArray, probabilities: RealArray
) -> dict[str, Any]:
    """Compares several predicted labels per sample with the true labels; returns JSON values.

    All arguments have the shape `[num_samples, num_labels]`.

    Returns:
        Lists with one value per label: `label_auc`, `label_recall` and `label_share`, which is the
        fraction of samples that have the label. A value is None if it is undefined for these
        samples. In addition, the mean `auc` of all labels; `exact_match`, the fraction of samples
        whose labels are all correct; and `constant_exact_match`, the same if the most frequent
        combination of labels is always predicted.
    """
    holds = truth == 1
    recall = [
        float(predicted[true].mean()) if true.any() else None
        for predicted, true in zip(predictions.T, holds.T, strict=True)
    ]
    areas = areas_of_labels(probabilities, truth)
    known = [area for area in areas if area is not None]
    return {
        "num_evaluated": len(truth),
        "auc": float(np.mean(known)) if known else None,
        "exact_match": float((predictions == truth).all(axis=1).mean()),
        "constant_exact_match": float(np.unique(truth, axis=0, return_counts=True)[1].max())
        / len(truth),
        "label_auc": areas,
        "label_recall": recall,
        "label_share": [float(share) for share in holds.mean(axis=0)],
    }


def measure_classes(labels: IntArray, truth: IntArray, probabilities: RealArray) -> dict[str, Any]:
    """Compares predicted classes with true classes; returns JSON values.

    Args:
        labels: predicted classes `[num_samples]`.
        truth: true classes of at least one sample, `[num_samples]`.
        probabilities: probabilities of the classes, `[num_samples, num_classes]`.

    Returns:
        `accuracy` with its 95 % Wilson score interval `accuracy_interval`; the `recall` of each
        class (None for a class without samples) and their mean `balanced_accuracy`; `auc`, see
        `area_under_curve`; `majority_accuracy`, the accuracy of always predicting the most frequent
        class; and the expected `calibration_error`, the mean difference between confidence and
        accuracy over ten bins of confidence, weighted by the number of samples in each bin (Guo et
        al. 2017, https://arxiv.org/abs/1706.04599).
    """
    is_correct = labels == truth
    interval = binomtest(int(is_correct.sum()), len(truth)).proportion_ci(method="wilson")
    recall = [
        float(is_correct[truth == label].mean()) if (truth == label).any() else None
        for label in range(probabilities.shape[1])
    ]
    confidence = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    places = np.minimum((confidence * 10).astype(np.int64), 9)
    gaps = np.bincount(places, confidence - is_correct)
    return {
        "num_evaluated": len(truth),
        "accuracy": float(is_correct.mean()),
        "accuracy_interval": [float(interval.low), float(interval.high)],
        "majority_accuracy": float(np.bincount(truth).max() / len(truth)),
        "balanced_accuracy": float(np.mean([each for each in recall if each is not None])),
        "recall": recall,
        "auc": area_under_curve(probabilities, truth),
        "calibration_error": float(np.abs(gaps).sum() / len(truth)),
    }


def recall_in_words(recall: float | None) -> str:
    """Returns the recall of a class in percent, or "no sample" for None."""
    return "no sample" if recall is None else f"{recall:.1%}"


def rows_of_measure(measured: Mapping[str, Any], names: Sequence[str]) -> list[Row]:
    """Returns the results of `measure` as rows of a table.

    Args:
        measured: the result of `measure`.
        names: names of the classes or labels.
    """
    number = measured["num_evaluated"]
    if "r_squared" in measured:
        score = measured["r_squared"]
        explained = "all true numbers are equal" if score is None else f"{score:.3f}"
        rows = [("R^2", f"{explained} on {number:,} samples (constant prediction: 0)")]
        for name in ("root_mean_squared_error", "mean_absolute_error"):
            constant = measured[f"constant_{name}"]
            shown = f"{amount(measured[name])} (best constant: {amount(constant)})"
            rows.append((name.replace("_", " "), shown))
        return rows
    if "label_auc" in measured:
        constant = f"(best constant: {measured['constant_exact_match']:.2%})"
        shown = f"{measured['exact_match']:.2%} of {number:,} samples {constant}"
        rows = [("all labels correct", shown)]
        if measured["auc"] is not None:
            rows.append(("mean area under the curve", f"{measured['auc']:.3f} (constant: 0.5)"))
        columns = [measured[f"label_{fact}"] for fact in ("auc", "recall", "share")]
        for name, area, recall, share in zip(names, *columns, strict=True):
            curve = "not measured" if area is None else f"{area:.3f}"
            shown = f"area under the curve {curve}, recall {recall_in_words(recall)}, "
            rows.append((name, f"{shown}share of records with this label {share:.1%}"))
        return rows
    low, high = measured["accuracy_interval"]
    interval = f"95 % interval {low:.2%} to {high:.2%}"
    rows = [
        ("accuracy", f"{measured['accuracy']:.2%} of {number:,} ({interval})"),
        ("always the majority class", f"{measured['majority_accuracy']:.2%}"),
    ]
    for name, recall in zip(names, measured["recall"], strict=True):
        rows.append((f"recall of {name}", recall_in_words(recall)))
    rows.append(("balanced accuracy", f"{measured['balanced_accuracy']:.2%}"))
    if measured["auc"] is not None:
        rows.append(("area under the curve", f"{measured['auc']:.3f}"))
    rows.append(("expected calibration error", f"{measured['calibration_error']:.2%}"))
    return rows
