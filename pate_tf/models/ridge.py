"""Ridge regression on features: it needs no training steps, and a few records are enough.

On good public features, inputs of one class lie near each other. What is left to learn from private
records is which place belongs to which class, and that has a closed form: the linear functions with
the least squared error to targets of +1 and -1, held small (Hoerl and Kennard 1970). With fewer
records than features it is solved between records (Saunders et al. 1998), with fewer features than
records between features: the same functions. Where it is known how much features vary in the pool
they are scaled to equal variance.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

RIDGE = "ridge"
# Of a feature vector's mean square norm.
RIDGE_SHARE = 0.075
# The same of features of equal variance.
SCALED_SHARE = 1.0
ABSENT = -1e4  # what a class without a record scores; float16 can hold it
STORED = np.float16  # a rounding error of 1/2048 changes next to no vote, and halves the memory


def fit(
    features: npt.NDArray[np.float32],
    labels: npt.NDArray[Any],
    *,
    num_classes: int,
    num_views: int,
    scale: npt.NDArray[np.float64] | None = None,
) -> list[npt.NDArray[Any]]:
    """Fits a classifier, or linear functions with the least squared error to targets. SENSITIVE.

    Without any record it answers the first class, and with records of one class that class. Linear
    functions of targets have an intercept, and are 0 without any record. It
    neither raises nor warns for any finite features and labels. The order of records does not
    matter, not even by rounding.

    Args:
        features: `[num_records, num_features]`.
        labels: `[num_records]`; or targets from 0 to 1, `[num_records, num_classes]`.
        num_classes: number of classes; some may have no record.
        num_views: of norm 1 each in the features, public.
        scale: as of `Encoder.scale`. A weight is penalized the more, the more its feature varies.

    Returns:
        Weights `[num_features, num_classes]`, to multiply features with, and offsets
        `[num_classes]`, to add.
    """
    order = sorted(
        range(len(labels)), key=lambda row: (features[row].tobytes(), labels[row].tolist())
    )
    features, labels = features[order], labels[order]
    rows = features.astype(np.float64)
    center = np.zeros(rows.shape[1])
    offsets = np.zeros(num_classes)
    if labels.ndim == 1:
        is_absent = np.bincount(labels, minlength=num_classes) == 0
        targets = 2.0 * np.eye(num_classes)[labels] - 1.0
    else:
        is_absent = np.zeros(num_classes, np.bool_)
        if len(rows):
            center = rows.mean(axis=0)
            offsets = labels.mean(axis=0, dtype=np.float64)
        targets = labels - offsets
    rows = rows - center
    penalty = RIDGE_SHARE * num_views
    if scale is not None:
        # Few records show little but the directions in which all inputs differ most: teachers that
        # use those alone make the same errors. With all directions scaled to about one variance a
        # teacher errs more, but each in a way of its own, which other teachers outvote.
        rows = rows * scale
        penalty = SCALED_SHARE
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
    if scale is not None:
        weights = scale[:, None] * weights
    weights[:, is_absent] = 0.0
    largest = float(np.finfo(STORED).max)
    weights = np.clip(weights, -largest, largest)
    offsets = np.where(is_absent, ABSENT, offsets - center @ weights)
    return [weights.astype(STORED), np.clip(offsets, -largest, largest).astype(STORED)]
