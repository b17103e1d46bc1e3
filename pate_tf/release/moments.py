"""Sums by class with second moments: linear regression without a public pool."""

import math

import numpy as np
import numpy.typing as npt

from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.mechanisms.charged_once import MOMENT_WEIGHT
from pate_tf.core.validation import IntArray
from pate_tf.models.encoder import CONSTANT, CONSTANT_SHARE
from pate_tf.release.noisy_sums import BELOW, PART_STEPS

NEIGHBORS = 5.0  # bins over which weights of a number are alike
MOST_EXPLAINED = 0.9  # of the classes' variance, that is believed of noisy moments


@np.errstate(all="ignore")  # a warning would tell of a record
def moments_by_class(
    vectors: npt.NDArray[np.float64],
    labels: IntArray,
    *,
    num_classes: int,
    owners: npt.NDArray[np.generic] | None = None,
) -> IntArray:
    """Returns sums by class beside second moments, `[width, num_classes + width]`. SENSITIVE.

    A record adds the outer product of its vector v and (its class's one-hot vector, w v), w being
    `MOMENT_WEIGHT`, divided by sqrt(1 + w^2). Both factors are truncated toward zero to whole
    steps, and what is negative counts as 0. So the norm of their product is verified exactly, and
    sums do not depend on the order of records. An owner's tables are added up, and shortened to a
    norm of 1 together. What is longer, or not finite, counts as zero.

    Args:
        vectors: of `models.encoder.record_vectors`, `[num_records, width]`.
        labels: `[num_records]`.
        num_classes: number of classes.
        owners: whose each record is, `[num_records]`; all records of an owner must be here. None
            where single records are protected.

    Returns:
        In steps of 1 / LATTICE.
    """
    norm = math.hypot(1.0, MOMENT_WEIGHT)
    targets = np.hstack([np.eye(num_classes)[labels], MOMENT_WEIGHT * vectors]) / norm
    factors = [
        np.trunc(np.maximum(factor, 0.0) * (PART_STEPS * BELOW)) for factor in (vectors, targets)
    ]
    squares = math.prod(np.square(factor).sum(axis=1) for factor in factors)
    is_short = squares <= LATTICE**2  # NaN compares as false
    first, second = (np.where(is_short[:, None], factor, 0.0) for factor in factors)
    if owners is None:  # whole numbers that float64 holds, as are their sums
        return (first.T @ second).astype(np.int64)
    total = np.zeros((first.shape[1], second.shape[1]))
    _, owner = np.unique(owners, return_inverse=True)
    order, ends = np.argsort(owner, kind="stable"), np.cumsum(np.bincount(owner))[:-1]
    for rows in np.split(order, ends):
        table = first[rows].T @ second[rows]
        table /= max(1.0, np.sqrt(np.square(table).sum()) / (LATTICE * BELOW))
        table = np.trunc(table)
        total += np.where(np.square(table).sum() <= LATTICE**2, table, 0.0)
    return total.astype(np.int64)


def weights_of_moments(
    values: IntArray,
    num_classes: int,
    noise: float,
    *,
    num_records: int | None = None,
    groups: IntArray | None = None,
) -> npt.NDArray[np.float64]:
    """Returns weights of a linear model from noisy moments, `[width, num_classes]`. Public.

    Linear regression on class indicators, after Wang 2018: eigenvalues of the centered moments
    that noise alone may have are shrunk (soft thresholding). Of one-hot features the moments
    within a group follow from the means, and sums over a group are known. Weights of a number's
    bins are expected to be alike where bins are close (a Gaussian process). The weights are scaled
    as those of linear discriminant analysis, so that their softmax is a probability.

    Args:
        values: noisy, in steps of 1 / LATTICE, `[width, num_classes + width]`; the last number of
            a vector is a constant.
        num_classes: number of classes.
        noise: standard deviation on each number, in what a record adds at most.
        num_records: private records; None where that is not public.
        groups: of one-hot features, of which each group has one that is not 0: its number,
            `[width - 1]`, below 0 of the bins of a number, in ascending order. None for other
            features.
    """
    norm = math.hypot(1.0, MOMENT_WEIGHT)
    sums, moments = np.split(values * (norm / LATTICE), [num_classes], axis=1)
    moments = (moments + moments.T) / (2.0 * MOMENT_WEIGHT)
    deviation = noise * norm / MOMENT_WEIGHT / math.sqrt(2.0)  # of a mean of two
    threshold = deviation * math.sqrt(len(moments))  # half the largest eigenvalue of noise alone
    # Two measurements of the sum of all vectors, each by its precision.
    precisions = 1.0 / (num_classes * (noise * norm) ** 2), (CONSTANT / deviation) ** 2
    total = np.average(
        [sums.sum(axis=1), moments[:, -1] / CONSTANT], axis=0, weights=precisions
    ).clip(0.0)
    number = num_records or max(total[-1] / CONSTANT, 1.0)
    counts = sums[-1] / CONSTANT
    if groups is not None:  # the sums of each group add up to the number of records, too
        is_of = groups == np.unique(groups)[:, None]  # [num_groups, width - 1]
        size = math.sqrt((1.0 - CONSTANT_SHARE) / len(is_of))  # of what is not 0
        precise = [CONSTANT_SHARE, *(size**2 / is_of.sum(axis=1))]
        counts = np.average([counts, *(is_of @ sums[:-1] / size)], axis=0, weights=precise)
    shares = np.maximum(counts, 1.0)
    shares /= shares.sum()
    sums, total, moments = sums[:-1], total[:-1], moments[:-1, :-1]  # without the constant
    root = np.eye(len(moments))  # of how weights are expected to vary together
    if groups is None:
        known = np.zeros_like(moments)
        centered = moments - np.outer(total, total) / number
    else:
        total *= number * size / (np.maximum(is_of @ total, 1.0) @ is_of)
        products = np.outer(total, total) / number
        is_same = groups == groups[:, None]
        known = np.diag(size * total) - np.where(is_same, products, 0.0)
        # Deviations from the mean add up to 0 within a group: what does not is noise.
        centering = np.eye(len(groups)) - is_of.T @ (is_of / is_of.sum(axis=1, keepdims=True))
        centered = np.where(is_same, 0.0, centering @ (moments - products) @ centering)
        places = np.arange(len(groups))
        alike = np.exp(-np.abs(places[:, None] - places) / NEIGHBORS)
        covariance = root + np.where(is_same & (groups < 0), alike, 0.0)
        root = np.linalg.cholesky(covariance * (len(root) / np.trace(covariance)))
    along, directions = np.linalg.eigh(centered)
    along = np.sign(along) * np.maximum(np.abs(along) - threshold, 0.0)
    along, directions = np.linalg.eigh(
        root.T @ (known + (directions * along) @ directions.T) @ root
    )
    directions = root @ directions
    beyond = sums - np.outer(total, shares)
    inverse = 1.0 / (np.maximum(along, 0.0) + threshold / 2.0)
    weights = directions @ ((directions.T @ beyond) * inverse[:, None])
    variance = float((shares * (1.0 - shares)).sum())
    spread = float((np.square(directions) @ inverse).sum())
    by_noise = num_classes * (noise * norm) ** 2 * spread
    explained = (float((weights * beyond).sum()) - by_noise) / (number * variance)
    scale = (num_classes - 1) / (variance * (1.0 - min(max(explained, 0.0), MOST_EXPLAINED)))
    intercept = (shares - total @ weights / number) / CONSTANT
    return scale * np.vstack([weights, intercept])
