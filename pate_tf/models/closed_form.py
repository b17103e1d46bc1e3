"""Classifiers on features that need no training steps: a few records are enough for each.

On good public features, inputs of one class lie near each other. What is left to learn from private
records is which place belongs to which class, and that has a closed form.

- `ridge`: the linear functions with the least squared error to targets of +1 and -1, held small
  (Hoerl and Kennard 1970). With fewer records than features it is solved between records
  (Saunders et al. 1998), with fewer features than records between features: the same functions.
  Where it is known how much features vary in the pool they are scaled to equal variance.
- `nearest_mean`: the class whose records' mean is nearest (Snell et al. 2017 on trained features).
- `nearest_neighbour`: the class of the nearest record (Cover and Hart 1967).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

from pate_tf.core.validation import IntArray

RIDGE, NEAREST_MEAN, NEAREST_NEIGHBOUR = "ridge", "nearest_mean", "nearest_neighbour"
NAMES = (RIDGE, NEAREST_MEAN, NEAREST_NEIGHBOUR)
# Of a feature vector's mean square norm.
RIDGE_SHARE = 0.075
# The same of features of equal variance.
SCALED_SHARE = 1.0
ABSENT = -1e4  # what a class without a record scores; float16 can hold it
STORED = np.float16  # a rounding error of 1/2048 changes next to no vote, and halves the memory

Arrays = list[npt.NDArray[Any]]


def is_linear(name: str) -> bool:
    """Whether a classifier is linear functions, one a class, and keeps no record."""
    return name in (RIDGE, NEAREST_MEAN)


def fit(
    name: str,
    features: npt.NDArray[np.float32],
    labels: IntArray,
    *,
    num_classes: int,
    num_views: int,
    scale: npt.NDArray[np.float64] | None = None,
) -> Arrays:
    """Fits a classifier. SENSITIVE if the records are.

    Without any record it answers the first class, and with records of one class that class. It
    neither raises nor warns for any finite features and labels. The order of records does not
    matter, not even by rounding.

    Args:
        name: of `NAMES`.
        features: `[num_records, num_features]`.
        labels: `[num_records]`.
        num_classes: number of classes; some may have no record.
        num_views: of norm 1 each in the features, public.
        scale: as of `Encoder.scale`. `ridge` penalizes a weight the more, the more its feature
            varies.

    Returns:
        Of a linear classifier `[num_features, num_classes]` and `[num_classes]`, to multiply
        features with and to add; of others the records' features and labels.
    """
    order = sorted(range(len(labels)), key=lambda row: (features[row].tobytes(), labels[row]))
    features, labels = features[order], labels[order]
    if not is_linear(name):
        return [_stored(features), labels.astype(np.int16)]
    is_absent = np.bincount(labels, minlength=num_classes) == 0
    rows = features.astype(np.float64)
    if name == RIDGE:
        weights = _ridge(rows, labels, num_classes, num_views, scale)
        offsets = np.zeros(num_classes)
    else:
        one_hot = np.eye(num_classes)[labels]
        means = (rows.T @ one_hot) / np.maximum(one_hot.sum(axis=0), 1.0)
        # |x - m|^2 = |x|^2 - (2 x m - |m|^2), of which |x|^2 is the same for all classes.
        weights, offsets = 2.0 * means, -np.square(means).sum(axis=0)
    weights[:, is_absent] = 0.0
    offsets[is_absent] = ABSENT
    return [_stored(weights), _stored(offsets)]


def _stored(numbers: npt.NDArray[Any]) -> npt.NDArray[np.float16]:
    """Returns numbers in the type that they are stored in; those beyond it as its largest."""
    largest = float(np.finfo(STORED).max)
    return np.clip(numbers, -largest, largest).astype(STORED)


def _ridge(
    rows: npt.NDArray[np.float64],
    labels: IntArray,
    num_classes: int,
    num_views: int,
    scale: npt.NDArray[np.float64] | None,
) -> npt.NDArray[np.float64]:
    targets = 2.0 * np.eye(num_classes)[labels] - 1.0
    penalty = RIDGE_SHARE * num_views
    if scale is not None:
        # Few records show little but the directions in which all inputs differ most: teachers that
        # use those alone make the same errors. With all directions scaled to about one variance a
        # teacher errs more, but each in a way of its own, which other teachers outvote.
        rows, penalty = rows * scale, SCALED_SHARE
    num_records, num_features = rows.shape
    between_records = num_records <= num_features
    gram = rows @ rows.T if between_records else rows.T @ rows
    gram[np.diag_indices_from(gram)] += penalty
    right = targets if between_records else rows.T @ targets
    solved = right
    if len(gram):
        # By LAPACK itself, which neither raises nor warns where features are so long that the
        # penalty is lost in rounding. Then the teacher knows nothing: who sees a run stop would
        # learn something of its records.
        _, solved, failed = scipy.linalg.lapack.dposv(gram, right)
        if failed:
            solved = np.zeros_like(right)
    weights: npt.NDArray[np.float64] = rows.T @ solved if between_records else solved
    return weights if scale is None else scale[:, None] * weights


def stack(name: str, teachers: Sequence[Sequence[npt.NDArray[Any]]]) -> Arrays:
    """Joins what `fit` returned for each of at least one teacher.

    Returns:
        Of linear ones `[num_teachers, num_features, num_classes]` and `[num_teachers,
        num_classes]`; of others the features and labels of all records, in the order of the
        teachers, and int64 `[num_teachers + 1]`, where each teacher's begin, and their number.
    """
    if is_linear(name):
        return [np.stack(arrays) for arrays in zip(*teachers, strict=True)]
    features, labels = (np.concatenate(arrays) for arrays in zip(*teachers, strict=True))
    sizes = [len(each[1]) for each in teachers]
    return [features, labels, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)]
