"""Ridge regression on features, which needs only a few records.

With good public features, inputs of the same class are close to each other, so a few private
records are enough to learn the class of each region. Ridge regression (Hoerl and Kennard 1970) fits
a linear function for each class, with targets +1 and -1, by regularized least squares. The solution
has a closed form. If there are fewer records than features, `fit` solves the dual problem (Saunders
et al. 1998), otherwise the primal problem; both problems have the same solution. If the variances
of the features in the pool are known, features are scaled to equal variance.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.linalg

RIDGE = "ridge"
RIDGE_FRACTION = 0.075  # penalty as a fraction of the mean squared norm of a feature vector
SCALED_FRACTION = 1.0  # same as RIDGE_FRACTION, but for features that are scaled to equal variance
ABSENT = -1e4  # score of a class without records; float16 can represent it
STORED = np.float16  # halves the memory; its rounding error of 1/2048 changes almost no vote


def fit(
    features: npt.NDArray[np.float32],
    labels: npt.NDArray[Any],
    *,
    num_classes: int,
    num_views: int,
    scale: npt.NDArray[np.float64] | None = None,
) -> list[npt.NDArray[Any]]:
    """SENSITIVE: fits a linear classifier, or linear functions for numeric targets.

    Without records, the classifier predicts the first class. If all records have one class, it
    predicts that class. Linear functions for numeric targets have an intercept; without records,
    these functions are 0. Finite features and labels never cause an error or a warning. The result
    does not depend on the order of records, not even through rounding.

    Args:
        features: features of the records, `[num_records, num_features]`.
        labels: classes, `[num_records]`; or targets from 0 to 1, `[num_records, num_classes]`.
        num_classes: number of classes, or of targets. A class may have no records.
        num_views: number of views that form the features, each with L2 norm 1; public.
        scale: factors for the features, see `Encoder.scale`; None to leave features unscaled.

    Returns:
        Weights `[num_features, num_classes]` and offsets `[num_classes]`.
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
    penalty = RIDGE_FRACTION * num_views
    if scale is not None:
        # With few records, a teacher mostly uses the directions in which inputs vary most, so all
        # teachers make the same errors. If all directions are scaled to about the same variance,
        # each teacher makes more errors, but the errors differ between teachers, so the majority
        # outvotes them.
        rows = rows * scale
        penalty = SCALED_FRACTION
    num_records, num_features = rows.shape
    between_records = num_records <= num_features
    gram = rows @ rows.T if between_records else rows.T @ rows
    gram[np.diag_indices_from(gram)] += penalty
    right = targets if between_records else rows.T @ targets
    solved = right
    if len(gram):
        # LAPACK is called directly, because it raises no error and issues no warning if features
        # are so large that the penalty is lost to rounding. In this case, the weights are 0. An
        # error would reveal something about the records.
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
