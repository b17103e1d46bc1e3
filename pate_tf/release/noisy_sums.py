"""Feature sums: vectors of private records are summed by class, charged, released with noise.

What was released once is returned again from the ledger and charged once, as by the labeller.
"""

import dataclasses
import hashlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import scipy.special

from pate_tf.accounting.charge import Cost
from pate_tf.accounting.composition import lacking
from pate_tf.accounting.conversions import LATTICE
from pate_tf.accounting.mechanisms.base import Mechanism, ReleasesFeatureSums
from pate_tf.accounting.mechanisms.charged_once import RESIDUAL_NORM
from pate_tf.core.sensitive import SumsByClass
from pate_tf.core.validation import IntArray, frozen_view
from pate_tf.ledger import Ledger
from pate_tf.ledger.journal import canonical_json, fault_point
from pate_tf.release.noise import NoiseSource, check_drawable
from pate_tf.release.votes import QUERY_DIGEST_BYTES, check_owners, cost_of_labels

RIDGE = 3.0  # standard deviations of the noise
BELOW = 1.0 - 2.0**-40  # more than is lost by rounding, so that no norm is above 1
OWNER_STEP = 2.0**-32  # in which an owner's vectors are added up: the order does not matter


@np.errstate(all="ignore")  # a warning would tell of a record
def owner_steps(vectors: npt.NDArray[np.float64]) -> IntArray:
    """Returns vectors in whole steps of `OWNER_STEP`, int64; numbers beyond 8 or NaN are 0."""
    is_usable = np.abs(vectors) <= 8.0
    return np.rint(np.where(is_usable, vectors, 0.0) / OWNER_STEP).astype(np.int64)


def sums_by_class(
    vectors: npt.NDArray[np.float64],
    labels: IntArray,
    *,
    num_classes: int,
    owners: npt.NDArray[np.generic] | None = None,
) -> IntArray:
    """Returns sums of vectors by class, int64 `[num_features + 1, num_classes]`. SENSITIVE.

    Each record adds its vector in the column of its class, or each owner adds vectors of an L2 norm
    of at most 1 together: longer ones are shortened. All is truncated toward zero to whole steps
    of 1 / LATTICE, so sums do not depend on the order of records. The norm is verified in whole
    numbers: what is longer, or not finite, counts as zero.

    Args:
        vectors: of `models.encoder.record_vectors`, `[num_records, num_features + 1]`, each of an
            L2 norm of at most 1.
        labels: `[num_records]`.
        num_classes: number of classes.
        owners: whose each record is, `[num_records]`; all records of an owner must be here. None
            where single records are protected.

    Returns:
        In steps of 1 / LATTICE.
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
    """Returns sums of vectors by class, where each owner adds a norm of at most 1. SENSITIVE.

    Args:
        totals: sums of `owner_steps` of an owner's records of one class, `[num_pairs,
            num_features + 1]`.
        owners: a number for the owner of each pair, `[num_pairs]`.
        classes: of each pair, `[num_pairs]`, ascending for each owner; no pair is there twice.
        num_classes: number of classes.

    Returns:
        As `sums_by_class`.
    """
    together = totals * OWNER_STEP
    norms = np.sqrt(np.bincount(owners, np.square(together).sum(axis=1)))
    shortened = together / np.maximum(norms, 1.0)[owners, None]
    return _verified(shortened, owners, classes, num_classes)


@np.errstate(all="ignore")  # a warning would tell of a record
def _verified(
    vectors: npt.NDArray[np.float64], unit: IntArray, classes: IntArray, num_classes: int
) -> IntArray:
    """Returns sums by class of units' vectors that are together of a norm of at most 1."""
    steps = np.trunc(vectors * (LATTICE * BELOW))
    # Whole numbers of at most 2^20, whose squares int64 adds up exactly. NaN compares as false.
    is_short: npt.NDArray[np.bool_] = np.abs(steps).max(axis=1) <= LATTICE
    squares = np.square(np.where(is_short[:, None], steps, 0.0).astype(np.int64)).sum(axis=1)
    total = np.zeros(unit.max(initial=-1) + 1, np.int64)
    np.add.at(total, unit, np.where(is_short, squares, LATTICE**2 + 1))
    steps[total[unit] > LATTICE**2] = 0.0
    # Sums of fewer than 2^33 records are whole numbers that float64 holds, in whatever order.
    return (steps.T @ np.eye(num_classes)[classes]).astype(np.int64)


# Rounds of residual sums (docs/proofs/theory.md, Proposition D10).

VECTOR_STEPS = 2**14  # of stored vectors, whose norm is at most 1: int16
WEIGHT_STEPS = 2**20  # logits are exact: whole numbers that float64 adds up in any order
PART_STEPS = 2**10  # of both factors of a record's part, whose product has steps of 1 / LATTICE
LARGEST_LOGIT = 2.0**18  # in steps of both, below 2^53
ROWS = 4_096  # records at a time


@np.errstate(all="ignore")  # a warning would tell of a record
def vector_steps(vectors: npt.NDArray[np.float64]) -> npt.NDArray[np.int16]:
    """Returns vectors truncated to whole steps of 1 / VECTOR_STEPS; those not finite are 0."""
    is_short = np.square(vectors).sum(axis=1) <= 1.0 + 1e-9
    steps = np.trunc(np.where(is_short[:, None], vectors, 0.0) * VECTOR_STEPS)
    return np.asarray(steps, np.int16)


def weights_of_rounds(
    values: IntArray, moments: npt.NDArray[np.float64], num_records: int, noise: float
) -> npt.NDArray[np.float64]:
    """Returns weights of the linear model that follows from noisy sums, `[width, num_classes]`.

    Newton's method for softmax regression from weights 0, whose second derivatives are taken for a
    quarter of the number of records times the pool's second moments, with a ridge of `RIDGE`
    standard deviations of the noise. Public.

    Args:
        values: noisy sums of each round, in steps of 1 / LATTICE, `[num_rounds, width,
            num_classes]`.
        moments: means of the products of two numbers of a pool's vector, `[width, width]`.
        num_records: private records.
        noise: standard deviation in each round, in what a record adds at most.
    """
    norms = np.array([1.0] + [RESIDUAL_NORM] * (len(values) - 1))
    total = np.tensordot(norms, values, axes=1) / LATTICE
    noise *= float(np.sqrt(np.square(norms).mean()))
    mean = moments[:, -1] / np.sqrt(moments[-1, -1])  # the last number is a constant
    total -= num_records / total.shape[1] * mean[:, None]  # at weights 0 all classes are equal
    curvature = num_records / 4.0 * moments + RIDGE * noise * np.eye(len(moments))
    largest = LARGEST_LOGIT / len(moments)  # whatever the noise, so that logits stay exact
    weights = np.clip(np.linalg.solve(curvature, total), -largest, largest)
    return np.asarray(np.rint(weights * WEIGHT_STEPS) / WEIGHT_STEPS)


def residual_sums(
    vectors: npt.NDArray[np.int16], labels: IntArray, weights: npt.NDArray[np.float64]
) -> IntArray:
    """Returns the sum of what a linear model misses of records, `[width, num_classes]`. SENSITIVE.

    A record adds the outer product of its vector and its class's one-hot vector less the model's
    probabilities, clipped to an L2 norm of `RESIDUAL_NORM` and divided by it. Both factors are
    whole numbers of steps, so that the norm of their product is verified exactly, and sums are
    exact.

    Args:
        vectors: of `vector_steps`, `[num_records, width]`.
        labels: `[num_records]`.
        weights: of `weights_of_rounds`.

    Returns:
        In steps of 1 / LATTICE.
    """
    num_classes = weights.shape[1]
    total = np.zeros(weights.shape)
    for start in range(0, len(labels), ROWS):
        some = vectors[start : start + ROWS] / VECTOR_STEPS
        missed = np.eye(num_classes)[labels[start : start + ROWS]]
        missed -= scipy.special.softmax(some @ weights, axis=1)
        some = np.rint(some * PART_STEPS)
        lengths = np.linalg.norm(some, axis=1) / PART_STEPS
        missed /= np.maximum(RESIDUAL_NORM, lengths * np.linalg.norm(missed, axis=1))[:, None]
        missed = np.trunc(missed * (PART_STEPS * BELOW))
        # Whole numbers that float64 holds, as are their sums; NaN compares as false.
        squares = np.square(some).sum(axis=1) * np.square(missed).sum(axis=1)
        missed[~(squares <= LATTICE**2)] = 0.0
        total += some.T @ missed
    return total.astype(np.int64)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReleasedSums:
    """Public: noisy sums that were charged, with their cost.

    Attributes:
        values: int64 `[num_rounds * num_rows, num_classes]` in units of 1 / LATTICE, read-only: the
            rounds' tables below each other; one but for `GaussianResidualSums`.
        cost: data-independent.
        ledger_rows: the row that was charged; several only where a stopped run could not go on.
        secure_noise: False if the noise came from a seed; then nothing is private.
    """

    values: IntArray = dataclasses.field(repr=False)
    cost: Cost
    ledger_rows: tuple[int, ...]
    secure_noise: bool


OF_RECORDS = "sums of all records by class"


def sums_digests(mechanism: ReleasesFeatureSums, about: str = OF_RECORDS) -> list[bytes]:
    """Returns what identifies the table of each round in the ledger of its ensemble."""
    what: list[object] = [mechanism.to_dict(), about]
    later = range(1, mechanism.num_rounds)
    rounds = [what, *([*what, number, RESIDUAL_NORM] for number in later)]
    return [
        hashlib.blake2b(canonical_json(table).encode(), digest_size=QUERY_DIGEST_BYTES).digest()
        for table in rounds
    ]


def sums_in_ledger(
    ledger: Ledger, mechanism: ReleasesFeatureSums, about: str = OF_RECORDS
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Returns the numbers that a ledger has of a mechanism, of all rounds or the first of them.

    Second, the rows that charged them.
    """
    digests = sums_digests(mechanism, about)
    answers = ledger.stored_answers(digests)
    stored = [answers[digest] for digest in digests if digest in answers]
    numbers = tuple(number for answer in stored for number in answer.noisy_counts or ())
    return numbers, tuple(sorted({answer.debit for answer in stored}))


def release_sums(
    sums: SumsByClass,
    mechanism: Mechanism,
    *,
    ledger: Ledger,
    noise: NoiseSource,
    unit: str,
    next_sums: Callable[[IntArray], IntArray] | None = None,
    about: str = OF_RECORDS,
) -> ReleasedSums:
    """Charges the sums of an ensemble's records, draws noise, and returns both together.

    Guarantees, under those of `Ledger`. They are charged durably before noise is drawn, once for
    each amount of noise and number of rounds; all rounds together. Each round is stored durably
    before the next one begins, and nothing is released before all are. A run that was stopped goes
    on under its debit: stored rounds are taken as they are, missing ones are drawn.

    Args:
        sums: of the ensemble's records, each of which adds a length of at most 1.
        mechanism: one that adds up records, whose noise was fixed without looking at private data.
        ledger: the ensemble's, opened for labeling.
        noise: where privacy noise comes from.
        unit: what is protected, "record" or "owner".
        next_sums: with several rounds, from the noisy sums so far, `[num_earlier, num_rows,
            num_classes]`, to the exact ones of the next round.
        about: what was summed; other sums of the ensemble's records are charged apart.

    Raises:
        ValueError: if it adds up none, the noise can't be drawn, or it leaves no finite guarantee
            to owners.
        BudgetExceeded: if they don't fit; then nothing is charged or drawn.
        LedgerError: if the ledger can't be used.
    """
    if not isinstance(mechanism, ReleasesFeatureSums):
        raise lacking(mechanism, "sums of records", "sums")
    check_drawable(mechanism)
    if (mechanism.num_rounds > 1) != (next_sums is not None):
        raise ValueError(
            f"num_rounds: expected `next_sums` with several rounds and with them alone, got "
            f"{mechanism.num_rounds} rounds"
        )
    digests, shape = sums_digests(mechanism, about), (-1, *sums.values.shape)
    with ledger.exclusive():
        noisy = np.array(sums_in_ledger(ledger, mechanism, about)[0], np.int64).reshape(shape)
        if len(noisy) < mechanism.num_rounds:
            debit = ledger.open_debit(digests, secure_noise=noise.is_secure)
            if debit is None:
                ledger.check_affordable(mechanism, 1)
                if unit == "owner":
                    check_owners(ledger, mechanism, 1)
                fault_point("before_debit")
                debit = ledger.debit(mechanism, digests, secure_noise=noise.is_secure)
            for digest in digests[len(noisy) :]:
                exact = sums.values if next_sums is None or not len(noisy) else next_sums(noisy)
                drawn = mechanism.draw_sums(exact, noise)
                fault_point("noise_drawn")
                # Until it is stored, a draw is in the memory of this process alone, which has the
                # ledger for itself; and whether it gets stored does not depend on what was drawn.
                # So one that a crash takes may be drawn anew for the same debit.
                most_frequent = int(drawn[-1].argmax())  # in round 1, of noisy numbers of records
                ledger.store_answers(debit, [digest], [most_frequent], drawn.reshape(1, -1))
                noisy = np.concatenate([noisy, drawn[None]])
        _, rows = sums_in_ledger(ledger, mechanism, about)
    return ReleasedSums(
        values=frozen_view(noisy.reshape(-1, shape[-1])),
        cost=cost_of_labels(ledger, mechanism, num_distinct=len(rows), rows=rows, unit=unit),
        ledger_rows=rows,
        secure_noise=ledger.is_secure,
    )
