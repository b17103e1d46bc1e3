"""Public values: the pool, its labels, and the samples on which a student is evaluated."""

import dataclasses
import warnings
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from pate_tf.core.checks import IntArray, frozen_view, shape, whole, whole_numbers
from pate_tf.core.dataset import (
    CLASS,
    NUMBER,
    SEVERAL_LABELS,
    UNKNOWN,
    Dataset,
    Examples,
    checked_labels,
    is_labeled,
    unlabeled,
)

# For each target: the name of its quality measure, and the value of a constant prediction.
MEASURES: Final = {NUMBER: ("R^2", 0.0), SEVERAL_LABELS: ("mean area under the curve", 0.5)}
STANDARD_DEVIATIONS: Final = 1.96  # half of a 95 % confidence interval, in standard errors
UNLIKE = 1e-6  # below this p-value, the samples were probably not shuffled before the split


@dataclasses.dataclass(frozen=True, eq=False)
class Pool(Examples):
    """Public inputs. A student learns from them and from their released labels.

    A pool may be empty. The student is then computed only from noisy second moments of the private
    records. Pools are compared by identity, so a pool can be the key of a cache.

    Attributes:
        dataset: public facts about the inputs.
        inputs: `[num_inputs, *input_shape]`.
        true_labels: public labels in the format of `checked_labels`; some may be unknown. None if
            no label is known. Accuracy forecasts use these labels. The choice of a table's
            representation and the calibration of a linear model depend on forecasts, so the labels
            influence them, too. The labels never influence which inputs become queries. A student
            learns from these labels only with `public_labels="train"`.
    """

    true_labels: npt.NDArray[Any] | None = dataclasses.field(default=None, repr=False)

    @property
    def majority_share(self) -> float | None:
        """Fraction of the most frequent class among labeled inputs.

        The result is None if no label is known, or if labels are not classes.
        """
        if self.dataset.target != CLASS:
            return None
        return majority_share(self.true_labels)

    @property
    def num_labeled(self) -> int:
        """Number of inputs with a true label."""
        return 0 if self.true_labels is None else int(is_labeled(self.true_labels).sum())


def majority_share(labels: IntArray | None) -> float | None:
    """Returns the fraction of the most frequent label among all known labels; -1 means unknown.

    A model that always predicts this label has this accuracy. Returns None if no label is known.
    """
    counts = np.bincount([] if labels is None else labels[labels != UNKNOWN])
    return float(counts.max() / counts.sum()) if len(counts) else None


def area_under_curve(scores: npt.NDArray[np.floating], truth: IntArray) -> float | None:
    """Returns the area under the ROC curve.

    Consider all pairs of a positive and a negative sample. The area is the fraction of pairs in
    which the positive sample has the higher score; ties count half. Constant scores have an area of
    1/2. With two classes, the second class is positive. With more classes, the result is the mean
    over the classes that have samples. Returns None if all samples have the same class.

    Args:
        scores: scores of the classes, `[num_samples, num_classes]`.
        truth: true labels, `[num_samples]`.
    """
    labels = [1] if scores.shape[1] == 2 else np.unique(truth)
    sides = [(scores[:, label], truth == label) for label in labels]
    areas = [area_components(*side).mean() for side in sides if 0 < side[1].sum() < len(truth)]
    return float(np.mean(areas)) if areas else None


def area_components(
    scores: npt.NDArray[np.floating], holds: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float64]:
    """Returns one number for each sample; the mean of all numbers is the area under the curve.

    The standard deviation of these numbers, divided by the square root of the number of samples, is
    the standard error of the area (DeLong et al. 1988, https://doi.org/10.2307/2531595).

    Args:
        scores: scores of the samples, `[num_samples]`.
        holds: whether each sample is positive. Both values must occur.
    """
    import scipy.stats  # slow to import

    components = np.empty(len(scores))
    for side, values in ((holds, scores), (~holds, -scores)):
        ranks = scipy.stats.rankdata(values)[side] - scipy.stats.rankdata(values[side])
        areas = ranks / (~side).sum()
        components[side] = areas.mean() + (areas - areas.mean()) * len(scores) / side.sum()
    return components


def r_squared(
    predictions: npt.NDArray[np.floating], truth: npt.NDArray[np.floating]
) -> float | None:
    """Returns R^2: the fraction of the variance of the true numbers that the predictions explain.

    R^2 is 0 if every prediction is the mean, and negative for worse predictions. Returns None if
    all true numbers are equal.
    """
    total = float(np.square(truth - truth.mean()).sum()) if len(truth) else 0.0
    return 1.0 - float(np.square(truth - predictions).sum()) / total if total else None


def areas_of_labels(scores: npt.NDArray[np.floating], truth: IntArray) -> list[float | None]:
    """Returns `area_under_curve` for each label; None if a label has the same value everywhere.

    Args:
        scores: scores of the labels, `[num_samples, num_labels]`.
        truth: whether each label is true, `[num_samples, num_labels]`.
    """
    return [
        area_under_curve(np.column_stack([-column, column]), holds)
        for column, holds in zip(scores.T, truth.T, strict=True)
    ]


def score_of(
    outputs: npt.NDArray[np.floating], truth: npt.NDArray[Any], dataset: Dataset
) -> float | None:
    """Returns the quality of predicted numbers or labels, with the measure from `MEASURES`.

    Args:
        outputs: numbers `[num_samples]`, or scores `[num_samples, num_labels]`.
        truth: true values in the format of `checked_labels`; all must be known.
        dataset: data set that defines the target.

    Returns:
        R^2 for target "number", or the mean area under the curve for target "labels". None if the
        measure is undefined for these samples, for example because all true numbers are equal.
    """
    if dataset.target == NUMBER:
        return r_squared(outputs, truth)
    areas = [area for area in areas_of_labels(outputs, truth) if area is not None]
    return float(np.mean(areas)) if areas else None


@dataclasses.dataclass(frozen=True)
class PublicExamples(Examples):
    """Public inputs: the pool and the held-out samples on which the student is evaluated.

    Labels are optional. They are used to evaluate students and to choose a table's representation.

    Attributes:
        dataset: public facts about the samples.
        inputs: `[num_examples, *input_shape]`.
        labels: labels in the format of `checked_labels`; some may be unknown. None if no sample has
            a label.

    Raises:
        ValueError: if inputs or labels don't match the data set, or an input is not finite.
    """

    labels: npt.NDArray[Any] | None = dataclasses.field(default=None, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.labels is not None:
            labels = checked_labels(self.labels, self, lowest=UNKNOWN)
            is_known = is_labeled(labels).any()
            object.__setattr__(self, "labels", labels if is_known else None)

    @classmethod
    def none_of(cls, dataset: Dataset) -> Self:
        """Returns an empty set of samples of a data set."""
        return cls(dataset, np.zeros((0, *dataset.input_shape), dataset.input_type))

    def split(self, pool_size: int) -> "PublicSplit":
        """Splits the samples: the first `pool_size` become the pool, all others are held out.

        If there are no samples, both parts are empty. Warns if the class frequencies of the parts
        differ more than by chance (Pearson's chi-squared test).

        Raises:
            ValueError: if one part would be empty. Without labels, the held-out part may be empty.
        """
        most = len(self) - (self.labels is not None)
        if len(self):
            whole(1, most, pool_size=pool_size)
        first = self.take(slice(pool_size))
        others = self.take(slice(pool_size, None))
        are_classes = self.dataset.target == CLASS
        if are_classes and first.labels is not None and others.labels is not None:
            import scipy.stats  # slow to import

            counts = np.array(
                [
                    np.bincount(known[known != UNKNOWN], minlength=self.dataset.num_classes)
                    for known in (first.labels, others.labels)
                ]
            )
            found = counts[:, counts.any(axis=0)]
            if scipy.stats.chi2_contingency(found).pvalue < UNLIKE:
                warnings.warn(
                    "The held-out public samples and the pool have different class frequencies. "
                    "The file may be sorted by class. Accuracies on these samples are not "
                    "reliable. Shuffle the public records; in Python, set `held_out_seed`.",
                    stacklevel=2,
                )
        return PublicSplit(pool=Pool(self.dataset, first.inputs, first.labels), held_out=others)

    def take(self, rows: slice | npt.NDArray[Any]) -> Self:
        """Returns the samples at the given rows."""
        labels = None if self.labels is None else self.labels[rows]
        return dataclasses.replace(self, inputs=self.inputs[rows], labels=labels)

    def labelled(self) -> Self | None:
        """Returns the labeled samples; None if no sample has a label."""
        return None if self.labels is None else self.take(is_labeled(self.labels))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublicSplit:
    """Public samples, split into the pool and the samples on which the student is evaluated.

    Attributes:
        pool: unlabeled inputs, some of which are queries to the teachers.
        held_out: samples outside of the pool.
    """

    pool: Pool
    held_out: PublicExamples

    def __post_init__(self) -> None:
        if self.held_out.dataset != self.pool.dataset:
            raise ValueError("held_out.dataset must be equal to pool.dataset")

    @property
    def dataset(self) -> Dataset:
        """Public facts about all samples."""
        return self.pool.dataset

    def without(self, queries: IntArray) -> PublicExamples:
        """Returns all public samples except the pool inputs at the positions `queries`."""
        kept = np.delete(np.arange(len(self.pool)), queries)
        inputs = np.concatenate([self.pool.inputs[kept], self.held_out.inputs])
        labels = unlabeled(len(inputs), self.dataset)
        if self.pool.true_labels is not None:
            labels[: len(kept)] = self.pool.true_labels[kept]
        if self.held_out.labels is not None:
            labels[len(kept) :] = self.held_out.labels
        return PublicExamples(self.dataset, inputs, labels)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PoolLabels:
    """Public: labels of some inputs of a pool, from which a student learns.

    These labels include the released labels. They may also include labels that were inferred from
    the released labels. Such post-processing costs no privacy.

    Attributes:
        query_indices: int64 `[num_labels]`, positions of the labeled inputs in the pool.
        labels: int64 `[num_labels]`.
        num_classes: number of classes.
        weights: probability of each class, float32 `[num_labels, num_classes]`. Each row is
            non-negative and sums to 1. None if only the labels are known.
    """

    query_indices: IntArray = dataclasses.field(repr=False)
    labels: IntArray = dataclasses.field(repr=False)
    num_classes: int
    weights: npt.NDArray[np.float32] | None = dataclasses.field(default=None, repr=False)

    def checked(self) -> Self:
        """Returns the validated labels in read-only arrays of type int64 and float32.

        Raises:
            ValueError: if an attribute is invalid.
        """
        whole(num_classes=self.num_classes)
        labels = whole_numbers(self.labels, "released labels", below=self.num_classes)
        indices = whole_numbers(self.query_indices, "query indices")
        shape([labels.size], labels=labels, query_indices=indices)
        weights = self.weights
        if weights is not None:
            weights = frozen_view(np.asarray(weights, np.float32))
            shape([len(labels), self.num_classes], weights=weights)
            if not (np.isfinite(weights).all() and (weights >= 0).all()):
                raise ValueError("weights must be finite numbers of at least 0")
            if weights.size and np.abs(weights.sum(axis=1) - 1.0).max() > 1e-3:
                raise ValueError("each row of weights must sum to 1")
        return dataclasses.replace(self, labels=labels, query_indices=indices, weights=weights)

    @property
    def targets(self) -> npt.NDArray[Any]:
        """Training targets of a student: `weights` if they are known, otherwise `labels`."""
        return self.labels if self.weights is None else self.weights

    def check_pool(self, pool: Pool) -> None:
        """Checks that there are labels and that they belong to the pool.

        Raises:
            ValueError: if there is no label, or the labels don't belong to this pool.
        """
        if len(self.labels) == 0:
            raise ValueError("the student needs at least 1 released label")
        if self.query_indices.max() >= len(pool) or self.query_indices.min() < 0:
            raise ValueError(f"student: the labels don't belong to this pool of {len(pool)} inputs")
        if self.num_classes != pool.dataset.num_classes:
            raise ValueError(
                f"labels must have {pool.dataset.num_classes} classes, got {self.num_classes}"
            )


CLUSTERS_OF_CLASS = (1, 2, 3, 5, 10)
MIN_CLUSTER_SIZE = 20  # number of pool inputs


def cluster_numbers(pool_size: int, num_classes: int) -> list[int]:
    """Returns one or more candidate numbers of clusters, in ascending order."""
    most = max(pool_size // MIN_CLUSTER_SIZE, 1)
    return sorted({min(number * num_classes, most) for number in CLUSTERS_OF_CLASS})
