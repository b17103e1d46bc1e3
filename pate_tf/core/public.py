"""Public values: the pool, labels of it, and the samples that evaluate a student."""

import dataclasses
import warnings
from typing import Any, Final, Self

import numpy as np
import numpy.typing as npt

from pate_tf.core.checks import IntArray, frozen_view, whole, whole_numbers
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

# How good predictions of a target are, and what a constant answer reaches.
MEASURES: Final = {NUMBER: ("R^2", 0.0), SEVERAL_LABELS: ("mean area under the curve", 0.5)}
STANDARD_DEVIATIONS: Final = 1.96  # of a 95 % interval
UNLIKE = 1e-6  # probability below which two parts of shuffled samples are not as different


@dataclasses.dataclass(frozen=True, eq=False)
class Pool(Examples):
    """Public: unlabeled inputs. A student learns from them and from released labels.

    One without inputs says that there are none: a student follows from private records' noisy
    moments alone then. A pool equals itself alone, so that it can be the key of a cache.

    Attributes:
        dataset: what is publicly known of them.
        inputs: `[num_inputs, *input_shape]`.
        true_labels: as of `checked_labels`, some unknown; None if none is known. For forecasts
            and what comes of their trial: a table's representation, the calibration of a linear
            model. No strategy sees them. A student learns from them with `public_labels="train"`.
    """

    true_labels: npt.NDArray[Any] | None = dataclasses.field(default=None, repr=False)

    @property
    def majority_share(self) -> float | None:
        """Share of the most frequent class among those labeled.

        None if none has a label, or labels are no classes.
        """
        if self.dataset.target != CLASS:
            return None
        return majority_share(self.true_labels)

    @property
    def num_labeled(self) -> int:
        """How many inputs have a true label."""
        return 0 if self.true_labels is None else int(is_labeled(self.true_labels).sum())


def majority_share(labels: IntArray | None) -> float | None:
    """Returns the share of the most frequent of labels `[num_labels]`, -1 where unknown.

    A constant answer has this accuracy. None if none is known.
    """
    counts = np.bincount([] if labels is None else labels[labels != UNKNOWN])
    return float(counts.max() / counts.sum()) if len(counts) else None


def area_under_curve(scores: npt.NDArray[np.floating], truth: IntArray) -> float | None:
    """Returns the area under the curve of true against false positives.

    It is the share of pairs of a positive and a negative sample whose scores are in that order;
    ties count half. A constant answer has 1/2. The positive class is the second of two; of more
    classes it is the mean over those that have samples. None if all samples are of one class.

    Args:
        scores: of the classes, `[num_samples, num_classes]`.
        truth: true labels, `[num_samples]`.
    """
    import scipy.stats  # slow to import

    areas = []
    for label in [1] if scores.shape[1] == 2 else np.unique(truth):
        column = scores[:, label].astype(np.float64)
        is_positive = truth == label
        num_pairs = is_positive.sum() * (~is_positive).sum()
        if num_pairs:
            ordered = scipy.stats.mannwhitneyu(
                column[is_positive], column[~is_positive], method="asymptotic"
            )
            areas.append(ordered.statistic / num_pairs)
    return float(np.mean(areas)) if areas else None


def r_squared(
    predictions: npt.NDArray[np.floating], truth: npt.NDArray[np.floating]
) -> float | None:
    """Returns the fraction of the variance of true numbers that predictions explain.

    It is 0 for their mean as a constant answer, and negative for worse ones. None if all true
    numbers are equal.
    """
    total = float(np.square(truth - truth.mean()).sum()) if len(truth) else 0.0
    return 1.0 - float(np.square(truth - predictions).sum()) / total if total else None


def areas_of_labels(scores: npt.NDArray[np.floating], truth: IntArray) -> list[float | None]:
    """Returns `area_under_curve` of each of several labels; None where all samples are alike.

    Args:
        scores: of the labels, `[num_samples, num_labels]`.
        truth: whether each holds, `[num_samples, num_labels]`.
    """
    return [
        area_under_curve(np.column_stack([-column, column]), holds)
        for column, holds in zip(scores.T, truth.T, strict=True)
    ]


def score_of(
    outputs: npt.NDArray[np.floating], truth: npt.NDArray[Any], dataset: Dataset
) -> float | None:
    """Returns how good predictions of a number or of several labels are, by `MEASURES`.

    Args:
        outputs: numbers `[num_samples]`, or scores `[num_samples, num_labels]`.
        truth: as of `checked_labels`, all known.
        dataset: says what they are.

    Returns:
        R^2 of numbers, or the mean area under the curve of several labels; None if it can't be
        measured on these samples.
    """
    if dataset.target == NUMBER:
        return r_squared(outputs, truth)
    areas = [area for area in areas_of_labels(outputs, truth) if area is not None]
    return float(np.mean(areas)) if areas else None


@dataclasses.dataclass(frozen=True)
class PublicExamples(Examples):
    """Public inputs: the student's pool and the held-out part that evaluates it.

    Labels serve evaluation and the choice of a table's representation, and need not be there.

    Attributes:
        dataset: what is publicly known of them.
        inputs: `[num_examples, *input_shape]`.
        labels: as of `checked_labels`, unknown for those without a label; None if none has one.

    Raises:
        ValueError: if inputs or labels don't fit the data set, or an input is not finite.
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
        """Returns no samples of a data set."""
        return cls(dataset, np.zeros((0, *dataset.input_shape), dataset.input_type))

    def split(self, pool_size: int) -> "PublicSplit":
        """Shares the samples out: the first `pool_size` form the pool, the rest is held out.

        Without any sample both parts are empty. There is a warning if their classes differ more
        than chance allows (Pearson's chi-squared test).

        Raises:
            ValueError: if either part of some would be empty. Without any label nothing needs to be
                held out.
        """
        most = len(self) - (self.labels is not None)
        if len(self) and not 0 < pool_size <= most:
            raise ValueError(
                f"pool_size: expected between 1 and {most} of the {len(self)} public "
                f"samples of {self.dataset.name}, got {pool_size}"
            )
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
                    "The held-out public samples have other classes than the pool, as in a file "
                    "that is sorted by class: no accuracy on them says much. Shuffle the public "
                    "records; in Python, `held_out_seed` does.",
                    stacklevel=2,
                )
        return PublicSplit(pool=Pool(self.dataset, first.inputs, first.labels), held_out=others)

    def take(self, rows: slice | npt.NDArray[Any]) -> Self:
        """Returns the samples at some places."""
        labels = None if self.labels is None else self.labels[rows]
        return dataclasses.replace(self, inputs=self.inputs[rows], labels=labels)

    def labelled(self) -> Self | None:
        """Returns those samples that have a label; None if none has one."""
        return None if self.labels is None else self.take(is_labeled(self.labels))


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublicSplit:
    """Public: what a student learns from, and the samples that evaluate the student.

    Attributes:
        pool: unlabeled inputs, some of which are put to the teachers.
        held_out: samples outside of the pool.
    """

    pool: Pool
    held_out: PublicExamples

    def __post_init__(self) -> None:
        if self.held_out.dataset != self.pool.dataset:
            raise ValueError("held_out: expected samples of the pool's data set, got others")

    @property
    def dataset(self) -> Dataset:
        """What is publicly known of all of them."""
        return self.pool.dataset

    def without(self, queries: IntArray) -> PublicExamples:
        """Returns all public samples but those of the pool at `queries`, int64 `[num_queries]`."""
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

    Made from released labels alone (`pate_tf.accounting.charge`): those themselves, or
    with others that were inferred from them, which is post-processing and costs nothing.

    Attributes:
        query_indices: int64 `[num_labels]`, positions of the labeled inputs in the pool.
        labels: int64 `[num_labels]`.
        num_classes: number of classes.
        weights: probability of each class: float32 `[num_labels, num_classes]`, at least 0, each
            row with a sum of 1; None where all that is known is the label.
    """

    query_indices: IntArray = dataclasses.field(repr=False)
    labels: IntArray = dataclasses.field(repr=False)
    num_classes: int
    weights: npt.NDArray[np.float32] | None = dataclasses.field(default=None, repr=False)

    def checked(self) -> Self:
        """Returns labels that come from elsewhere, as int64 and float32 and read-only.

        Raises:
            ValueError: if they are not as the attributes say.
        """
        whole(num_classes=self.num_classes)
        labels = whole_numbers(self.labels, "released labels", num_classes=self.num_classes)
        indices = whole_numbers(self.query_indices, "query indices")
        if labels.ndim != 1 or indices.shape != labels.shape:
            raise ValueError(
                f"released labels: expected labels and query indices of one length, got "
                f"{list(labels.shape)} and {list(indices.shape)}"
            )
        weights = self.weights
        if weights is not None:
            weights = frozen_view(np.asarray(weights, np.float32))
            expected = (len(labels), self.num_classes)
            if weights.shape != expected:
                raise ValueError(f"weights: expected {list(expected)}, got {list(weights.shape)}")
            if not (np.isfinite(weights).all() and (weights >= 0).all()):
                raise ValueError("weights: expected finite numbers of at least 0, got others")
            if weights.size and np.abs(weights.sum(axis=1) - 1.0).max() > 1e-3:
                raise ValueError("weights: expected rows with a sum of 1, got others")
        return dataclasses.replace(self, labels=labels, query_indices=indices, weights=weights)

    @property
    def targets(self) -> npt.NDArray[Any]:
        """What a model learns: `weights` where there are some, else `labels`."""
        return self.labels if self.weights is None else self.weights

    def check_pool(self, pool: Pool) -> None:
        """Checks that a student can learn from these labels of this pool.

        Raises:
            ValueError: if there is no label, or the labels do not belong to this pool.
        """
        if len(self.labels) == 0:
            raise ValueError("student: expected at least 1 released label, got none")
        if self.query_indices.max() >= len(pool) or self.query_indices.min() < 0:
            raise ValueError(
                f"student: expected labels of a pool of {len(pool)} inputs, got others"
            )
        if self.num_classes != pool.dataset.num_classes:
            raise ValueError(
                f"student: expected labels of {pool.dataset.num_classes} classes, "
                f"got {self.num_classes}"
            )


CLUSTERS_OF_CLASS = (1, 2, 3, 5, 10)
FEWEST_OF_CLUSTER = 20  # inputs of the pool


def cluster_numbers(pool_size: int, num_classes: int) -> list[int]:
    """Returns the numbers of clusters that a pool can have, ascending; at least one."""
    most = max(pool_size // FEWEST_OF_CLUSTER, 1)
    return sorted({min(number * num_classes, most) for number in CLUSTERS_OF_CLASS})
