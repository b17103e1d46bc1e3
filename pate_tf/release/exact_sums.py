"""Computes exact sums of private records' feature vectors. SENSITIVE: the sums have no noise.

A public encoder computes the feature vector of each record. The contribution of a record to the
sums does not depend on other records, and the sums do not depend on the order of the records. All
sums are integers, in units of 1 / LATTICE.
"""

import math

import numpy as np
import numpy.typing as npt
import scipy.special

from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.mechanisms.charged_once import BELOW, MOMENT_WEIGHT, RESIDUAL_NORM
from pate_tf.core.checks import FloatArray, IntArray
from pate_tf.core.dataset import target_rows
from pate_tf.core.sensitive import SumsByClass, VoteCounts, Votes

# An owner's feature vectors are rounded to multiples of this step, so that their sum does not
# depend on the order of the records.
OWNER_STEP = 2.0**-32
# Both factors of a product are multiples of 1 / PART_STEPS, so the product is a multiple of 1 /
# LATTICE. Stored vectors are such factors. The norm of a stored vector is at most about 1, so int16
# suffices.
PART_STEPS = 2**10
ROWS = 4_096  # number of records per step, which limits memory


def sums_of_votes(votes: Votes) -> VoteCounts | SumsByClass:
    """Counts the teachers' votes, or sums their predictions of numbers or labels. SENSITIVE.

    For numbers and several labels, each prediction is a vector, a row of `target_rows`. The entries
    of this vector are truncated toward zero to multiples of 1 / LATTICE. A vector with a norm above
    1 is treated as zero. So one teacher changes the sums of a query by at most sqrt(2) in L2 norm
    (docs/proofs/theory.md, Proposition D13).

    Args:
        votes: the teachers' labels, or their predictions of numbers or several labels.

    Returns:
        Counts or sums, `[num_queries, num_classes]`.
    """
    dataset = votes.dataset
    if dataset is None:
        return votes.counts()
    total = np.zeros((votes.labels.shape[1], dataset.num_classes), np.int64)
    for predictions in votes.labels:
        steps = np.trunc(target_rows(predictions, dataset) * (LATTICE * BELOW)).astype(np.int64)
        is_short = np.square(steps).sum(axis=1) <= LATTICE**2
        total += np.where(is_short[:, None], steps, 0)
    return SumsByClass(total)


@np.errstate(all="ignore")  # a warning would reveal something about a record
def owner_steps(vectors: FloatArray) -> IntArray:
    """Converts vectors to integers in units of `OWNER_STEP`; NaN and |values| above 8 become 0."""
    is_usable = np.abs(vectors) <= 8.0
    return np.rint(np.where(is_usable, vectors, 0.0) / OWNER_STEP).astype(np.int64)


def sums_by_class(
    vectors: FloatArray,
    labels: IntArray,
    *,
    num_classes: int,
    owners: npt.NDArray[np.generic] | None = None,
) -> IntArray:
    """Sums the records' feature vectors by class. SENSITIVE.

    Each record adds its vector to the column of its class. With owners, the total contribution of
    an owner is clipped to an L2 norm of 1. Contributions are truncated toward zero to multiples of
    1 / LATTICE, so the sums do not depend on the order of the records. The norm is verified in
    integer arithmetic. A contribution is treated as zero if its norm exceeds 1 or if it contains
    numbers that are not finite.

    Args:
        vectors: result of `models.encoder.record_vectors`, `[num_records, num_features + 1]`, each
            with an L2 norm of at most 1.
        labels: class of each record, `[num_records]`.
        num_classes: number of classes.
        owners: owner of each record, `[num_records]`; all records of each owner must be included.
            None if the unit of privacy is a single record.

    Returns:
        Sums in units of 1 / LATTICE, int64 `[num_features + 1, num_classes]`.
    """
    if owners is None:
        return _verified(vectors, np.arange(len(labels)), labels, num_classes)
    _, owner = np.unique(owners, return_inverse=True)
    pairs, place = np.unique(owner * num_classes + labels, return_inverse=True)
    totals = np.zeros((len(pairs), vectors.shape[1]), np.int64)
    np.add.at(totals, place, owner_steps(vectors))
    return sums_of_owners(
        totals, pairs // num_classes, pairs % num_classes, num_classes=num_classes
    )


def sums_of_owners(
    totals: IntArray, owners: IntArray, classes: IntArray, *, num_classes: int
) -> IntArray:
    """Sums owners' feature vectors by class; clips each owner to an L2 norm of 1. SENSITIVE.

    Args:
        totals: sums of the owner's `owner_steps` vectors for each pair of an owner and a class,
            `[num_pairs, num_features + 1]`.
        owners: index of the owner of each pair, `[num_pairs]`.
        classes: class of each pair, `[num_pairs]`, ascending for each owner. Pairs are distinct.
        num_classes: number of classes.

    Returns:
        Sums in units of 1 / LATTICE, see `sums_by_class`.
    """
    together = totals * OWNER_STEP
    norms = np.sqrt(np.bincount(owners, np.square(together).sum(axis=1)))
    shortened = together / np.maximum(norms, 1.0)[owners, None]
    return _verified(shortened, owners, classes, num_classes)


@np.errstate(all="ignore")  # a warning would reveal something about a record
def _verified(vectors: FloatArray, unit: IntArray, classes: IntArray, num_classes: int) -> IntArray:
    """Sums vectors by class; leaves out records (or owners) whose total norm exceeds 1."""
    steps = np.trunc(vectors * (LATTICE * BELOW))
    # The entries are integers up to 2^20, so int64 sums of their squares are exact. A comparison
    # with NaN is False, so vectors with NaN are left out.
    is_short: npt.NDArray[np.bool_] = np.abs(steps).max(axis=1) <= LATTICE
    squares = np.square(np.where(is_short[:, None], steps, 0.0).astype(np.int64)).sum(axis=1)
    total = np.zeros(unit.max(initial=-1) + 1, np.int64)
    np.add.at(total, unit, np.where(is_short, squares, LATTICE**2 + 1))
    steps[total[unit] > LATTICE**2] = 0.0
    # For fewer than 2^33 records, float64 sums of these integers are exact in any order.
    return (steps.T @ np.eye(num_classes)[classes]).astype(np.int64)


@np.errstate(all="ignore")  # a warning would reveal something about a record
def moments_by_class(
    vectors: FloatArray, targets: FloatArray, owners: npt.NDArray[np.generic] | None = None
) -> IntArray:
    """Sums feature vectors by class, and their second moments. SENSITIVE.

    Let w be `MOMENT_WEIGHT`. A record with the feature vector `v` and the target row `t` adds the
    outer product of `v` and the concatenation of `t` and `w * v`, divided by sqrt(1 + w^2).
    Negative entries of `v` and `t` are replaced by 0.

    Args:
        vectors: result of `models.encoder.record_vectors`, `[num_records, width]`.
        targets: result of `target_rows`, `[num_records, num_classes]`.
        owners: owner of each record, or None; see `sums_of_products`.

    Returns:
        Sums in units of 1 / LATTICE, `[width, num_classes + width]`.
    """
    norm = math.hypot(1.0, MOMENT_WEIGHT)
    vectors = np.maximum(vectors, 0.0)
    joined = np.hstack([np.maximum(targets, 0.0), MOMENT_WEIGHT * vectors]) / norm
    return sums_of_products(vectors, joined, owners)


@np.errstate(all="ignore")  # a warning would reveal something about a record
def sums_of_products(
    vectors: FloatArray, targets: FloatArray, owners: npt.NDArray[np.generic] | None = None
) -> IntArray:
    """Sums the outer product of each record's two vectors. SENSITIVE.

    Both vectors are truncated toward zero to multiples of 1 / PART_STEPS. So the norm of their
    product is verified exactly, and the sums do not depend on the order of the records. With
    owners, the sum of an owner's products is clipped to an L2 norm of 1. A contribution is treated
    as zero if its norm exceeds 1 or if it contains numbers that are not finite.

    Args:
        vectors: the first vector of each record, `[num_records, width]`.
        targets: the second vector of each record, `[num_records, num_columns]`.
        owners: owner of each record, `[num_records]`; all records of each owner must be included.
            None if the unit of privacy is a single record.

    Returns:
        Sums in units of 1 / LATTICE, `[width, num_columns]`.
    """
    factors = [np.trunc(factor * (PART_STEPS * BELOW)) for factor in (vectors, targets)]
    squares = math.prod(np.square(factor).sum(axis=1) for factor in factors)
    is_short = squares <= LATTICE**2  # False if there is a NaN
    first, second = (np.where(is_short[:, None], factor, 0.0) for factor in factors)
    if owners is None:  # float64 sums of these whole numbers are exact
        return (first.T @ second).astype(np.int64)
    total = np.zeros((first.shape[1], second.shape[1]))
    _, owner = np.unique(owners, return_inverse=True)
    order = np.argsort(owner, kind="stable")
    ends = np.cumsum(np.bincount(owner))[:-1]
    for rows in np.split(order, ends):
        table = first[rows].T @ second[rows]
        table /= max(1.0, np.sqrt(np.square(table).sum()) / (LATTICE * BELOW))
        table = np.trunc(table)
        total += np.where(np.square(table).sum() <= LATTICE**2, table, 0.0)
    return total.astype(np.int64)


# The functions below compute sums of residuals of a linear model. If sums are released in several
# rounds, each later round releases residuals (docs/proofs/theory.md, Proposition D10).


@np.errstate(all="ignore")  # a warning would reveal something about a record
def vector_steps(vectors: FloatArray) -> npt.NDArray[np.int16]:
    """Rounds vectors to integers in units of 1 / PART_STEPS; vectors of norm above 1 become 0."""
    is_short = np.square(vectors).sum(axis=1) <= 1.0 + 1e-9
    steps = np.rint(np.where(is_short[:, None], vectors, 0.0) * PART_STEPS)
    return np.asarray(steps, np.int16)


def residual_sums(
    vectors: npt.NDArray[np.int16], labels: IntArray, weights: FloatArray
) -> IntArray:
    """Sums the prediction errors (residuals) of a linear model over all records. SENSITIVE.

    A record's residual is its one-hot class minus the probabilities that the model predicts. The
    record adds the outer product of its feature vector and its residual. This product is clipped to
    an L2 norm of `RESIDUAL_NORM` and then divided by `RESIDUAL_NORM`. Both factors are truncated to
    multiples of a fixed step, so the norm of their product is verified exactly, and the sums are
    exact.

    Args:
        vectors: result of `vector_steps`, `[num_records, width]`.
        labels: class of each record, `[num_records]`.
        weights: weights of the linear model, `[width, num_classes]`, from `weights_of_rounds`.

    Returns:
        Sums in units of 1 / LATTICE, `[width, num_classes]`.
    """
    num_classes = weights.shape[1]
    total = np.zeros(weights.shape)
    for start in range(0, len(labels), ROWS):
        some = vectors[start : start + ROWS].astype(np.float64)
        missed = np.eye(num_classes)[labels[start : start + ROWS]]
        missed -= scipy.special.softmax(some @ (weights / PART_STEPS), axis=1)
        squares = np.einsum("ij,ij->i", some, some)
        lengths = np.sqrt(squares) / PART_STEPS
        missed /= np.maximum(RESIDUAL_NORM, lengths * np.linalg.norm(missed, axis=1))[:, None]
        missed = np.trunc(missed * (PART_STEPS * BELOW))
        # Float64 sums of these integers are exact. A comparison with NaN is False, so products with
        # NaN add 0.
        squares *= np.square(missed).sum(axis=1)
        missed[~(squares <= LATTICE**2)] = 0.0
        total += some.T @ missed
    return total.astype(np.int64)
